//! Packs the published packages, and runs a program that depends only on them.

mod archive;
mod project;

use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::{fs, path};

use crate::error::{Error, Result};
use crate::packages::{self, Package};
use crate::{commands, places};
use archive::Archive;

/// The number of ranks of the program.
const RANKS: &str = "3";

/// Packs every published package, checks its contents, and runs a program that depends on them.
pub(crate) fn run(out: &mut impl Write) -> Result<()> {
    let (root, target) = (places::root(), places::target());
    let target = path::absolute(&target).map_err(Error::file(&target))?;
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
    commands::run(launcher.args(["run", "-n", RANKS, "--"]).arg(programs.join(project::NAME)))
}

/// Packs the packages with uncommitted changes, which `cargo publish` rejects.
fn pack(packages: &[Package], root: &Path, target: &Path) -> Result<()> {
    let mut cargo = commands::cargo();
    cargo.args(["package", "--quiet", "--no-verify", "--allow-dirty", "--target-dir"]).arg(target);
    for package in packages {
        cargo.args(["--package", &package.name]);
    }
    commands::run(cargo.current_dir(root))
}

/// Creates an empty folder.
fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(folder)(error)),
        _ => fs::create_dir_all(folder).map_err(Error::file(folder)),
    }
}
