//! Implementations of MPI, measured by the same C program.

mod installation;

use std::path::PathBuf;
use std::process::Command;

use super::{Library, MeasurementArgs, Search, build, built_peers, sources};
use crate::compare::machine::cores;
use crate::compare::record::Case;
pub(super) use installation::{Installation, debian_mpich, debian_open_mpi, intel_mpi, mpich, open_mpi};

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

/// The way in which an implementation waits if there are more ranks than cores.
#[derive(Debug, Clone, Copy)]
enum Oversubscribed {
    /// With these options of the launcher and variables, ranks let each other run.
    Yields(&'static [&'static str], EnvironmentVariables),
    /// Ranks only spin, so that a call takes as long as the scheduler lets each of them spin. That
    /// is not worth a comparison.
    Spins,
}

/// A program that is built against an implementation, with its launcher.
#[derive(Debug)]
struct Mpi {
    name: &'static str,
    installation: Installation,
    program: PathBuf,
    options: &'static [&'static str],
    environment: EnvironmentVariables,
}

/// Builds the program for an implementation, if that is installed.
pub(super) fn find(
    name: &'static str,
    installation: Result<Installation, String>,
    options: &'static [&'static str],
    environment: EnvironmentVariables,
) -> Search {
    let installation = installation?;
    let program = installation.build()?;
    let version = installation.version.clone();
    Ok((Box::new(Mpi { name, installation, program, options, environment }), version))
}

impl Library for Mpi {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn measures(&self, case: Case) -> bool {
        case.ranks <= cores() || matches!(self.installation.oversubscribed, Oversubscribed::Yields(..))
    }

    fn command(&self, args: &MeasurementArgs<'_>) -> Command {
        let mut command = self.installation.launch(args.case.ranks);
        command.args(self.options).arg(&self.program).args(args.to_strings());
        command.envs(self.environment.iter().copied());
        command
    }
}
