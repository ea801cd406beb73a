//! How ranks that share a store come by one id.
//!
//! Rank 0 calls the others, under a number that it draws for this meeting. Each answers to that number, with its version of
//! NCCL and a number of its own; and gets the id under both. So nobody takes what an earlier run left in the store for
//! the id of this one: nothing of an earlier run has both numbers. A rank that came across an old call finds the right one when
//! it looks again, which it does while it waits.

use std::hash::{BuildHasher, RandomState};
use std::process;
use std::time::{Duration, Instant, SystemTime};

use comm_core::{During, Error, Refusal, Result, Store};
use nccl_sys::Version;

use crate::config::NcclConfig;
use crate::error::{NCCL, unavailable};
use crate::{Library, UniqueId};

/// How long a rank waits for its answer before it looks whether it answered to an old call.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What comes of a meeting.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) id: UniqueId,
    /// Where the ranks of this group, and nobody else, find what they tell each other later.
    pub(crate) place: String,
}

/// Agrees on a version, and brings all ranks rank 0's id.
pub(crate) fn meet(library: &Library, (store, name): (&dyn Store, &str), config: &NcclConfig) -> Result<Met> {
    let (rank, size) = (config.group.rank(), config.group.size());
    let meeting =
        Meeting { store, name, timeout: config.timeout, began: Instant::now(), version: library.version() };
    match rank {
        0 if size == 1 => Ok(meeting.met(nonce(), UniqueId::generate(library)?)),
        0 => meeting.host(size, || UniqueId::generate(library)),
        rank => meeting.attend(rank),
    }
}

struct Meeting<'a> {
    store: &'a dyn Store,
    name: &'a str,
    timeout: Duration,
    began: Instant,
    version: Version,
}

/// What a rank says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hello {
    version: Version,
    nonce: u128,
}

impl Hello {
    fn encode(self) -> Vec<u8> {
        let Version { major, minor, patch, .. } = self.version;
        let numbers = [major, minor, patch].into_iter().flat_map(u32::to_le_bytes);
        numbers.chain(self.nonce.to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (major, rest) = bytes.split_first_chunk()?;
        let (minor, rest) = rest.split_first_chunk()?;
        let (patch, rest) = rest.split_first_chunk()?;
        let [major, minor, patch] = [major, minor, patch].map(|number| u32::from_le_bytes(*number));
        let nonce = u128::from_le_bytes(rest.try_into().ok()?);
        Some(Self { version: Version::new(major, minor, patch), nonce })
    }
}

impl Meeting<'_> {
    /// Rank 0's part.
    fn host(&self, size: usize, generate: impl FnOnce() -> Result<UniqueId>) -> Result<Met> {
        let call = nonce();
        self.store.set(&self.call(), &call.to_le_bytes())?;
        let hellos = self.hear_all(call, size)?;
        let agreed = self.agree(&hellos).and_then(|()| generate());
        let answer = match &agreed {
            Ok(id) => [&[0][..], id.as_bytes()].concat(),
            Err(error) => [&[1][..], error.to_string().as_bytes()].concat(),
        };
        for (rank, hello) in &hellos {
            self.store.set(&self.answer(call, *rank, hello.nonce), &answer)?;
            self.store.delete(&self.hello(call, *rank))?;
        }
        // Everybody has answered to it, and looks elsewhere now.
        self.store.delete(&self.call())?;
        agreed.map(|id| self.met(call, id))
    }

    /// Waits for the others. The error at the deadline lists all that are missing.
    fn hear_all(&self, call: u128, size: usize) -> Result<Vec<(usize, Hello)>> {
        let mut hellos = Vec::with_capacity(size - 1);
        let mut missing = Vec::new();
        for rank in 1..size {
            match self.store.get(&self.hello(call, rank), self.left()) {
                Ok(bytes) => hellos.push((rank, Hello::decode(&bytes).ok_or_else(|| stranger(rank))?)),
                Err(Error::Timeout { .. }) => missing.push(rank),
                Err(error) => return Err(error),
            }
        }
        if missing.is_empty() { Ok(hellos) } else { Err(self.missed(missing)) }
    }

