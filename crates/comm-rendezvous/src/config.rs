//! What a rank must know to meet the others.

use std::time::Duration;

use comm_core::{DEFAULT_TIMEOUT, Membership};

use crate::settings::Settings;

/// Which rank this process is, and which ranks it is to meet.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RendezvousConfig {
    /// This process's rank, below `world_size`.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The job. Jobs may share a store.
    pub job: u64,
    /// Part of the name under which ranks meet: equal on all ranks that are to meet. Ranks that meet again need no other
    /// round.
    pub round: u64,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// The rank that serves the store, if one does. It is named when the store breaks.
    pub store_rank: Option<usize>,
    /// Settings that must be equal on all ranks.
    pub settings: Settings,
}

impl RendezvousConfig {
    /// One rank of a world, with the default timeout of five minutes.
    #[must_use]
    pub fn new(Membership { rank, size: world_size }: Membership) -> Self {
        let settings = Settings::default();
        Self { rank, world_size, job: 0, round: 0, timeout: DEFAULT_TIMEOUT, store_rank: None, settings }
    }
}
