//! Generates the bindings with `xtask/nccl-bindgen` and rustfmt.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::wheel::{Part, Wheel};
use crate::{commands, docs, places};

const BINDINGS: &str = "nccl-sys/src/bindings.rs";

const LIBCLANG: Wheel = Wheel {
    package: "libclang",
    version: "18.1.1",
    sha256: &[
        "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b",
        "54dda940a4a0491a9d1532bf071ea3ef26e6dbaf03b5000ed94dd7174e8f9592",
    ],
    part: Part::Files(&["clang/native/libclang.so"]),
};

/// Downloads libclang unless it is already there, and returns its folder.
pub(super) fn fetch_libclang(target: &Path) -> Result<PathBuf> {
    let folder = target.join("nccl").join("libclang");
    LIBCLANG.fetch(&folder)?;
    Ok(folder)
}

pub(super) fn generate(header: &Path, libclang: &Path) -> Result<String> {
    let target = places::target().join("nccl");
    let mut bindgen = commands::cargo();
    bindgen.args(["run", "--quiet", "--locked", "--manifest-path"]);
    bindgen.arg(places::root().join("xtask/nccl-bindgen/Cargo.toml"));
    bindgen.arg("--target-dir").arg(target.join("bindgen"));
    bindgen.arg("--").arg(header).env("LIBCLANG_PATH", libclang);
    let text = commands::output(&mut bindgen)?;

    let path = target.join("bindings.rs");
    fs::write(&path, text).map_err(Error::file(&path))?;
    let mut rustfmt = Command::new("rustfmt");
    rustfmt.args(["--edition", "2024", "--config-path"]).arg(places::root().join("rustfmt.toml"));
    commands::run(rustfmt.arg(&path))?;
    fs::read_to_string(&path).map_err(Error::file(&path))
}

/// Returns an error if the committed bindings differ.
pub(super) fn compare(text: &str, out: &mut impl Write) -> Result<()> {
    if let Some(difference) = docs::difference(&places::root(), BINDINGS, text) {
        return Err(Error::Outdated { count: 1, task: "nccl-bindings", differences: difference });
    }
    writeln!(out, "{BINDINGS} is up to date")?;
    Ok(())
}

pub(super) fn write(text: &str, out: &mut impl Write) -> Result<()> {
    let path = places::root().join(BINDINGS);
    fs::write(&path, text).map_err(Error::file(&path))?;
    writeln!(out, "wrote {BINDINGS}")?;
    Ok(())
}