    /// Refuses ranks with another version than this one.
    fn agree(&self, hellos: &[(usize, Hello)]) -> Result<()> {
        let other = hellos.iter().filter(|(_, hello)| hello.version != self.version);
        let others: Vec<String> =
            other.map(|(rank, hello)| format!("rank {rank} has {}", hello.version)).collect();
        if others.is_empty() {
            return Ok(());
        }
        let words = format!(
            "ranks have different versions of NCCL: rank 0 has {}, {}",
            self.version,
            others.join(", ")
        );
        Err(unavailable(NCCL, words))
    }

    /// Any other rank's part.
    fn attend(&self, rank: usize) -> Result<Met> {
        let hello = Hello { version: self.version, nonce: nonce() };
        let mut call = self.hear_call(self.left())?.ok_or_else(|| self.missed(vec![0]))?;
        loop {
            self.store.set(&self.hello(call, rank), &hello.encode())?;
            let answered = loop {
                match self.store.get(&self.answer(call, rank, hello.nonce), self.left().min(LOOK_AGAIN)) {
                    Err(Error::Timeout { .. }) if self.left().is_zero() => return Err(self.missed(vec![0])),
                    Err(Error::Timeout { .. }) => {}
                    answer => break Some(answer?),
                }
                // No call at all: rank 0 has heard everybody, and is about to answer.
                if let Some(another) = self.hear_call(Duration::ZERO)?.filter(|another| *another != call) {
                    self.store.delete(&self.hello(call, rank))?;
                    call = another;
                    break None;
                }
            };
            if let Some(answer) = answered {
                self.store.delete(&self.answer(call, rank, hello.nonce))?;
                return id_of(&answer).map(|id| self.met(call, id));
            }
        }
    }

    /// Rank 0's number, if it comes in time.
    fn hear_call(&self, timeout: Duration) -> Result<Option<u128>> {
        match self.store.get(&self.call(), timeout) {
            Ok(bytes) => {
                let number = bytes.try_into().map_err(|_| stranger(0))?;
                Ok(Some(u128::from_le_bytes(number)))
            }
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn met(&self, call: u128, id: UniqueId) -> Met {
        Met { id, place: format!("{}/nccl/{call:x}", self.name) }
    }

    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.began.elapsed())
    }

    fn missed(&self, waiting_for: Vec<usize>) -> Error {
        Error::Timeout { waiting_for, after: self.timeout, during: During::Rendezvous }
    }

    fn call(&self) -> String {
        format!("{}/nccl/call", self.name)
    }

    fn hello(&self, call: u128, rank: usize) -> String {
        format!("{}/nccl/{call:x}/hello/{rank}", self.name)
    }

    fn answer(&self, call: u128, rank: usize, nonce: u128) -> String {
        format!("{}/nccl/{call:x}/answer/{rank}/{nonce:x}", self.name)
    }
}

/// The id in an answer, or why there is none.
fn id_of(answer: &[u8]) -> Result<UniqueId> {
    match answer.split_first() {
        Some((0, id)) => UniqueId::from_bytes(id),
        Some((_, words)) => {
            Err(unavailable(NCCL, format!("rank 0 says: {}", String::from_utf8_lossy(words))))
        }
        None => Err(stranger(0)),
    }
}

/// Somebody else writes under these names.
fn stranger(rank: usize) -> Error {
    Error::Handshake { with: format!("rank {rank}, through the store"), refusal: Refusal::Stranger }
}

/// A number that nobody draws twice, also not in processes that were forked from one.
fn nonce() -> u128 {
    let draw = || RandomState::new().hash_one((process::id(), SystemTime::now()));
    u128::from(draw()) << 64 | u128::from(draw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_as_it_was_written() {
        let hello = Hello { version: Version::new(2, 30, 7), nonce: nonce() };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        assert_eq!(Hello::decode(&hello.encode()[1..]), None);
        assert_ne!(nonce(), nonce());
    }

    #[test]
    fn an_answer_is_an_id_of_full_length_or_a_reason() {
        assert_eq!(id_of(&[[0; 1].as_slice(), &[7; 128]].concat()).unwrap().as_bytes(), &[7; 128]);
        for (answer, words) in [
            ([[0; 1].as_slice(), &[7; 127]].concat(), "127 elements, 128 are needed"),
            (b"\x01versions".to_vec(), "rank 0 says: versions"),
            (vec![], "not a comm peer"),
        ] {
            let error = id_of(&answer).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
