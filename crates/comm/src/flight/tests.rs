//! Tests of the files.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use comm_core::{
    Collective, DType, During, Group, GroupId, Membership, RecordedCall, RecordedFailure, ReduceOp, Signature,
};

use super::*;

fn record() -> comm_core::FlightRecord {
    let group = Group::new(GroupId(0xab), Membership { rank: 1, size: 3 }).unwrap();
    let mut record = comm_core::FlightRecord::new(group, vec![2, 5, 7]);
    let mut signature = Signature::new(GroupId(0xab), Collective::AllReduce, "ring");
    (signature.op, signature.dtype, signature.count) = (Some(ReduceOp::Sum), Some(DType::F32), 9);
    let started = Instant::now();
    let mut done = RecordedCall::new(7, signature.clone(), started);
    done.state = comm_core::CallState::Completed;
    done.ended = Some(started + Duration::from_millis(2));
    let mut failed = RecordedCall::new(8, signature.clone(), started);
    failed.state = comm_core::CallState::Failed;
    failed.waiting_for = vec![0];
    record.calls = vec![done, failed];
    let during = During::Call { call: Box::new(signature), sequence: 8 };
    let error = Error::Timeout { waiting_for: vec![2], after: Duration::from_secs(1), during };
    record.failure = Some(RecordedFailure::new(8, error));
    record
}

fn dump() -> FlightDump {
    FlightDump::new(&record(), 3)
}

#[test]
fn a_file_has_what_other_ranks_need_for_comparison() {
    let dump = dump();
    assert_eq!((dump.job, dump.group, dump.rank, dump.world_rank()), (3, 0xab, 1, 5));
    let [done, failed] = &dump.calls[..] else { unreachable!("two calls") };
    assert_eq!(done.signature, "all_reduce(sum, 9 x f32, ring, group ab)");
    assert_eq!((done.op.as_deref(), done.dtype.as_deref(), done.count), (Some("sum"), Some("f32"), 9));
    assert_eq!(done.ended_ns, Some(done.started_ns + 2_000_000));
    assert!(done.started_ns <= dump.written_ns && done.started_ns > dump.written_ns - 1_000_000_000);
    assert_eq!((done.state, failed.state), (DumpedState::Completed, DumpedState::Failed));
    assert_eq!((failed.ended_ns, &failed.waiting_for[..]), (None, &[0][..]));
    let failure = dump.failure.unwrap();
    assert_eq!((failure.sequence, failure.kind.as_str(), &failure.ranks[..]), (8, "timeout", &[2][..]));
    assert!(failure.error.contains("waiting for rank 2"), "{}", failure.error);
}

#[test]
fn a_file_appears_whole_and_replaces_the_previous_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("new");
    for job in [1, 2] {
        let path = write(&folder, &FlightDump { job, ..dump() }).unwrap();
        assert_eq!(path, folder.join("group-00000000000000ab-rank-00005.json"));
        assert_eq!(FlightDump::parse(&fs::read(path).unwrap()).unwrap().job, job);
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn a_folder_that_cannot_be_written_is_named_and_a_sink_survives_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = write(file.path(), &dump()).unwrap_err();
    assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
    sink(file.path(), 0).record(&record());
}

#[test]
fn files_that_contradict_themselves_are_refused() {
    let changes: [fn(&mut FlightDump); 5] = [
        |dump| dump.version = 2,
        |dump| dump.rank = 3,
        |dump| (dump.size, dump.rank, dump.members) = (0, 0, Vec::new()),
        |dump| dump.members.push(9),
        |dump| dump.calls[1].sequence = 7,
    ];
    for change in changes {
        let mut dump = dump();
        change(&mut dump);
        assert!(FlightDump::parse(&serde_json::to_vec(&dump).unwrap()).is_err());
    }
}

fn examples() -> [FlightDump; 2] {
    // Times have fewer digits than real ones, which keeps the test short.
    let mut full = dump();
    full.written_ns = 5;
    (full.host, full.boot_id) = ("a".into(), "b".into());
    full.calls.iter_mut().for_each(|call| call.started_ns = 3);
    let empty = FlightDump { calls: Vec::new(), failure: None, ..full.clone() };
    [full, empty]
}

comm_sim::hostile_bytes!(files_are_read_as_they_were_written: examples(),
    |dump| serde_json::to_vec(dump).unwrap(), |bytes| FlightDump::parse(bytes).ok());
