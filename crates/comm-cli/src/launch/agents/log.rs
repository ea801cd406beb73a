//! The events of a start that tolerates failures, which all agents read in the same order.
//!
//! Each event has its own key in the store, `ROUND/event/N`, so the first of several agents that
//! write number N has it, and the others continue with the next number. An agent that ends without
//! a word leaves a last will, of which agent 0 makes an event.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use comm::tcp::TcpStore;
use comm::{LastWill, Presence, Store};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::join::encode;
use super::round::{FOREVER, Round, lost_key};
use super::{AgentError, Agents, Node, OPERATION_TIMEOUT};
use crate::launch::elastic::JobEvent;

/// The events of all agents of a start.
#[derive(Debug)]
pub(in crate::launch) struct EventLog {
    round: usize,
    /// The number of the next event.
    next: u64,
    watch: Box<dyn Presence>,
    /// On agent 0, the agents that may be lost.
    losses: Vec<Loss>,
    /// Readable when one of the presences above, or the round's, is.
    ready: OwnedFd,
}

/// A connection that waits for the last will of an agent.
#[derive(Debug)]
struct Loss {
    node: Node,
    token: String,
    watch: Box<dyn Presence>,
}

pub(super) fn event_key(round: usize, number: u64) -> String {
    format!("{round}/event/{number}")
}

impl EventLog {
    /// Reads the events of a round from this one on.
    pub(super) fn open(agents: &Agents, round: &Round, next: u64) -> Result<Self, AgentError> {
        let failed = |error| agents.store_failed(error);
        let watch = watch(agents, &event_key(round.number(), next))?;
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| failed(comm::Error::io("watch the other agents", error.into())))?;
        let log = Self { round: round.number(), next, watch, losses: Vec::new(), ready };
        log.add(agents, round.descriptor())?;
        log.add(agents, log.watch.descriptor())?;
        Ok(log)
    }

    /// Readable when [`EventLog::lost`] or [`EventLog::read`] may have something to return, or when
    /// there is a verdict.
    pub(in crate::launch) fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// On agent 0, waits for the last will of the agent of a node.
    pub(in crate::launch) fn watch_agent(
        &mut self,
        agents: &Agents,
        node: Node,
        token: String,
    ) -> Result<(), AgentError> {
        if agents.own.rank == 0 && node.rank > 0 {
            let watch = watch(agents, &lost_key(self.round, &token))?;
            self.add(agents, watch.descriptor())?;
            self.losses.push(Loss { node, token, watch });
        }
        Ok(())
    }

    /// Returns the agents that were lost since the last call, with their tokens.
    pub(in crate::launch) fn lost(&mut self, agents: &Agents) -> Result<Vec<(Node, String)>, AgentError> {
        let (mut lost, mut others) = (Vec::new(), Vec::new());
        for Loss { node, token, watch } in std::mem::take(&mut self.losses) {
            match watch.poll() {
                Ok(None) => others.push(Loss { node, token, watch }),
                Ok(Some(_)) => lost.push((node, token)),
                Err(error) => return Err(agents.store_failed(error)),
            }
        }
        self.losses = others;
        Ok(lost)
    }

    /// Writes an event, and returns the events of other agents that come before it.
    pub(in crate::launch) fn append(
        &mut self,
        agents: &Agents,
        event: &JobEvent,
    ) -> Result<Vec<JobEvent>, AgentError> {
        let (store, ours) = (agents.store()?, encode(event));
        let mut earlier = Vec::new();
        loop {
            let found = store.compare_set(&event_key(self.round, self.next), b"", &ours);
            let found = found.map_err(|error| agents.store_failed(error))?;
            self.next += 1;
            if found == ours {
                return Ok(earlier);
            }
            earlier.push(decode(agents, &found)?);
        }
    }

    /// Returns the events since the last call.
    pub(in crate::launch) fn read(&mut self, agents: &Agents) -> Result<Vec<JobEvent>, AgentError> {
        let mut events = Vec::new();
        while let Some(event) = self.read_next(agents.store()?, agents)? {
            events.push(event);
        }
        if !matches!(self.watch.poll(), Ok(None)) {
            // An event that was written in the meantime makes the new watch readable.
            self.watch = watch(agents, &event_key(self.round, self.next))?;
            self.add(agents, self.watch.descriptor())?;
        }
        Ok(events)
    }

    fn read_next(&mut self, store: &TcpStore, agents: &Agents) -> Result<Option<JobEvent>, AgentError> {
        let key = event_key(self.round, self.next);
        if !store.check(&[&key]).map_err(|error| agents.store_failed(error))? {
            return Ok(None);
        }
        let event = store.get(&key, OPERATION_TIMEOUT).map_err(|error| agents.store_failed(error))?;
        self.next += 1;
        decode(agents, &event).map(Some)
    }

    fn add(&self, agents: &Agents, descriptor: BorrowedFd<'_>) -> Result<(), AgentError> {
        // The kernel removes a descriptor that is closed.
        epoll::add(&self.ready, descriptor, EventData::new_u64(0), EventFlags::IN)
            .map_err(|error| agents.store_failed(comm::Error::io("watch the other agents", error.into())))
    }
}

/// Waits for a key on a connection of its own, whose end has no consequence.
fn watch(agents: &Agents, key: &str) -> Result<Box<dyn Presence>, AgentError> {
    let nothing = LastWill { condition: ("never", b"never"), keys: &["never"], value: b"" };
    let watch = agents.store()?.register_last_will(&nothing, key, FOREVER);
    watch.map_err(|error| agents.store_failed(error))?.ok_or_else(|| agents.lost(0))
}

fn decode(agents: &Agents, event: &[u8]) -> Result<JobEvent, AgentError> {
    serde_json::from_slice(event)
        .map_err(|error| agents.store_failed(comm::Error::malformed("an event of an agent", error)))
}

/// Waits until another event may be there, for at most this time.
pub(super) fn await_event(agents: &Agents, log: &EventLog, limit: Duration) -> Result<(), AgentError> {
    match agents.store()?.wait(&[&event_key(log.round, log.next)], limit) {
        Ok(()) | Err(comm::Error::Timeout { .. }) => Ok(()),
        Err(error) => Err(agents.store_failed(error)),
    }
}
