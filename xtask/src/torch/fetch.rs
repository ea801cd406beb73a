//! Installs PyTorch in the build folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Result;
use crate::requirements::Requirements;
use crate::{commands, places};

const PYTORCH: Requirements =
    Requirements { file: "python/tests/requirements.txt", package: "torch", size: "500 MB" };

/// A Python that finds the installed packages.
pub(super) struct Installed {
    /// The folder of the packages.
    pub(super) packages: PathBuf,
    /// The folder of the libraries in place of CUDA's.
    pub(super) libraries: PathBuf,
}

/// Installs PyTorch without its CUDA packages, unless it is there.
pub(super) fn install(python: &Path) -> Result<Installed> {
    let folder = PYTORCH.install(python, |folder| {
        let mut without_cuda = Command::new(python);
        without_cuda.arg(places::root().join("python/tests/without_cuda.py"));
        commands::run(without_cuda.arg(folder.join("packages/torch/lib")).arg(folder.join("libraries")))
    })?;
    Ok(Installed { packages: folder.join("packages"), libraries: folder.join("libraries") })
}
