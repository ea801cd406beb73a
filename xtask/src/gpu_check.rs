//! Builds the suite for GPUs, and runs it on this machine's.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::commands::{self, CommandError};
use crate::compare::{self, CompareError};
use crate::places;

/// Run the suite for GPUs on a real one, and write docs/gpu-report.md.
///
/// Needs an NVIDIA driver, and an NCCL in COMM_NCCL_PATH or where the system's loader finds it
/// (`cargo xtask nccl-fetch` fetches one). Fails if any case does; the report is then written all
/// the same. If nothing can be run, the page stays as it is.
#[derive(Debug, Args)]
pub(crate) struct GpuCheck {
    /// Run nothing: put the program here, to be carried to a machine with a GPU, where it needs
    /// nothing else
    #[arg(long, value_name = "FILE", conflicts_with = "arguments")]
    binary_only: Option<PathBuf>,

    /// Arguments for the program, such as `-- --no-speed --case split`; see `-- --help`
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Why there is no report, or a bad one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GpuCheckError {
    /// The state of the library is unknown.
    #[error(transparent)]
    Commit(#[from] CompareError),
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The program could not be put where it was wanted.
    #[error("{}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// Standard output is closed.
    #[error("cannot write")]
    Output(#[from] io::Error),
}

impl GpuCheck {
    /// Builds, and then runs or hands out.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), GpuCheckError> {
        let (root, target) = (places::root(), places::target());
        let program = build(&root, &target)?;
        if let Some(path) = &self.binary_only {
            fs::copy(&program, path).map_err(|source| GpuCheckError::File { path: path.clone(), source })?;
            writeln!(out, "wrote {}", path.display())?;
            return Ok(());
        }
        let mut command = Command::new(&program);
        command.arg("--out").arg(target.join("gpu-check"));
        command.arg("--report").arg(root.join("docs/gpu-report.md")).args(&self.arguments);
        Ok(commands::run(&mut command)?)
    }
}

/// Builds the program as users build it, and lets it know what it is made of.
fn build(root: &Path, target: &Path) -> Result<PathBuf, GpuCheckError> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "--package", "gpu-check", "--bin", "gpu-check"]);
    commands::run(cargo.env("GPU_CHECK_COMMIT", compare::commit(root)?).current_dir(root))?;
    Ok(target.join("release/gpu-check"))
}
