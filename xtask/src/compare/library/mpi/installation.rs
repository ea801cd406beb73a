//! The implementations of MPI that are installed: those of the distribution, and those that
//! `cargo xtask mpi-fetch` has downloaded.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::output;
use super::{Oversubscribed, build, built_peers, sources};
use crate::compare::machine::cores;
use crate::mpi::MpiPackage;

/// An implementation of MPI on this machine.
#[derive(Debug)]
pub(in crate::compare) struct Installation {
    /// The name of the built program.
    product: &'static str,
    /// The name and version for the report.
    pub(in crate::compare::library) version: String,
    pub(in crate::compare::library) launcher: PathBuf,
    compiler: PathBuf,
    /// The options of the launcher for containers, whose user is root, and for more ranks than
    /// cores.
    options: &'static [&'static str],
    environment: Vec<(&'static str, OsString)>,
    pub(super) oversubscribed: Oversubscribed,
}

const OPEN_MPI_OPTIONS: &[&str] = &["--allow-run-as-root", "--oversubscribe"];
const OPEN_MPI_YIELDS: Oversubscribed = Oversubscribed::Yields(&["--mca", "mpi_yield_when_idle", "1"], &[]);

pub(in crate::compare) fn debian_open_mpi() -> Result<Installation, String> {
    let missing = || String::from("Open MPI is not installed; try `apt install openmpi-bin libopenmpi-dev`");
    let launchers = [("mpirun.openmpi", "mpicc.openmpi"), ("mpirun", "mpicc")];
    let (launcher, compiler, version) = of_distribution(launchers, "(OpenRTE)").ok_or_else(missing)?;
    Ok(Installation {
        product: "open-mpi",
        version: format!("Open MPI {version}"),
        launcher,
        compiler,
        options: OPEN_MPI_OPTIONS,
        environment: Vec::new(),
        oversubscribed: OPEN_MPI_YIELDS,
    })
}

pub(in crate::compare) fn debian_mpich() -> Result<Installation, String> {
    let missing = || String::from("MPICH is not installed; try `apt install mpich libmpich-dev`");
    let launchers = [("mpirun.mpich", "mpicc.mpich"), ("mpirun", "mpicc")];
    let (launcher, compiler, version) = of_distribution(launchers, "Version:").ok_or_else(missing)?;
    Ok(Installation {
        product: "mpich",
        version: format!("MPICH {version}"),
        launcher,
        compiler,
        options: &[],
        environment: Vec::new(),
        oversubscribed: Oversubscribed::Spins,
    })
}

pub(in crate::compare) fn open_mpi() -> Result<Installation, String> {
    let package = downloaded(MpiPackage::OpenMpi)?;
    Ok(Installation {
        product: "open-mpi-5",
        version: format!("Open MPI {}", package.version()),
        launcher: package.launcher(),
        compiler: package.folder().join("bin/mpicc"),
        options: OPEN_MPI_OPTIONS,
        environment: Vec::new(),
        oversubscribed: OPEN_MPI_YIELDS,
    })
}

pub(in crate::compare) fn mpich() -> Result<Installation, String> {
    let package = downloaded(MpiPackage::Mpich)?;
    Ok(Installation {
        product: "mpich-5",
        version: format!("MPICH {}", package.version()),
        launcher: package.launcher(),
        compiler: package.folder().join("bin/mpicc"),
        options: &[],
        environment: Vec::new(),
        oversubscribed: Oversubscribed::Spins,
    })
}

/// Intel MPI has the binary interface of MPICH, whose compiler builds the program.
pub(in crate::compare) fn intel_mpi() -> Result<Installation, String> {
    let (package, mpich) = (downloaded(MpiPackage::Impi)?, downloaded(MpiPackage::Mpich)?);
    let folder = package.folder();
    Ok(Installation {
        product: "mpich-5",
        version: format!("Intel MPI {}", package.version()),
        launcher: package.launcher(),
        compiler: mpich.folder().join("bin/mpicc"),
        options: &[],
        environment: vec![("LD_LIBRARY_PATH", folder.join("lib").into()), ("I_MPI_ROOT", folder.into())],
        oversubscribed: Oversubscribed::Yields(&[], &[("I_MPI_WAIT_MODE", "1"), ("I_MPI_THREAD_YIELD", "2")]),
    })
}

fn downloaded(package: MpiPackage) -> Result<MpiPackage, String> {
    match package.launcher().exists() {
        true => Ok(package),
        false => Err("it was not downloaded; try `cargo xtask mpi-fetch`".into()),
    }
}

/// Finds the first launcher in the path that is of this implementation, with its compiler and
/// version. `mark` is the text before the version.
fn of_distribution(programs: [(&str, &str); 2], mark: &str) -> Option<(PathBuf, PathBuf, String)> {
    programs.into_iter().find_map(|(launcher, compiler)| {
        let text = output(Command::new(launcher).arg("--version"))?;
        output(Command::new(compiler).arg("--version"))?;
        Some((launcher.into(), compiler.into(), version(&text, mark)?.to_owned()))
    })
}

/// Returns the word after `mark`.
fn version<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark)?.1.split_whitespace().next()
}

impl Installation {
    /// Returns the command that starts ranks, without their program.
    pub(in crate::compare::library) fn launch(&self, ranks: usize) -> Command {
        let mut command = Command::new(&self.launcher);
        command.args(self.options);
        if let (Oversubscribed::Yields(options, environment), true) = (self.oversubscribed, ranks > cores()) {
            command.args(options).envs(environment.iter().copied());
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.args(["-np", &ranks.to_string()]);
        command
    }

    /// Compiles the program that measures.
    pub(super) fn build(&self) -> Result<PathBuf, String> {
        let (source, folder) = (sources().join("mpi.c"), built_peers());
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let product = folder.join(self.product);
        build(&mut compile(&self.compiler, &source, &product), &product)
    }
}

fn compile(compiler: &Path, source: &Path, product: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-D_POSIX_C_SOURCE=200112L", "-O2", "-o"]).arg(product).arg(source);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_recognised_by_their_version_output() {
        let open_mpi = "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/\n";
        let mpich = "HYDRA build details:\n    Version:                                 4.0.2\n    CC: gcc\n";
        assert_eq!(version(open_mpi, "(OpenRTE)"), Some("4.1.4"));
        assert_eq!(version(mpich, "Version:"), Some("4.0.2"));
        assert_eq!(version(open_mpi, "Version:"), None);
        assert_eq!(version(mpich, "(OpenRTE)"), None);
    }
}
