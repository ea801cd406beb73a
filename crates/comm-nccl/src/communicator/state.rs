//! The state of a communicator: its handle and the calls in flight.

use std::collections::{BTreeMap, VecDeque};

use comm_core::{Desync, Error, Group, Result, Signature};

use super::board::Announcement;
use super::deadline::Deadline;
use crate::handle::Handle;
use crate::plan::Pending;
use crate::stream::Event;

/// The number of past collectives that a rank remembers.
const HISTORY: usize = 64;

/// The mutable state of a communicator.
#[derive(Debug, Default)]
pub(super) struct State {
    /// `None` once the communicator has ended.
    pub(super) handle: Option<Handle>,
    /// The number of calls that this rank has made.
    pub(super) calls: u64,
    /// The number of collectives among them, which is equal on all ranks.
    pub(super) collectives: u64,
    /// The call that is being enqueued.
    pub(super) entering: Option<PendingCall>,
    /// Calls on the device, oldest first.
    pub(super) enqueued: VecDeque<EnqueuedCall>,
    /// The last collectives, oldest first.
    history: VecDeque<Announcement>,
    /// The calls in which other ranks wait, as last read from the store.
    pub(super) heard: Vec<(usize, Announcement)>,
    /// The number of times that each group was made by shrinking.
    pub(super) shrunk: BTreeMap<Vec<usize>, u64>,
    /// The cause of the communicator's failure, until it is told to other ranks.
    pub(super) failed: Option<Error>,
    /// Whether a thread is aborting the former `handle`.
    pub(super) aborting: bool,
    /// Whether the communicator was closed in order.
    pub(super) closed: bool,
    /// Whether the threads must end.
    pub(super) closing: bool,
}

/// A call that has not been seen to end.
#[derive(Debug, Clone)]
pub(super) struct PendingCall {
    /// Its number on this rank.
    pub(super) number: u64,
    /// The number of the last collective: its own, if it is a collective.
    pub(super) sequence: u64,
    pub(super) pending: Pending,
    pub(super) deadline: Deadline,
}

/// A call on the device.
#[derive(Debug)]
pub(super) struct EnqueuedCall {
    pub(super) call: PendingCall,
    pub(super) done: Event,
}

impl PendingCall {
    /// Returns the announcement of the call to other ranks; `None` unless it is a collective.
    pub(super) fn announcement(&self) -> Option<Announcement> {
        match &self.pending {
            Pending::Collective(call) => Some(Announcement { sequence: self.sequence, call: call.clone() }),
            _ => None,
        }
    }
}

impl State {
    /// Returns the state of a new communicator.
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle: Some(handle), ..Self::default() }
    }

    /// Assigns numbers to a call that begins.
    pub(super) fn enter(&mut self, pending: Pending, deadline: Deadline) -> PendingCall {
        self.calls += 1;
        if let Pending::Collective(call) = &pending {
            self.collectives += 1;
            self.history.push_back(Announcement { sequence: self.collectives, call: call.clone() });
            if self.history.len() > HISTORY {
                self.history.pop_front();
            }
        }
        let call = PendingCall { number: self.calls, sequence: self.collectives, pending, deadline };
        self.entering = Some(call.clone());
        call
    }

    /// Returns the call that has been in flight for longest.
    pub(super) fn oldest(&self) -> Option<&PendingCall> {
        self.pending_calls().next()
    }

    /// Returns all calls in flight, oldest first.
    pub(super) fn pending_calls(&self) -> impl Iterator<Item = &PendingCall> {
        self.enqueued.iter().map(|enqueued| &enqueued.call).chain(&self.entering)
    }

    /// Removes calls that have ended.
    pub(super) fn reap(&mut self) -> Result<()> {
        while let Some(oldest) = self.enqueued.front() {
            if !oldest.done.is_past()? {
                break;
            }
            self.enqueued.pop_front();
        }
        Ok(())
    }

    /// Checks for failures that no thread waits for: errors of NCCL, and calls past their
    /// deadlines.
    pub(super) fn look(&mut self, group: Group) -> Result<()> {
        self.reap()?;
        if let Some(handle) = &self.handle {
            handle.progress()?;
        }
        // A later call may have less time, and waits for the earlier ones.
        let overdue = self.enqueued.iter().find(|enqueued| enqueued.call.deadline.has_passed());
        overdue.map_or(Ok(()), |enqueued| Err(self.missed(group, &enqueued.call)))
    }

    /// Returns the error of a call at its deadline. NCCL does not tell which ranks are missing;
    /// ranks that announced this call or a later one are not.
    pub(super) fn missed(&self, group: Group, call: &PendingCall) -> Error {
        let has_come = |rank: &usize| {
            self.heard.iter().any(|(peer, said)| peer == rank && said.sequence >= call.sequence)
        };
        let missing: Vec<usize> = match call.pending {
            Pending::Send { to: peer } | Pending::Recv { from: peer } => vec![peer],
            _ => group.peers().filter(|rank| !has_come(rank)).collect(),
        };
        let waiting_for = if missing.is_empty() { group.peers().collect() } else { missing };
        let during = call.pending.during(call.sequence);
        Error::Timeout { waiting_for, after: call.deadline.after, during }
    }

    /// Compares the call that another rank announced with this rank's call of the same number.
    pub(super) fn compare(&self, rank: usize, peer: usize, said: &Announcement) -> Result<()> {
        let ours = self.history.iter().find(|ours| ours.sequence == said.sequence);
        let Some(ours) = ours.filter(|ours| ours.call != said.call) else { return Ok(()) };
        let known = |call: &Signature| Some(call.clone());
        Err(Desync::new(said.sequence, (rank, known(&ours.call)), (peer, known(&said.call))).into())
    }
}
