//! Connects the processes of a run through its store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{Comm, Error, Fabric, Result, Store};
use comm_rendezvous::{GroupConnector, Member, Rendezvous};
use comm_ring::RingCommunicator;
use comm_sim::network::Incident;
use comm_sim::swarm::{Property, SwarmRank};

use super::MEETING_MAX;
use crate::swarm::program::config;

/// The time limit of a request to the store, and of a rendezvous in which the group grows.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// The means by which the processes of a run reach each other.
pub(in crate::swarm) trait Medium<'a>: Sized {
    type Store: Store + 'static;
    type Fabric: Fabric<Channel: Send> + 'static;

    /// Creates the means of a process. If a rank serves the store, `is_served` is set.
    fn new(rank: &'a SwarmRank<'a>, is_served: bool) -> Self;

    /// Begins to serve an empty store in this process, and connects to it.
    fn serve_store(&mut self, timeout: Duration) -> Result<Self::Store>;

    /// Connects to the store.
    fn connect_store(&self, timeout: Duration) -> Result<Self::Store>;

    /// Meets the other ranks in the store, and connects to them.
    fn join<'s>(
        &self,
        store: &'s Self::Store,
        member: Member,
    ) -> Result<(Rendezvous<'s>, (Self::Fabric, Met))>;
}

/// The connector of a process.
#[derive(Debug)]
pub(super) struct Connector<'a, M: Medium<'a>> {
    rank: &'a SwarmRank<'a>,
    medium: M,
    /// Whether rank 0 of the group serves the store.
    is_served: bool,
    store: Option<Arc<M::Store>>,
    serves: bool,
    /// The last rendezvous.
    met: Met,
}

/// A rendezvous that this process has completed.
#[derive(Debug, Clone, Default)]
pub(in crate::swarm) struct Met {
    /// Its number.
    pub(in crate::swarm) meeting: u64,
    /// The processes, in the order of their ranks.
    processes: Vec<usize>,
}

impl Met {
    /// Returns the rendezvous of these processes. No other one has these records.
    pub(in crate::swarm) fn new<'r>(records: impl Iterator<Item = &'r str>, processes: Vec<usize>) -> Self {
        let bytes = records.flat_map(|record| record.bytes().chain([b'\n']));
        let meeting = bytes.fold(1, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        Self { meeting, processes }
    }
}

impl<'a, M: Medium<'a>> Connector<'a, M> {
    pub(super) fn new(rank: &'a SwarmRank<'a>, is_served: bool) -> Self {
        let medium = M::new(rank, is_served);
        Self { rank, medium, is_served, store: None, serves: false, met: Met::default() }
    }

    /// Records that this process is in the group that has met.
    pub(super) fn enter(&self) {
        self.rank.enter(self.met.processes.clone(), self.met.meeting);
    }

    /// Connects to the ranks that meet in the store.
    pub(super) fn meet(&mut self, mut member: Member) -> Result<Comm> {
        let store = self.store.clone().ok_or_else(not_open)?;
        member.clock = self.clock();
        member.store_rank = self.is_served.then_some(0);
        let left = member.timeout;
        let (rendezvous, (fabric, met)) = self.medium.join(&store, member)?;
        match RingCommunicator::new(fabric, config(self.rank), left) {
            Ok(communicator) => {
                rendezvous.finish()?;
                self.met = met;
                Ok(Comm::new(communicator).with_timeout(self.rank.timeout()))
            }
            Err(error) => Err(rendezvous.fail(error)),
        }
    }

    /// Connects to the store once more.
    pub(super) fn reopen_store(&self) -> Result<M::Store> {
        self.medium.connect_store(STORE_TIMEOUT)
    }
}

impl<'a, M: Medium<'a>> GroupConnector for Connector<'a, M> {
    fn open_store(&mut self, rank: Option<usize>, timeout: Duration) -> Result<Arc<dyn Store>> {
        // A process that still lives would try again.
        if self.rank.clock().is_dead() {
            return Err(Error::Internal("a dead process opens the store".into()));
        }
        if self.store.is_none() {
            self.serves = self.is_served && rank == Some(0);
            let medium = &mut self.medium;
            let opened =
                if self.serves { medium.serve_store(timeout) } else { medium.connect_store(timeout) };
            self.store = Some(Arc::new(opened?));
        }
        let open = self.store.clone().ok_or_else(not_open)?;
        Ok(open)
    }

    fn close_store(&mut self) {
        if !self.serves {
            self.store = None;
        }
    }

    fn connect(&mut self, member: Member) -> Result<Comm> {
        self.rank.begin_change();
        let (clock, began) = (self.rank.clock(), self.rank.clock().elapsed());
        let met = self.meet(member);
        let took = clock.elapsed() - began;
        let is_death = |(_, incident): &(Duration, Incident)| matches!(incident, Incident::Death { .. });
        if took > MEETING_MAX && clock.incidents().iter().all(is_death) {
            self.rank.violate(Property::Deadline, format!("a rendezvous took {took:?}"));
        }
        met
    }

    fn clock(&self) -> fn() -> Instant {
        super::clock()
    }

    fn sleep(&self, duration: Duration) {
        self.rank.clock().sleep(duration);
    }
}

#[cold]
fn not_open() -> Error {
    Error::Internal("the store is not open".into())
}
