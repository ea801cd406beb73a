//! Installs PyTorch in the build folder.

use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use crate::error::{Error, Result};
use crate::{commands, places, wheel};

/// The packages, one per line, with hashes.
const REQUIREMENTS: &str = "python/tests/requirements.txt";

/// A Python that finds the installed packages.
pub(super) struct Installed {
    /// The folder of the packages.
    pub(super) packages: PathBuf,
    /// The folder of the libraries in place of CUDA's.
    pub(super) libraries: PathBuf,
}

/// Installs PyTorch without its CUDA packages, unless it is there.
pub(super) fn install(python: &Path) -> Result<Installed> {
    let requirements = places::root().join(REQUIREMENTS);
    let text = fs::read_to_string(&requirements).map_err(Error::file(&requirements))?;
    let version = text.lines().find_map(|line| line.strip_prefix("torch==")?.split(' ').next());
    let version = version.ok_or_else(|| Error::Usage(format!("{REQUIREMENTS} lists no version of torch")))?;
    let tag = commands::output(
        Command::new(python).args(["-c", "import sys; print(sys.implementation.cache_tag)"]),
    )?;
    let folder = places::target().join("torch").join(format!("{version}-{}", tag.trim()));
    if !folder.exists() {
        // This is only a message, and standard error may be closed.
        drop(writeln!(stderr(), "fetching PyTorch {version} from PyPI, 500 MB"));
        let staging = folder.with_file_name(format!("part-{}", process::id()));
        let whole = install_into(python, &requirements, &staging)
            .and_then(|()| fs::rename(&staging, &folder).map_err(Error::file(&folder)));
        // Leftovers in the build folder are harmless.
        drop(fs::remove_dir_all(&staging));
        whole?;
    }
    let folder = std::path::absolute(&folder).map_err(Error::file(&folder))?;
    Ok(Installed { packages: folder.join("packages"), libraries: folder.join("libraries") })
}

fn install_into(python: &Path, requirements: &Path, folder: &Path) -> Result<()> {
    let packages = folder.join("packages");
    commands::output(&mut wheel::pip_install(python, requirements, "--target", &packages))?;
    let mut without_cuda = Command::new(python);
    without_cuda.arg(places::root().join("python/tests/without_cuda.py"));
    commands::run(without_cuda.arg(packages.join("torch/lib")).arg(folder.join("libraries")))
}
