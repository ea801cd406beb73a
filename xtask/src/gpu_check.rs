//! Builds the GPU suite and runs it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::error::{Error, Result};
use crate::{commands, compare, places};

/// Run the GPU suite on this machine, and write docs/gpu-report.md.
///
/// Needs an NVIDIA driver, and NCCL in COMM_NCCL_PATH or in the library path (`cargo xtask
/// nccl-fetch` downloads one). Fails if a case fails, after writing the report. If no case can run,
/// the report does not change.
#[derive(Debug, Args)]
pub(crate) struct GpuCheck {
    /// Run nothing, and copy the program to this path, for a machine with a GPU. It needs no other
    /// files
    #[arg(long, value_name = "FILE", conflicts_with = "arguments")]
    binary_only: Option<PathBuf>,

    /// Arguments of the program, such as `-- --no-speed --case split`; see `-- --help`
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

impl GpuCheck {
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<()> {
        let (root, target) = (places::root(), places::target());
        let program = build(&root, &target)?;
        if let Some(path) = &self.binary_only {
            fs::copy(&program, path).map_err(Error::file(path))?;
            writeln!(out, "wrote {}", path.display())?;
            return Ok(());
        }
        let mut command = Command::new(&program);
        command.arg("--out").arg(target.join("gpu-check"));
        command.arg("--report").arg(root.join("docs/gpu-report.md")).args(&self.arguments);
        commands::run(&mut command)
    }
}

/// Builds the program with the release profile and the commit.
fn build(root: &Path, target: &Path) -> Result<PathBuf> {
    let mut cargo = commands::cargo();
    cargo.args(["build", "--quiet", "--release", "--package", "gpu-check", "--bin", "gpu-check"]);
    commands::run(cargo.env("GPU_CHECK_COMMIT", compare::commit(root)?).current_dir(root))?;
    Ok(target.join("release/gpu-check"))
}
