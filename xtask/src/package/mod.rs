//! Packs what is published, and builds and runs a program that depends on these packages and on
//! nothing else of this repository.
//!
//! | file | question |
//! |---|---|
//! | `archive` | what is in a package? |
//! | `project` | what depends on the packages, and how are they found? |

mod archive;
mod project;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, path};

use crate::commands::{self, CommandError};
use crate::packages::{self, Package, PackagesError};
use crate::places;
use archive::Archive;

/// Enough ranks that a sum has more than two terms.
const RANKS: &str = "3";

/// Why the packages cannot be published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackageError {
    /// The packages of the workspace are unknown.
    #[error(transparent)]
    Packages(#[from] PackagesError),
    /// cargo, tar or a program made of the packages failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A file could not be read or written.
    #[error("{}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A package holds another licence than the repository, or none.
    #[error("the package {package} does not hold the repository's {file}")]
    Licence { package: String, file: &'static str },
    /// A package holds something that does not belong into it.
    #[error(
        "the package {package} has {bytes} bytes, more than {max}: see what `cargo package --list` names"
    )]
    Large { package: String, bytes: u64, max: u64 },
    /// Standard output is closed.
    #[error("cannot write")]
    Output(#[from] io::Error),
}

impl PackageError {
    /// For `map_err`, about this path.
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { path: path.to_owned(), source }
    }
}

/// Packs every package that is published, checks what it holds, and builds and runs a program that
/// depends on them.
pub(crate) fn run(out: &mut impl Write) -> Result<(), PackageError> {
    let (root, target) = (places::root(), places::target());
    let target = path::absolute(&target).map_err(PackageError::at(&target))?;
    let packages: Vec<_> = packages::read(&root)?.into_iter().filter(Package::is_publishable).collect();
    pack(&packages, &root, &target)?;
    let folder = target.join("packaged");
    clear(&folder)?;
    for package in &packages {
        let archive = Archive::of(package, &target);
        archive.unpack(&folder)?;
        archive.check(&root, &folder)?;
        writeln!(out, "{:<16} {:>4} KiB", package.name, archive.bytes()?.div_ceil(1024))?;
    }
    project::write(&packages, &root, &folder)?;
    project::build(&folder, &target)?;
    let programs = target.join("debug");
    let mut launcher = Command::new(programs.join("commctl"));
    Ok(commands::run(launcher.args(["run", "-n", RANKS, "--"]).arg(programs.join(project::NAME)))?)
}

/// Packs in the order of dependencies. What is not committed yet is packed too: publishing itself
/// refuses it.
fn pack(packages: &[Package], root: &Path, target: &Path) -> Result<(), CommandError> {
    let mut cargo = Command::new("cargo");
    cargo.args(["package", "--quiet", "--no-verify", "--allow-dirty", "--target-dir"]).arg(target);
    for package in packages {
        cargo.args(["--package", &package.name]);
    }
    commands::run(cargo.current_dir(root))
}

/// Leaves an empty folder.
fn clear(folder: &Path) -> Result<(), PackageError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(PackageError::at(folder)(error)),
        _ => fs::create_dir_all(folder).map_err(PackageError::at(folder)),
    }
}
