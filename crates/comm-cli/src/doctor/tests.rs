//! Tests of findings, with records written by hand.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use comm::flight::FlightDump;
use serde_json::{Value, json};

use super::analysis::{Finding, FindingKind, GroupRecords};
use super::clocks::Clocks;
use super::folder::Folder;
use super::{json, table, trace};

/// A call that is complete, unless it is the last one of a rank that is blocked.
type Call = (u64, &'static str);

fn signature(name: &str) -> String {
    format!("{name}(sum, 4 x f32, ring)")
}

/// Returns the record of a rank whose last call is in this state.
fn record(rank: usize, size: usize, calls: &[Call], last: &str, failure: Value) -> FlightDump {
    let calls = calls.iter().enumerate().map(|(at, (sequence, name))| {
        let is_last = at + 1 == calls.len();
        json!({
            "sequence": sequence, "signature": signature(name), "collective": name, "op": "sum",
            "dtype": "f32", "count": 4, "root": null, "algorithm": "ring",
            "state": if is_last { last } else { "completed" }, "started_ns": 10 + rank,
            "ended_ns": 20, "waiting_for": [],
        })
    });
    let record = json!({
        "version": 1, "job": 7, "group": 0, "rank": rank, "size": size,
        "members": (0..size).collect::<Vec<_>>(), "pid": 1, "written_ns": 100 + rank,
        "failure": failure, "calls": calls.collect::<Vec<_>>(),
    });
    FlightDump::parse(record.to_string().as_bytes()).unwrap()
}

fn failure(sequence: u64, kind: &str, ranks: &[usize]) -> Value {
    json!({ "sequence": sequence, "kind": kind, "error": format!("{kind} {ranks:?}"), "ranks": ranks })
}

/// Returns the kind, the ranks at fault and the summary of the group of these records.
#[track_caller]
fn find(records: &[FlightDump]) -> (FindingKind, Vec<usize>, String) {
    let groups = GroupRecords::of(records);
    let [group] = &groups[..] else { unreachable!("one group") };
    let Finding { kind, ranks, summary } = Finding::of(group);
    (kind, ranks, summary)
}

const HISTORY: [Call; 2] = [(812, "broadcast"), (813, "all_reduce")];

#[test]
fn a_rank_in_an_earlier_call_is_named() {
    let ahead = |rank| record(rank, 4, &HISTORY, "started", Value::Null);
    let late = record(3, 4, &HISTORY[..1], "started", Value::Null);
    let (kind, ranks, summary) = find(&[ahead(0), ahead(1), ahead(2), late]);
    assert_eq!((kind, ranks), (FindingKind::Behind, vec![3]));
    assert_eq!(summary, "rank 3 is in call 812 broadcast, the others in call 813 all_reduce");
}

#[test]
fn a_rank_that_has_not_made_a_call_is_named() {
    let ahead = |rank| record(rank, 3, &HISTORY, "failed", failure(813, "timeout", &[0]));
    let late = record(0, 3, &HISTORY[..1], "completed", failure(813, "timeout", &[0]));
    let (kind, ranks, summary) = find(&[late, ahead(1), ahead(2)]);
    assert_eq!((kind, ranks), (FindingKind::Behind, vec![0]));
    assert_eq!(summary, "rank 0 has not made call 813 all_reduce, the others wait in it");
}

#[test]
fn a_single_other_rank_waits() {
    let ahead = record(1, 2, &HISTORY, "failed", failure(813, "timeout", &[0]));
    let late = record(0, 2, &HISTORY[..1], "completed", failure(813, "timeout", &[0]));
    let (.., summary) = find(&[late, ahead]);
    assert_eq!(summary, "rank 0 has not made call 813 all_reduce, rank 1 waits in it");
}

/// Returns the summaries of the world and of a group, in which rank 1 and rank 0 are blocked.
fn crosswise(world: [Option<FlightDump>; 2], group: [Option<FlightDump>; 2]) -> Vec<String> {
    let group = group.into_iter().flatten().map(|mut record| {
        record.group = 9;
        record
    });
    let records: Vec<FlightDump> = world.into_iter().flatten().chain(group).collect();
    let mut groups = GroupRecords::of(&records);
    groups.sort_by_key(|group| group.id);
    groups.iter().map(|group| Finding::of(group).summary).collect()
}

#[test]
fn a_rank_that_is_blocked_in_another_group_is_named_with_that_call() {
    let blocked = |rank: usize, call: Call| {
        Some(record(rank, 2, &[call], "failed", failure(call.0, "timeout", &[1 - rank])))
    };
    let (check, step) = ((2, "all_gather"), (208, "all_reduce"));
    // Only the communicators that failed have written a record.
    let summaries = crosswise([None, blocked(1, check)], [blocked(0, step), None]);
    assert_eq!(
        summaries,
        [
            "rank 0 is in call 208 all_reduce of group 9; rank 1 waits for it in call 2 all_gather",
            "rank 1 is in call 2 all_gather of the world; rank 0 waits for it in call 208 all_reduce",
        ]
    );
    let lost = record(1, 2, &[check], "failed", failure(2, "peer_lost", &[0]));
    let summaries = crosswise([None, Some(lost)], [blocked(0, step), None]);
    assert_eq!(summaries[0], "rank 0 wrote no record; rank 1 lost it in call 2 all_gather");
    // All have answered.
    let idle = |rank: usize, last: Call| Some(record(rank, 2, &[last], "completed", Value::Null));
    let started = |rank: usize, call: Call| Some(record(rank, 2, &[call], "started", Value::Null));
    let summaries = crosswise(
        [idle(0, (1, "barrier")), started(1, check)],
        [started(0, step), idle(1, (207, "all_reduce"))],
    );
    assert_eq!(
        summaries,
        [
            "rank 0 has not made call 2 all_gather, rank 1 waits in it; \
             rank 0 is in call 208 all_reduce of group 9",
            "rank 1 has not made call 208 all_reduce, rank 0 waits in it; \
             rank 1 is in call 2 all_gather of the world",
        ]
    );
}

#[test]
fn a_rank_without_a_record_is_named() {
    let waits = |rank| record(rank, 3, &[(40, "all_reduce")], "failed", failure(40, "timeout", &[2]));
    let (kind, ranks, summary) = find(&[waits(0), waits(1)]);
    assert_eq!((kind, ranks), (FindingKind::Missing, vec![2]));
    assert_eq!(summary, "rank 2 wrote no record; all others wait for it in call 40 all_reduce");
    let lost = |rank| record(rank, 3, &[(40, "all_reduce")], "failed", failure(40, "peer_lost", &[2]));
    let (_, _, summary) = find(&[lost(0), lost(1)]);
    assert_eq!(summary, "rank 2 wrote no record; all others lost it in call 40 all_reduce");
}

#[test]
fn a_rank_that_made_another_call_is_named_with_both_calls() {
    let made =
        |rank, name| record(rank, 3, &[(4, "barrier"), (5, name)], "failed", failure(5, "desync", &[0, 1]));
    let (kind, ranks, summary) = find(&[made(0, "reduce"), made(1, "scan"), made(2, "reduce")]);
    assert_eq!((kind, ranks), (FindingKind::Mismatch, vec![1]));
    assert_eq!(
        summary,
        "call 5 differs: rank 1 made scan(sum, 4 x f32, ring), the others made reduce(sum, 4 x f32, ring)"
    );
}

#[test]
fn a_rank_that_aborted_or_failed_on_its_own_is_named() {
    let aborted = |rank| record(rank, 2, &[(9, "scan")], "completed", failure(10, "aborted", &[1]));
    let (kind, ranks, summary) = find(&[aborted(0), aborted(1)]);
    assert_eq!((kind, ranks), (FindingKind::Aborted, vec![1]));
    assert_eq!(summary, "aborted [1], in call 10");
    let failed = record(1, 2, &[(9, "scan")], "failed", failure(9, "other", &[]));
    let (_, ranks, summary) = find(&[aborted(0), failed]);
    assert_eq!((ranks, summary.as_str()), (vec![1], "rank 1 failed in call 9: other []"));
}

#[test]
fn ranks_that_wait_for_each_other_have_a_blocked_link() {
    let waiting = |rank, waits: &[usize]| {
        let mut record = record(rank, 3, &[(5, "scan")], "started", Value::Null);
        record.calls[0].waiting_for = waits.to_vec();
        record
    };
    let (kind, ranks, summary) = find(&[waiting(0, &[2]), waiting(1, &[]), waiting(2, &[0])]);
    assert_eq!((kind, ranks), (FindingKind::BlockedLink, vec![0, 2]));
    assert_eq!(summary, "ranks 0 and 2 wait for each other in call 5 scan: check the link between them");
    let (_, ranks, summary) = find(&[waiting(0, &[2]), waiting(1, &[2]), waiting(2, &[0, 1])]);
    assert_eq!(ranks, [2]);
    assert!(summary.ends_with(": check the links of rank 2"), "{summary}");
    // A ring in which each rank waits for the one before it has no such pair.
    let (kind, ..) = find(&[waiting(0, &[2]), waiting(1, &[0]), waiting(2, &[1])]);
    assert_eq!(kind, FindingKind::SameCall);
}

#[test]
fn a_program_without_failures_is_healthy() {
    let done = |rank| record(rank, 2, &[(9, "scan")], "completed", Value::Null);
    let (kind, ranks, summary) = find(&[done(0), done(1)]);
    assert_eq!((kind, ranks), (FindingKind::Healthy, vec![]));
    assert_eq!(summary, "nothing is wrong: the last call, call 9 scan, is complete on every rank");
    let busy = |rank| record(rank, 2, &[(9, "scan")], "started", Value::Null);
    assert_eq!(find(&[busy(0), busy(1)]).2, "no rank has failed; all are in call 9 scan");
}

#[test]
fn any_combination_of_records_has_a_finding() {
    let calls: [&[Call]; 4] = [&[], &[(1, "scan")], &[(1, "scan"), (3, "reduce")], &[(3, "split")]];
    let failures = ["timeout", "peer_lost", "desync", "aborted", "other", "unknown"];
    let failures = failures.iter().flat_map(|kind| [0, 3, u64::MAX].map(|at| failure(at, kind, &[2, 9])));
    let failures: Vec<Value> = failures.chain([Value::Null]).collect();
    let of = |rank: usize| {
        let all = calls.iter().flat_map(|calls| failures.iter().map(move |failure| (*calls, failure)));
        all.map(move |(calls, failure)| record(rank, 3, calls, "completed", failure.clone()))
    };
    for first in of(0) {
        for second in of(1) {
            let folder = Folder { records: vec![first.clone(), second], ..Folder::default() };
            let groups = GroupRecords::of(&folder.records);
            let findings: Vec<_> = groups.iter().map(|group| (group, Finding::of(group))).collect();
            for write in [table::write, json::write] {
                let mut text = Vec::new();
                write(&mut text, &folder, &findings).unwrap();
                assert!(text.len() > 20);
            }
        }
    }
}

#[test]
fn files_that_cannot_be_used_are_listed_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut other = record(1, 2, &[], "started", Value::Null);
    other.job = 3;
    other.written_ns = 1;
    let ours = record(0, 2, &[], "started", Value::Null);
    for (name, record) in [("a.json", &ours), ("b.json", &ours), ("c.json", &other)] {
        std::fs::write(path(name), serde_json::to_vec(record).unwrap()).unwrap();
    }
    std::fs::write(path("d.json"), "{").unwrap();
    std::fs::write(path("e.txt"), "no record").unwrap();
    std::fs::create_dir(path("f.json")).unwrap();
    let read = Folder::read(folder.path()).unwrap();
    assert_eq!(read.records, [ours]);
    let mut skipped: Vec<_> = read.skipped.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
    skipped.sort();
    for (line, part) in skipped.iter().zip([
        "b.json: another file",
        "d.json: ",
        "f.json: ",
        "world-rank-00001.json: it belongs to job 3, and not to 7",
    ]) {
        assert!(line.starts_with(part), "{line}");
    }
    assert_eq!(skipped.len(), 4);
}

