//! How ranks that share a store come by one id.
//!
//! Rank 0 calls the others, under a number that it draws for this meeting. Each answers to that number, with its version of
//! NCCL, its device and a number of its own; and gets the id under both. So nobody takes what an earlier run left in the store for
//! the id of this one: nothing of an earlier run has both numbers. A rank that came across an old call finds the right one when
//! it looks again, which it does while it waits.

mod answer;
mod hello;

use std::hash::{BuildHasher, RandomState};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use comm_core::{During, Error, Failure, Refusal, Result, Store};

use crate::config::NcclConfig;
use crate::{Device, Library, UniqueId, environment};
use hello::Hello;

/// How long a rank waits for the store before it looks whether it answered to an old call, or waits in vain.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What comes of a meeting.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) id: UniqueId,
    /// Where the ranks of this group, and nobody else, find what they tell each other later.
    pub(crate) place: String,
}

/// Agrees on a version and on who has which device, and brings all ranks rank 0's id.
pub(crate) fn meet(
    library: &Library,
    device: &Device,
    (store, name): (&dyn Store, &str),
    config: &NcclConfig,
) -> Result<Met> {
    let (rank, size) = (config.group.rank(), config.group.size());
    let hello = Hello {
        version: library.version(),
        may_share: environment::devices_may_be_shared(),
        device: device.uuid()?,
        nonce: nonce(),
    };
    let failure = config.failure.as_deref();
    let meeting = Meeting { store, name, timeout: config.timeout, began: Instant::now(), failure, hello };
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
    failure: Option<&'a Failure>,
    /// What this rank says of itself.
    hello: Hello,
}

impl Meeting<'_> {
    /// Rank 0's part.
    fn host(&self, size: usize, generate: impl FnOnce() -> Result<UniqueId>) -> Result<Met> {
        let call = nonce();
        self.store.set(&self.call(), &call.to_le_bytes())?;
        let heard = self.hear_all(call, size)?;
        let agreed = self.agree(&heard).and_then(|()| generate());
        let answer = answer::encode(&agreed);
        for (rank, hello) in &heard {
            if let Some(nonce) = Hello::nonce_of(hello) {
                self.store.set(&self.answer(call, *rank, nonce), &answer)?;
            }
            self.store.delete(&self.hello(call, *rank))?;
        }
        // Everybody has answered to it, and looks elsewhere now.
        self.store.delete(&self.call())?;
        agreed.map(|id| self.met(call, id))
    }

    /// Waits for what the others say. The error at the deadline lists all that are missing.
    fn hear_all(&self, call: u128, size: usize) -> Result<Vec<(usize, Vec<u8>)>> {
        let mut heard = Vec::with_capacity(size - 1);
        let mut missing = Vec::new();
        for rank in 1..size {
            match self.get(&self.hello(call, rank), self.left()) {
                Ok(bytes) => heard.push((rank, bytes)),
                Err(Error::Timeout { .. }) => missing.push(rank),
                Err(error) => return Err(error),
            }
        }
        if missing.is_empty() { Ok(heard) } else { Err(self.missed(missing)) }
    }

    /// Whether all ranks can be one group.
    fn agree(&self, heard: &[(usize, Vec<u8>)]) -> Result<()> {
        let said = heard.iter().map(|(rank, bytes)| {
            let hello = Hello::decode(bytes).map_err(|refusal| refused(*rank, refusal))?;
            Ok((*rank, hello))
        });
        let all: Vec<(usize, Hello)> =
            [Ok((0, self.hello))].into_iter().chain(said).collect::<Result<_>>()?;
        answer::agree(&all)
    }

    /// Any other rank's part.
    fn attend(&self, rank: usize) -> Result<Met> {
        let hello = self.hello;
        let mut call = self.hear_call(self.left())?.ok_or_else(|| self.missed(vec![0]))?;
        loop {
            self.store.set(&self.hello(call, rank), &hello.encode())?;
            let answered = loop {
                match self.get(&self.answer(call, rank, hello.nonce), self.left().min(LOOK_AGAIN)) {
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
                return answer::decode(&answer).map(|id| self.met(call, id));
            }
        }
    }

    /// Rank 0's number, if it comes in time.
    fn hear_call(&self, timeout: Duration) -> Result<Option<u128>> {
        match self.get(&self.call(), timeout) {
            Ok(bytes) => {
                let number = bytes.try_into().map_err(|_| stranger(0))?;
                Ok(Some(u128::from_le_bytes(number)))
            }
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for a key, so long at most. A failure for which nobody shall wait is seen soon.
    fn get(&self, key: &str, at_most: Duration) -> Result<Vec<u8>> {
        let began = Instant::now();
        loop {
            if let Some(cause) = self.failure.and_then(Failure::cause) {
                return Err(Arc::unwrap_or_clone(cause));
            }
            let left = at_most.saturating_sub(began.elapsed());
            match self.store.get(key, left.min(LOOK_AGAIN)) {
                Err(Error::Timeout { .. }) if left > LOOK_AGAIN => {}
                outcome => return outcome,
            }
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

/// Somebody else writes under these names.
fn stranger(rank: usize) -> Error {
    refused(rank, Refusal::Stranger)
}

/// A rank that is not met.
fn refused(rank: usize, refusal: Refusal) -> Error {
    Error::Handshake { with: format!("rank {rank}, through the store"), refusal }
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
    fn no_number_is_drawn_twice() {
        assert_ne!(nonce(), nonce());
    }
}
