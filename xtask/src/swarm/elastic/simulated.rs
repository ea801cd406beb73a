//! Processes over the simulated transports and the simulated store.

use std::sync::Arc;
use std::time::Duration;

use comm_core::Result;
use comm_rendezvous::{Endpoint, Member, Rendezvous, Watch, connect};
use comm_sim::network::{NetworkFabric, NetworkStore, VirtualClock};
use comm_sim::swarm::SwarmRank;

use super::connector::{Medium, Met};

/// The simulated transports and store.
#[derive(Debug)]
pub(super) struct Simulated<'a> {
    rank: &'a SwarmRank<'a>,
    is_served: bool,
}

impl<'a> Medium<'a> for Simulated<'a> {
    type Store = NetworkStore;
    type Fabric = NetworkFabric;

    fn new(rank: &'a SwarmRank<'a>, is_served: bool) -> Self {
        Self { rank, is_served }
    }

    fn serve_store(&mut self, timeout: Duration) -> Result<NetworkStore> {
        self.rank.clock().serve_store(timeout)
    }

    fn connect_store(&self, timeout: Duration) -> Result<NetworkStore> {
        self.rank.clock().connect_store(self.is_served, timeout)
    }

    fn join<'s>(
        &self,
        store: &'s NetworkStore,
        member: Member,
    ) -> Result<(Rendezvous<'s>, (NetworkFabric, Met))> {
        let endpoint = ProcessEndpoint { clock: self.rank.clock(), process: self.rank.number() };
        connect(store, member, Ok(endpoint))
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
        let met = Met::new(records.iter().map(String::as_str), processes.clone());
        let watch = watch.map(|watch| Arc::new(move || watch.hold().check()) as Arc<_>);
        let fabric = self.clock.fabric(processes, met.meeting, watch)?;
        Ok((fabric, met))
    }
}
