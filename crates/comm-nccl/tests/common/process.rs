//! Ranks that are processes, started by a test program from itself, which meet in a folder. The
//! program has a test named [`PLAYS`], in which a process finds out what it is to do.

use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use comm_core::{HostCommunicator, Membership};
use comm_ring::{RingCommunicator, RingConfig};
use comm_tcp::{FileStore, RendezvousConfig, TcpFabric};

/// The test that is no test of its own.
const PLAYS: &str = "a_rank_plays_its_part";

const PART: &str = "COMM_NCCL_TEST_PART";
const FOLDER: &str = "COMM_NCCL_TEST_FOLDER";

/// The rank and the task of a process.
pub(crate) struct Part {
    pub(crate) part: String,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Over TCP.
    pub(crate) host: Box<dyn HostCommunicator>,
}

/// A process that plays `part` as one rank on its host. What it is to be is said as launchers say
/// it.
pub(crate) fn start(
    part: &str,
    folder: &Path,
    rank: usize,
    size: usize,
    environment: &[(&str, &str)],
) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", PLAYS, "--nocapture"]).stdout(Stdio::piped());
    command.env(PART, part).env(FOLDER, folder).env_remove("CUDA_VISIBLE_DEVICES");
    for (name, number) in [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", size)] {
        command.env(name, number.to_string());
    }
    command.envs(environment.iter().copied());
    command.spawn().unwrap()
}

/// Returns the task of this process if [`start`] started it.
pub(crate) fn part() -> Option<Part> {
    let part = env::var(PART).ok()?;
    let number = |name| env::var(name).unwrap().parse().unwrap();
    let (rank, size) = (number("RANK"), number("WORLD_SIZE"));
    let store = FileStore::open(env::var_os(FOLDER).unwrap()).unwrap();
    let mut config = RendezvousConfig::new(Membership { rank, size });
    config.member.timeout = super::SOON;
    let fabric = TcpFabric::rendezvous(&store, &config).unwrap();
    let host = RingCommunicator::new(fabric, RingConfig::default(), super::SOON).unwrap();
    Some(Part { part, rank, size, host: Box::new(host) })
}
