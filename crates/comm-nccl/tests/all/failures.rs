//! Failures during calls, and the state of the communicator and its buffers afterwards.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Buffers, Call, CallOptions, Communicator, During, Error, ReduceOp, Result};
use comm_nccl::{Device, DeviceBuffer, NcclCommunicator, ShrinkMode, UniqueId};
use nccl_sys::ncclResult_t;

use crate::common::{
    Rank, SOON, config, connect_over_host, control, devices, library, options, within, world, world_with,
};

/// Long enough for a device to make progress, and short enough for a test.
const SHORT: Duration = Duration::from_millis(200);

fn all_reduce(rank: &Rank, buffer: &mut DeviceBuffer<f32>, options: &CallOptions) -> Result<()> {
    rank.comm
        .run(Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum }, options)
}

/// The communicator is unusable, and reports the reason.
fn assert_poisoned(rank: &Rank, cause: &str) {
    let mut buffer = rank.zeros(1);
    for refused in [all_reduce(rank, &mut buffer, &options()), rank.comm.run(Call::Barrier, &options())] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Poisoned(_)) && error.to_string().contains(cause), "{error}");
    }
}

/// Injects a fault into the second call of one rank's device, and returns the error of each rank.
fn in_second_call(trouble: impl FnOnce(usize), timeout: Duration) -> Vec<Error> {
    let devices = devices(2);
    trouble(devices[0]);
    world(&devices, |rank| {
        let (mut good, mut bad) = (rank.buffer(&[1.0]), rank.buffer(&[1.0]));
        all_reduce(&rank, &mut good, &options()).unwrap();
        rank.comm.synchronize().unwrap();
        let enqueued = all_reduce(&rank, &mut bad, &within(timeout));
        let error = enqueued.and_then(|()| rank.comm.synchronize()).unwrap_err();
        assert_eq!(good.to_vec().unwrap(), [2.0], "work before the failure is kept");
        let lost = bad.to_vec().unwrap_err();
        assert!(matches!(lost, Error::Poisoned(_)), "{lost}");
        bad.copy_from_host(&[3.0]).unwrap();
        assert_eq!(bad.to_vec().unwrap(), [3.0], "the buffer is usable again");
        assert_poisoned(&rank, &error.to_string());
        error
    })
}

fn code(error: &Error) -> Option<i64> {
    match error {
        Error::Backend { backend: "nccl", code, .. } => Some(*code),
        _ => None,
    }
}

#[test]
fn unknown_codes_keep_their_number() {
    for number in [8, 99] {
        let plan = |device| control().plan_answer(device, c"ncclAllReduce", 1, ncclResult_t(number));
        let errors = in_second_call(plan, SHORT);
        assert_eq!(code(&errors[0]), Some(i64::from(number)), "{}", errors[0]);
        assert!(errors[0].to_string().contains("ncclAllReduce"), "{}", errors[0]);
        // The other rank is not notified.
        assert!(
            matches!(&errors[1], Error::Timeout { waiting_for, .. } if waiting_for == &[0]),
            "{}",
            errors[1]
        );
    }
}

#[test]
fn asynchronous_errors_are_detected_and_abort_the_communicator() {
    let plan = |device| control().plan_async_error(device, 1, ncclResult_t::ncclRemoteError);
    let errors = in_second_call(plan, Duration::from_secs(1));
    assert_eq!(code(&errors[0]), Some(6), "{}", errors[0]);
}

#[test]
fn a_call_that_hangs_ends_at_its_deadline_and_is_named() {
    let began = Instant::now();
    for error in in_second_call(|device| control().plan_hang(device, 1), SHORT) {
        let Error::Timeout { after, during: During::Call { call, sequence: 2 }, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*after, call.to_string().as_str()), (SHORT, "all_reduce(sum, 1 x f32, nccl)"));
    }
    assert!((SHORT..SOON).contains(&began.elapsed()));
}

#[test]
fn a_call_with_a_shorter_timeout_ends_at_its_own_deadline() {
    let devices = devices(2);
    control().plan_hang(devices[0], 0);
    world(&devices, |rank| {
        let (mut first, mut second) = (rank.buffer(&[1.0]), rank.buffer(&[1.0, 1.0]));
        all_reduce(&rank, &mut first, &options()).unwrap();
        all_reduce(&rank, &mut second, &within(SHORT)).unwrap();
        let error = rank.comm.synchronize().unwrap_err();
        assert!(
            matches!(&error, Error::Timeout { after: SHORT, .. }) && error.to_string().contains("2 x f32"),
            "{error}"
        );
    });
}

#[test]
fn copies_to_the_host_do_not_wait_for_ever_for_a_call_that_hangs() {
    let devices = devices(2);
    control().plan_hang(devices[1], 0);
    world(&devices, |rank| {
        let mut buffer = rank.buffer(&[1.0]);
        all_reduce(&rank, &mut buffer, &within(SHORT)).unwrap();
        // The watchdog ends it, because no other thread checks.
        assert!(matches!(buffer.to_vec(), Err(Error::Poisoned(_))));
    });
}

