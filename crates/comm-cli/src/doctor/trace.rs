//! Writes records as a trace in Chrome's JSON format, which Perfetto and `chrome://tracing` show.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use comm::flight::{DumpedCall, FlightDump};
use serde::Serialize;
use serde_json::{Value, json};

use super::analysis::GroupRecords;
use super::clocks::{Clocks, synchronizes};
use crate::error::{CliError, Result};

/// The shortest wait for a late rank that is shown if times are not exact. The coarse clock of
/// Linux advances every 1 to 10 ms.
const COARSE_NS: i64 = 10_000_000;

/// The file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Trace<'a> {
    trace_events: Vec<Event<'a>>,
    display_time_unit: &'static str,
    other_data: Value,
}

/// An event, with times in microseconds.
#[derive(Debug, Serialize)]
struct Event<'a> {
    name: Cow<'a, str>,
    /// `X` for an event with a duration, `M` for the name of a process or thread.
    ph: &'static str,
    /// The rank in the world.
    pid: usize,
    /// The number of the group's track, which no rank has.
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    cat: &'static str,
    args: Value,
}

/// A record of a rank, with its place in the trace.
#[derive(Clone, Copy)]
struct Track<'a> {
    group: &'a GroupRecords<'a>,
    record: &'a FlightDump,
    tid: usize,
}

/// Writes the calls of all ranks to a file.
pub(super) fn write(path: &Path, groups: &[GroupRecords<'_>]) -> Result<()> {
    let trace = Trace::new(groups);
    let file = File::create(path).map_err(CliError::write(path))?;
    let mut out = BufWriter::new(file);
    serde_json::to_writer(&mut out, &trace)
        .map_err(Into::into)
        .and_then(|()| out.flush())
        .map_err(CliError::write(path))
}

impl<'a> Trace<'a> {
    fn new(groups: &'a [GroupRecords<'a>]) -> Self {
        let clocks = Clocks::align(groups);
        // In the order of the ids, in which the world is first.
        let mut by_id: Vec<&GroupRecords<'_>> = groups.iter().collect();
        by_id.sort_by_key(|group| group.id);
        let first_tid = first_tid(groups);
        let tracks: Vec<Track<'_>> = (first_tid..)
            .zip(&by_id)
            .flat_map(|(tid, group)| group.records.values().map(move |record| Track { group, record, tid }))
            .collect();
        let starts = tracks.iter().filter_map(|track| {
            let first = track.record.calls.first()?;
            Some(clocks.time(track.record, first.started_ns))
        });
        let origin = starts.min().unwrap_or(0);
        let mut timeline = Timeline { clocks, origin, arrivals: BTreeMap::new() };
        tracks.iter().for_each(|track| timeline.add_arrivals(track));
        let mut events = Vec::new();
        for track in &tracks {
            events.extend(timeline.names(track));
            timeline.add_calls(track, &mut events);
        }
        let other_data = json!({
            "tool": concat!("commctl ", env!("CARGO_PKG_VERSION")),
            "origin_unix_ns": timeline.origin,
            "clocks": timeline.describe(&tracks),
        });
        Self { trace_events: events, display_time_unit: "ms", other_data }
    }
}

/// Returns the number of the first track, above all ranks: Perfetto takes a thread 0, and one whose
/// number is that of its process, for the main thread, and would mix the calls of two groups.
fn first_tid(groups: &[GroupRecords<'_>]) -> usize {
    let records = groups.iter().flat_map(|group| group.records.values());
    records.map(|record| record.world_rank() + 1).max().unwrap_or(1)
}

/// The times of all ranks on one clock.
struct Timeline<'a> {
    clocks: Clocks<'a>,
    /// The time that the trace shows as 0.
    origin: i64,
    /// By group and number of the call.
    arrivals: BTreeMap<(u64, u64), Arrivals>,
}

/// The times at which ranks started a call.
#[derive(Debug, Clone, Copy)]
struct Arrivals {
    first: i64,
    last: i64,
    /// The rank that was last, in the world.
    late: usize,
}

