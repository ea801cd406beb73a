//! Tests of `commctl doctor`: programs fail in virtual time, their ranks write files, and the first
//! line names the rank at fault.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod gpus;
mod hosts;
mod torch;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use comm::ring::{RingCommunicator, RingConfig};
use comm::{Comm, ReduceOp, flight};
use comm_sim::network::{self, FaultPlan, VirtualClock};
use serde_json::Value;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(2);
const RANKS: usize = 4;

/// The rank that `live` makes dead or stopped writes no record.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Writes,
    IsSilent(usize),
}

/// Runs a program whose ranks write records to a folder.
fn records(fate: Fate, live: impl Fn(&Comm, &VirtualClock) -> comm::Result<()> + Sync) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    network::run(RANKS, 0, &FaultPlan::calm(), |fabric, clock| {
        let rank = comm::Fabric::group(&fabric).rank();
        let mut config = RingConfig::default();
        config.flight_sink = (fate != Fate::IsSilent(rank)).then(|| flight::sink(folder.path(), 1));
        let comm = Comm::new(RingCommunicator::new(fabric, config, TIMEOUT).unwrap()).with_timeout(TIMEOUT);
        // The records show the error.
        drop(live(&comm, &clock));
    });
    folder
}

fn calls(comm: &Comm) -> comm::Result<()> {
    (0..38).try_for_each(|_| comm.all_reduce(&mut [1_u32; 8], ReduceOp::Sum))?;
    comm.barrier()
}

/// Rank 2 makes another call than the others.
pub(crate) fn different_calls() -> TempDir {
    records(Fate::Writes, |comm, _| {
        calls(comm)?;
        match comm.rank() {
            2 => comm.broadcast(0, &mut [1_u32; 8]),
            _ => comm.all_reduce(&mut [1_u32; 8], ReduceOp::Sum),
        }
    })
}

/// Rank 1 dies.
pub(crate) fn dead_rank() -> TempDir {
    records(Fate::IsSilent(1), |comm, clock| {
        calls(comm)?;
        if comm.rank() == 1 {
            clock.die();
        }
        comm.all_reduce(&mut [1_u32; 8], ReduceOp::Sum)
    })
}

/// Rank 3 is stopped.
pub(crate) fn stopped_rank() -> TempDir {
    records(Fate::IsSilent(3), |comm, clock| {
        calls(comm)?;
        if comm.rank() == 3 {
            clock.sleep(10 * TIMEOUT);
        }
        comm.all_reduce(&mut [1_u32; 8], ReduceOp::Sum)
    })
}

fn doctor(folder: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commctl"));
    command.arg("doctor").arg("--flight").arg(folder).args(options).output().unwrap()
}

#[track_caller]
fn text(folder: &Path, options: &[&str]) -> String {
    let output = doctor(folder, options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn assert_first_line(folder: &TempDir, expected: &str) {
    let text = text(folder.path(), &[]);
    assert_eq!(text.lines().next(), Some(expected), "{text}");
    let line: Value = serde_json::from_str(&self::text(folder.path(), &["--json"])).unwrap();
    assert_eq!(line["summary"], expected);
}

#[test]
fn a_rank_that_makes_another_call_is_named_with_both_calls() {
    assert_first_line(
        &different_calls(),
        "call 40 differs: rank 2 made broadcast(root 0, 8 x u32, binomial), \
         the others made all_reduce(sum, 8 x u32, one_shot)",
    );
}

#[test]
fn a_dead_rank_is_named() {
    let folder = dead_rank();
    assert_first_line(&folder, "rank 1 wrote no record; all others lost it in call 40 all_reduce");
    let text = text(folder.path(), &[]);
    assert!(text.lines().any(|line| line.split_whitespace().eq(["1", "?", "no", "record"])), "{text}");
}

#[test]
fn a_stopped_rank_is_named() {
    let folder = stopped_rank();
    assert_first_line(&folder, "rank 3 wrote no record; all others wait for it in call 40 all_reduce");
    let line: Value = serde_json::from_str(&text(folder.path(), &["--json"])).unwrap();
    assert_eq!(
        (&line["kind"], &line["missing"][0], &line["ranks"][0]),
        (&"missing".into(), &3.into(), &3.into())
    );
    assert_eq!(
        (&line["members"][0]["sequence"], &line["members"][0]["state"]),
        (&40.into(), &"failed".into())
    );
}

#[test]
fn a_rank_that_arrives_after_the_deadline_is_named_with_its_delay() {
    let folder = records(Fate::Writes, |comm, clock| {
        calls(comm)?;
        if comm.rank() == 1 {
            clock.sleep(3 * TIMEOUT);
        }
        comm.all_reduce(&mut [1_u32; 8], ReduceOp::Sum)
    });
    let expected = "rank 1 came too late to call 40 all_reduce: 6.0 s after the first rank";
    assert_first_line(&folder, expected);
}

#[test]
fn a_rank_that_makes_too_few_calls_is_named() {
    let folder = records(Fate::Writes, |comm, _| {
        calls(comm)?;
        if comm.rank() > 0 { comm.barrier() } else { comm.clone().finalize() }
    });
    let text = text(folder.path(), &[]);
    let first = text.lines().next().unwrap();
    assert_eq!(first, "rank 0 has not made call 40 barrier, the others wait in it", "{text}");
}

#[test]
fn a_rank_that_aborts_is_named_with_its_reason() {
    let folder = records(Fate::Writes, |comm, clock| {
        calls(comm)?;
        if comm.rank() == 2 {
            clock.sleep(Duration::from_millis(10));
            comm::Communicator::abort(comm.communicator(), "out of coffee");
        }
        comm.barrier()
    });
    let text = text(folder.path(), &[]);
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("aborted by rank 2: out of coffee"), "{text}");
}

#[test]
fn a_group_is_reported_with_the_ranks_of_the_world() {
    let folder = records(Fate::IsSilent(2), |comm, clock| {
        let Some(group) = comm.new_group(&[3, 2])? else { return Ok(()) };
        if comm.rank() == 2 {
            clock.sleep(10 * TIMEOUT);
        }
        group.with_timeout(TIMEOUT).barrier()
    });
    let text = text(folder.path(), &[]);
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("group "), "{text}");
    assert!(first.ends_with(": rank 2 wrote no record; rank 3 waits for it in call 1 barrier"), "{text}");
}

#[test]
fn malformed_files_are_named_and_do_not_hide_the_others() {
    let folder = stopped_rank();
    std::fs::write(folder.path().join("world-rank-00003.json"), "{\"version\": 1").unwrap();
    let text = text(folder.path(), &[]);
    assert!(text.starts_with("rank 3 wrote no record; all others wait for it"), "{text}");
    assert!(text.contains("world-rank-00003.json: "), "{text}");
}

#[test]
fn a_folder_without_records_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("absent")] {
        let output = doctor(&path, &[]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr.contains(path.to_str().unwrap()), "{stderr}");
    }
}
