//! The identity of a rank in a rendezvous.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{DEFAULT_TIMEOUT, Membership, Result};

use crate::settings::Settings;

/// A check that fails when a rendezvous can no longer succeed.
pub(crate) type Check = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// A rank of a job, as it takes part in a rendezvous.
#[derive(Clone)]
#[non_exhaustive]
pub struct Member {
    /// This process's rank, below `world_size`.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The number of the job. Jobs may share a store; over TCP, processes of other jobs are
    /// refused.
    pub job: u64,
    /// A number that is equal on all ranks of the rendezvous. Ranks that repeat the rendezvous do
    /// not need a new number.
    pub round: u64,
    /// The time limit of the rendezvous.
    pub timeout: Duration,
    /// The rank that serves the store, if one does. Errors name it if the store fails.
    pub store_rank: Option<usize>,
    /// Settings that must be equal on all ranks, besides the settings of the transport.
    pub settings: Settings,
    /// Checks whether the rendezvous can still succeed, at short intervals while this rank waits.
    /// An error fails the rendezvous on every rank. Ranks that already have a group can detect in
    /// it that one of them has died before it took part.
    pub check: Option<Arc<dyn Fn() -> Result<()> + Send + Sync>>,
    /// The clock of the time limit: the system's, except in simulations.
    pub clock: fn() -> Instant,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, world_size, job, round, timeout, store_rank, settings, check, clock: _ } = self;
        f.debug_struct("Member")
            .field("rank", rank)
            .field("world_size", world_size)
            .field("job", job)
            .field("round", round)
            .field("timeout", timeout)
            .field("store_rank", store_rank)
            .field("settings", settings)
            .field("check", &check.is_some())
            .finish_non_exhaustive()
    }
}

impl Member {
    /// Creates a rank of a world, with the default timeout of five minutes.
    #[must_use]
    pub fn new(Membership { rank, size: world_size }: Membership) -> Self {
        let settings = Settings::default();
        let timeout = DEFAULT_TIMEOUT;
        let (store_rank, check, clock) = (None, None, Instant::now);
        Self { rank, world_size, job: 0, round: 0, timeout, store_rank, settings, check, clock }
    }

    /// Returns the rank and the number of ranks.
    #[must_use]
    pub const fn membership(&self) -> Membership {
        Membership { rank: self.rank, size: self.world_size }
    }
}
