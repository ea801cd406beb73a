//! A rank of a run, which records its calls.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{Comm, Error, Result, ShrinkOptions, Shrunk};

use super::check::Property;
use super::plan::{Moment, Plan, PlannedFault};
use crate::network::{Incident, VirtualClock};
use crate::random::mix;

/// A rank of a run. Its program makes its calls in [`SwarmRank::call`], which records and checks
/// them.
#[derive(Debug)]
pub struct SwarmRank<'a> {
    rank: usize,
    plan: &'a Plan,
    clock: VirtualClock,
    record: Mutex<Record>,
}

/// The course of a rank's program.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) rank: usize,
    /// Whether it died.
    pub(super) is_dead: bool,
    /// The number of groups that it entered, besides those that shrank.
    pub(super) entered: usize,
    /// The number of times that its group began to change.
    pub(super) changes: usize,
    pub(super) calls: Vec<CallRecord>,
    pub(super) groups: Vec<GroupRecord>,
    /// The errors that the program found in results, and panics.
    pub(super) mistakes: Vec<Mistake>,
    /// The names and values of facts that must be equal on all ranks.
    pub(super) facts: Vec<(String, String)>,
}

impl Record {
    /// Creates the record of a rank that is in the group of all ranks.
    fn new(rank: usize, plan: &Plan) -> Self {
        let group = GroupRecord { id: 0, members: (0..plan.ranks).collect(), completed: 0 };
        Self { rank, groups: vec![group], ..Self::default() }
    }
}

/// A violation that a program found.
#[derive(Debug, Clone)]
pub(super) struct Mistake {
    pub(super) property: Property,
    pub(super) text: String,
}

/// A group of a rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GroupRecord {
    /// A number that no other group has.
    pub(super) id: u64,
    /// The members, by their ranks in the run.
    pub(super) members: Vec<usize>,
    /// The last call that all members completed in the former group.
    pub(super) completed: u64,
}

/// The outcome of a call.
#[derive(Debug)]
pub(super) struct CallRecord {
    pub(super) name: String,
    pub(super) kind: CallKind,
    pub(super) ended: Duration,
    /// The time that it took, without that for which the rank was stopped or slow.
    pub(super) took: Duration,
    pub(super) limit: Duration,
    pub(super) error: Option<Error>,
    /// The number of the group whose ranks the error names.
    pub(super) group: usize,
}

/// The kind of a call, which determines its checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A call whose errors name the ranks at fault.
    Call,
    /// A call whose errors the program checks.
    Timed,
    /// Messages, which wait for ranks that may wait for others, and which other messages end.
    Messages,
    /// Creates a smaller group, in which all that are not at fault go on.
    Shrink,
}

impl<'a> SwarmRank<'a> {
    /// Creates a rank, and schedules the faults before its operations.
    pub(super) fn new(rank: usize, plan: &'a Plan, clock: VirtualClock) -> Self {
        for PlannedFault { moment, incidents, .. } in &plan.faults {
            if let Moment::Operation { rank: at, operation } = *moment
                && at == rank
            {
                schedule(&clock, operation, incidents);
            }
        }
        Self { rank, plan, clock, record: Mutex::new(Record::new(rank, plan)) }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn into_record(self) -> Record {
        let mut record = self.record.into_inner().unwrap_or_else(PoisonError::into_inner);
        record.is_dead = self.clock.is_dead();
        record
    }

    /// Returns the number of this rank in the run.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.rank
    }