/// Returns the record of a rank on a host whose clock is slow by this time, with calls that end at
/// these times by the right clock.
fn timed(rank: usize, (host, behind_ns): (&str, u64), ends: &[(&'static str, u64)]) -> FlightDump {
    let calls: Vec<Call> = ends.iter().zip(1..).map(|((name, _), number)| (number, *name)).collect();
    let mut record = record(rank, 3, &calls, "completed", Value::Null);
    host.clone_into(&mut record.boot_id);
    for (call, (_, end)) in record.calls.iter_mut().zip(ends) {
        (call.started_ns, call.ended_ns) = (end - 1_000 - behind_ns, Some(end - behind_ns));
    }
    record
}

#[test]
fn clocks_of_hosts_are_aligned_by_calls_that_synchronize() {
    let (here, there) = (("a", 0), ("b", 5_000_000));
    let ends = |jitter: u64| {
        [("barrier", 20_000_000), ("all_reduce", 30_000_000 + jitter), ("all_gather", 40_000_000)]
    };
    // The broadcast ends at another time on each rank.
    let late = [&ends(900)[..], &[("broadcast", 90_000_000)]].concat();
    let early = [&ends(0)[..], &[("broadcast", 50_000_000)]].concat();
    let records = [timed(0, here, &early), timed(1, here, &early), timed(2, there, &late)];
    let groups = GroupRecords::of(&records);
    let clocks = Clocks::align(&groups);
    let offset = clocks.of(&records[2]);
    assert_eq!((offset.ns, offset.calls, offset.spread_ns), (5_000_000, 3, 0));
    assert_eq!(clocks.of(&records[1]).ns, 0);
    assert_eq!(clocks.time(&records[2], records[2].calls[0].started_ns), 19_999_000);
}

#[test]
fn a_host_without_common_calls_keeps_its_clock() {
    let records =
        [timed(0, ("a", 0), &[("barrier", 20_000_000)]), timed(1, ("b", 9), &[("scan", 30_000_000)])];
    assert_eq!(Clocks::align(&GroupRecords::of(&records)).of(&records[1]), Default::default());
}

/// Returns the events of the trace of these records.
fn trace_events(records: &[FlightDump]) -> Vec<Value> {
    let file = tempfile::NamedTempFile::new().unwrap();
    trace::write(file.path(), &GroupRecords::of(records)).unwrap();
    let trace: Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

/// Returns two calls in the world and two in a group, all in the same tick of a coarse clock.
fn in_one_tick(rank: usize) -> [FlightDump; 2] {
    let world = timed(rank, ("a", 0), &[("scan", 5_000), ("barrier", 5_000)]);
    let mut group = world.clone();
    group.group = 9;
    [world, group].map(|mut record| {
        record.calls[0].started_ns = 5_000;
        record.calls[1].started_ns = 5_000;
        record.calls[1].ended_ns = Some(9_000);
        record
    })
}

#[test]
fn viewers_show_each_group_of_each_rank_in_a_track_of_its_own() {
    let events = trace_events(&[0, 1, 2].map(in_one_tick).concat());
    let mut tracks: Vec<(u64, u64)> =
        events.iter().map(|event| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())).collect();
    tracks.sort_unstable();
    tracks.dedup();
    assert_eq!(tracks.len(), 6, "{tracks:?}");
    // Perfetto takes such a thread for the main thread of the process.
    assert!(tracks.iter().all(|&(pid, tid)| tid != 0 && tid != pid), "{tracks:?}");
}

#[test]
fn a_trace_names_the_ranks_of_a_group_and_for_whom_a_call_waits() {
    let records = [0, 1, 2].map(|rank| {
        let mut record = timed(rank, ("a", 0), &[("barrier", 9_000)]);
        (record.group, record.exact_times) = (9, true);
        record.calls[0].started_ns = if rank == 1 { 8_000 } else { 5_000 };
        record
    });
    let events = trace_events(&records);
    let names = |kind: &str| -> Vec<&str> {
        let of_kind = events.iter().filter(|event| event["ph"] == kind);
        of_kind.filter_map(|event| event["name"].as_str()).collect()
    };
    assert_eq!(names("X"), ["barrier", "wait for rank 1", "barrier", "barrier", "wait for rank 1"]);
    let threads = events.iter().filter(|event| event["name"] == "thread_name");
    threads.for_each(|thread| assert_eq!(thread["args"]["name"], "ranks 0, 1 and 2 (group 9)"));
}

#[test]
fn no_call_is_shown_inside_of_another_one() {
    let nanos = |event: &Value, key: &str| (event[key].as_f64().unwrap() * 1000.0).round() as u64;
    let events = trace_events(&[0, 1, 2].map(in_one_tick).concat());
    let calls = |name: &'static str| events.iter().filter(move |event| event["name"] == name);
    assert_eq!(calls("scan").count(), 6);
    for (first, second) in calls("scan").zip(calls("barrier")) {
        assert_eq!((&first["pid"], &first["tid"]), (&second["pid"], &second["tid"]));
        // Viewers nest events that start at the same time, also if one has no duration.
        assert!(nanos(second, "ts") > nanos(first, "ts") + nanos(first, "dur"), "{first} {second}");
        assert!(nanos(second, "dur") > 3_000, "{second}");
    }
}
