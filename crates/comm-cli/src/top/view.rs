//! The state of a launch, with trouble first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use comm::flight::FlightDump;
use serde::Serialize;

use super::snapshot::{ObservedRank, Snapshot, call_in_progress};
use crate::doctor::analysis::{Finding, GroupRecords, position};
use crate::doctor::clocks::Clocks;
use crate::doctor::headline;

/// A call that takes longer is looked at.
const LONG: Duration = Duration::from_secs(1);
/// The least lateness that is shown. The coarse clock of Linux advances every 1 to 10 ms.
const LATE_MIN_NS: u64 = 10_000_000;
/// A rank is named if it is later than all others by this factor.
const STRAGGLER_FACTOR: f64 = 3.0;

/// The state of a launch.
#[derive(Debug, Serialize)]
pub(super) struct View {
    /// The number that the ranks of the launch share, in hexadecimal: the id of the job if it has
    /// one.
    pub(super) launch: String,
    /// A sentence on the state of all ranks.
    pub(super) summary: String,
    /// The hosts of the job, if there are several and their agents were asked.
    pub(super) hosts: Vec<String>,
    /// The hosts whose agents do not answer.
    pub(super) silent_hosts: Vec<String>,
    /// The ranks of this host or of all hosts, those at fault first.
    pub(super) ranks: Vec<RankView>,
    /// Ranks whose process was not found.
    pub(super) elsewhere: Vec<usize>,
}

/// The state of a rank.
#[derive(Debug, Serialize)]
pub(super) struct RankView {
    pub(super) rank: usize,
    pub(super) pid: u32,
    /// The name of its host, if there are several.
    pub(super) host: Option<String>,
    pub(super) state: RankState,
    /// The id of the group in hexadecimal, 0 for the world.
    pub(super) group: Option<String>,
    /// The number of the call in progress, or else of the last one.
    pub(super) call: Option<u64>,
    pub(super) signature: Option<String>,
    /// The time since the start of the call in progress, or since the end of the last one.
    pub(super) seconds: Option<f64>,
    /// The ranks in the world that the call waits for.
    pub(super) waiting_for: Vec<usize>,
    /// The number of ranks that wait for this one.
    pub(super) waited_for_by: usize,
    pub(super) calls_per_s: Option<f64>,
    pub(super) busbw_gb_per_s: Option<f64>,
    /// The mean time in milliseconds by which it started the last calls after the first rank.
    pub(super) late_ms: Option<f64>,
}

/// The state of a rank, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RankState {
    /// A signal has stopped its process.
    Stopped,
    /// Its process does not answer.
    NoAnswer,
    /// Its last communicator has failed.
    Failed,
    InCall,
    BetweenCalls,
}

impl View {
    /// Describes the ranks of a launch, with speeds since an earlier snapshot.
    pub(super) fn new(now: &Snapshot, before: Option<&Snapshot>) -> Self {
        let records = now.records();
        let mut groups = GroupRecords::of(&records);
        groups.iter_mut().for_each(|group| group.missing_verb = "does not answer");
        let late = lateness(&groups);
        let mut ranks: Vec<RankView> = now
            .ranks
            .iter()
            .map(|(&rank, observed)| {
                let mut view = RankView::new(rank, observed, &groups);
                let rates = now.rates(rank, before);
                (view.calls_per_s, view.busbw_gb_per_s) = (rates.calls_per_s, rates.busbw_gb_per_s);
                view.late_ms = late.get(&rank).copied();
                view
            })
            .collect();
        let mut waited_for: BTreeMap<usize, usize> = BTreeMap::new();
        ranks
            .iter()
            .flat_map(|rank| &rank.waiting_for)
            .for_each(|rank| *waited_for.entry(*rank).or_default() += 1);
        ranks
            .iter_mut()
            .for_each(|rank| rank.waited_for_by = waited_for.get(&rank.rank).copied().unwrap_or(0));
        ranks.sort_by_key(RankView::severity);
        let size = records.iter().flat_map(|record| &record.members).max().map_or(0, |last| last + 1);
        let elsewhere = (0..size).filter(|rank| !now.ranks.contains_key(rank)).collect();
        Self {
            launch: format!("{:x}", now.launch),
            summary: summary(&groups, &ranks),
            hosts: now.hosts.clone(),
            silent_hosts: now.silent.clone(),
            ranks,
            elsewhere,
        }
    }
}

/// Returns the sentence on the state of all ranks.
fn summary(groups: &[GroupRecords<'_>], ranks: &[RankView]) -> String {
    let is_in_trouble = |group: &&GroupRecords<'_>| {
        group.records.values().any(|record| {
            let long = call_in_progress(record).is_some_and(|call| {
                Duration::from_nanos(record.written_ns.saturating_sub(call.started_ns)) > LONG
            });
            long || record.failure.is_some()
        })
    };
    if let Some(group) = groups.iter().find(is_in_trouble) {
        return headline(group, &Finding::of(group));
    }
    let is_silent = |rank: &&RankView| rank.state <= RankState::NoAnswer;
    match (ranks.iter().filter(is_silent).count(), straggler(ranks)) {
        (0, Some((rank, late_ms))) => {
            format!(
                "rank {rank} starts its calls {late_ms:.0} ms after the first rank, and the others wait for it"
            )
        }
        (0, None) => {
            format!("{} ranks answer, and no call takes longer than {} s", ranks.len(), LONG.as_secs())
        }
        (silent, _) => format!("{silent} of {} ranks do not answer", ranks.len()),
    }
}

