//! A program that succeeds writes records, from which a trace is exported.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use super::{commctl, run};

/// The time by which rank 1 is late for each barrier.
const LATE: Duration = Duration::from_secs(1);
/// The least of it that must be seen: a rank may be scheduled late.
const SEEN_US: f64 = 500_000.0;
const BARRIERS: usize = 2;

pub(crate) fn slow_rank() {
    let comm = comm::init().unwrap();
    for _ in 0..BARRIERS {
        if comm.rank() == 1 {
            sleep(LATE);
        }
        comm.barrier().unwrap();
    }
    let group = comm.split(Some(0), 0).unwrap().unwrap();
    group.all_reduce(&mut [1.0_f32; 100], comm::ReduceOp::Sum).unwrap();
}

/// Runs the program, and returns the events of its trace.
fn events(times: &str, folder: &Path) -> Vec<Value> {
    let mut ranks = run(3, "slow rank");
    ranks.env("COMM_FLIGHT_DIR", folder).env("COMM_FLIGHT_ON_CLOSE", "1").env("COMM_FLIGHT_TIMES", times);
    assert!(ranks.status().unwrap().success());
    let file = folder.join("trace");
    let exported =
        commctl().args(["doctor", "--flight"]).arg(folder).arg("--export-trace").arg(&file).output();
    let exported = exported.unwrap();
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    let trace: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(trace["otherData"]["clocks"].as_array().unwrap().len(), 1, "one host");
    trace["traceEvents"].as_array().unwrap().clone()
}

fn number(event: &Value, key: &str) -> f64 {
    event[key].as_f64().unwrap()
}

/// Asserts that the events of each rank and group either contain each other or do not overlap.
fn assert_nested(events: &[Value]) {
    let with_duration = || events.iter().filter(|event| event["ph"] == "X");
    for (at, event) in with_duration().enumerate() {
        let (start, end) = (number(event, "ts"), number(event, "ts") + number(event, "dur"));
        assert!(start >= 0.0 && end >= start, "{event}");
        let same_row = |other: &&Value| other["pid"] == event["pid"] && other["tid"] == event["tid"];
        for other in with_duration().skip(at + 1).filter(same_row) {
            let (from, to) = (number(other, "ts"), number(other, "ts") + number(other, "dur"));
            // Times have fractions of a microsecond, which are rounded.
            let (is_after, is_inside) = (from >= end - 0.01, from >= start && to <= end + 0.01);
            assert!(is_after || is_inside, "{event} {other}");
        }
    }
}

fn shows_the_late_rank(times: &str) {
    let folder = tempfile::tempdir().unwrap();
    let events = events(times, folder.path());
    assert_nested(&events);
    for rank in 0..3 {
        let of_rank = |name: &'static str| {
            events.iter().filter(move |event| event["pid"] == rank && event["name"] == name)
        };
        let barriers: Vec<&Value> = of_rank("barrier").collect();
        assert_eq!(barriers.len(), BARRIERS);
        let long_waits = of_rank("wait for rank 1")
            .filter(|wait| number(wait, "dur") > SEEN_US && wait["args"]["rank"] == 1)
            .count();
        let late = barriers.iter().filter(|barrier| number(&barrier["args"], "late_us") > SEEN_US).count();
        if rank == 1 {
            assert_eq!((long_waits, late), (0, BARRIERS));
        } else {
            assert_eq!((long_waits, late), (BARRIERS, 0), "rank {rank}: {events:#?}");
            assert!(barriers.iter().all(|barrier| number(barrier, "dur") > SEEN_US));
        }
        assert_eq!(of_rank("thread_name").count(), 2, "the world and the group");
        assert_eq!(of_rank("all_reduce").count(), 1);
    }
}

#[test]
fn a_trace_of_a_program_that_succeeds_shows_for_whom_ranks_wait() {
    shows_the_late_rank("coarse");
    shows_the_late_rank("exact");
}

#[test]
fn a_program_that_succeeds_writes_no_records_unless_it_is_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    assert!(run(2, "slow rank").env("COMM_FLIGHT_DIR", folder.path()).status().unwrap().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
