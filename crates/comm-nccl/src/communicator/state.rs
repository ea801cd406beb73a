//! The state of a communicator: its handle and the calls in flight.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use comm_core::{Desync, Error, Group, Result, Signature};

use super::control::Announcements;
use super::deadline::Deadline;
use super::notice::Announcement;
use crate::handle::Handle;
use crate::plan::Pending;
use crate::stream::Event;

/// The number of past collectives that a rank remembers.
const HISTORY: usize = 64;
/// The longest time for which a rank waits before it announces its call.
const ANNOUNCE: Duration = Duration::from_secs(1);
/// The same as a fraction of the call's timeout, for short timeouts.
const ANNOUNCE_PART: u32 = 4;

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
    /// The number of times that each group was created by shrinking.
    pub(super) shrunk: BTreeMap<Vec<usize>, u64>,
    /// The number of times that this rank has tried to shrink the group after a failure.
    pub(super) attempts: u64,
    /// The number of the last collective that was announced.
    announced: u64,
    /// Whether a thread is aborting the former `handle`.
    pub(super) aborting: bool,
    /// Whether the communicator was closed in order.
    pub(super) closed: bool,
    /// Whether the threads must end.
    pub(super) closing: bool,
}

/// A call that is not known to have ended.
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
    /// Returns the number of the collective that all ranks must reach for this call to end. For a
    /// message, it is the next one.
    pub(super) fn needs(&self) -> u64 {
        self.sequence + u64::from(!matches!(self.pending, Pending::Collective(_)))
    }

    /// Returns the announcement of the call to other ranks; `None` unless it is a collective.
    fn announcement(&self) -> Option<Announcement> {
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

    /// Returns the oldest call in flight.
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

    /// Checks for failures that no thread waits for: NCCL errors, and calls past their deadlines.
    /// `announced` holds the announcements of other ranks.
    pub(super) fn look(&mut self, group: Group, announced: &Announcements) -> Result<()> {
        self.reap()?;
        if let Some(handle) = &self.handle {
            handle.progress()?;
        }
        // A later call may have an earlier deadline.
        let overdue = self.enqueued.iter().find(|enqueued| enqueued.call.deadline.has_passed());
        overdue.map_or(Ok(()), |enqueued| Err(timeout_error(group, &enqueued.call, announced)))
    }

    /// Returns the announcement of the oldest call, if it has not been announced and some call has
    /// been in flight for a long time.
    pub(super) fn due_announcement(&mut self) -> Option<Announcement> {
        let is_long = |call: &PendingCall| call.deadline.began.elapsed() >= announce_delay(call);
        let due = self.oldest()?.announcement().filter(|_| self.pending_calls().any(is_long))?;
        let is_new = due.sequence > self.announced;
        self.announced = self.announced.max(due.sequence);
        is_new.then_some(due)
    }

    /// If another rank announced a call that differs from this rank's call of the same number,
    /// returns this rank's announcement and the mismatch.
    pub(super) fn compare(
        &self,
        rank: usize,
        peer: usize,
        said: &Announcement,
    ) -> Option<(Announcement, Error)> {
        let ours = self.history.iter().find(|ours| ours.sequence == said.sequence);
        let ours = ours.filter(|ours| ours.call != said.call)?;
        let known = |call: &Signature| Some(call.clone());
        let desync = Desync::new(said.sequence, (rank, known(&ours.call)), (peer, known(&said.call)));
        Some((ours.clone(), desync.into()))
    }
}

/// Returns the error of a call that has reached its deadline. NCCL does not report which ranks are
/// missing; those that announced this call or a later one are not.
pub(super) fn timeout_error(group: Group, call: &PendingCall, announced: &Announcements) -> Error {
    let has_come = |rank: &usize| announced.get(rank).is_some_and(|said| said.sequence >= call.sequence);
    let missing: Vec<usize> = match call.pending {
        Pending::Send { to: peer } | Pending::Recv { from: peer } => vec![peer],
        _ => group.peers().filter(|rank| !has_come(rank)).collect(),
    };
    let waiting_for = if missing.is_empty() { group.peers().collect() } else { missing };
    let during = call.pending.during(call.sequence);
    Error::Timeout { waiting_for, after: call.deadline.after, during }
}

/// Returns the time for which a rank waits in a call before it announces it.
fn announce_delay(call: &PendingCall) -> Duration {
    ANNOUNCE.min(call.deadline.after / ANNOUNCE_PART)
}
