//! The answers of the ranks of a launch at a time.

use std::collections::BTreeMap;
use std::time::Instant;

use comm::Collective;
use comm::flight::{DumpedCall, DumpedState, FlightDump};
use comm::monitor::MonitorReport;
use comm_cli::__private::{HostAnswer, RankAnswer};

/// The answers of the ranks of a launch.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) launch: u64,
    at: Instant,
    /// By rank in the world.
    pub(super) ranks: BTreeMap<usize, ObservedRank>,
    /// The names of the hosts of the job, if there are several and their agents were asked.
    pub(super) hosts: Vec<String>,
    /// The hosts whose agents do not answer.
    pub(super) silent: Vec<String>,
}

/// A process of a rank.
#[derive(Debug)]
pub(super) struct ObservedRank {
    pub(super) pid: u32,
    /// The name of its host, if there are several.
    pub(super) host: Option<String>,
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
    /// Creates the snapshot of the ranks of this host, or of all hosts, at the current time.
    pub(super) fn of(launch: u64, ranks: impl IntoIterator<Item = (Option<String>, RankAnswer)>) -> Self {
        let mut found: BTreeMap<usize, ObservedRank> = BTreeMap::new();
        for (host, RankAnswer { rank, pid, is_stopped, report, .. }) in ranks {
            let observed = ObservedRank { pid, host, is_stopped, report };
            match found.get_mut(&rank) {
                None => _ = found.insert(rank, observed),
                Some(other) => other.merge(observed),
            }
        }
        Self { launch, at: Instant::now(), ranks: found, hosts: Vec::new(), silent: Vec::new() }
    }

    /// Creates the snapshot of the ranks of several hosts. Without the id of the launch, it is that
    /// of the job in their records.
    pub(super) fn of_hosts(launch: Option<u64>, answers: Vec<HostAnswer>) -> Self {
        let hosts = answers.iter().map(|answer| answer.host.clone()).collect();
        let is_silent = |answer: &&HostAnswer| answer.ranks.is_none();
        let silent = answers.iter().filter(is_silent).map(|answer| answer.host.clone()).collect();
        let ranks = answers.into_iter().flat_map(|HostAnswer { host, ranks, .. }| {
            ranks.into_iter().flatten().map(move |rank| (Some(host.clone()), rank))
        });
        let snapshot = Self::of(launch.unwrap_or_default(), ranks);
        let job = snapshot.records().first().map_or(0, |record| record.job);
        Self { launch: launch.unwrap_or(job), hosts, silent, ..snapshot }
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
            (Some(ours), Some(theirs)) if self.pid == other.pid && self.host == other.host => {
                ours.records.extend(theirs.records);
                ours.metrics.extend(theirs.metrics);
            }
            (None, Some(theirs)) => *self = Self { report: Some(theirs), ..other },
            _ => {}
        }
    }

    /// Returns the record that shows the activity of the rank: that with the oldest call in
    /// progress, or else that with the last call.
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
