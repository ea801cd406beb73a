//! oneCCL on host memory, over Intel MPI.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::mpi::{Installation, intel_mpi};
use super::{Library, MeasurementArgs, Search, build, built_peers, output, sources};
use crate::compare::machine::cores;
use crate::mpi::MpiPackage;
use crate::oneccl::{HWLOC, ONECCL, RUNTIME, folder};

/// Its other transport needs libfabric, which is in none of the wheels.
const OVER_MPI: (&str, &str) = ("CCL_ATL_TRANSPORT", "mpi");

/// With more ranks than cores, by default each rank spins until the scheduler stops it: 14 ms for
/// an all-reduce of 4 bytes between 4 ranks on 2 cores, also if MPI is told to yield. Only waits
/// for the worker threads yield: 41 us with these settings. Without the last one it is 58 us.
const YIELDS: [(&str, &str); 3] =
    [("CCL_WORKER_OFFLOAD", "1"), ("CCL_YIELD", "sched_yield"), ("CCL_SPIN_COUNT", "1")];

#[derive(Debug)]
struct OneCcl {
    mpi: Installation,
    program: PathBuf,
}

/// Builds the program, if oneCCL and Intel MPI were downloaded.
pub(super) fn find() -> Search {
    let mpi = intel_mpi()?;
    if ![ONECCL, HWLOC, RUNTIME].iter().all(|wheel| folder(wheel).exists()) {
        return Err("it was not downloaded; try `cargo xtask oneccl-fetch`".into());
    }
    if output(Command::new(COMPILER).arg("--version")).is_none() {
        return Err("there is no C++ compiler; try `apt install g++`".into());
    }
    let folder = built_peers();
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let program = folder.join("oneccl");
    let program = build(compile().arg("-o").arg(&program), &program)?;
    let version = format!("oneCCL {} over {}", ONECCL.version, mpi.version);
    Ok((Box::new(OneCcl { mpi, program }), version))
}

const COMPILER: &str = "c++";

/// Returns the command that compiles the program, with the header of MPICH, whose binary interface
/// Intel MPI has.
fn compile() -> Command {
    let [oneccl, hwloc, runtime] = [ONECCL, HWLOC, RUNTIME].map(|wheel| folder(&wheel));
    let mut command = Command::new(COMPILER);
    command.args(["-std=c++17", "-O2"]).arg(sources().join("oneccl.cpp"));
    command.arg("-I").arg(MpiPackage::Mpich.folder().join("include")).arg("-I").arg(&oneccl);
    command.arg(oneccl.join("libccl.a")).arg(MpiPackage::Impi.folder().join("lib/libmpi.so.12"));
    for (folder, library) in [(hwloc, "libhwloc.so.15"), (runtime, "libintlc.so.5")] {
        command.arg(folder.join(library)).arg("-Xlinker").arg("-rpath").arg("-Xlinker").arg(folder);
    }
    command.args(["-ldl", "-lpthread"]);
    command
}

impl Library for OneCcl {
    fn name(&self) -> String {
        "oneccl".into()
    }

    fn command(&self, args: &MeasurementArgs<'_>) -> Command {
        let ranks = args.case.ranks;
        let mut command = self.mpi.launch(ranks);
        command.arg(&self.program).args(args.to_strings()).envs([OVER_MPI]);
        if ranks > cores() {
            command.envs(YIELDS);
        }
        command
    }
}
