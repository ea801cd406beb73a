//! The answers of the ranks of a launch at a time.

use std::collections::BTreeMap;
use std::time::Instant;

use comm::Collective;
use comm::flight::{DumpedCall, DumpedState, FlightDump};
use comm::monitor::{MonitorName, MonitorReport};

use super::sockets;
use crate::error::Result;

/// The answers of the ranks of a launch.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) launch: u64,
    at: Instant,
    /// By rank in the world.
    pub(super) ranks: BTreeMap<usize, ObservedRank>,
}

/// A process of a rank.
#[derive(Debug)]
pub(super) struct ObservedRank {
    pub(super) pid: u32,
    /// Whether a signal has stopped it.
    pub(super) is_stopped: bool,
    /// `None` if it did not answer.
    pub(super) report: Option<MonitorReport>,
}

/// The counters of all communicators of a rank together.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    calls: u64,
    time_ns: u64,
    /// The bytes of calls, each multiplied by its bus factor.
    bus_bytes: f64,
}

/// The speed of a rank between two snapshots.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    pub(super) calls_per_s: Option<f64>,
    /// In 10^9 bytes per second of the time in calls; `None` if no call was completed.
    pub(super) busbw_gb_per_s: Option<f64>,
}

impl Snapshot {
    /// Asks the ranks of a launch. Processes that have exited meanwhile are left out.
    pub(super) fn take(launch: u64, names: &[MonitorName]) -> Result<Self> {
        let answers = sockets::ask(names)?;
        let mut ranks: BTreeMap<usize, ObservedRank> = BTreeMap::new();
        for (name, report) in names.iter().zip(answers) {
            let state = sockets::state(name.pid);
            if report.is_none() && matches!(state, None | Some('Z' | 'X')) {
                continue;
            }
            let is_stopped = matches!(state, Some('T' | 't'));
            let observed = ObservedRank { pid: name.pid, is_stopped, report };
            match ranks.get_mut(&name.rank) {
                None => _ = ranks.insert(name.rank, observed),
                Some(other) => other.merge(observed),
            }
        }
        Ok(Self::of(launch, ranks))
    }

    /// Creates the snapshot of these ranks at the current time.
    pub(super) fn of(launch: u64, ranks: BTreeMap<usize, ObservedRank>) -> Self {
        Self { launch, at: Instant::now(), ranks }
    }

    /// Returns all records.
    pub(super) fn records(&self) -> Vec<FlightDump> {
        let reports = self.ranks.values().filter_map(|rank| rank.report.as_ref());
        reports.flat_map(|report| report.records.iter().cloned()).collect()
    }

    /// Returns the speed of a rank since an earlier snapshot.
    pub(super) fn rates(&self, rank: usize, before: Option<&Self>) -> Rates {
        let totals = |snapshot: &Self| snapshot.ranks.get(&rank)?.report.as_ref().map(Totals::of);
        let Some((now, before)) =
            totals(self).zip(before.and_then(|before| Some((totals(before)?, before.at))))
        else {
            return Rates::default();
        };
        let seconds = self.at.saturating_duration_since(before.1).as_secs_f64();
        let before = before.0;
        // The counters of a communicator vanish with it.
        let Some(calls) = now.calls.checked_sub(before.calls).filter(|_| seconds > 0.0) else {
            return Rates::default();
        };
        let time_ns = now.time_ns.saturating_sub(before.time_ns);
        let busbw = (now.bus_bytes - before.bus_bytes) / time_ns as f64;
        Rates {
            calls_per_s: Some(calls as f64 / seconds),
            busbw_gb_per_s: (calls > 0 && time_ns > 0 && busbw >= 0.0).then_some(busbw),
        }
    }
}

impl ObservedRank {
    /// Adds another world of the rank: of the same process, or of one that replaces it.
    fn merge(&mut self, other: Self) {
        match (&mut self.report, other.report) {
            (Some(ours), Some(theirs)) if self.pid == other.pid => {
                ours.records.extend(theirs.records);
                ours.metrics.extend(theirs.metrics);
            }
            (None, Some(theirs)) => *self = Self { report: Some(theirs), ..other },
            _ => {}
        }
    }

    /// Returns the record that shows what the rank does: that with the oldest call in progress, or
    /// else that with the last call.
    pub(super) fn current(&self) -> Option<&FlightDump> {
        let records = &self.report.as_ref()?.records;
        let in_call =
            records.iter().filter_map(|record| Some((call_in_progress(record)?.started_ns, record)));
        let oldest = in_call.min_by_key(|(started, _)| *started).map(|(_, record)| record);
        oldest.or_else(|| records.iter().max_by_key(|record| record.calls.last().map(last_time)))
    }
}

fn last_time(call: &DumpedCall) -> u64 {
    call.ended_ns.unwrap_or(call.started_ns)
}

/// Returns the call that has neither completed nor failed.
pub(super) fn call_in_progress(record: &FlightDump) -> Option<&DumpedCall> {
    record.calls.last().filter(|call| call.state == DumpedState::Started && record.failure.is_none())
}

impl Totals {
    fn of(report: &MonitorReport) -> Self {
        let mut totals = Self::default();
        for metrics in &report.metrics {
            for calls in &metrics.calls {
                totals.calls += calls.calls;
                totals.time_ns += calls.time_ns;
                let known = Collective::ALL.into_iter().find(|known| known.name() == calls.collective);
                let factor = known.map_or(1.0, |collective| collective.bus_factor(metrics.size));
                totals.bus_bytes += calls.bytes as f64 * factor;
            }
        }
        totals
    }
}
