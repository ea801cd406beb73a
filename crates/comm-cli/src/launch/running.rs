//! The ranks of this host while they run.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use comm::tcp::StoreConfig;

use super::Launch;
use super::agents::{Agents, Round};
use super::environment::Job;
use super::error::{LaunchError, system};
use super::events::{Events, Others};
use super::process::RankProcess;
use super::relay::{Relay, Source};
use super::store;

/// A launch whose ranks run.
pub(super) struct Running<'a> {
    pub(super) launch: &'a Launch,
    pub(super) job: &'a Job,
    pub(super) relays: Vec<Relay>,
    /// The store of the ranks, if all run on this host.
    pub(super) store: Option<(SocketAddr, StoreConfig)>,
    pub(super) others: Option<OtherNodes<'a>>,
}

impl Running<'_> {
    /// Relays outputs, if they are tagged.
    pub(super) fn relay(&mut self, outputs: Vec<Source>) -> Result<(), LaunchError> {
        if !outputs.is_empty() {
            self.relays.push(Relay::start(outputs).map_err(system("relay output"))?);
        }
        Ok(())
    }
}

impl Events for Running<'_> {
    fn replace(&mut self, rank: usize) -> Result<RankProcess, LaunchError> {
        let (process, outputs) = self.launch.spawn(self.job, rank - self.job.place.first_rank, true)?;
        self.relay(outputs.collect())?;
        Ok(process)
    }

    fn first_success(&mut self) {
        if let Some((address, config)) = &self.store
            && self.launch.ranks_max > 0
        {
            // If this fails, processes that wait to join end at their deadline.
            let _ = store::close_wait_list(*address, config);
        }
    }

    fn others(&self) -> Option<&dyn Others> {
        self.others.as_ref().map(|others| others as &dyn Others)
    }
}

/// The ranks of the other hosts, through their launchers.
pub(super) struct OtherNodes<'a> {
    pub(super) agents: &'a Agents,
    pub(super) round: &'a Round,
}

impl Others for OtherNodes<'_> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.round.descriptor()
    }

    fn outcome(&self) -> Option<Result<(), LaunchError>> {
        self.round.verdict(self.agents).map(|verdict| verdict.outcome(self.agents.own().rank, None))
    }

    fn succeeded(&self) -> Result<(), LaunchError> {
        Ok(self.agents.publish_success(self.round)?)
    }

    fn failed(&self, cause: &LaunchError) {
        self.agents.publish(self.round, cause);
    }
}