    /// Returns the plan of the run.
    #[must_use]
    pub const fn plan(&self) -> &'a Plan {
        self.plan
    }

    /// Returns the number of steps that the program should make. A failing run is repeated with
    /// fewer steps.
    #[must_use]
    pub const fn steps(&self) -> usize {
        self.plan.steps
    }

    /// Returns the time limit for a call.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.plan.timeout
    }

    /// Returns the clock of this rank.
    #[must_use]
    pub const fn clock(&self) -> &VirtualClock {
        &self.clock
    }

    /// Returns a number that depends only on the seed of the run and on `stream`, so it is equal on
    /// all ranks.
    #[must_use]
    pub const fn random(&self, stream: u64) -> u64 {
        mix(self.plan.seed ^ mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    /// Makes a call that must end within its time limit. If it fails, the error must name ranks
    /// that are at fault; they are ranks of the last group.
    ///
    /// # Errors
    /// The error of the call.
    pub fn call<R>(
        &self,
        name: impl Into<String>,
        limit: Duration,
        call: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.recorded(CallKind::Call, name.into(), limit, call)
    }

    /// Makes a call that must end within its time limit, and whose error the program checks.
    ///
    /// # Errors
    /// The error of the call.
    pub fn timed<R>(
        &self,
        name: impl Into<String>,
        limit: Duration,
        call: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.recorded(CallKind::Timed, name.into(), limit, call)
    }

    /// Exchanges messages within a time limit. If they fail, [`Error::PeerLost`] must name a rank
    /// that is at fault. Other errors need only be due to a fault: a message that times out names
    /// its sender, which may itself wait, and ends the messages of other ranks.
    ///
    /// # Errors
    /// The error of the messages.
    pub fn exchange<R>(
        &self,
        name: impl Into<String>,
        limit: Duration,
        exchange: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.recorded(CallKind::Messages, name.into(), limit, exchange)
    }

    fn recorded<R>(
        &self,
        kind: CallKind,
        name: String,
        limit: Duration,
        call: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.clock.log(format!("begins {name}"));
        let (began, delayed) = (self.clock.elapsed(), self.clock.delayed());
        let result = call();
        let ended = self.clock.elapsed();
        let took = (ended - began).saturating_sub(self.clock.delayed() - delayed);
        let error = result.as_ref().err().cloned();
        self.clock.log(match &error {
            None => format!("ends {name}"),
            Some(error) => format!("fails in {name}: {error}"),
        });
        let mut record = self.record();
        let group = record.groups.len() - 1;
        record.calls.push(CallRecord { name, kind, ended, took, limit, error, group });
        result
    }

    /// Starts this rank again after it has died, as another process that joins a group; see
    /// [`VirtualClock::restart`]. The calls of the former process are forgotten, because nobody has
    /// their results. Returns whether it could be started.
    pub fn restart(&self) -> bool {
        let restarts = self.clock.restart();
        if restarts {
            self.clock.log("starts again");
            let mut record = self.record();
            *record = Record { changes: record.changes, ..Record::new(self.rank, self.plan) };
        }
        restarts
    }

    /// Records that the group of this rank begins to change, and schedules the faults of its
    /// operations from now on. [`SwarmRank::shrink`] does so itself.
    pub fn begin_change(&self) {
        let mut record = self.record();
        record.changes += 1;
        for PlannedFault { moment, incidents, .. } in &self.plan.faults {
            if let Moment::Change { rank, change, operation } = *moment
                && (rank, change) == (self.rank, record.changes)
            {
                schedule(&self.clock, self.clock.operations() + operation, incidents);
            }
        }
    }

    /// Records that this rank is in a new group of these ranks of the run, which errors name from
    /// now on. `id` is equal on all members, and no other group has it. The first group takes the
    /// place of that of all ranks.
    pub fn enter(&self, members: Vec<usize>, id: u64) {
        self.clock.log(format!("is in a group of ranks {members:?}"));
        let mut record = self.record();
        if record.entered == 0 {
            record.groups.clear();
        }
        record.entered += 1;
        record.groups.push(GroupRecord { id, members, completed: 0 });
    }

    /// Returns the number of the present group, which is equal on all its members.
    #[must_use]
    pub fn group_id(&self) -> u64 {
        self.record().groups.last().map_or(0, |group| group.id)
    }

    /// Creates a smaller group after a failure; see [`Comm::shrink`]. If a fault can separate ranks
    /// that live, requires a majority. Returns the new handle, and the number of the last call that
    /// all members completed. All members must agree on both.
    ///
    /// # Errors
    /// The errors of [`Comm::shrink`]. A rank that is not at fault gets only
    /// [`Error::TooFewRanks`].
    pub fn shrink(&self, comm: &Comm) -> Result<(Comm, u64)> {
        let shrunk = self.shrink_with(comm.size(), |options| comm.shrink(options))?;
        Ok((shrunk.comm.with_timeout(self.plan.timeout), shrunk.completed))
    }

    /// Returns the smallest part of a group of this size that may go on: a majority if a fault can
    /// separate ranks that live.
    #[must_use]
    pub fn size_min(&self, size: usize) -> usize {
        if self.plan.can_split() { size / 2 + 1 } else { 1 }
    }

    /// Creates a smaller group of a group of this size, as [`SwarmRank::shrink`] does, by calling
    /// `shrink`.
    ///
    /// # Errors
    /// As [`SwarmRank::shrink`].
    pub fn shrink_with(
        &self,
        size: usize,
        shrink: impl FnOnce(&ShrinkOptions) -> Result<Shrunk<Comm>>,
    ) -> Result<Shrunk<Comm>> {
        self.begin_change();
        let timeout = 20 * self.plan.timeout;
        // A rank may learn of the failure only at the end of a call.
        let patience = 2 * self.plan.timeout;
        let size_min = self.size_min(size);
        let options = ShrinkOptions::default().timeout(timeout).patience(patience).size_min(size_min);
        // Each fault may silence a rank, which is then left out.
        let limit = (patience * (1 + self.plan.faults.len() as u32) + self.plan.timeout).min(timeout);
        let shrunk = self.recorded(CallKind::Shrink, "shrink".into(), limit, || shrink(&options))?;
        let mut record = self.record();
        let last = record.groups.last().cloned().unwrap_or_default();
        let members: Vec<usize> =
            shrunk.ranks.iter().filter_map(|&rank| last.members.get(rank).copied()).collect();
        let id = members.iter().fold(last.id, |id, &member| mix(id ^ (member as u64 + 1)));
        let group = GroupRecord { id, members, completed: shrunk.completed };
        self.clock.log(format!("is in a group of ranks {:?} after call {}", group.members, group.completed));
        record.groups.push(group);
        Ok(shrunk)
    }

    /// Records a wrong result, with which the run fails.
    pub fn wrong(&self, text: impl Into<String>) {
        self.violate(Property::RightResults, text);
    }

    /// Records a fact. Ranks that live and record a fact of the same name must record the same
    /// value.
    pub fn agree(&self, name: impl Into<String>, value: impl Into<String>) {
        self.record().facts.push((name.into(), value.into()));
    }

    /// Records that a property does not hold, with which the run fails.
    pub fn violate(&self, property: Property, text: impl Into<String>) {
        let text = text.into();
        self.clock.log(format!("is wrong: {text}"));
        // The results of a dead rank reach nobody.
        if !self.clock.is_dead() {
            self.record().mistakes.push(Mistake { property, text });
        }
    }
}

/// Lets incidents happen before an operation of a rank.
fn schedule(clock: &VirtualClock, operation: u64, incidents: &[Incident]) {
    let (own, incidents) = (clock.clone(), incidents.to_vec());
    clock.before_operation(operation, move || {
        incidents.into_iter().for_each(|incident| own.inject(incident));
    });
}
