//! Tests of views, with answers written by hand.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use comm::monitor::MonitorReport;
use comm_cli::__private::{HostAnswer, RankAnswer};
use serde_json::{Value, json};

use super::snapshot::Snapshot;
use super::table;
use super::view::{RankState, View};

const SECOND: u64 = 1_000_000_000;

/// Returns the answer of a rank whose last call has started and ended at these times.
fn report(
    rank: usize,
    size: usize,
    (started, ended): (u64, Option<u64>),
    waiting_for: &[usize],
) -> MonitorReport {
    let state = if ended.is_some() { "completed" } else { "started" };
    let call = json!({
        "sequence": 7, "signature": "all_reduce(sum, 4 x f32, ring)", "collective": "all_reduce", "op": "sum",
        "dtype": "f32", "count": 4, "root": null, "algorithm": "ring", "state": state, "started_ns": started,
        "ended_ns": ended, "waiting_for": waiting_for,
    });
    let record = json!({
        "version": 1, "job": 9, "group": 0, "rank": rank, "size": size, "members": (0..size).collect::<Vec<_>>(),
        "pid": 100 + rank, "written_ns": 100 * SECOND, "failure": null, "calls": [call],
    });
    let calls = json!({
        "collective": "all_reduce", "algorithm": "ring", "calls": 7, "bytes": 4000, "time_ns": 1000, "durations": [7],
    });
    let metrics = json!({ "size": size, "calls": [calls], "failures": 0, "waited_for_ns": [] });
    let report = json!({ "version": 1, "records": [record], "metrics": [metrics] });
    MonitorReport::parse(report.to_string().as_bytes()).unwrap()
}

fn observed(rank: usize, report: Option<MonitorReport>) -> (Option<String>, RankAnswer) {
    let is_stopped = report.is_none();
    let answer = json!({ "rank": rank, "pid": 100 + rank, "is_stopped": is_stopped, "report": report });
    (None, serde_json::from_value(answer).unwrap())
}

