//! How the ranks of a job find each other through a store.
//!
//! Every rank claims its place by writing who and where it is, once; whoever comes second with the same rank learns so
//! at once. Rank 0 reads what all wrote, and writes it down in one place, from which the others read it.

use std::time::{Duration, Instant};

use comm_core::{DEFAULT_TIMEOUT, During, Error, Refusal, Result, Store};

use crate::config::SharedMemoryConfig;
use crate::record::Record;

/// The name of the key under which rank 0 writes what all ranks wrote.
const ALL: &str = "all";

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

    fn key(&self, name: &str) -> String {
        format!("comm/{:016x}/{}/shm/{name}", self.job, self.round)
    }

    fn rank_key(&self, rank: usize) -> String {
        self.key(&rank.to_string())
    }
}

/// A meeting under way.
struct Meeting<'a> {
    store: &'a dyn Store,
    config: &'a RendezvousConfig,
    began: Instant,
}

/// Meets the others. Returns what all wrote, in the order of their ranks.
pub(crate) fn meet(store: &dyn Store, config: &RendezvousConfig, own: Record) -> Result<Vec<Record>> {
    let meeting = Meeting { store, config, began: Instant::now() };
    claim(store, config, &own)?;
    let records = if config.rank == 0 { meeting.gather()? } else { meeting.hear()? };
    if records.len() == config.world_size {
        return Ok(records);
    }
    Err(Error::Internal(format!("the store knows {} ranks of {}", records.len(), config.world_size)))
}

impl Meeting<'_> {
    /// Rank 0 reads what each wrote, and tells all of it, or what it has read when sizes of the world differ.
    fn gather(&self) -> Result<Vec<Record>> {
        let mut texts = Vec::with_capacity(self.config.world_size);
        let mut agreed = true;
        while agreed && texts.len() < self.config.world_size {
            let text = self.get(&self.config.rank_key(texts.len()), texts.len())?;
            agreed = parse(&text)?.world_size == self.config.world_size;
            texts.push(text);
        }
        let all = texts.join(&b'\n');
        self.store.set(&self.config.key(ALL), &all)?;
        self.judge(&all)
    }

    /// Others read what rank 0 has read. With rank 0 itself they compare sizes first, so that ranks of another world
    /// fail too.
    fn hear(&self) -> Result<Vec<Record>> {
        self.judge(&self.get(&self.config.rank_key(0), 0)?)?;
        let all = self.get(&self.config.key(ALL), 0)?;
        self.judge(&all)
    }

    /// Waits for a value. At the deadline, names the ranks from `first` on that have not come.
    fn get(&self, key: &str, first: usize) -> Result<Vec<u8>> {
        let left = self.config.timeout.saturating_sub(self.began.elapsed());
        match self.store.get(key, left) {
            Err(Error::Timeout { .. }) => {
                let mut waiting_for = missing(self.store, self.config, first)?;
                if waiting_for.is_empty() {
                    // All came, but rank 0 has not said so.
                    waiting_for.push(0);
                }
                Err(Error::Timeout { waiting_for, after: self.began.elapsed(), during: During::Rendezvous })
            }
            other => other,
        }
    }

    /// Fails if some rank came with another size of the world.
    fn judge(&self, all: &[u8]) -> Result<Vec<Record>> {
        let record = |(rank, text): (usize, &[u8])| {
            let record = parse(text)?;
            let (ours, theirs) = (self.config.world_size, record.world_size);
            if ours == theirs {
                return Ok(record);
            }
            let refusal = Refusal::WorldSize { ours, theirs };
            Err(Error::Handshake { with: format!("rank {rank}"), refusal })
        };
        all.split(|byte| *byte == b'\n').enumerate().map(record).collect()
    }
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

/// The ranks from `first` on that are not there yet.
fn missing(store: &dyn Store, config: &RendezvousConfig, first: usize) -> Result<Vec<usize>> {
    let mut missing = Vec::new();
    for rank in first..config.world_size {
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
