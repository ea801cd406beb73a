//! Real NCCL libraries for tests: that in `COMM_NCCL_PATH`, or all that `cargo xtask nccl-fetch`
//! has downloaded.
//!
//! Each test runs in a separate process per library, because a process must not load two. Without a
//! library, tests print that to standard error, and fail if `COMM_REQUIRE_NCCL=1`.

use std::env;
use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;

use nccl_sys::Search;

/// Set in the process of a test.
const INSIDE: &str = "NCCL_TEST_INSIDE";

/// Runs the test of this name with every library, which `check` loads through the environment.
#[track_caller]
pub(crate) fn for_each(test: &str, check: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        return check();
    }
    let libraries = all();
    if libraries.is_empty() {
        let message = format!("{test}: no libnccl is here; run `cargo xtask nccl-fetch`\n");
        assert_ne!(env::var("COMM_REQUIRE_NCCL").as_deref(), Ok("1"), "{message}");
        // The test harness shows the output of failed tests only.
        stderr().write_all(message.as_bytes()).unwrap();
    }
    for library in libraries {
        let mut inside = Command::new(env::current_exe().unwrap());
        inside.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").env(Search::VARIABLE, &library);
        // NCCL ignores loopback interfaces by default. GPUs are hidden.
        inside.env("NCCL_SOCKET_IFNAME", "lo").env("CUDA_VISIBLE_DEVICES", "").env_remove("NCCL_DEBUG");
        let output = inside.output().unwrap();
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
        assert!(output.status.success(), "with {}:\n{stdout}{stderr}", library.display());
        assert!(stdout.contains("1 passed"), "no test is named {test}:\n{stdout}");
    }
}

/// The folder of downloaded libraries, each in a folder of its version.
pub(crate) fn fetched() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("nccl")
}

fn all() -> Vec<PathBuf> {
    if let Some(path) = env::var_os(Search::VARIABLE) {
        return vec![path.into()];
    }
    let Ok(folders) = fs::read_dir(fetched()) else { return Vec::new() };
    let libraries = folders.map(|folder| folder.unwrap().path().join("libnccl.so.2"));
    libraries.filter(|library| library.is_file()).collect()
}