impl Timeline<'_> {
    /// Returns the names of the process and the thread of a record.
    fn names<'b>(&self, track: &Track<'_>) -> [Event<'b>; 4] {
        let (record, pid) = (track.record, track.record.world_rank());
        let meta = |name: &'static str, args| Event {
            name: name.into(),
            ph: "M",
            pid,
            tid: track.tid,
            ts: None,
            dur: None,
            cat: "",
            args,
        };
        let host = if record.host.is_empty() { String::new() } else { format!(" on {}", record.host) };
        let group = match record.group {
            0 => "world".to_owned(),
            id => {
                let members: Vec<usize> = (0..track.group.members.len()).collect();
                format!("{} (group {id:x})", track.group.names(&members))
            }
        };
        [
            meta("process_name", json!({ "name": format!("rank {pid}{host}, process {}", record.pid) })),
            meta("process_sort_index", json!({ "sort_index": pid })),
            meta("thread_name", json!({ "name": group })),
            meta("thread_sort_index", json!({ "sort_index": track.tid })),
        ]
    }

    /// Returns the clock of each host, for the reader of the file.
    fn describe(&self, tracks: &[Track<'_>]) -> Vec<Value> {
        let hosts: BTreeMap<&str, &FlightDump> =
            tracks.iter().map(|track| (&track.record.boot_id[..], track.record)).collect();
        let clock = |record: &&FlightDump| {
            let offset = self.clocks.of(record);
            json!({ "host": record.host, "offset_ns": offset.ns, "calls": offset.calls, "spread_ns": offset.spread_ns })
        };
        hosts.values().map(clock).collect()
    }

    fn add_arrivals(&mut self, track: &Track<'_>) {
        let late = track.record.world_rank();
        for call in &track.record.calls {
            let time = self.clocks.time(track.record, call.started_ns);
            let ours = Arrivals { first: time, last: time, late };
            let all = self.arrivals.entry((track.record.group, call.sequence)).or_insert(ours);
            all.first = all.first.min(time);
            if all.last < time {
                (all.last, all.late) = (time, late);
            }
        }
    }

    /// Adds the calls of a record. Each starts after the end of the previous one: a viewer would
    /// show a call without duration inside of one that starts at the same time.
    fn add_calls<'b>(&self, track: &Track<'b>, events: &mut Vec<Event<'b>>) {
        let mut earliest = i64::MIN;
        for call in &track.record.calls {
            let start = self.clocks.time(track.record, call.started_ns).max(earliest);
            let end =
                self.clocks.time(track.record, call.ended_ns.unwrap_or(track.record.written_ns)).max(start);
            earliest = end.saturating_add(1);
            let arrivals = self.arrivals.get(&(track.record.group, call.sequence)).copied();
            let arrivals = arrivals.unwrap_or(Arrivals { first: start, last: start, late: 0 });
            let args = arguments(track.group, call, start.saturating_sub(arrivals.first));
            events.push(self.event(track, &call.collective[..], (start, end), args));
            let shown_from = if track.record.exact_times { 0 } else { COARSE_NS };
            if synchronizes(call) && arrivals.last.saturating_sub(start) > shown_from {
                let (name, args) =
                    (format!("wait for rank {}", arrivals.late), json!({ "rank": arrivals.late }));
                events.push(self.event(track, name, (start, arrivals.last.min(end)), args));
            }
        }
    }

    fn event<'b>(
        &self,
        track: &Track<'b>,
        name: impl Into<Cow<'b, str>>,
        (start, end): (i64, i64),
        args: Value,
    ) -> Event<'b> {
        let micros = |ns: i64| ns as f64 / 1000.0;
        Event {
            name: name.into(),
            ph: "X",
            pid: track.record.world_rank(),
            tid: track.tid,
            ts: Some(micros(start.saturating_sub(self.origin))),
            dur: Some(micros(end.saturating_sub(start))),
            cat: "collective",
            args,
        }
    }
}

/// Returns the description of a call that came this much later than on the first rank.
fn arguments(group: &GroupRecords<'_>, call: &DumpedCall, late_ns: i64) -> Value {
    let waiting_for: Vec<usize> = call.waiting_for.iter().map(|&rank| group.world_rank(rank)).collect();
    json!({
        "sequence": call.sequence,
        "signature": call.signature,
        "state": call.state,
        "late_us": late_ns as f64 / 1000.0,
        "waiting_for": waiting_for,
    })
}
