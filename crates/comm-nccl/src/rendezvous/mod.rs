//! The rendezvous of ranks that share a store, which gives all of them one unique id.
//!
//! The leader, the first of them, writes a random number for this rendezvous. Each follower answers
//! to that number, with its version of NCCL, its device and a random number of its own, and
//! receives the id under both numbers. So no rank takes a value that an earlier run left in the
//! store for the id of this one: no value of an earlier run has both numbers. A rank that has read
//! an old number of the leader finds the new one when it reads again, which it does while it waits.

mod answer;
mod hello;

use std::hash::{BuildHasher, RandomState};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use comm_core::wire::{self, Reader};
use comm_core::{During, Error, Failure, Group, Refusal, Result, Store};

use crate::communicator::deadline::Deadline;
use crate::{Capabilities, Device, Library, UniqueId};
use hello::Hello;

/// The time for which a rank waits for the store before it checks for a new number of the leader,
/// or a failure.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A rendezvous of ranks that are to form one group.
pub(crate) struct Rendezvous<'a> {
    pub(crate) store: &'a dyn Store,
    /// The prefix of the keys. Ranks with another leader must use another.
    pub(crate) place: String,
    /// The group of the ranks, seen by this one, whose numbering is used here.
    pub(crate) group: Group,
    /// The members, the leader first; this rank is one of them.
    pub(crate) members: &'a [usize],
    pub(crate) deadline: Deadline,
    /// A failure that ends the rendezvous.
    pub(crate) failure: Option<&'a Failure>,
}

impl Rendezvous<'_> {
    /// Checks members, versions and devices, and gives all ranks the leader's id.
    pub(crate) fn run(&self, library: &Library, device: &Device) -> Result<UniqueId> {
        let rank = self.group.rank();
        let Some((&host, others)) = self.members.split_first().filter(|(_, others)| !others.is_empty())
        else {
            return UniqueId::generate(library);
        };
        let hello = Hello {
            capabilities: Capabilities::of(library, device)?,
            without: (0..self.group.size()).filter(|rank| !self.members.contains(rank)).collect(),
            nonce: nonce(),
        };
        if rank == host {
            self.lead(&hello, others, || UniqueId::generate(library))
        } else {
            self.follow(&hello, host)
        }
    }

    /// Leads the rendezvous.
    fn lead(
        &self,
        hello: &Hello,
        others: &[usize],
        generate: impl FnOnce() -> Result<UniqueId>,
    ) -> Result<UniqueId> {
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
        // All followers have answered to the number, and wait elsewhere.
        self.store.delete(&self.call())?;
        agreed
    }

    /// Waits for the hellos of the followers. The error at the deadline lists all missing ranks.
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

    /// Checks that all ranks can form one group.
    fn agree(&self, own: &Hello, heard: &[(usize, Vec<u8>)]) -> Result<()> {
        let said = heard.iter().map(|(rank, bytes)| {
            let hello = Hello::decode(bytes).map_err(|refusal| refused(*rank, refusal))?;
            Ok((*rank, hello))
        });
        let own = (self.group.rank(), own.clone());
        let all: Vec<(usize, Hello)> = [Ok(own)].into_iter().chain(said).collect::<Result<_>>()?;
        answer::agree(&all)
    }

    /// Follows the leader.
    fn follow(&self, hello: &Hello, host: usize) -> Result<UniqueId> {
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
                // Without a number the leader has all hellos, and is about to answer.
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
                return answer::decode(&answer, host);
            }
        }
    }

    /// Reads the leader's number; `None` if there is none in time.
    fn read_call(&self, host: usize, timeout: Duration) -> Result<Option<u128>> {
        match self.get(&self.call(), timeout) {
            Ok(bytes) => wire::decode(&bytes, Reader::get).map(Some).map_err(|_| stranger(host)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for a key for at most this time. A failure ends the wait early.
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

/// Returns the error for a value that another program has written under these keys.
fn stranger(rank: usize) -> Error {
    refused(rank, Refusal::NotAPeer)
}

/// Returns the error for a rank that is refused.
fn refused(rank: usize, refusal: Refusal) -> Error {
    Error::Handshake { with: format!("rank {rank}, through the store"), refusal }
}

/// Returns a random number that is unique, also among processes forked from one.
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
