//! Every case fails if the emulator does something wrong that the case checks.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::time::Duration;

use gpu_check::record::{Record, Verdict};
use gpu_check::run::Runner;
use gpu_check::{CASES, Placement};

use common::{FAULT, named, run_spec, start};

/// The process of a rank that other tests start; not a separate test.
#[test]
fn a_process_runs_its_rank() {
    run_spec();
}

/// The timeout of calls: hangs last this long, and all else must complete in time on a busy
/// machine.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);

/// Case, number of ranks, fault, and the expected text of the error.
type Row = (&'static str, usize, &'static str, &'static str);

const WRONG_BITS: &[Row] = &[
    ("all_reduce", 1, "0:wrong-bit 40", "in place: element"),
    ("all_reduce", 2, "1:wrong-bit 41", "rank 1: "),
    ("reduce", 2, "0:wrong-bit 8", "element"),
    ("reduce_scatter", 1, "0:wrong-bit 20", "element"),
    // Rank 0 is the root of this call. A root only reads its buffer, so nothing waits for its call
    // to end before the buffer is compared.
    ("broadcast", 2, "1:wrong-bit 3", "2 ranks: in place: element"),
    ("all_gather", 1, "0:wrong-bit 5", "element"),
    ("gather", 2, "0:wrong-bit 6", "element"),
    ("scatter", 2, "1:wrong-bit 5", "element"),
    ("all_to_all", 2, "0:wrong-bit 5", "element"),
    ("large_buffers", 1, "0:wrong-bit 2", "element 16777220 of 16777221"),
    ("ring", 2, "1:wrong-bit 2", "element"),
    ("batch", 1, "0:wrong-bit 0", "instead of"),
    ("messages", 2, "1:wrong-bit 7", "message 7"),
    ("streams", 1, "0:wrong-bit 4", "the sum of round"),
    ("foreign_memory", 1, "0:wrong-bit 4", "element 99999 of 100000"),
    ("joined_streams", 1, "0:wrong-bit 4", "the data read in round"),
    ("freed_after_use", 1, "0:wrong-bit 4", "round"),
    ("registration", 1, "0:wrong-bit 1", "the maximum afterwards"),
    ("settings", 1, "0:wrong-bit 0", "the sum"),
    ("leaks", 1, "0:wrong-bit 30", "round"),
    ("refusals", 1, "0:wrong-bit 0", "the sum after refused calls"),
    ("shrink", 2, "0:wrong-bit 1", "the sum over them"),
    ("killed_rank", 2, "0:wrong-bit 3", "the sum over them"),
    ("eight_bits", 1, "0:wrong-bit 4", "element"),
    ("training", 1, "0:wrong-bit 6", "the norm of step 2"),
    ("training", 2, "1:wrong-bit 8", "rank 1: the norm of step 3"),
    ("host_and_device", 1, "0:wrong-bit 0", "the sum on devices"),
    ("host_and_device", 2, "1:wrong-bit 1", "the maximum before the barrier"),
    ("elastic_group", 2, "0:wrong-bit 0", "the sum on devices before"),
    ("elastic_group", 2, "1:wrong-bit 0", "rank 1: the sum on devices after"),
    ("hybrid_shrink", 2, "0:wrong-bit 2", "the sum on devices after"),
];

/// Calls that succeed without any effect.
const NOTHING_DONE: &[Row] = &[
    ("all_reduce", 1, "0:answer ncclAllReduce 0 3", "the receive buffer"),
    ("streams", 2, "0:answer ncclAllReduce 0 4", "the sum of round"),
    ("kernels", 1, "0:answer cuLaunchKernel 0 1", "1 elements: byte"),
    ("barrier_device", 2, "0:answer ncclAllReduce 0 2", "timed out"),
    // Each round waits for six streams; the fault omits the wait of the joined stream. Its copy may
    // then come before the held stream has allocated the memory, which is another error.
    ("joined_streams", 1, "0:answer cuStreamWaitEvent 0 9", ""),
    ("joined_streams", 2, "1:answer cuStreamWaitEvent 0 15", "rank 1: round 2 did not wait for the call"),
    // The first calls are for warmup; the barrier of the second round has a late rank.
    ("barrier_ranks", 2, "0:answer ncclAllReduce 0 6", "a barrier returned before rank 1 entered it"),
    ("refusals", 2, "0:answer ncclAllReduce 0 0", "the sum after refused calls"),
    ("absent_rank", 2, "0:answer ncclAllReduce 0 1", "a sum without one rank: succeeded"),
    ("killed_rank", 2, "0:answer ncclAllReduce 0 2", "a sum without one rank: succeeded"),
    ("hybrid_shrink", 2, "0:answer ncclAllReduce 0 1", "a sum without one rank: succeeded"),
    ("different_calls", 2, "0:answer ncclBroadcast 0 0", "a broadcast with two roots: succeeded"),
];

const CODES: &[Row] = &[
    ("connect", 2, "1:answer ncclCommInitRankConfig 2 0", "rank 1: nccl failed with code 2"),
    ("all_reduce", 1, "0:answer ncclAllReduce 99 7", "code 99: ncclAllReduce"),
    ("broadcast", 2, "1:answer ncclCommInitRankConfig 2 0", "rank 1: nccl failed with code 2"),
    ("leaks", 1, "0:answer ncclCommDestroy 3 8", "round 6: nccl failed with code 3: ncclCommDestroy"),
    ("no_peer", 1, "0:answer ncclCommInitRankConfig 2 0", "a group whose other members never join"),
    ("split", 1, "0:answer ncclCommSplit 5 0", "code 5"),
    ("kernels", 1, "0:answer cuModuleLoadData 218 4", "code 218: load kernels"),
    ("training", 1, "0:answer cuLaunchKernel 1 0", "code 1: launch a kernel"),
    ("killed_rank", 2, "0:answer ncclCommInitRankConfig 2 1", "code 2"),
];

const STUCK: &[Row] = &[
    ("all_gather", 1, "0:hang 3", "timed out after 8s"),
    ("barrier_device", 1, "0:hang 4", "timed out"),
    ("ring", 2, "0:hang 1", "timed out"),
    ("scatter", 2, "1:async-error 3", "code 6"),
    ("abort", 1, "0:hang 0", "timed out"),
    ("deadline", 1, "0:hang 1", "timed out"),
];

const DEATHS: &[Row] = &[
    ("split", 1, "0:die", "exited without a result"),
    ("killed_rank", 2, "0:die", "rank 0: exited without a result"),
    ("staged", 2, "1:die", "rank 1: exited without a result"),
];

/// Returns a description of the result if the case did not fail as expected.
fn differs((name, ranks, fault, words): Row, limit: Duration) -> Option<String> {
    let settings = [("GPU_EMU_DEVICES", "2"), (FAULT, fault)];
    let runner = Runner { start: &|| Ok(start(&settings)), device: 0, call_timeout: CALL_TIMEOUT, limit };
    let ended = runner.case(named(name), &[0, 1][..ranks], &[]).unwrap();
    let as_told = ended.verdict == Verdict::Failed && ended.message.contains(words);
    (!as_told).then(|| format!("{name} of {ranks}, {fault}: {:?} {}", ended.verdict, ended.message))
}

#[track_caller]
fn all_fail(rows: &[Row]) {
    let limit = Duration::from_secs(100);
    let differing: Vec<String> = rows.iter().filter_map(|row| differs(*row, limit)).collect();
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn every_case_is_made_to_fail() {
    let rows = [WRONG_BITS, NOTHING_DONE, CODES, STUCK, DEATHS].concat();
    for case in &CASES {
        assert!(rows.iter().any(|row| row.0 == case.name), "{}", case.name);
    }
}

/// Each of them would wait until its timeout.
#[test]
fn cases_of_ranks_that_cannot_be_connected_are_not_run() {
    let settings = [("GPU_EMU_DEVICES", "2"), (FAULT, "1:answer ncclCommInitRankConfig 2 0")];
    let (call_timeout, limit) = (CALL_TIMEOUT, Duration::from_secs(100));
    let runner = Runner { start: &|| Ok(start(&settings)), device: 0, call_timeout, limit };
    let mut ends = Vec::new();
    let mut keep = |record| {
        ends.extend(if let Record::Case(ended) = record { Some((ended.case, ended.verdict)) } else { None });
        Ok(())
    };
    let several = Ok(Placement { devices: vec![0, 1], environment: Vec::new() });
    runner.cases(&["connect".into(), "messages".into()], &several, &mut keep).unwrap();
    assert_eq!(ends, [("connect".into(), Verdict::Failed), ("messages".into(), Verdict::NotRun)]);
}

#[test]
fn one_wrong_bit_is_found() {
    all_fail(WRONG_BITS);
}

#[test]
fn calls_that_do_nothing_are_found() {
    all_fail(NOTHING_DONE);
}

#[test]
fn codes_are_told_with_their_number_and_their_call() {
    all_fail(CODES);
}

#[test]
fn a_hang_or_failure_on_the_device_ends_at_the_deadline() {
    all_fail(STUCK);
}

#[test]
fn processes_that_die_or_never_end_fail_their_case_and_are_killed() {
    all_fail(DEATHS);
    assert_eq!(differs(("split", 1, "0:never-end", "did not exit"), Duration::from_secs(3)), None);
}

/// A communicator whose abort has no effect keeps its threads.
#[test]
fn an_abort_without_effect_is_a_leak() {
    all_fail(&[("leaks", 2, "0:answer ncclCommAbort 0 9", "50 communicators leaked")]);
}