#[test]
fn an_abort_ends_the_call_in_flight_and_handles_can_be_dropped_later() {
    let devices = devices(2);
    control().plan_hang(devices[0], 0);
    world(&devices, |rank| {
        let mut buffer = rank.buffer(&[1.0]);
        all_reduce(&rank, &mut buffer, &options()).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| rank.comm.synchronize().unwrap_err());
            thread::sleep(Duration::from_millis(50));
            rank.comm.abort("enough");
            let error = waiter.join().unwrap();
            assert!(
                matches!(&error, Error::Aborted { by, reason } if *by == rank.rank && reason == "enough")
            );
        });
        rank.comm.abort("again");
        assert_poisoned(&rank, "enough");
        drop(rank.comm);
        assert!(buffer.to_vec().is_err());
    });
    let calls = control().calls_of(&devices);
    let count = |name| calls.iter().filter(|call| call.name == name).count();
    assert_eq!(count("ncclCommDestroy"), 0, "an aborted communicator is not destroyed");
    assert_eq!(count("ncclCommAbort"), 2);
}

#[test]
fn an_initialization_that_never_ends_ends_at_its_deadline() {
    let device = Device::open({
        control();
        devices(1)[0]
    })
    .unwrap();
    let id = UniqueId::generate(&library()).unwrap();
    let mut alone = config(0, 3);
    alone.timeout = SHORT;
    let began = Instant::now();
    let error = NcclCommunicator::with_id(&library(), &device, &id, alone).unwrap_err();
    let Error::Timeout { waiting_for, after, during: During::Rendezvous } = error else { panic!("{error}") };
    assert_eq!((waiting_for, after), (vec![1, 2], SHORT));
    assert!((SHORT..SOON).contains(&began.elapsed()));
}

/// The others wait for it in NCCL, which does not report the failure.
#[test]
fn ranks_waiting_for_a_rank_that_cannot_connect_get_its_error() {
    let devices = devices(3);
    control().plan_answer(devices[1], c"ncclCommInitRankConfig", 0, ncclResult_t::ncclSystemError);
    let began = Instant::now();
    let errors = connect_over_host(&devices, |_, connected| connected.unwrap_err());
    for (rank, error) in errors.iter().enumerate() {
        assert!(error.to_string().contains("ncclCommInitRankConfig"), "{error}");
        let is_told = matches!(error, Error::Aborted { by: 1, .. });
        assert!(if rank == 1 { code(error) == Some(2) } else { is_told }, "{error}");
    }
    assert!(began.elapsed() < SOON / 2, "long before the deadline");
}

#[test]
fn a_group_that_is_being_made_ends_with_its_parent() {
    let began = Instant::now();
    world(&devices(3), |rank| {
        if rank.rank > 0 {
            // One of the others should take part in creating the group.
            return thread::sleep(3 * SHORT);
        }
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(SHORT);
                rank.comm.abort("enough");
            });
            rank.comm.shrink(&[2], ShrinkMode::Default, &options()).map(drop).unwrap_err()
        });
        assert!(matches!(error, Error::Aborted { by: 0, .. }), "{error}");
    });
    assert!(began.elapsed() < SOON / 2);
}

#[test]
fn a_failed_initialization_returns_the_code() {
    let ordinal = devices(1)[0];
    control().plan_answer(ordinal, c"ncclCommInitRankConfig", 0, ncclResult_t::ncclSystemError);
    let device = Device::open(ordinal).unwrap();
    let id = UniqueId::generate(&library()).unwrap();
    let error = NcclCommunicator::with_id(&library(), &device, &id, config(0, 1)).unwrap_err();
    assert_eq!(code(&error), Some(2), "{error}");
    NcclCommunicator::with_id(&library(), &device, &UniqueId::generate(&library()).unwrap(), config(0, 1))
        .unwrap();
}

#[test]
fn a_communicator_that_cannot_be_closed_in_time_is_aborted() {
    let devices = devices(2);
    control().plan_hang(devices[0], 0);
    let quick = |rank, size| {
        let mut config = config(rank, size);
        config.close_timeout = SHORT;
        config
    };
    world_with(&devices, quick, |rank| {
        let mut buffer = rank.buffer(&[1.0]);
        all_reduce(&rank, &mut buffer, &options()).unwrap();
        if rank.rank == 0 {
            drop(rank.comm);
        } else {
            let error = rank.comm.finalize(SHORT).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        assert!(buffer.to_vec().is_err());
    });
}

#[test]
fn a_communicator_that_is_finalized_has_done_everything() {
    world(&devices(2), |rank| {
        let mut buffer = rank.buffer(&[1.0]);
        all_reduce(&rank, &mut buffer, &options()).unwrap();
        rank.comm.finalize(SOON).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [2.0]);
    });
}
