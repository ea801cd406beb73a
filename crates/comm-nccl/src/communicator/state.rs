//! What is under way.

use std::collections::{BTreeMap, VecDeque};

use comm_core::{Desync, Error, Group, Result, Signature};

use super::board::Announcement;
use super::deadline::Deadline;
use crate::handle::Handle;
use crate::plan::Subject;
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
    pub(super) entering: Option<Waiting>,
    /// Calls that are on the device, oldest first.
    pub(super) pending: VecDeque<Pending>,
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
pub(super) struct Waiting {
    /// Its number on this rank.
    pub(super) number: u64,
    /// The number of the last collective, which it is if it is one.
    pub(super) sequence: u64,
    pub(super) subject: Subject,
    pub(super) deadline: Deadline,
}

/// A call that is on the device.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) waiting: Waiting,
    pub(super) done: Event,
}

impl Waiting {
    /// What other ranks are told of it, if they make it too.
    pub(super) fn announcement(&self) -> Option<Announcement> {
        match &self.subject {
            Subject::Collective(call) => Some(Announcement { sequence: self.sequence, call: call.clone() }),
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
    pub(super) fn enter(&mut self, subject: Subject, deadline: Deadline) -> Waiting {
        self.calls += 1;
        if let Subject::Collective(call) = &subject {
            self.collectives += 1;
            self.history.push_back(Announcement { sequence: self.collectives, call: call.clone() });
            if self.history.len() > HISTORY {
                self.history.pop_front();
            }
        }
        let waiting = Waiting { number: self.calls, sequence: self.collectives, subject, deadline };
        self.entering = Some(waiting.clone());
        waiting
    }

    /// The call that has been under way for longest.
    pub(super) fn oldest(&self) -> Option<&Waiting> {
        self.waiting().next()
    }

    /// All calls that are under way, oldest first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.pending.iter().map(|pending| &pending.waiting).chain(&self.entering)
    }

    /// Forgets calls that have ended.
    pub(super) fn reap(&mut self) -> Result<()> {
        while let Some(oldest) = self.pending.front() {
            if !oldest.done.is_past()? {
                break;
            }
            self.pending.pop_front();
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
        let overdue = self.pending.iter().find(|call| call.waiting.deadline.has_passed());
        overdue.map_or(Ok(()), |call| Err(self.missed(group, &call.waiting)))
    }

    /// The error of a call at its deadline. NCCL does not tell which ranks are missing. Those that said that they wait in it, or
    /// in a later one, are not.
    pub(super) fn missed(&self, group: Group, waiting: &Waiting) -> Error {
        let has_come = |rank: &usize| {
            self.heard.iter().any(|(peer, said)| peer == rank && said.sequence >= waiting.sequence)
        };
        let missing: Vec<usize> = match waiting.subject {
            Subject::Send { to: peer } | Subject::Recv { from: peer } => vec![peer],
            _ => group.peers().filter(|rank| !has_come(rank)).collect(),
        };
        let waiting_for = if missing.is_empty() { group.peers().collect() } else { missing };
        let during = waiting.subject.during(waiting.sequence);
        Error::Timeout { waiting_for, after: waiting.deadline.after, during }
    }

    /// Compares what another rank waits in with what this one did under the same number.
    pub(super) fn compare(&self, rank: usize, peer: usize, said: &Announcement) -> Result<()> {
        let ours = self.history.iter().find(|ours| ours.sequence == said.sequence);
        let Some(ours) = ours.filter(|ours| ours.call != said.call) else { return Ok(()) };
        let known = |call: &Signature| Some(call.clone());
        Err(Desync::new(said.sequence, (rank, known(&ours.call)), (peer, known(&said.call))).into())
    }
}
