//! The properties that hold in every run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

use comm_core::{Error, Loss};

use super::plan::Plan;
use super::rank::{CallKind, CallRecord, GroupRecord, Record};
use crate::network::{Incident, Simulation};

/// A property of every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Property {
    /// No rank panics.
    NoPanic,
    /// Ranks do not wait for each other forever.
    NoDeadlock,
    /// A call that succeeds has the right result, on every rank, and no call returns data after a
    /// fatal error.
    RightResults,
    /// Every call ends by its deadline, or shortly after; if nothing but deaths has happened, it
    /// fails shortly after the last one.
    Deadline,
    /// An error names only ranks that are at fault, or that have a broken link. Without faults, no
    /// call fails.
    RankAtFault,
    /// Ranks that go on have the same members and repeat the same calls, and no rank that is not at
    /// fault is left out.
    Agreement,
    /// All transports are dropped in the end.
    NoLeak,
}

/// A property that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The property.
    pub property: Property,
    /// The rank and the event.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let property = match self.property {
            Property::NoPanic => "a rank panicked",
            Property::NoDeadlock => "ranks are deadlocked",
            Property::RightResults => "a result is wrong",
            Property::Deadline => "a call took too long",
            Property::RankAtFault => "an error does not name a rank at fault",
            Property::Agreement => "the ranks that remain do not agree",
            Property::NoLeak => "transports were not closed",
        };
        write!(f, "{property}: {}", self.text)
    }
}

/// Returns the first property that does not hold.
pub(super) fn check(plan: &Plan, simulation: &Simulation<Record>) -> Result<(), Violation> {
    let Simulation { results, deadlocked, open_transports, .. } = simulation;
    let violated = |property, text| Err(Violation { property, text });
    let mistakes = results.iter().flat_map(|record| record.mistakes.iter().map(move |it| (record.rank, it)));
    let mut mistakes: Vec<_> = mistakes.collect();
    mistakes.sort_by_key(|(_, mistake)| mistake.property);
    if let Some((rank, mistake)) = mistakes.first() {
        return violated(mistake.property, format!("rank {rank}: {}", mistake.text));
    }
    if !deadlocked.is_empty() {
        return violated(Property::NoDeadlock, format!("{deadlocked:?}"));
    }
    let living: Vec<&Record> = results.iter().filter(|record| !record.is_dead).collect();
    for record in &living {
        check_deadlines(plan, record)?;
        check_noticed(plan, simulation, record)?;
    }
    check_errors(plan, simulation, &living)?;
    check_agreement(&living)?;
    check_facts(&living)?;
    if *open_transports > 0 {
        return violated(Property::NoLeak, open_transports.to_string());
    }
    Ok(())
}

fn check_deadlines(plan: &Plan, record: &Record) -> Result<(), Violation> {
    let is_late = |call: &&CallRecord| call.took > call.limit.saturating_add(plan.slack);
    let Some(CallRecord { name, took, limit, .. }) = record.calls.iter().find(is_late) else { return Ok(()) };
    let text = format!("rank {}: {name} took {took:?}, with a limit of {limit:?}", record.rank);
    Err(Violation { property: Property::Deadline, text })
}

/// Checks that a call fails soon after a death, if nothing else has happened.
fn check_noticed(plan: &Plan, simulation: &Simulation<Record>, record: &Record) -> Result<(), Violation> {
    let is_call = |call: &&CallRecord| call.kind == CallKind::Call && call.limit <= plan.timeout;
    for call in record.calls.iter().filter(is_call).filter(|call| call.error.is_some()) {
        let happened = || simulation.incidents.iter().filter(|(at, _)| *at <= call.ended);
        let began = call.ended.saturating_sub(call.took);
        let since = happened().map(|(at, _)| *at).max().unwrap_or_default().max(began);
        let only_deaths = happened().all(|(_, incident)| matches!(incident, Incident::Death { .. }));
        if only_deaths && call.ended > since.saturating_add(plan.slack) {
            let text =
                format!("rank {}: {} failed {:?} after a death", record.rank, call.name, call.ended - since);
            return Err(Violation { property: Property::Deadline, text });
        }
    }
    Ok(())
}

/// The faults until a certain time.
#[derive(Debug, Default)]
struct Blame {
    /// The ranks that may be named: those of earlier faults, and those that did not get beyond
    /// their first call, because they could not connect.
    ranks: BTreeSet<usize>,
    /// Whether a clock jumped so far that a deadline passed too early, or a long stop or cut has
    /// ended so late that the ranks were still catching up at the deadline. Then any rank may be
    /// late.
    all_may_be_late: bool,
}

impl Blame {
    fn at(time: Duration, plan: &Plan, simulation: &Simulation<Record>) -> Self {
        let happened = simulation.incidents.iter().filter(|(at, _)| *at <= time);
        let happened: Vec<&Incident> = happened.map(|(_, incident)| incident).collect();
        if is_harmless(plan, &happened) {
            return Self::default();
        }
        let mut ranks: BTreeSet<usize> = happened.iter().flat_map(|incident| incident.ranks()).collect();
        for record in &simulation.results {
            let first = record.calls.first();
            if first.is_some_and(|call| call.error.is_some() && call.ended <= time) {
                ranks.insert(record.rank);
            }
        }
        let jump = |incident: &&Incident| match **incident {
            Incident::ClockJump { by, .. } => by,
            _ => Duration::ZERO,
        };
        let has_just_ended = |&(at, incident): &(Duration, Incident)| match incident {
            Incident::Stop { lasting, .. } | Incident::Cut { lasting, .. } => {
                let end = at.saturating_add(lasting);
                lasting >= plan.timeout / 2 && end <= time && time < end.saturating_add(plan.timeout / 2)
            }
            _ => false,
        };
        let has_jumped = happened.iter().map(jump).sum::<Duration>() >= plan.timeout / 2;
        let all_may_be_late = has_jumped || simulation.incidents.iter().any(has_just_ended);
        Self { ranks, all_may_be_late }
    }
}

