//! How ranks that share a store come by one id.
//!
//! The first of them, the host, calls the others, under a number that it draws for this meeting. Each answers to that number, with
//! its version of NCCL, its device and a number of its own; and gets the id under both. So nobody takes what an earlier run left in the
//! store for the id of this one: nothing of an earlier run has both numbers. A rank that came across an old call finds the right
//! one when it looks again, which it does while it waits.

mod answer;
mod hello;

use std::hash::{BuildHasher, RandomState};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use comm_core::wire::{self, Reader};
use comm_core::{During, Error, Failure, Group, Refusal, Result, Store};

use crate::communicator::deadline::Deadline;
use crate::{Device, Library, UniqueId, environment};
use hello::Hello;

/// How long a rank waits for the store before it looks whether it answered to an old call, or waits in vain.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Ranks that are to be one group.
pub(crate) struct Rendezvous<'a> {
    pub(crate) store: &'a dyn Store,
    /// Under which names they meet. Ranks that have another host in mind must be elsewhere.
    pub(crate) place: String,
    /// The group of which they are, as seen by this one. Its ranks are those by which they are called here.
    pub(crate) group: Group,
    /// Those that meet, the host first, and this rank among them.
    pub(crate) members: &'a [usize],
    pub(crate) deadline: Deadline,
    /// What keeps them from it, once there is a cause.
    pub(crate) failure: Option<&'a Failure>,
}

/// What comes of a meeting.
#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) id: UniqueId,
    /// A number that no other meeting has.
    pub(crate) number: u128,
    /// Where the ranks of this group, and nobody else, find what they tell each other later.
    pub(crate) place: String,
}

impl Agreed {
    /// That of a rank that is alone, and needs no store.
    pub(crate) fn alone(library: &Library) -> Result<Self> {
        Ok(Self { id: UniqueId::generate(library)?, number: nonce(), place: String::new() })
    }
}

impl Rendezvous<'_> {
    /// Agrees on who is there, on a version and on who has which device, and brings all ranks the host's id.
    pub(crate) fn run(&self, library: &Library, device: &Device) -> Result<Agreed> {
        let rank = self.group.rank();
        let Some((&host, others)) = self.members.split_first().filter(|(_, others)| !others.is_empty())
        else {
            return Agreed::alone(library);
        };
        let hello = Hello {
            version: library.version(),
            may_share: environment::devices_may_be_shared(),
            device: device.uuid()?,
            without: (0..self.group.size()).filter(|rank| !self.members.contains(rank)).collect(),
            nonce: nonce(),
        };
        if rank == host {
            self.lead(&hello, others, || UniqueId::generate(library))
        } else {
            self.follow(&hello, host)
        }
    }

    /// The host's part.
    fn lead(
        &self,
        hello: &Hello,
        others: &[usize],
        generate: impl FnOnce() -> Result<UniqueId>,
    ) -> Result<Agreed> {
        let call = nonce();
        self.store.set(&self.call(), &wire::encode(|to| _ = to.put(call)))?;
        let heard = self.collect_hellos(call, others)?;
        let agreed = self.agree(hello, &heard).and_then(|()| generate());
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
    fn collect_hellos(&self, call: u128, others: &[usize]) -> Result<Vec<(usize, Vec<u8>)>> {
        let mut heard = Vec::with_capacity(others.len());
        let mut missing = Vec::new();
        for &rank in others {
            match self.get(&self.hello(call, rank), self.deadline.left()) {
                Ok(bytes) => heard.push((rank, bytes)),
                Err(Error::Timeout { .. }) => missing.push(rank),
                Err(error) => return Err(error),
            }
        }
        if missing.is_empty() { Ok(heard) } else { Err(self.missed(missing)) }
    }

    /// Whether all ranks can be one group.
    fn agree(&self, own: &Hello, heard: &[(usize, Vec<u8>)]) -> Result<()> {
        let said = heard.iter().map(|(rank, bytes)| {
            let hello = Hello::decode(bytes).map_err(|refusal| refused(*rank, refusal))?;
            Ok((*rank, hello))
        });
        let own = (self.group.rank(), own.clone());
        let all: Vec<(usize, Hello)> = [Ok(own)].into_iter().chain(said).collect::<Result<_>>()?;
        answer::agree(&all)
    }

    /// Any other rank's part.
    fn follow(&self, hello: &Hello, host: usize) -> Result<Agreed> {
        let rank = self.group.rank();
        let missed = || self.missed(vec![host]);
        let mut call = self.read_call(host, self.deadline.left())?.ok_or_else(missed)?;
        loop {
            self.store.set(&self.hello(call, rank), &hello.encode())?;
            let answered = loop {
                let patience = self.deadline.left().min(LOOK_AGAIN);
                match self.get(&self.answer(call, rank, hello.nonce), patience) {
                    Err(Error::Timeout { .. }) if self.deadline.has_passed() => return Err(missed()),
                    Err(Error::Timeout { .. }) => {}
                    answer => break Some(answer?),
                }
                // No call at all: the host has heard everybody, and is about to answer.
                if let Some(another) =
                    self.read_call(host, Duration::ZERO)?.filter(|another| *another != call)
                {
                    self.store.delete(&self.hello(call, rank))?;
                    call = another;
                    break None;
                }
            };
            if let Some(answer) = answered {
                self.store.delete(&self.answer(call, rank, hello.nonce))?;
                return answer::decode(&answer, host).map(|id| self.met(call, id));
            }
        }
    }

    /// The host's number, if it comes in time.
    fn read_call(&self, host: usize, timeout: Duration) -> Result<Option<u128>> {
        match self.get(&self.call(), timeout) {
            Ok(bytes) => wire::decode(&bytes, Reader::get).map(Some).map_err(|_| stranger(host)),
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

    fn met(&self, call: u128, id: UniqueId) -> Agreed {
        Agreed { id, number: call, place: format!("{}/{call:x}", self.place) }
    }

    fn missed(&self, waiting_for: Vec<usize>) -> Error {
        Error::Timeout { waiting_for, after: self.deadline.after, during: During::Rendezvous }
    }

    fn call(&self) -> String {
        format!("{}/call", self.place)
    }

    fn hello(&self, call: u128, rank: usize) -> String {
        format!("{}/{call:x}/hello/{rank}", self.place)
    }

    fn answer(&self, call: u128, rank: usize, nonce: u128) -> String {
        format!("{}/{call:x}/answer/{rank}/{nonce:x}", self.place)
    }
}

/// Somebody else writes under these names.
fn stranger(rank: usize) -> Error {
    refused(rank, Refusal::NotAPeer)
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
