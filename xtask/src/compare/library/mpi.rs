//! Open MPI and MPICH, measured by the same C program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Library, MeasurementArgs, Search, build, built_peers, output, sources};

type EnvironmentVariables = &'static [(&'static str, &'static str)];

/// Makes glibc keep large blocks instead of returning them to the kernel and faulting them in again
/// at every call. This is not the default.
pub(super) const KEEP_MEMORY: [(&str, &str); 3] = [
    ("MALLOC_MMAP_THRESHOLD_", "4294967296"),
    ("MALLOC_TRIM_THRESHOLD_", "8589934592"),
    ("MALLOC_TOP_PAD_", "67108864"),
];

/// The options of Open MPI for sockets within a host.
pub(super) const ONLY_TCP: [&str; 6] = ["--mca", "btl", "self,tcp", "--mca", "pml", "ob1"];

/// The options for containers, whose user is root, and for more ranks than cores.
const ANY_USER_ANY_CORES: [&str; 2] = ["--allow-run-as-root", "--oversubscribe"];

/// An implementation of MPI, with the names of its programs in distributions.
struct Implementation {
    name: &'static str,
    launchers: [&'static str; 2],
    compilers: [&'static str; 2],
    /// The text before the version in the output of the launcher.
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

/// A program that is built against an implementation, with its launcher.
#[derive(Debug)]
struct Mpi {
    name: &'static str,
    launcher: &'static str,
    program: PathBuf,
    options: Vec<&'static str>,
    environment: EnvironmentVariables,
}

pub(super) fn open_mpi(
    name: &'static str,
    options: &[&'static str],
    environment: EnvironmentVariables,
) -> Search {
    let options = [&ANY_USER_ANY_CORES, options].concat();
    find(&OPEN_MPI, name, options, environment)
}

pub(super) fn mpich(name: &'static str, environment: EnvironmentVariables) -> Search {
    find(&MPICH, name, Vec::new(), environment)
}

fn find(
    implementation: &Implementation,
    name: &'static str,
    options: Vec<&'static str>,
    environment: EnvironmentVariables,
) -> Search {
    let Implementation { name: title, install, .. } = implementation;
    let missing = || format!("{title} is not installed; try `{install}`");
    let (launcher, version) = implementation.launcher().ok_or_else(missing)?;
    let program = implementation.build(launcher).ok_or_else(missing)??;
    let mpi = Mpi { name, launcher, program, options, environment };
    Ok((Box::new(mpi), format!("{title} {version}")))
}

impl Implementation {
    /// Finds the launcher of this implementation, and its version.
    fn launcher(&self) -> Option<(&'static str, String)> {
        self.launchers.into_iter().find_map(|launcher| {
            let text = output(Command::new(launcher).arg("--version"))?;
            Some((launcher, version(&text, self.version)?.to_owned()))
        })
    }

    /// Compiles the program with the compiler of the launcher. `None` if there is none.
    fn build(&self, launcher: &str) -> Option<Result<PathBuf, String>> {
        let at = self.launchers.iter().position(|name| *name == launcher)?;
        let compiler = self.compilers.get(at)?;
        output(Command::new(compiler).arg("--version"))?;
        let (source, folder) = (sources().join("mpi.c"), built_peers());
        let product = folder.join(self.name.to_lowercase().replace(' ', "-"));
        Some(match fs::create_dir_all(&folder) {
            Ok(()) => build(&mut compile(compiler, &source, &product), &product),
            Err(error) => Err(format!("{}: {error}", folder.display())),
        })
    }
}

fn compile(compiler: &str, source: &Path, product: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-D_POSIX_C_SOURCE=200112L", "-O2", "-o"]).arg(product).arg(source);
    command
}

/// Returns the word after `mark`.
fn version<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark)?.1.split_whitespace().next()
}

impl Library for Mpi {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn command(&self, args: &MeasurementArgs<'_>) -> Command {
        let mut command = Command::new(self.launcher);
        command.args(&self.options).args(["-np", &args.case.ranks.to_string()]);
        command.arg(&self.program).args(args.to_strings()).envs(self.environment.iter().copied());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_recognised_by_their_version_output() {
        let open_mpi = "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/\n";
        let mpich = "HYDRA build details:\n    Version:                                 4.0.2\n    CC: gcc\n";
        assert_eq!(version(open_mpi, OPEN_MPI.version), Some("4.1.4"));
        assert_eq!(version(mpich, MPICH.version), Some("4.0.2"));
        assert_eq!(version(open_mpi, MPICH.version), None);
        assert_eq!(version(mpich, OPEN_MPI.version), None);
    }
}
