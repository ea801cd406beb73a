//! Connects the processes of a run through its store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{Comm, Error, Result, Store};
use comm_rendezvous::{Endpoint, GroupConnector, Member, Watch, connect};
use comm_ring::RingCommunicator;
use comm_sim::network::{Incident, NetworkFabric, NetworkStore, VirtualClock};
use comm_sim::swarm::{Property, SwarmRank};

use super::MEETING_MAX;
use crate::swarm::program::config;

/// The time limit of a request to the store, and of a rendezvous in which the group grows.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// The connector of a process.
#[derive(Debug)]
pub(super) struct Connector<'a, 'b> {
    rank: &'a SwarmRank<'b>,
    /// Whether rank 0 of the group serves the store.
    is_served: bool,
    store: Option<Arc<NetworkStore>>,
    serves: bool,
    /// The last rendezvous.
    met: Met,
}

/// A rendezvous that this process has completed.
#[derive(Debug, Clone, Default)]
struct Met {
    /// Its number.
    meeting: u64,
    /// The processes, in the order of their ranks.
    processes: Vec<usize>,
}

impl<'a, 'b> Connector<'a, 'b> {
    pub(super) fn new(rank: &'a SwarmRank<'b>, is_served: bool) -> Self {
        Self { rank, is_served, store: None, serves: false, met: Met::default() }
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
        let endpoint = ProcessEndpoint { clock: self.rank.clock(), process: self.rank.number() };
        let (rendezvous, (fabric, met)) = connect(&*store, member, Ok(endpoint))?;
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
    pub(super) fn reopen_store(&self) -> Result<NetworkStore> {
        self.rank.clock().connect_store(self.is_served, STORE_TIMEOUT)
    }
}

impl GroupConnector for Connector<'_, '_> {
    fn open_store(&mut self, rank: Option<usize>, timeout: Duration) -> Result<Arc<dyn Store>> {
        if self.store.is_none() {
            self.serves = self.is_served && rank == Some(0);
            let clock = self.rank.clock();
            let opened = if self.serves {
                clock.serve_store(timeout)
            } else {
                clock.connect_store(self.is_served, timeout)
            };
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

/// The endpoint of a process on the network of the run.
struct ProcessEndpoint<'a> {
    clock: &'a VirtualClock,
    process: usize,
}

impl Endpoint for ProcessEndpoint<'_> {
    type Fabric = (NetworkFabric, Met);

    /// Returns the number of the process, and another one that makes each rendezvous unique.
    fn record(&self) -> String {
        format!("{} {}", self.process, self.clock.operations())
    }

    fn connect(self, records: &[String], watch: Option<Arc<Watch>>) -> Result<(NetworkFabric, Met)> {
        let parse = |record: &str| record.split_once(' ')?.0.parse().ok();
        let processes = comm_rendezvous::parse_records(records, parse)?;
        let bytes = records.iter().flat_map(|record| record.bytes().chain([b'\n']));
        let meeting = bytes.fold(1, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let watch = watch.map(|watch| Arc::new(move || watch.hold().check()) as Arc<_>);
        let fabric = self.clock.fabric(processes.clone(), meeting, watch)?;
        Ok((fabric, Met { meeting, processes }))
    }
}

#[cold]
fn not_open() -> Error {
    Error::Internal("the store is not open".into())
}
