//! Ranks that are processes. A test program starts itself once per rank, and each process runs the
//! test `run_as_a_rank` of a module. Their rendezvous is in a folder.

use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use comm_core::{HostCommunicator, Membership};
use comm_ring::{RingCommunicator, RingConfig};
use comm_tcp::{FileStore, RendezvousConfig, TcpFabric};

const TASK: &str = "COMM_NCCL_TEST_TASK";
const FOLDER: &str = "COMM_NCCL_TEST_FOLDER";

/// The rank and the task of a process.
pub(crate) struct RankTask {
    pub(crate) task: String,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Over TCP.
    pub(crate) host: Box<dyn HostCommunicator>,
}

/// Starts a process that runs a task of a module, such as `visible::sum`, as one rank of its host.
/// Its rank is in the variables of launchers.
pub(crate) fn start(
    task: &str,
    folder: &Path,
    rank: usize,
    size: usize,
    environment: &[(&str, &str)],
) -> Child {
    let (module, task) = task.split_once("::").unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("{module}::run_as_a_rank"), "--nocapture"]).stdout(Stdio::piped());
    command.env(TASK, task).env(FOLDER, folder).env_remove("CUDA_VISIBLE_DEVICES");
    for (name, number) in [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", size)] {
        command.env(name, number.to_string());
    }
    command.envs(environment.iter().copied());
    command.spawn().unwrap()
}

/// Returns the task of this process if [`start`] started it.
pub(crate) fn task() -> Option<RankTask> {
    let task = env::var(TASK).ok()?;
    let number = |name| env::var(name).unwrap().parse().unwrap();
    let (rank, size) = (number("RANK"), number("WORLD_SIZE"));
    let store = FileStore::open(env::var_os(FOLDER).unwrap()).unwrap();
    let mut config = RendezvousConfig::new(Membership { rank, size });
    config.member.timeout = super::SOON;
    let fabric = TcpFabric::rendezvous(&store, &config).unwrap();
    let host = RingCommunicator::new(fabric, RingConfig::default(), super::SOON).unwrap();
    Some(RankTask { task, rank, size, host: Box::new(host) })
}