/// Returns the rank that is much later than all others, and its lateness in milliseconds.
fn straggler(ranks: &[RankView]) -> Option<(usize, f64)> {
    let mut late: Vec<(usize, f64)> =
        ranks.iter().filter_map(|rank| Some((rank.rank, rank.late_ms?))).collect();
    late.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let (rank, latest) = *late.first()?;
    let second = late.get(1).map_or(0.0, |(_, late)| *late);
    (latest >= LATE_MIN_NS as f64 * 1e-6 && latest > STRAGGLER_FACTOR * second).then_some((rank, latest))
}

impl RankView {
    fn new(rank: usize, observed: &ObservedRank, groups: &[GroupRecords<'_>]) -> Self {
        let state = match (&observed.report, observed.is_stopped) {
            (Some(_), _) => RankState::BetweenCalls,
            (None, true) => RankState::Stopped,
            (None, false) => RankState::NoAnswer,
        };
        let mut view = Self {
            rank,
            pid: observed.pid,
            host: observed.host.clone(),
            state,
            group: None,
            call: None,
            signature: None,
            seconds: None,
            waiting_for: Vec::new(),
            waited_for_by: 0,
            calls_per_s: None,
            busbw_gb_per_s: None,
            late_ms: None,
        };
        if let Some(record) = observed.current() {
            view.describe(record, groups);
        }
        view
    }

    /// Sets the call that the record shows.
    fn describe(&mut self, record: &FlightDump, groups: &[GroupRecords<'_>]) {
        self.group = Some(format!("{:x}", record.group));
        let since = |ns: u64| record.written_ns.saturating_sub(ns) as f64 * 1e-9;
        if let Some(last) = record.calls.last() {
            (self.call, self.signature) = (Some(last.sequence), Some(last.signature.clone()));
            self.seconds = Some(since(last.ended_ns.unwrap_or(last.started_ns)));
        }
        if record.failure.is_some() {
            self.state = RankState::Failed;
        } else if let Some(call) = call_in_progress(record) {
            self.state = RankState::InCall;
            let group = groups.iter().find(|group| group.id == record.group);
            let members = match &call.waiting_for[..] {
                [] => group.map_or_else(Vec::new, |group| absent(group, record)),
                waiting_for => waiting_for.to_vec(),
            };
            let world = |rank: usize| record.members.get(rank).copied().unwrap_or(rank);
            self.waiting_for = members.into_iter().map(world).collect();
        }
    }

    /// Returns the key by which ranks are sorted.
    fn severity(&self) -> (u8, Reverse<usize>, Reverse<u64>, usize) {
        let micros = self.seconds.map_or(0, |seconds| (seconds * 1e6) as u64);
        let in_call = if self.state == RankState::InCall { micros } else { 0 };
        let is_long = in_call > LONG.as_micros() as u64;
        let class = match self.state {
            RankState::Stopped | RankState::NoAnswer => 0,
            RankState::Failed => 1,
            _ if self.waited_for_by > 0 => 2,
            _ if is_long => 3,
            _ => 4,
        };
        (
            class,
            Reverse(self.waited_for_by),
            Reverse(if is_long { in_call / 1_000_000 } else { 0 }),
            self.rank,
        )
    }
}

/// Returns the members that have not started the call in which a rank is, if it has been in it for
/// long. Answers are not of exactly the same time.
fn absent(group: &GroupRecords<'_>, record: &FlightDump) -> Vec<usize> {
    let Some(call) = call_in_progress(record) else { return Vec::new() };
    if Duration::from_nanos(record.written_ns.saturating_sub(call.started_ns)) < LONG {
        return Vec::new();
    }
    let is_behind =
        |rank: &usize| group.records.get(rank).is_none_or(|record| position(record) < (call.sequence, true));
    (0..group.members.len()).filter(is_behind).collect()
}

/// Returns the mean time in milliseconds by which each rank of the world started calls after the
/// first rank, over the last calls that all answering members of a group have started.
fn lateness(groups: &[GroupRecords<'_>]) -> BTreeMap<usize, f64> {
    let mut late = BTreeMap::new();
    // The group with the most calls in its records is the one in use.
    let calls = |group: &&GroupRecords<'_>| group.records.values().map(|record| record.calls.len()).min();
    let Some(group) = groups.iter().max_by_key(calls) else { return late };
    let clocks = Clocks::align(groups);
    let mut starts: BTreeMap<u64, Vec<(usize, i64)>> = BTreeMap::new();
    for (&rank, record) in &group.records {
        for call in &record.calls {
            starts.entry(call.sequence).or_default().push((rank, clocks.time(record, call.started_ns)));
        }
    }
    starts.retain(|_, ranks| ranks.len() == group.records.len());
    let mut totals: BTreeMap<usize, u64> = BTreeMap::new();
    for ranks in starts.values() {
        let first = ranks.iter().map(|(_, started)| *started).min().unwrap_or(0);
        ranks.iter().for_each(|(rank, started)| *totals.entry(*rank).or_default() += started.abs_diff(first));
    }
    for (rank, total) in totals {
        let mean = total / (starts.len() as u64).max(1);
        let is_exact = group.records.get(&rank).is_some_and(|record| record.exact_times);
        if mean >= LATE_MIN_NS || is_exact {
            late.insert(group.world_rank(rank), mean as f64 * 1e-6);
        }
    }
    late
}
