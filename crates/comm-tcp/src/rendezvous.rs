//! How the ranks of a job find each other through a store.
//!
//! Every rank claims its place by writing who it is, once; whoever comes second with the same rank learns so at once.
//! Rank 0 reads all of these records, and writes down for everybody how it ended: who is where, who is missing, or
//! who came with another size of the world. A rank reads one key, and rank 0 reads one per rank.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::{Duration, Instant};

use comm_core::{DEFAULT_TIMEOUT, During, Error, Loss, Refusal, Result, Store};

use crate::config::TcpConfig;
use crate::record::{Malformed, Member, Outcome, Record};
use crate::secret::Secret;

/// Who this process is, whom it is to meet, and where the others find it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RendezvousConfig {
    /// This process's rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// The job. Processes of other jobs are refused, and jobs may share a store.
    pub job: u64,
    /// Which meeting of the job this is. A job whose ranks meet again in the same store counts up.
    pub round: u64,
    /// The shared secret. A side that has one refuses a side that has not.
    pub secret: Option<Secret>,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// Where the store is, unless it is on this machine. The address that the others are told is the one from which
    /// packets to the store leave. Without it, that address is loopback, and all ranks must be on one machine.
    pub store: Option<SocketAddr>,
    /// The network interfaces whose addresses may be told to the others, in NCCL's syntax: `eth` for all whose names
    /// begin like this, `=eth0` for exactly this one, `^docker,lo` for all others, and lists with commas.
    pub interface: Option<String>,
    /// The address to listen on. It is also told to the others unless it is unspecified (`0.0.0.0`, `::`). Without it,
    /// it is the address that the others are told.
    pub bind: Option<IpAddr>,
    /// How the sockets of lanes are set up.
    pub tcp: TcpConfig,
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
            secret: None,
            timeout: DEFAULT_TIMEOUT,
            store: None,
            interface: None,
            bind: None,
            tcp: TcpConfig::default(),
        }
    }

    fn key(&self, name: &str) -> String {
        format!("comm/{:016x}/{}/{name}", self.job, self.round)
    }

    fn rank_key(&self, rank: usize) -> String {
        self.key(&format!("rank/{rank}"))
    }
}

/// A meeting under way.
struct Meeting<'a> {
    store: &'a dyn Store,
    config: &'a RendezvousConfig,
    began: Instant,
}

/// Meets the others. Returns all members in the order of their ranks.
pub(crate) fn meet(store: &dyn Store, config: &RendezvousConfig, own: Member) -> Result<Vec<Member>> {
    let meeting = Meeting { store, config, began: Instant::now() };
    let own = Record { world_size: config.world_size, member: own };
    meeting.claim(&own)?;
    let sizes = meeting.compare_sizes();
    if let (0, Err(Error::Handshake { .. })) = (config.rank, &sizes) {
        // Ranks of the other size hear of it from nobody else.
        meeting.tell(&Outcome::WorldSize { rank: 0, world_size: config.world_size })?;
    }
    sizes?;
    let outcome = if config.rank == 0 { meeting.gather(own)? } else { meeting.hear()? };
    if config.rank == 0 {
        meeting.tell(&outcome)?;
    }
    let members = meeting.judge(outcome)?;
    check_reach(&members)?;
    Ok(members)
}

