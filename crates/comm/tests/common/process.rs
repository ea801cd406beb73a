//! Ranks as real processes.
//!
//! A test binary starts itself once per rank with the ignored test `rank`, which runs its role and
//! prints its results. In a binary with several modules, the role begins with the module of this
//! test, as in `shrink::go on`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use comm::tcp::TcpStoreServer;

use super::{JOB, store};

const ROLE: &str = "COMM_TEST_ROLE";

/// The process of a rank. It is killed with the test, so that a failure leaves no processes.
pub(crate) struct Rank {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

/// Starts the ranks of a role, with these environment variables, and their store.
pub(crate) fn start<V: IntoIterator<Item = (&'static str, String)>>(
    role: &str,
    ranks: usize,
    variables: impl Fn(usize) -> V,
) -> (TcpStoreServer, Vec<Rank>) {
    let store = store();
    let start = |rank: usize| {
        let mut command = command(role, &store, (rank, ranks));
        command.envs(variables(rank));
        Rank::start(command)
    };
    let ranks = (0..ranks).map(start).collect();
    (store, ranks)
}

/// Returns a command for a rank of this role that meets the others in this store.
pub(crate) fn command(role: &str, store: &TcpStoreServer, (rank, ranks): (usize, usize)) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", store.local_addr().port().to_string())
        .env("COMM_STORE", "launcher");
    set_role(&mut command, role);
    command
}

/// Makes this test binary, to which the command leads, run a role.
pub(crate) fn set_role(command: &mut Command, role: &str) {
    let (test, role) = match role.split_once("::") {
        Some((module, role)) => (format!("{module}::rank"), role),
        None => ("rank".to_owned(), role),
    };
    command.arg(test).args(["--exact", "--ignored", "--nocapture", "--test-threads=1"]).env(ROLE, role);
}

/// Returns the role of this process, or `None` outside of such a process.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

impl Rank {
    /// Starts a command with a role as a rank.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .env("COMM_JOB_ID", format!("{JOB:x}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Returns the next line that the rank reported, without lines of the test harness.
    pub(crate) fn report(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some((_, report)) = line.split_once("report: ") {
                return Some(report.trim_end().to_owned());
            }
        }
    }

    /// Lets a rank continue that waits for input.
    pub(crate) fn resume(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
