//! The environment variables of a rank.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU64;

use super::binding::RankCpus;
use super::devices;
use super::error::LaunchError;

/// The secret that authenticates connections to the store and between ranks.
pub(super) const SECRET: &str = "COMM_SECRET";

/// The variables that the launcher sets. torchrun sets the first nine as well.
const RANK: &str = "RANK";
const WORLD_SIZE: &str = "WORLD_SIZE";
const LOCAL_RANK: &str = "LOCAL_RANK";
const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";
/// The node rank and the number of nodes.
const GROUP_RANK: &str = "GROUP_RANK";
const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// The largest number of restarts.
const MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// The node rank under the name that Lightning and others read.
const NODE_RANK: &str = "NODE_RANK";
/// Lets the store reject a stale process of another job.
const JOB_ID: &str = "COMM_JOB_ID";
/// The process that serves the store: `launcher`, or rank 0 by default.
const STORE: &str = "COMM_STORE";
/// The number of times that the ranks have been restarted.
const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// Whether the process joins the group of the others.
const JOIN: &str = "COMM_JOIN";
/// The number by which the launcher finds the process in the list of those that wait to join.
const JOIN_ID: &str = "COMM_JOIN_ID";

const RESERVED: [&str; 15] = [
    RANK,
    WORLD_SIZE,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    GROUP_RANK,
    GROUP_WORLD_SIZE,
    MAX_RESTARTS,
    NODE_RANK,
    JOB_ID,
    STORE,
    RESTART_COUNT,
    JOIN,
    JOIN_ID,
];

/// The folder in which ranks record their last calls.
pub(super) const FLIGHT_DIR: &str = "COMM_FLIGHT_DIR";
/// The variables that limit the threads of OpenMP (BLAS, PyTorch) and rayon.
pub(super) const THREADS: [&str; 2] = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"];

/// The ranks of this host among the ranks of all hosts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) node: usize,
    pub(super) nodes: usize,
    pub(super) first_rank: usize,
    pub(super) world_size: usize,
}

/// The values that all ranks of a launch share. Not `Debug`, because of the secret.
pub(super) struct Job {
    /// The number of ranks on this host.
    pub(super) ranks: usize,
    pub(super) place: Place,
    pub(super) restarts: usize,
    pub(super) max_restarts: usize,
    pub(super) master: (String, u16),
    pub(super) id: NonZeroU64,
    /// `None` if connections are neither authenticated nor protected.
    pub(super) secret: Option<OsString>,
    pub(super) assigned: Assigned,
}

/// The parts of this host that each of its ranks gets.
#[derive(Debug, Clone, Default)]
pub(super) struct Assigned {
    /// The value of `CUDA_VISIBLE_DEVICES` of each rank, unless it is inherited.
    pub(super) devices: Option<Vec<String>>,
    /// The processors of each rank, if they differ from the launcher's.
    pub(super) cpus: Option<Vec<RankCpus>>,
}

impl Job {
    /// Returns the variables of a rank of this host, which joins the group of the others with this
    /// id if it replaces a lost one.
    pub(super) fn variables(
        &self,
        local: usize,
        join_id: Option<u64>,
    ) -> [(&'static str, String); RESERVED.len()] {
        let Place { node, nodes, first_rank, world_size } = self.place;
        [
            (RANK, (first_rank + local).to_string()),
            (WORLD_SIZE, world_size.to_string()),
            (LOCAL_RANK, local.to_string()),
            (LOCAL_WORLD_SIZE, self.ranks.to_string()),
            (MASTER_ADDR, self.master.0.clone()),
            (MASTER_PORT, self.master.1.to_string()),
            (GROUP_RANK, node.to_string()),
            (GROUP_WORLD_SIZE, nodes.to_string()),
            (MAX_RESTARTS, self.max_restarts.to_string()),
            (NODE_RANK, node.to_string()),
            (JOB_ID, format!("{:x}", self.id)),
            (STORE, "launcher".to_owned()),
            (RESTART_COUNT, self.restarts.to_string()),
            (JOIN, u8::from(join_id.is_some()).to_string()),
            (JOIN_ID, join_id.unwrap_or(0).to_string()),
        ]
    }

    pub(super) fn device(&self, local: usize) -> Option<(&'static str, &str)> {
        let device = self.assigned.devices.as_ref()?.get(local)?;
        Some((devices::VISIBLE, device))
    }

    pub(super) fn cpus(&self, local: usize) -> Option<&RankCpus> {
        self.assigned.cpus.as_ref()?.get(local)
    }
}

/// Returns an error for a variable that the launcher sets.
pub(super) fn check_not_reserved(name: &OsStr) -> Result<(), LaunchError> {
    match RESERVED.into_iter().find(|reserved| name == *reserved) {
        Some(reserved) => Err(LaunchError::ReservedVariable(reserved)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_of_a_rank_is_reserved() {
        let id = NonZeroU64::new(0xabc).expect("not zero");
        let place = Place { node: 1, nodes: 3, first_rank: 4, world_size: 9 };
        let (master, secret) = (("::1".to_owned(), 4321), Some("hush".into()));
        let job = Job {
            ranks: 4,
            place,
            restarts: 1,
            max_restarts: 2,
            master,
            id,
            secret,
            assigned: Assigned::default(),
        };
        let variables = job.variables(2, Some(5));
        assert_eq!(variables.each_ref().map(|(name, _)| *name), RESERVED);
        let values = variables.each_ref().map(|(_, value)| value.as_str());
        assert_eq!(
            values,
            ["6", "9", "2", "4", "::1", "4321", "1", "3", "2", "1", "abc", "launcher", "1", "1", "5"]
        );
        for name in RESERVED {
            assert!(matches!(check_not_reserved(name.as_ref()), Err(LaunchError::ReservedVariable(_))));
        }
        assert!(check_not_reserved(SECRET.as_ref()).is_ok());
    }
}
