//! The bindings: what `xtask/nccl-bindgen` makes of the header, in this repository's format.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::NcclError;
use super::wheel::{Wheel, WheelError};
use crate::{docs, places};

const BINDINGS: &str = "nccl-sys/src/bindings.rs";

const LIBCLANG: Wheel = Wheel {
    package: "libclang",
    version: "18.1.1",
    sha256: &[
        "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b",
        "54dda940a4a0491a9d1532bf071ea3ef26e6dbaf03b5000ed94dd7174e8f9592",
    ],
    files: &["clang/native/libclang.so"],
};

/// Fetches libclang, unless it is there, and tells its folder.
pub(super) fn fetch_libclang(target: &Path) -> Result<PathBuf, WheelError> {
    let folder = target.join("nccl").join("libclang");
    LIBCLANG.fetch(&folder)?;
    Ok(folder)
}

/// The bindings of a header.
pub(super) fn generate(header: &Path, libclang: &Path) -> Result<String, NcclError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut bindgen = Command::new(cargo);
    bindgen.args(["run", "--quiet", "--locked", "--manifest-path"]);
    bindgen.arg(places::root().join("xtask/nccl-bindgen/Cargo.toml"));
    bindgen.arg("--target-dir").arg(places::target().join("nccl/bindgen"));
    bindgen.arg("--").arg(header).env("LIBCLANG_PATH", libclang).stdin(Stdio::null());
    let raw = stdout_of("nccl-bindgen", &mut bindgen, b"")?;

    let mut rustfmt = Command::new("rustfmt");
    rustfmt.args(["--edition", "2024", "--config-path"]).arg(places::root().join("rustfmt.toml"));
    rustfmt.stdin(Stdio::piped());
    let formatted = stdout_of("rustfmt", &mut rustfmt, &raw)?;
    String::from_utf8(formatted)
        .map_err(|error| NcclError::Failed { program: "rustfmt", reason: error.to_string() })
}

/// Returns the output of a program that reads `input`. Its standard error is not captured.
fn stdout_of(program: &'static str, command: &mut Command, input: &[u8]) -> Result<Vec<u8>, NcclError> {
    let failed = |source| NcclError::Start { program, source };
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input).map_err(failed)?;
    }
    let Output { status, stdout, .. } = child.wait_with_output().map_err(failed)?;
    if status.success() { Ok(stdout) } else { Err(NcclError::Failed { program, reason: status.to_string() }) }
}

/// Fails if the committed bindings are others.
pub(super) fn compare(text: &str, out: &mut impl Write) -> Result<(), NcclError> {
    if let Some(difference) = docs::difference(&places::root(), BINDINGS, text) {
        return Err(NcclError::Stale(difference));
    }
    writeln!(out, "{BINDINGS} is up to date")?;
    Ok(())
}

/// Writes the bindings to where they are committed.
pub(super) fn write(text: &str, out: &mut impl Write) -> Result<(), NcclError> {
    let path = places::root().join(BINDINGS);
    fs::write(&path, text).map_err(|source| NcclError::File { path, source })?;
    writeln!(out, "wrote {BINDINGS}")?;
    Ok(())
}
