//! Rejected calls, failures and groups of a communicator that stages buffers through the host.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{
    Buffers, Call, Comm, Communicator, Counts, DType, Error, Fabric, Invalid, Membership, ReduceOp, Result,
};
use comm_hybrid::StagedCommunicator;
use comm_nccl::{Cuda, Device, DeviceBuffer, Library, NcclCommunicator, NcclConfig, UniqueId};
use comm_sim::in_process::{InProcessConfig, run};

use crate::device::{
    Rank, SOON, assert_bits, control, devices, faults_of, library, on_host, options, staged, within,
};

const PIECE: usize = 64;

/// Returns a sum, which shows that the communicator still works.
fn assert_works(rank: &Rank) {
    let mut buffer = rank.buffer(&[1_u32; 50]);
    rank.staged.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
    assert_bits(&buffer.to_vec().unwrap(), &[rank.size as u32; 50], "a sum");
}

#[track_caller]
fn assert_invalid(outcome: Result<()>, words: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains(words), "{error}");
}

#[test]
fn invalid_calls_fail_before_any_copy() {
    let devices = devices(3);
    staged(&devices[..2], PIECE, |rank| {
        let (comm, short, mut long) = (&rank.staged, rank.buffer(&[1_i32; 3]), rank.buffer(&[2_i32; 8]));
        assert_invalid(
            comm.all_reduce_into(&short, &mut long, ReduceOp::Sum),
            "8 elements, but 3 are needed",
        );
        assert_invalid(comm.all_reduce(&mut long, ReduceOp::Avg), "not defined on i32");
        assert_invalid(comm.broadcast(2, &mut long), "root 2 is out of range for a group of size 2");
        assert_invalid(comm.all_gather(&short, &mut long), "8 elements, but 6 are needed");
        assert_invalid(comm.all_gather_v(&short, &mut long, &[3, 4]), "elements");
        let floats = long.view();
        let mut halves = rank.buffer(&[0_u16; 8]);
        let buffers = Buffers::Separate { send: floats, recv: halves.view_mut() };
        let mixed = rank.communicator.run(Call::AllReduce { buffers, op: ReduceOp::Sum }, &options());
        let types = Invalid::DTypes { send: DType::I32, recv: DType::U16 };
        assert!(matches!(&mixed, Err(Error::Invalid(reported)) if *reported == types), "{mixed:?}");
        let elsewhere = Device::open(devices[2]).unwrap().new_stream().unwrap();
        let mut foreign = DeviceBuffer::from_host(&elsewhere, &[1_i32; 8]).unwrap();
        assert_invalid(comm.all_reduce(&mut foreign, ReduceOp::Sum), "device");
        assert_invalid(comm.with_algorithm("magic").all_reduce(&mut long, ReduceOp::Sum), "magic");
        let buffers = Buffers::InPlace(long.view_mut());
        let shares = (Counts::PerRank(&[3, 5]), Counts::PerRank(&[5, 3]));
        let different =
            rank.communicator.run(Call::AllToAll { buffers, send: shares.0, recv: shares.1 }, &options());
        assert_invalid(different, "received from a rank in place");
        assert_bits(&long.to_vec().unwrap(), &[2; 8], "what was given");
        assert_works(&rank);
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn disagreements_are_reported_with_the_first_piece() {
    // The shorter call would complete before the longer one.
    let errors = staged(&devices(2), PIECE, |rank| {
        assert_works(&rank);
        let mut buffer = rank.buffer(&vec![1_i32; 32 * (1 + rank.rank)]);
        let error = rank.staged.all_reduce(&mut buffer, ReduceOp::Sum).unwrap_err();
        let again = rank.staged.all_reduce(&mut buffer, ReduceOp::Sum).unwrap_err();
        assert!(
            matches!(&again, Error::Poisoned(first) if first.to_string() == error.to_string()),
            "{again}"
        );
        assert!(matches!(rank.communicator.synchronize(), Err(Error::Poisoned(_))));
        error
    });
    assert!(errors.iter().any(|error| matches!(error, Error::Desync(_))), "{errors:?}");
}

#[test]
fn a_rank_that_waits_for_its_own_device_is_named_with_that_reason() {
    let devices = devices(2);
    // A call of NCCL that never ends, before the pieces can be copied.
    control().plan_hang(devices[1], 0);
    let timeout = Duration::from_millis(500);
    let began = Instant::now();
    let errors = staged(&devices, PIECE, |rank| {
        let mut buffer = rank.buffer(&[1_i32; 50]);
        let alone = (rank.rank == 1).then(|| {
            let library = Library::load(&library()).unwrap();
            let id = UniqueId::generate(&library).unwrap();
            NcclCommunicator::with_id(
                &library,
                &rank.device,
                &id,
                NcclConfig::new(Membership { rank: 0, size: 1 }).unwrap(),
            )
            .unwrap()
        });
        if let Some(alone) = &alone {
            let view = Buffers::InPlace(buffer.view_mut());
            alone.run(Call::AllReduce { buffers: view, op: ReduceOp::Sum }, &options()).unwrap();
        }
        let limit = if rank.rank == 1 { timeout } else { SOON };
        let view = Buffers::InPlace(buffer.view_mut());
        let error = rank
            .communicator
            .run(Call::AllReduce { buffers: view, op: ReduceOp::Sum }, &within(limit))
            .unwrap_err();
        if let Some(alone) = alone {
            alone.abort("it hangs");
        }
        error
    });
    assert!(matches!(&errors[1], Error::Timeout { waiting_for, .. } if waiting_for == &[1]), "{}", errors[1]);
    let reported = "waiting for the device of this rank";
    assert!(
        matches!(&errors[0], Error::Aborted { by: 1, reason } if reason.contains(reported)),
        "{}",
        errors[0]
    );
    assert!(began.elapsed() < SOON / 2, "long before the deadline of the other");
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn an_abort_ends_calls_in_flight_and_notifies_observers() {
    let devices = devices(2);
    staged(&devices, PIECE, |rank| {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let ours = Arc::clone(&reported);
        rank.communicator.on_failure(move |cause| ours.lock().unwrap().push(cause.to_string()));
        if rank.rank == 1 {
            thread::sleep(Duration::from_millis(100));
            rank.staged.abort("enough");
            return;
        }
        let error = rank.staged.all_reduce(&mut rank.buffer(&[1_i32; 50]), ReduceOp::Sum).unwrap_err();
        assert!(matches!(&error, Error::Aborted { by: 1, reason } if reason.contains("enough")), "{error}");
        rank.communicator.fail(&Error::Aborted { by: 0, reason: "again".into() });
        assert_eq!(*reported.lock().unwrap(), [error.to_string()]);
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn pieces_without_bytes_are_refused_on_every_rank() {
    let device = devices(1)[0];
    run(3, &InProcessConfig::default(), |fabric| {
        let bytes = if fabric.group().rank() == 0 { 0 } else { PIECE };
        let host = on_host(fabric);
        let device = Device::open(device).unwrap();
        assert_invalid(
            StagedCommunicator::new(Arc::clone(&host), &device, bytes, SOON).map(drop),
            "piece_bytes",
        );
        host.run(Call::Barrier, &options()).unwrap();
    });
}

#[test]
fn groups_are_whole_in_themselves() {
    let devices = devices(5);
    staged(&devices, PIECE, |rank| {
        let sum = |comm: &Comm<Cuda>, own: usize, wanted: usize| {
            let mut buffer = rank.buffer(&[own as u16; 50]);
            comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            assert_bits(&buffer.to_vec().unwrap(), &[wanted as u16; 50], "a sum of a group");
        };
        let color = (rank.rank != 4).then_some(rank.rank as u64 % 2);
        let half = rank.staged.split(color, -(rank.rank as i64)).unwrap();
        assert_eq!(half.is_some(), rank.rank != 4);
        if let Some(half) = &half {
            assert_eq!((half.size(), half.rank()), (2, usize::from(rank.rank < 2)));
            sum(half, rank.rank, if rank.rank % 2 == 0 { 2 } else { 4 });
        }
        let listed = rank.staged.new_group(&[3, 0, 4]).unwrap();
        if let Some(listed) = &listed {
            sum(listed, rank.rank, 7);
            listed.duplicate().unwrap().barrier().unwrap();
        }
        if let Some(half) = half.filter(|_| rank.rank == 0) {
            half.abort("this group alone");
        }
        assert_works(&rank);
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}
