//! Tests the backend of PyTorch.

mod fetch;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use crate::error::{Error, Result};
use crate::{commands, places};

/// Install PyTorch for `torch-test --fetch`, and print the folder of its packages
///
/// Needs Python 3.11 or later with pip, to download 500 MB for x86-64 from PyPI and check their
/// hashes.
#[derive(Debug, Args)]
pub(crate) struct TorchFetch {
    /// The interpreter whose pip is used
    #[arg(long, default_value = "python3")]
    python: PathBuf,
}

impl TorchFetch {
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "{}", fetch::install(&self.python)?.packages.display())?;
        Ok(())
    }
}

/// Build the Python package comm_torch, and test it with PyTorch
#[derive(Debug, Args)]
pub(crate) struct TorchTest {
    /// The interpreter that has PyTorch
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Install PyTorch with pip in the build folder for this, without CUDA: 500 MB, unpacked 1.3 GB
    #[arg(long)]
    fetch: bool,
    /// Also run PyTorch's own tests of backends, under the names of comm and of gloo, and
    /// torchft's. They need the packages expecttest, hypothesis, torchft and parameterized, and
    /// take about ten minutes
    #[arg(long)]
    suite: bool,
}

impl TorchTest {
    pub(crate) fn execute(&self) -> Result<()> {
        let tests = places::root().join("python/tests");
        let mut packages = vec![assemble()?];
        let mut libraries = None;
        if self.fetch {
            let installed = fetch::install(&self.python)?;
            packages.push(installed.packages);
            libraries = Some(installed.libraries);
        }
        let packages = env::join_paths(packages).map_err(|error| Error::Usage(error.to_string()))?;
        let python = || {
            let mut python = self.python();
            python.env("PYTHONPATH", &packages).current_dir(&tests);
            if let Some(libraries) = &libraries {
                python.env("LD_LIBRARY_PATH", library_path(libraries));
            }
            python
        };
        commands::run(python().args(["-m", "unittest", "discover", "--verbose"]))?;
        if self.suite {
            for backend in ["comm", "comm-as-gloo"] {
                commands::run(python().arg("pytorch_suite.py").env("BACKEND", backend))?;
            }
            commands::run(python().arg("torchft_suite.py"))?;
        }
        Ok(())
    }

    fn python(&self) -> Command {
        let mut python = Command::new(&self.python);
        python.stdin(Stdio::null());
        python
    }
}

/// Returns the folders in which libraries are searched, with this one first.
fn library_path(first: &Path) -> OsString {
    let mut path = first.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(others);
    }
    path
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
