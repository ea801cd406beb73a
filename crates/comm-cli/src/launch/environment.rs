//! The environment variables of a rank.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::num::NonZeroU64;

use comm::tcp::StoreConfig;

use super::devices;
use super::error::LaunchError;

/// The secret that authenticates connections to the store and between ranks.
pub(super) const SECRET: &str = "COMM_SECRET";

/// The variables that the launcher sets. torchrun sets the first six as well.
const RANK: &str = "RANK";
const WORLD_SIZE: &str = "WORLD_SIZE";
const LOCAL_RANK: &str = "LOCAL_RANK";
const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";
/// Lets the store reject a stale process of another job.
const JOB_ID: &str = "COMM_JOB_ID";
/// The process that serves the store: `launcher`, or rank 0 by default.
const STORE: &str = "COMM_STORE";
/// The number of times that the ranks have been restarted.
const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// Whether the process joins the group of the others.
const JOIN: &str = "COMM_JOIN";

const RESERVED: [&str; 10] = [
    RANK,
    WORLD_SIZE,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    JOB_ID,
    STORE,
    RESTART_COUNT,
    JOIN,
];

/// The variables that limit the threads of OpenMP (BLAS, PyTorch) and rayon.
pub(super) const THREADS: [&str; 2] = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"];

/// The values that all ranks of a launch share. Not `Debug`, because of the secret.
pub(super) struct Job {
    pub(super) ranks: usize,
    pub(super) restarts: usize,
    pub(super) store: SocketAddr,
    pub(super) store_config: StoreConfig,
    pub(super) id: NonZeroU64,
    /// `None` if connections are neither authenticated nor protected.
    pub(super) secret: Option<OsString>,
    /// The value of `CUDA_VISIBLE_DEVICES` of each rank, unless it is inherited.
    pub(super) devices: Option<Vec<String>>,
}

impl Job {
    /// Returns the variables of a rank, which `joins` the group of the others if it replaces a lost
    /// one. All ranks run on this machine, so `LOCAL_RANK` is `RANK`.
    pub(super) fn variables(&self, rank: usize, joins: bool) -> [(&'static str, String); RESERVED.len()] {
        [
            (RANK, rank.to_string()),
            (WORLD_SIZE, self.ranks.to_string()),
            (LOCAL_RANK, rank.to_string()),
            (LOCAL_WORLD_SIZE, self.ranks.to_string()),
            (MASTER_ADDR, self.store.ip().to_string()),
            (MASTER_PORT, self.store.port().to_string()),
            (JOB_ID, format!("{:x}", self.id)),
            (STORE, "launcher".to_owned()),
            (RESTART_COUNT, self.restarts.to_string()),
            (JOIN, u8::from(joins).to_string()),
        ]
    }

    pub(super) fn device(&self, rank: usize) -> Option<(&'static str, &str)> {
        let device = self.devices.as_ref()?.get(rank)?;
        Some((devices::VISIBLE, device))
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
        let store = "[::1]:4321".parse().expect("an address");
        let (secret, store_config) = (Some("hush".into()), StoreConfig::default());
        let job = Job { ranks: 4, restarts: 1, store, store_config, id, secret, devices: None };
        let variables = job.variables(2, true);
        assert_eq!(variables.each_ref().map(|(name, _)| *name), RESERVED);
        assert_eq!(
            variables.each_ref().map(|(_, value)| value.as_str()),
            ["2", "4", "2", "4", "::1", "4321", "abc", "launcher", "1", "1"]
        );
        for name in RESERVED {
            assert!(matches!(check_not_reserved(name.as_ref()), Err(LaunchError::ReservedVariable(_))));
        }
        assert!(check_not_reserved(SECRET.as_ref()).is_ok());
    }
}
