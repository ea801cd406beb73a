//! Aligns the clocks of several hosts by calls that no rank leaves before all have entered.

use std::collections::BTreeMap;

use comm::flight::{DumpedCall, DumpedState, FlightDump};

use super::analysis::{GroupRecords, call};

/// The offset of the clock of a host from the clock of the first one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Offset {
    /// The nanoseconds to add to times of this host.
    pub(super) ns: i64,
    /// The number of calls from which it was estimated.
    pub(super) calls: usize,
    /// Half of the calls differ from the estimate by at most this many nanoseconds.
    pub(super) spread_ns: u64,
}

/// The clocks of all hosts, by their boot ids.
#[derive(Debug, Default)]
pub(crate) struct Clocks<'a>(BTreeMap<&'a str, Offset>);

impl<'a> Clocks<'a> {
    /// Estimates the offset of every host from the lowest rank's: the median difference between the
    /// ends of the same calls. Hosts without such calls keep their own clocks.
    pub(crate) fn align(groups: &[GroupRecords<'a>]) -> Self {
        let records = || groups.iter().flat_map(|group| group.records.values().copied());
        let Some(first) = records().min_by_key(|record| record.world_rank()) else { return Self::default() };
        let mut differences: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        for group in groups {
            let ours: Vec<&FlightDump> =
                group.records.values().filter(|record| record.boot_id == first.boot_id).copied().collect();
            for theirs in group.records.values().filter(|record| record.boot_id != first.boot_id) {
                let all = differences.entry(&theirs.boot_id).or_default();
                all.extend(theirs.calls.iter().filter_map(|call| difference(&ours, call)));
            }
        }
        let mut clocks: BTreeMap<&str, Offset> =
            records().map(|record| (&record.boot_id[..], Offset::default())).collect();
        clocks.extend(differences.into_iter().map(|(host, all)| (host, Offset::of(all))));
        Self(clocks)
    }

    /// Returns the offset of the host of a record.
    pub(super) fn of(&self, record: &FlightDump) -> Offset {
        self.0.get(&record.boot_id[..]).copied().unwrap_or_default()
    }

    /// Returns a time of a record by the clock of the first host.
    pub(crate) fn time(&self, record: &FlightDump, ns: u64) -> i64 {
        i64::try_from(ns).unwrap_or(i64::MAX).saturating_add(self.of(record).ns)
    }
}

impl Offset {
    fn of(mut differences: Vec<i64>) -> Self {
        let Some(ns) = median(&mut differences) else { return Self::default() };
        let mut spread: Vec<i64> =
            differences.iter().map(|difference| difference.saturating_sub(ns).saturating_abs()).collect();
        let spread_ns = median(&mut spread).unwrap_or(0).unsigned_abs();
        Self { ns, calls: differences.len(), spread_ns }
    }
}

fn median(values: &mut [i64]) -> Option<i64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// Returns the time by which the end of a call on any of our ranks is later than on theirs.
fn difference(ours: &[&FlightDump], theirs: &DumpedCall) -> Option<i64> {
    if !synchronizes(theirs) {
        return None;
    }
    let ended = |call: &DumpedCall| {
        let ended = call.ended_ns.filter(|_| call.state == DumpedState::Completed)?;
        i64::try_from(ended).ok()
    };
    let ours = ours.iter().find_map(|record| ended(call(record, theirs.sequence)?))?;
    Some(ours.saturating_sub(ended(theirs)?))
}

/// Returns whether no rank completes the call before all have started it.
pub(super) fn synchronizes(call: &DumpedCall) -> bool {
    matches!(
        call.collective.as_str(),
        "all_reduce"
            | "all_gather"
            | "all_gather_v"
            | "reduce_scatter"
            | "reduce_scatter_v"
            | "all_to_all"
            | "barrier"
            | "monitored_barrier"
            | "split"
            | "new_group"
            | "duplicate"
    )
}
