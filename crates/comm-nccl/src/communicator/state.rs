//! What is under way.

use std::collections::{BTreeMap, VecDeque};

use comm_core::{Desync, Error, Group, Result, Signature};

use super::board::Announcement;
use super::deadline::Deadline;
use crate::handle::Handle;
use crate::plan::Pending;
use crate::stream::Event;

/// How many collectives back a rank can say what they were.
const HISTORY: usize = 64;

/// What changes while a communicator is used.
#[derive(Debug, Default)]
pub(super) struct State {
    /// None once the communicator has ended, in one way or another.
    pub(super) handle: Option<Handle>,
    /// How many calls this rank has made.
    pub(super) calls: u64,
    /// How many of them were collectives, which all ranks make.
    pub(super) collectives: u64,
    /// The call that is being enqueued.
    pub(super) entering: Option<PendingCall>,
    /// Calls that are on the device, oldest first.
    pub(super) enqueued: VecDeque<EnqueuedCall>,
    /// The last collectives, oldest first.
    history: VecDeque<Announcement>,
    /// What other ranks said that they wait in, as far as it was looked at.
    pub(super) heard: Vec<(usize, Announcement)>,
    /// How often which groups were made by shrinking.
    pub(super) shrunk: BTreeMap<Vec<usize>, u64>,
    /// Why the communicator failed, for other ranks to know.
    pub(super) failed: Option<Error>,
    /// Whether somebody is at aborting what was in `handle`.
    pub(super) aborting: bool,
    /// Whether the communicator has ended in order.
    pub(super) closed: bool,
    /// Whether the threads shall end.
    pub(super) closing: bool,
}

/// A call that has not ended, as far as anybody looked.
#[derive(Debug, Clone)]
pub(super) struct PendingCall {
    /// Its number on this rank.
    pub(super) number: u64,
    /// The number of the last collective, which it is if it is one.
    pub(super) sequence: u64,
    pub(super) pending: Pending,
    pub(super) deadline: Deadline,
}

/// A call that is on the device.
#[derive(Debug)]
pub(super) struct EnqueuedCall {
    pub(super) call: PendingCall,
    pub(super) done: Event,
}

impl PendingCall {
    /// What other ranks are told of it, if they make it too.
    pub(super) fn announcement(&self) -> Option<Announcement> {
        match &self.pending {
            Pending::Collective(call) => Some(Announcement { sequence: self.sequence, call: call.clone() }),
            _ => None,
        }
    }
}

impl State {
    /// That of a communicator on which nothing was called.
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle: Some(handle), ..Self::default() }
    }

    /// Numbers a call that begins.
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

    /// The call that has been under way for longest.
    pub(super) fn oldest(&self) -> Option<&PendingCall> {
        self.pending_calls().next()
    }

    /// All calls that are under way, oldest first.
    pub(super) fn pending_calls(&self) -> impl Iterator<Item = &PendingCall> {
        self.enqueued.iter().map(|enqueued| &enqueued.call).chain(&self.entering)
    }

    /// Forgets calls that have ended.
    pub(super) fn reap(&mut self) -> Result<()> {
        while let Some(oldest) = self.enqueued.front() {
            if !oldest.done.is_past()? {
                break;
            }
            self.enqueued.pop_front();
        }
        Ok(())
    }

    /// Looks for what nobody waits for: errors of NCCL, and calls that should have ended.
    pub(super) fn look(&mut self, group: Group) -> Result<()> {
        self.reap()?;
        if let Some(handle) = &self.handle {
            handle.progress()?;
        }
        // A later call may have less time, and waits for the earlier ones.
        let overdue = self.enqueued.iter().find(|enqueued| enqueued.call.deadline.has_passed());
        overdue.map_or(Ok(()), |enqueued| Err(self.missed(group, &enqueued.call)))
    }

    /// The error of a call at its deadline. NCCL does not tell which ranks are missing. Those that said that they wait in it, or
    /// in a later one, are not.
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

    /// Compares what another rank waits in with what this one did under the same number.
    pub(super) fn compare(&self, rank: usize, peer: usize, said: &Announcement) -> Result<()> {
        let ours = self.history.iter().find(|ours| ours.sequence == said.sequence);
        let Some(ours) = ours.filter(|ours| ours.call != said.call) else { return Ok(()) };
        let known = |call: &Signature| Some(call.clone());
        Err(Desync::new(said.sequence, (rank, known(&ours.call)), (peer, known(&said.call))).into())
    }
}
