//! Tests the backend of PyTorch.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use crate::error::{Error, Result};
use crate::{commands, places};

/// Set to let the tests fail if there is no PyTorch.
const REQUIRED: &str = "COMM_REQUIRE_TORCH";

/// Build the Python package comm_torch, and test it with PyTorch
///
/// Without PyTorch, it prints that nothing is tested; with COMM_REQUIRE_TORCH=1 it fails then.
#[derive(Debug, Args)]
pub(crate) struct TorchTest {
    /// The interpreter that has PyTorch
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Also run PyTorch's own tests of backends, which need its packages expecttest and hypothesis
    /// and take about ten minutes, under the names of comm and of gloo
    #[arg(long)]
    suite: bool,
}

impl TorchTest {
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<()> {
        if let Err(error) = commands::output(self.python().args(["-c", "import torch"])) {
            if env::var_os(REQUIRED).is_some() {
                return Err(error);
            }
            writeln!(out, "comm_torch is not tested: {} has no PyTorch", self.python.display())?;
            return Ok(());
        }
        let tests = places::root().join("python/tests");
        let packages = assemble()?;
        let python = || {
            let mut python = self.python();
            python.env("PYTHONPATH", &packages).current_dir(&tests);
            python
        };
        commands::run(python().args(["-m", "unittest", "discover", "--verbose"]))?;
        if self.suite {
            for backend in ["comm", "comm-as-gloo"] {
                commands::run(python().arg("pytorch_suite.py").env("BACKEND", backend))?;
            }
        }
        Ok(())
    }

    fn python(&self) -> Command {
        let mut python = Command::new(&self.python);
        python.stdin(Stdio::null());
        python
    }
}

/// Builds the package in a folder of its own, and returns the folder to search for packages.
fn assemble() -> Result<PathBuf> {
    let (root, target) = (places::root(), places::target());
    let mut cargo = commands::cargo();
    cargo.args(["build", "--package", "comm-torch", "--features", "pyo3/extension-module"]);
    commands::run(cargo.current_dir(&root))?;
    let packages = target.join("python");
    let package = packages.join("comm_torch");
    fs::create_dir_all(&package).map_err(Error::file(&package))?;
    let sources = root.join("python/comm_torch");
    for entry in fs::read_dir(&sources).map_err(Error::file(&sources))? {
        let path = entry.map_err(Error::file(&sources))?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            copy(&path, &package.join(path.file_name().unwrap_or_default()))?;
        }
    }
    copy(&target.join("debug/lib_comm.so"), &package.join("_comm.abi3.so"))?;
    std::path::absolute(&packages).map_err(Error::file(&packages))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).map_err(Error::file(from))
}
