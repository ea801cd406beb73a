//! Errors that are returned before NCCL is called, and have no effect.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::{
    Accumulate, Buffers, Call, Communicator, Counts, DType, Element, Error, Membership, Operator, ReduceOp,
    ReduceOrder, Result,
};
use comm_nccl::{CudaView, Device, DeviceBuffer, NcclConfig, ShrinkMode};

use crate::common::{Rank, control, devices, options, world};

/// Runs calls that must all be rejected with these messages, on a pair of ranks that keeps working.
fn refused(calls: impl Fn(&Rank) -> Vec<(Result<()>, &'static str)> + Sync) {
    let devices = devices(2);
    world(&devices, |rank| {
        for (outcome, words) in calls(&rank) {
            let error = outcome.unwrap_err();
            assert!(
                matches!(error, Error::Invalid(_)) && error.to_string().contains(words),
                "{error} / {words}"
            );
        }
        let mut buffer = rank.buffer(&[1_u8]);
        let buffers = Buffers::InPlace(buffer.view_mut());
        rank.comm.run(Call::AllReduce { buffers, op: ReduceOp::Sum }, &options()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [2]);
    });
    let moves = |call: &gpu_emu::Call| call.argument("count").is_some();
    let made: Vec<_> = control().calls_of(&devices).into_iter().filter(moves).map(|call| call.name).collect();
    assert_eq!(made, ["ncclAllReduce"; 2], "only the last call reached NCCL");
}

fn two<'a, T: Element>(
    send: &'a DeviceBuffer<T>,
    recv: &'a mut DeviceBuffer<T>,
) -> Buffers<'a, comm_nccl::Cuda> {
    Buffers::Separate { send: send.view(), recv: recv.view_mut() }
}

#[test]
fn invalid_arguments_fail_before_the_call() {
    operators_and_types_that_nccl_lacks();
    ranks_that_are_none();
    buffers_of_another_device();
    options_that_nccl_cannot_keep();
}

struct Saturate;

impl Operator for Saturate {
    type Element = u8;
    const NAME: &'static str = "saturate";

    fn combine(left: u8, right: u8) -> u8 {
        left.saturating_add(right)
    }
}

fn operators_and_types_that_nccl_lacks() {
    refused(|rank| {
        let (mut words, mut bytes, mut floats) =
            (rank.zeros::<i16>(2), rank.zeros::<u8>(2), rank.zeros::<f32>(2));
        let (comm, options) = (&rank.comm, &options());
        vec![
            (
                comm.run(
                    Call::AllReduce { buffers: Buffers::InPlace(words.view_mut()), op: ReduceOp::Sum },
                    options,
                ),
                "nccl does not support sum on i16",
            ),
            (
                comm.run(
                    Call::AllReduce {
                        buffers: Buffers::InPlace(bytes.view_mut()),
                        op: ReduceOp::of::<Saturate>(),
                    },
                    options,
                ),
                "nccl does not support saturate on u8",
            ),
            (
                comm.run(
                    Call::Reduce {
                        root: 0,
                        buffers: Buffers::InPlace(bytes.view_mut()),
                        op: ReduceOp::BitXor,
                    },
                    options,
                ),
                "nccl does not support bxor on u8",
            ),
            (
                comm.run(
                    Call::AllReduce { buffers: Buffers::InPlace(bytes.view_mut()), op: ReduceOp::Avg },
                    options,
                ),
                "avg is not defined on u8",
            ),
            (
                comm.run(
                    Call::AllReduce { buffers: Buffers::InPlace(floats.view_mut()), op: ReduceOp::BitOr },
                    options,
                ),
                "bor is not defined on f32",
            ),
        ]
    });
}

fn ranks_that_are_none() {
    refused(|rank| {
        let (send, mut recv) = (rank.zeros::<f32>(2), rank.zeros::<f32>(2));
        let (comm, options, mode) = (&rank.comm, &options(), ShrinkMode::Default);
        vec![
            (
                comm.run(Call::Broadcast { root: 5, buffer: recv.view_mut() }, options),
                "root 5 is out of range for a group of size 2",
            ),
            (
                comm.run(
                    Call::Gather { root: 2, buffers: two(&send, &mut recv), counts: Counts::Equal },
                    options,
                ),
                "root 2",
            ),
            (comm.send(2, send.view(), options), "rank 2 is out of range for a group of size 2"),
            (comm.recv(9, recv.view_mut(), options), "rank 9"),
            (comm.shrink(&[rank.rank], mode, options).map(drop), "not in the list of members"),
            (comm.shrink(&[7], mode, options).map(drop), "rank 7"),
            (comm.shrink(&[], ShrinkMode::Abort, options).map(drop), "share nothing but an id"),
        ]
    });
}

fn buffers_of_another_device() {
    let elsewhere = Device::open(devices(1)[0]).unwrap();
    let stream = elsewhere.new_stream().unwrap();
    refused(|rank| {
        let mut there = DeviceBuffer::<f32>::zeros(&stream, 2).unwrap();
        let here = rank.zeros::<f32>(2);
        // SAFETY: the call is rejected, and has no effect.
        let raw = unsafe { CudaView::from_raw(16, 2, DType::F32, &stream) };
        vec![
            (
                rank.comm
                    .run(Call::AllReduce { buffers: two(&here, &mut there), op: ReduceOp::Sum }, &options()),
                "the buffer is there",
            ),
            (rank.comm.send(0, raw, &options()), "the communicator is on device"),
        ]
    });
}

fn options_that_nccl_cannot_keep() {
    refused(|rank| {
        let mut buffer = rank.zeros::<f32>(2);
        let (mut ring, mut ordered) = (options(), options());
        ring.algorithm = Some("ring".into());
        ordered.order = ReduceOrder::Deterministic;
        let mut wide = options();
        wide.accumulate = Accumulate::F32;
        let mut halves = rank.zeros::<half::f16>(2);
        let mut half = |options| {
            rank.comm.run(
                Call::AllReduce { buffers: Buffers::InPlace(halves.view_mut()), op: ReduceOp::Avg },
                options,
            )
        };
        let mut call = |options| {
            rank.comm.run(
                Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum },
                options,
            )
        };
        vec![
            (call(&ring), "no algorithm \"ring\" for all_reduce; available: nccl"),
            (call(&ordered), "no order"),
            (half(&wide), "in the type of the elements, here in f16"),
        ]
    });
}

#[test]
fn a_configuration_that_cannot_be_is_refused() {
    control();
    assert!(NcclConfig::new(Membership { rank: 2, size: 2 }).is_err());
    assert!(Device::open(256).unwrap_err().to_string().contains("can see"));
}