fn text(view: &View) -> String {
    let mut text = Vec::new();
    table::write(&mut text, view).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn of_many_ranks_those_at_fault_are_first() {
    let blocked = (90 * SECOND, None);
    let ranks = (0..100).map(|rank| match rank {
        57 => observed(rank, None),
        // It has not made the call, so that some wait for it as well.
        23 => observed(rank, Some(report(rank, 100, (80 * SECOND, Some(81 * SECOND)), &[]))),
        _ if rank % 10 == 3 => observed(rank, Some(report(rank, 100, blocked, &[23]))),
        _ => observed(rank, Some(report(rank, 100, blocked, &[57]))),
    });
    let view = View::new(&Snapshot::of(0xab, ranks), None);
    let order: Vec<usize> = view.ranks.iter().map(|rank| rank.rank).collect();
    assert_eq!(order[..4], [57, 23, 0, 1]);
    assert_eq!((view.ranks[0].state, view.ranks[0].waited_for_by), (RankState::Stopped, 89));
    assert_eq!((view.ranks[1].state, view.ranks[1].waited_for_by), (RankState::BetweenCalls, 9));
    assert!(view.summary.starts_with("rank 57 does not answer; "), "{}", view.summary);
    let text = text(&view);
    assert_eq!(text.lines().count(), 103);
    assert!(text.lines().all(|line| line.chars().count() < 140), "{text}");
}

#[test]
fn a_healthy_job_says_so_and_ranks_elsewhere_are_listed() {
    let done = (99 * SECOND, Some(99 * SECOND));
    let ranks = (0..3).map(|rank| observed(rank, Some(report(rank, 5, done, &[]))));
    let view = View::new(&Snapshot::of(0xab, ranks), None);
    assert_eq!(view.summary, "3 ranks answer, and no call takes longer than 1 s");
    assert_eq!(view.elsewhere, [3, 4]);
    assert!(text(&view).contains("\njob ab, 3 ranks, without a process on this host: 3 4\n"));
}

#[test]
fn one_rank_that_is_late_is_named_and_several_are_not() {
    let summary = |starts_ms: [u64; 3]| {
        let ranks = starts_ms.into_iter().enumerate().map(|(rank, start)| {
            let start = 90 * SECOND + start * 1_000_000;
            observed(rank, Some(report(rank, 3, (start, Some(99 * SECOND)), &[])))
        });
        View::new(&Snapshot::of(1, ranks), None).summary
    };
    let named = "rank 1 starts its calls 51 ms after the first rank, and the others wait for it";
    assert_eq!(summary([0, 51, 2]), named);
    for healthy in [[0, 51, 40], [0, 9, 0], [0, 0, 0]] {
        assert!(summary(healthy).starts_with("3 ranks answer"), "{healthy:?}");
    }
}

#[test]
fn ranks_that_have_not_started_a_long_call_are_waited_for() {
    let blocked = |rank| observed(rank, Some(report(rank, 3, (90 * SECOND, None), &[])));
    let view = View::new(&Snapshot::of(1, [blocked(0), observed(1, None), blocked(2)]), None);
    let waits: Vec<&[usize]> = view.ranks.iter().map(|rank| &rank.waiting_for[..]).collect();
    assert_eq!(waits, [&[][..], &[1], &[1]]);
}

#[test]
fn speeds_are_those_since_the_last_snapshot() {
    let answer = |calls: u64| {
        let mut report = report(0, 4, (99 * SECOND, Some(99 * SECOND)), &[]);
        let counted = &mut report.metrics[0].calls[0];
        (counted.calls, counted.bytes, counted.time_ns) = (calls, calls * 1000, calls * 500);
        Snapshot::of(1, [observed(0, Some(report))])
    };
    let (before, now) = (answer(100), answer(300));
    let rates = now.rates(0, Some(&before));
    assert!(rates.calls_per_s.unwrap() > 0.0);
    // 1000 bytes in 500 ns, times 2 * 3 / 4.
    assert!((rates.busbw_gb_per_s.unwrap() - 3.0).abs() < 1e-9);
    assert_eq!(now.rates(0, None).calls_per_s, None);
    assert_eq!(before.rates(0, Some(&now)).calls_per_s, None, "a communicator was closed");
    assert_eq!(now.rates(1, Some(&before)).calls_per_s, None);
}

#[test]
fn the_state_is_json() {
    let done = (99 * SECOND, Some(99 * SECOND));
    let view = View::new(&Snapshot::of(0xab, [observed(0, Some(report(0, 1, done, &[])))]), None);
    let json: Value = serde_json::to_value(&view).unwrap();
    assert_eq!((&json["launch"], &json["ranks"][0]["state"]), (&"ab".into(), &"between_calls".into()));
    assert_eq!(json["ranks"][0]["seconds"], 1.0);
}

#[test]
fn the_ranks_of_several_hosts_are_shown_with_their_hosts_and_a_silent_agent_is_named() {
    let answer = |rank, report| observed(rank, report).1;
    let blocked = |rank| answer(rank, Some(report(rank, 4, (90 * SECOND, None), &[2])));
    let host = |host: &str, ranks: Option<Vec<RankAnswer>>| -> HostAnswer {
        serde_json::from_value(json!({ "host": host, "ranks": ranks })).unwrap()
    };
    let hosts = vec![
        host("node0", Some(vec![blocked(0), blocked(1)])),
        host("node1", Some(vec![answer(2, None)])),
        host("node2", None),
    ];
    let view = View::new(&Snapshot::of_hosts(Some(0xab), hosts), None);
    assert!(view.summary.starts_with("rank 2 does not answer; "), "{}", view.summary);
    let text = text(&view);
    let title =
        "job ab, 3 ranks on 3 hosts, no answer from node2, without a process on any host that answers: 3";
    assert_eq!(text.lines().nth(1), Some(title));
    assert!(text.lines().nth(3).unwrap().contains("node1 102  no answer (stopped)"), "{text}");
}