impl Meeting<'_> {
    fn left(&self) -> Duration {
        self.config.timeout.saturating_sub(self.began.elapsed())
    }

    /// Takes this rank's place.
    fn claim(&self, own: &Record) -> Result<()> {
        let rank = self.config.rank;
        let text = own.to_string();
        let placed = self.store.compare_set(&self.config.rank_key(rank), b"", text.as_bytes())?;
        if placed != text.as_bytes() {
            let with = parse::<Record>(&placed).map_or_else(
                |_| format!("rank {rank}"),
                |first| format!("rank {rank} at {}", first.member.address),
            );
            return Err(Error::Handshake { with, refusal: Refusal::DuplicateRank { rank } });
        }
        Ok(())
    }

    /// Fails if the first rank came with another size of the world.
    fn compare_sizes(&self) -> Result<()> {
        let ours = self.config.world_size;
        let size =
            self.store.compare_set(&self.config.key("world_size"), b"", ours.to_string().as_bytes())?;
        match std::str::from_utf8(&size).ok().and_then(|size| size.parse().ok()) {
            Some(theirs) if theirs == ours => Ok(()),
            Some(theirs) => Err(self.sizes_differ("the ranks that came first".into(), theirs)),
            None => Err(malformed(&size)),
        }
    }

    /// Rank 0 reads who came.
    fn gather(&self, own: Record) -> Result<Outcome> {
        let mut records = vec![own];
        for rank in 1..self.config.world_size {
            let text = match self.store.get(&self.config.rank_key(rank), self.left()) {
                Ok(text) => text,
                Err(Error::Timeout { .. }) => return Ok(Outcome::Missing(self.missing(rank)?)),
                Err(error) => return Err(error),
            };
            let record: Record = parse(&text)?;
            if record.world_size != own.world_size {
                return Ok(Outcome::WorldSize { rank, world_size: record.world_size });
            }
            records.push(record);
        }
        Ok(Outcome::Met(records))
    }

    /// The ranks from `first` on that are not there yet.
    fn missing(&self, first: usize) -> Result<Vec<usize>> {
        let mut missing = Vec::new();
        for rank in first..self.config.world_size {
            match self.store.wait(&[&self.config.rank_key(rank)], Duration::ZERO) {
                Ok(()) => {}
                Err(Error::Timeout { .. }) => missing.push(rank),
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }

    /// Rank 0 writes down how it ended.
    fn tell(&self, outcome: &Outcome) -> Result<()> {
        self.store.set(&self.config.key("outcome"), outcome.to_string().as_bytes())
    }

    /// Others read what rank 0 wrote. If it wrote nothing, they look for themselves who is missing.
    fn hear(&self) -> Result<Outcome> {
        match self.store.get(&self.config.key("outcome"), self.left()) {
            Ok(text) => parse(&text),
            Err(Error::Timeout { .. }) => {
                let missing = self.missing(0)?;
                // All came, but rank 0 has not said so.
                Ok(Outcome::Missing(if missing.is_empty() { vec![0] } else { missing }))
            }
            Err(error) => Err(error),
        }
    }

    fn judge(&self, outcome: Outcome) -> Result<Vec<Member>> {
        match outcome {
            Outcome::Met(records) if records.len() == self.config.world_size => {
                Ok(records.into_iter().map(|record| record.member).collect())
            }
            Outcome::Met(records) => Err(self.sizes_differ("rank 0".into(), records.len())),
            Outcome::Missing(waiting_for) => {
                let after = self.began.elapsed();
                Err(Error::Timeout { waiting_for, after, during: During::Rendezvous })
            }
            Outcome::WorldSize { rank, world_size } => {
                Err(self.sizes_differ(format!("rank {rank}"), world_size))
            }
        }
    }

    fn sizes_differ(&self, with: String, theirs: usize) -> Error {
        let refusal = Refusal::WorldSize { ours: self.config.world_size, theirs };
        Error::Handshake { with, refusal }
    }
}

fn parse<T: FromStr<Err = Malformed>>(text: &[u8]) -> Result<T> {
    let text = std::str::from_utf8(text).map_err(|_| malformed(text))?;
    text.parse().map_err(|Malformed(text)| malformed(text.as_bytes()))
}

fn malformed(text: &[u8]) -> Error {
    let text = String::from_utf8_lossy(text);
    Error::Internal(format!("the store holds {text:?}, which no rank of this version writes"))
}

/// Refuses a rank that told the others its loopback address while others are elsewhere. A host name that resolves to
/// 127.0.1.1 on its own host does that.
fn check_reach(members: &[Member]) -> Result<()> {
    let loopback = members.iter().position(|member| member.address.ip().is_loopback());
    let elsewhere = members.iter().position(|member| !member.address.ip().is_loopback());
    let (Some(here), Some(there)) = (loopback, elsewhere) else { return Ok(()) };
    let (ours, theirs) = (members[here].address, members[there].address);
    let loss = std::io::Error::new(
        std::io::ErrorKind::AddrNotAvailable,
        format!(
            "it listens on the loopback address {ours}, but rank {there} on {theirs}: give the store's address as \
             others see it, or choose an interface"
        ),
    );
    Err(Error::PeerLost { peer: here, during: During::Rendezvous, loss: Loss::Io(loss.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stripes::Stripes;

    fn members(addresses: &[&str]) -> Vec<Member> {
        let member = |a: &&str| Member { process: 0, address: a.parse().unwrap(), stripes: Stripes::NONE };
        addresses.iter().map(member).collect()
    }

    #[test]
    fn a_rank_on_loopback_among_others_elsewhere_is_named() {
        assert!(check_reach(&members(&["127.0.0.1:1", "127.0.0.1:2"])).is_ok());
        assert!(check_reach(&members(&["10.0.0.1:1", "[fd00::1]:2"])).is_ok());
        let error = check_reach(&members(&["10.0.0.1:1", "127.0.0.1:2"])).unwrap_err();
        assert!(matches!(error, Error::PeerLost { peer: 1, .. }), "{error}");
        assert!(error.to_string().contains("10.0.0.1:1"), "{error}");
    }
}