/// Returns whether these faults may fail no call, because they are over long before any deadline.
fn is_harmless(plan: &Plan, incidents: &[&Incident]) -> bool {
    let duration = |incident: &&Incident| match **incident {
        Incident::Stop { lasting, .. } | Incident::ClockJump { by: lasting, .. } => Some(lasting),
        Incident::Cut { lasting, .. } => Some(lasting).filter(|lasting| *lasting < plan.network.keepalive),
        _ => None,
    };
    let total: Option<Duration> = incidents.iter().map(duration).sum();
    total.is_some_and(|total| total < plan.timeout / 8)
}

/// Checks the errors of ranks that are not at fault themselves.
fn check_errors(plan: &Plan, simulation: &Simulation<Record>, living: &[&Record]) -> Result<(), Violation> {
    for record in living {
        for call in &record.calls {
            let Some(error) = call.error.as_ref().filter(|_| call.kind != CallKind::Timed) else { continue };
            let blame = Blame::at(call.ended, plan, simulation);
            if !blame.ranks.contains(&record.rank) {
                check_error(record, call, error, &blame)?;
            }
        }
    }
    Ok(())
}

fn check_error(record: &Record, call: &CallRecord, error: &Error, blame: &Blame) -> Result<(), Violation> {
    let CallRecord { name, kind, group, .. } = call;
    let Blame { ranks: at_fault, all_may_be_late } = blame;
    let violated = |property| {
        let text = format!("rank {} in {name}: {error}; at fault: {at_fault:?}", record.rank);
        Err(Violation { property, text })
    };
    let error = error.root_cause();
    if *kind == CallKind::Shrink {
        let is_small = matches!(error, Error::TooFewRanks { .. }) && !at_fault.is_empty();
        return if is_small { Ok(()) } else { violated(Property::Agreement) };
    }
    let members = &record.groups[*group].members;
    let is_at_fault = |rank: &usize| members.get(*rank).is_some_and(|member| at_fault.contains(member));
    let is_named = match error {
        // A rank whose messages were ended revokes its memory, which breaks its streams.
        Error::PeerLost { loss: Loss::Io(io), .. }
            if *kind == CallKind::Messages && io.kind() == ErrorKind::ConnectionAborted =>
        {
            !at_fault.is_empty()
        }
        Error::PeerLost { peer, .. } => is_at_fault(peer),
        Error::Timeout { .. } | Error::Aborted { .. } if *kind == CallKind::Messages => !at_fault.is_empty(),
        Error::Timeout { .. } if *all_may_be_late => true,
        Error::Timeout { waiting_for, .. } => !waiting_for.is_empty() && waiting_for.iter().all(is_at_fault),
        Error::Aborted { by, .. } => is_at_fault(by),
        _ => false,
    };
    if is_named { Ok(()) } else { violated(Property::RankAtFault) }
}

/// Checks that all living ranks have the same groups, as far as they went on, and are members of
/// them.
fn check_agreement(living: &[&Record]) -> Result<(), Violation> {
    let violated = |text| Err(Violation { property: Property::Agreement, text });
    for record in living {
        for group in &record.groups {
            if !group.members.contains(&record.rank) {
                return violated(format!("rank {} is not a member of {:?}", record.rank, group.members));
            }
        }
        for other in living {
            // From the first group on in which both are.
            let Some((own_at, their_at)) = first_in_common(&record.groups, &other.groups) else { continue };
            let groups = record.groups[own_at..].iter().zip(&other.groups[their_at..]);
            if let Some((own, theirs)) = groups.clone().find(|(own, theirs)| own != theirs) {
                let ranks = (record.rank, other.rank);
                return violated(format!("rank {}: {own:?}, rank {}: {theirs:?}", ranks.0, ranks.1));
            }
        }
    }
    Ok(())
}

/// Returns the positions of the first group that is in both lists.
fn first_in_common(own: &[GroupRecord], theirs: &[GroupRecord]) -> Option<(usize, usize)> {
    let position_in_theirs = |group: &GroupRecord| theirs.iter().position(|their| their.id == group.id);
    own.iter().enumerate().find_map(|(at, group)| Some((at, position_in_theirs(group)?)))
}

/// Checks that living ranks have recorded equal facts.
fn check_facts(living: &[&Record]) -> Result<(), Violation> {
    let mut first: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for record in living {
        for (name, value) in &record.facts {
            let (rank, theirs) = *first.entry(name).or_insert((record.rank, value));
            if theirs != value {
                let text = format!("{name}: {theirs} for rank {rank}, {value} for rank {}", record.rank);
                return Err(Violation { property: Property::Agreement, text });
            }
        }
    }
    Ok(())
}
