//! Open MPI and MPICH, measured by the same source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Search, Start, Subject, build, output};
use crate::compare::build::Places;

/// Variables with their values.
type Environment = &'static [(&'static str, &'static str)];

/// glibc returns large blocks of memory to the system and takes them anew, page by page, at every
/// call. With these it keeps them. Nobody has that by default; it makes a stronger rival.
pub(super) const KEEP_MEMORY: [(&str, &str); 3] = [
    ("MALLOC_MMAP_THRESHOLD_", "4294967296"),
    ("MALLOC_TRIM_THRESHOLD_", "8589934592"),
    ("MALLOC_TOP_PAD_", "67108864"),
];

/// Open MPI over sockets, also within a host.
pub(super) const ONLY_TCP: [&str; 6] = ["--mca", "btl", "self,tcp", "--mca", "pml", "ob1"];

/// Users of containers are root, and small machines have fewer cores than ranks.
const ANY_USER_ANY_CORES: [&str; 2] = ["--allow-run-as-root", "--oversubscribe"];

/// An implementation of MPI, by the names that distributions give its programs.
struct Implementation {
    name: &'static str,
    launchers: [&'static str; 2],
    compilers: [&'static str; 2],
    /// How its launcher tells its version: what stands in front of it.
    version: &'static str,
    install: &'static str,
}

const OPEN_MPI: Implementation = Implementation {
    name: "Open MPI",
    launchers: ["mpirun.openmpi", "mpirun"],
    compilers: ["mpicc.openmpi", "mpicc"],
    version: "(OpenRTE)",
    install: "apt install openmpi-bin libopenmpi-dev",
};

const MPICH: Implementation = Implementation {
    name: "MPICH",
    launchers: ["mpirun.mpich", "mpirun"],
    compilers: ["mpicc.mpich", "mpicc"],
    version: "Version:",
    install: "apt install mpich libmpich-dev",
};

/// A program built against an implementation, and how it is started.
#[derive(Debug)]
struct Mpi {
    name: &'static str,
    launcher: &'static str,
    program: PathBuf,
    options: Vec<&'static str>,
    environment: Environment,
}

pub(super) fn open_mpi(
    name: &'static str,
    options: &[&'static str],
    environment: Environment,
    places: &Places,
) -> Search {
    let options = [&ANY_USER_ANY_CORES, options].concat();
    find(&OPEN_MPI, name, options, environment, places)
}

pub(super) fn mpich(name: &'static str, environment: Environment, places: &Places) -> Search {
    find(&MPICH, name, Vec::new(), environment, places)
}

fn find(
    implementation: &Implementation,
    name: &'static str,
    options: Vec<&'static str>,
    environment: Environment,
    places: &Places,
) -> Search {
    let Implementation { name: title, install, .. } = implementation;
    let missing = || format!("{title} is not installed; try `{install}`");
    let (launcher, version) = implementation.launcher().ok_or_else(missing)?;
    let program = implementation.build(launcher, places).ok_or_else(missing)??;
    let mpi = Mpi { name, launcher, program, options, environment };
    Ok((Box::new(mpi), format!("{title} {version}")))
}

impl Implementation {
    /// The launcher that is of this implementation, and its version.
    fn launcher(&self) -> Option<(&'static str, String)> {
        self.launchers.into_iter().find_map(|launcher| {
            let said = output(Command::new(launcher).arg("--version"))?;
            Some((launcher, version(&said, self.version)?.to_owned()))
        })
    }

    /// Compiles the program with the compiler that belongs to the launcher. Nothing if there is
    /// none.
    fn build(&self, launcher: &str, places: &Places) -> Option<Result<PathBuf, String>> {
        let at = self.launchers.iter().position(|name| *name == launcher)?;
        let compiler = self.compilers.get(at)?;
        output(Command::new(compiler).arg("--version"))?;
        let (source, folder) = (places.sources().join("mpi.c"), places.built());
        let product = folder.join(self.name.to_lowercase().replace(' ', "-"));
        Some(match fs::create_dir_all(&folder) {
            Ok(()) => build(&mut compile(compiler, &source, &product), &product),
            Err(error) => Err(format!("{}: {error}", folder.display())),
        })
    }
}

/// How the source is compiled.
fn compile(compiler: &str, source: &Path, product: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-D_POSIX_C_SOURCE=200112L", "-O2", "-o"]).arg(product).arg(source);
    command
}

/// The word behind a mark.
fn version<'a>(said: &'a str, mark: &str) -> Option<&'a str> {
    said.split_once(mark)?.1.split_whitespace().next()
}

impl Subject for Mpi {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn command(&self, start: &Start<'_>) -> Command {
        let mut command = Command::new(self.launcher);
        command.args(&self.options).args(["-np", &start.case.ranks.to_string()]);
        command.arg(&self.program).args(start.words()).envs(self.environment.iter().copied());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_told_apart_by_how_they_tell_their_version() {
        let open_mpi = "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/\n";
        let mpich = "HYDRA build details:\n    Version:                                 4.0.2\n    CC: gcc\n";
        assert_eq!(version(open_mpi, OPEN_MPI.version), Some("4.1.4"));
        assert_eq!(version(mpich, MPICH.version), Some("4.0.2"));
        assert_eq!(version(open_mpi, MPICH.version), None);
        assert_eq!(version(mpich, OPEN_MPI.version), None);
    }
}
