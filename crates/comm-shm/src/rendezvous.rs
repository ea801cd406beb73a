//! How the ranks of a job find each other through a store.
//!
//! Every rank claims its place by writing who and where it is, once; whoever comes second with the same rank learns so
//! at once. Then it reads what the others wrote.

use std::time::{Duration, Instant};

use comm_core::{DEFAULT_TIMEOUT, During, Error, Refusal, Result, Store};

use crate::config::SharedMemoryConfig;
use crate::record::Record;

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
    /// Which meeting of the job this is. A job whose ranks meet again in the same store counts up.
    pub round: u64,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// Names a part of this host: ranks that give another name, or none, count as being on another host. For
    /// containers that are not to share memory, or to try several hosts on one machine.
    pub part: Option<String>,
    /// How the rings of lanes are set up. The rank with the higher number decides for a pair.
    pub shm: SharedMemoryConfig,
}

impl RendezvousConfig {
    /// One rank of a world on one machine, with the default timeout of five minutes.
    #[must_use]
    pub fn new(rank: usize, world_size: usize) -> Self {
        Self {
            rank,
            world_size,
            job: 0,
            round: 0,
            timeout: DEFAULT_TIMEOUT,
            part: None,
            shm: SharedMemoryConfig::default(),
        }
    }

    fn rank_key(&self, rank: usize) -> String {
        format!("comm/{:016x}/{}/shm/{rank}", self.job, self.round)
    }
}

/// Meets the others. Returns what all wrote, in the order of their ranks.
pub(crate) fn meet(store: &dyn Store, config: &RendezvousConfig, own: Record) -> Result<Vec<Record>> {
    let began = Instant::now();
    claim(store, config, &own)?;
    let mut records = Vec::with_capacity(config.world_size);
    for rank in 0..config.world_size {
        let left = config.timeout.saturating_sub(began.elapsed());
        let text = match store.get(&config.rank_key(rank), left) {
            Ok(text) => text,
            Err(Error::Timeout { .. }) => {
                let waiting_for = missing(store, config, rank)?;
                return Err(Error::Timeout {
                    waiting_for,
                    after: began.elapsed(),
                    during: During::Rendezvous,
                });
            }
            Err(error) => return Err(error),
        };
        let record = parse(&text)?;
        let (ours, theirs) = (config.world_size, record.world_size);
        if ours != theirs {
            let refusal = Refusal::WorldSize { ours, theirs };
            return Err(Error::Handshake { with: format!("rank {rank}"), refusal });
        }
        records.push(record);
    }
    Ok(records)
}

/// Takes this rank's place.
fn claim(store: &dyn Store, config: &RendezvousConfig, own: &Record) -> Result<()> {
    let (rank, text) = (config.rank, own.to_string());
    let placed = store.compare_set(&config.rank_key(rank), b"", text.as_bytes())?;
    if placed == text.as_bytes() {
        return Ok(());
    }
    Err(Error::Handshake { with: format!("rank {rank}"), refusal: Refusal::DuplicateRank { rank } })
}

/// The ranks that are not there yet, the first of which is known.
fn missing(store: &dyn Store, config: &RendezvousConfig, first: usize) -> Result<Vec<usize>> {
    let mut missing = vec![first];
    for rank in first + 1..config.world_size {
        match store.wait(&[&config.rank_key(rank)], Duration::ZERO) {
            Ok(()) => {}
            Err(Error::Timeout { .. }) => missing.push(rank),
            Err(error) => return Err(error),
        }
    }
    Ok(missing)
}

fn parse(text: &[u8]) -> Result<Record> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| {
        let text = String::from_utf8_lossy(text);
        Error::Internal(format!("the store holds {text:?}, which no rank of this version writes"))
    })
}
