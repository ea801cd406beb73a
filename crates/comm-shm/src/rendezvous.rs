//! What ranks of shared memory tell each other through a store, and must have alike.

use std::time::Duration;

use comm_core::{DEFAULT_TIMEOUT, Error, Membership, Result};
use comm_rendezvous::Settings;

use crate::config::SharedMemoryConfig;
use crate::record::{Malformed, Record};

/// Who this process is, and whom it is to meet.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RendezvousConfig {
    /// This process's rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// The job. Jobs may share a store.
    pub job: u64,
    /// Part of the name under which ranks meet: equal on all ranks that are to meet. Ranks that
    /// meet again need no other round.
    pub round: u64,
    /// The rank that serves the store, if one does. It is named when the store breaks.
    pub store_rank: Option<usize>,
    /// Settings that must be equal on all ranks, besides those of this transport.
    pub settings: Settings,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// Names a part of this host: ranks that give another name, or none, count as being on another
    /// host. For containers that are not to share memory, or to try several hosts on one machine.
    pub part: Option<String>,
    /// How the rings of lanes are set up. The rank with the higher number decides for a pair.
    pub shm: SharedMemoryConfig,
}

impl RendezvousConfig {
    /// One rank of a world on one machine, with the default timeout of five minutes.
    #[must_use]
    pub fn new(Membership { rank, size }: Membership) -> Self {
        Self {
            rank,
            world_size: size,
            job: 0,
            round: 0,
            store_rank: None,
            settings: Settings::default(),
            timeout: DEFAULT_TIMEOUT,
            part: None,
            shm: SharedMemoryConfig::default(),
        }
    }

    /// What of this the ranks of every transport say.
    pub(crate) fn meeting(&self) -> comm_rendezvous::RendezvousConfig {
        let mut meeting =
            comm_rendezvous::RendezvousConfig::new(Membership { rank: self.rank, size: self.world_size });
        (meeting.job, meeting.round, meeting.timeout) = (self.job, self.round, self.timeout);
        meeting.store_rank = self.store_rank;
        meeting.settings.clone_from(&self.settings);
        meeting.settings.add("transport", "shm");
        meeting
    }
}

/// Reads what each rank told the others, in the order of ranks.
pub(crate) fn read(records: &[String]) -> Result<Vec<Record>> {
    let malformed =
        |text: &String| Error::malformed("the record of a rank in the store", format_args!("{text:?}"));
    records.iter().map(|text| text.parse().map_err(|Malformed| malformed(text))).collect()
}
