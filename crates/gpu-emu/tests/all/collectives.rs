//! Every collective of NCCL against its expected result, with threads as ranks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use gpu_emu::Setting;
use nccl_sys::{ncclDataType_t, ncclRedOp_t, ncclScalarResidence_t};

use crate::common::ranks::{Args, F32, OK, Rank, last_error, nccl, world};
use crate::common::{control, devices, hold};

const WORLDS: [usize; 6] = [1, 2, 3, 5, 8, 13];
const COUNTS: [usize; 6] = [0, 1, 7, 8, 9, 1000];
const NAMES: [&str; 9] = [
    "AllReduce",
    "Reduce",
    "Broadcast",
    "Bcast",
    "AllGather",
    "ReduceScatter",
    "AlltoAll",
    "Gather",
    "Scatter",
];

/// Element `index` of the input of `rank`, which is small enough that sums over five ranks are
/// exact in 8 bits.
fn value(rank: usize, index: usize) -> u8 {
    u8::try_from((rank * 7 + index * 3) % 2).unwrap()
}

fn sum(world: usize, index: usize) -> u8 {
    (0..world).map(|rank| value(rank, index)).sum()
}

/// The blocks of input, and the expected output, if any.
fn expected(name: &str, count: usize, rank: usize, world: usize, root: usize) -> (usize, Option<Vec<u8>>) {
    let block = |of: usize, which: usize| (0..count).map(move |index| value(of, which * count + index));
    let at_root = |values: Vec<u8>| (rank == root).then_some(values);
    match name {
        "AllReduce" => (1, Some((0..count).map(|index| sum(world, index)).collect())),
        "Reduce" => (1, at_root((0..count).map(|index| sum(world, index)).collect())),
        "Broadcast" | "Bcast" => (1, Some(block(root, 0).collect())),
        "AllGather" => (1, Some((0..world).flat_map(|from| block(from, 0)).collect())),
        "Gather" => (1, at_root((0..world).flat_map(|from| block(from, 0)).collect())),
        "ReduceScatter" => (world, Some((0..count).map(|index| sum(world, rank * count + index)).collect())),
        "AlltoAll" => (world, Some((0..world).flat_map(|from| block(from, rank)).collect())),
        "Scatter" => (world, Some(block(root, rank).collect())),
        other => panic!("{other}"),
    }
}

/// The bits of a small number in a type.
fn bits(kind: ncclDataType_t, number: u8) -> Vec<u8> {
    const E4M3: [u8; 6] = [0, 0x38, 0x40, 0x44, 0x48, 0x4A];
    const E5M2: [u8; 6] = [0, 0x3C, 0x40, 0x42, 0x44, 0x45];
    match kind {
        ncclDataType_t::ncclInt8 | ncclDataType_t::ncclUint8 => vec![number],
        ncclDataType_t::ncclInt32 | ncclDataType_t::ncclUint32 => u32::from(number).to_ne_bytes().to_vec(),
        ncclDataType_t::ncclInt64 | ncclDataType_t::ncclUint64 => u64::from(number).to_ne_bytes().to_vec(),
        ncclDataType_t::ncclFloat16 => half::f16::from(number).to_ne_bytes().to_vec(),
        ncclDataType_t::ncclBfloat16 => half::bf16::from(number).to_ne_bytes().to_vec(),
        ncclDataType_t::ncclFloat32 => f32::from(number).to_ne_bytes().to_vec(),
        ncclDataType_t::ncclFloat64 => f64::from(number).to_ne_bytes().to_vec(),
        ncclDataType_t::ncclFloat8e4m3 => vec![E4M3[usize::from(number)]],
        ncclDataType_t::ncclFloat8e5m2 => vec![E5M2[usize::from(number)]],
        other => panic!("{other:?}"),
    }
}

fn encoded(kind: ncclDataType_t, numbers: impl IntoIterator<Item = u8>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| bits(kind, number)).collect()
}

/// One out-of-place call, compared bit by bit. The input is unchanged.
fn check(member: &Rank, name: &str, kind: ncclDataType_t, count: usize, root: usize) {
    let (rank, size) = (member.rank, member.world);
    let (blocks, wanted) = expected(name, count, rank, size, root);
    let data = encoded(kind, (0..blocks * count).map(|index| value(rank, index)));
    let mut whole = vec![0xAA; data.len().max(size * count * bits(kind, 0).len()).max(1)];
    if name == "Bcast" && rank == root {
        whole[..data.len()].copy_from_slice(&data);
    }
    let (input, output) = (member.bytes(&data), member.bytes(&whole));
    let args = Args { kind, root: root as i32, ..member.args(member.at(&input), member.at(&output), count) };
    assert_eq!(member.call(name, args), OK, "{}", last_error());
    let wanted = wanted.map(|numbers| encoded(kind, numbers)).unwrap_or_default();
    whole[..wanted.len()].copy_from_slice(&wanted);
    let found = member.stream.clone_dtoh(&output).unwrap();
    assert_eq!(found, whole, "{name} of {count} {kind:?} to or from {root} on rank {rank} of {size}");
    if count > 0 {
        assert_eq!(member.stream.clone_dtoh(&input).unwrap(), data, "{name} changed its input");
    }
}

fn every_collective(jitter: u64) {
    let devices = devices(13);
    control().set(Setting::JitterMicroseconds, jitter);
    for size in WORLDS {
        world(&devices[..size], |member| {
            for name in NAMES {
                for count in COUNTS {
                    check(member, name, F32, count, (count + 1) % size);
                }
            }
        });
    }
    control().set(Setting::JitterMicroseconds, 0);
}

#[test]
fn collectives_return_exact_results() {
    every_collective(0);
}

#[test]
fn collectives_return_exact_results_when_streams_are_delayed() {
    every_collective(100);
}

#[test]
fn every_type_is_reduced() {
    let devices = devices(5);
    world(&devices, |member| {
        for number in 0..12 {
            let kind = ncclDataType_t(number);
            check(member, "AllReduce", kind, 33, 0);
            check(member, "ReduceScatter", kind, 5, 0);
        }
        assert_ne!(member.call("AllReduce", Args { kind: ncclDataType_t(12), ..member.args(0, 0, 1) }), OK);
    });
}

#[test]
fn every_operator_reduces() {
    let devices = devices(3);
    let operators = [
        (ncclRedOp_t::ncclSum, 9.0),
        (ncclRedOp_t::ncclProd, 24.0),
        (ncclRedOp_t::ncclMax, 4.0),
        (ncclRedOp_t::ncclMin, 2.0),
        (ncclRedOp_t::ncclAvg, 3.0),
    ];
    world(&devices, |member| {
        for (op, wanted) in operators {
            let buffer = member.floats(&[member.rank as f32 + 2.0]);
            let at = member.at(&buffer);
            assert_eq!(member.call("AllReduce", Args { op, ..member.args(at, at, 1) }), OK);
            let found = member.stream.clone_dtoh(&buffer).unwrap()[0];
            assert!((found - wanted).abs() < 1e-6, "{op:?}: {found}");
        }
        assert_ne!(member.call("AllReduce", Args { op: ncclRedOp_t(77), ..member.args(0, 0, 1) }), OK);
    });
}

#[test]
fn each_rank_can_use_a_different_factor() {
    let devices = devices(2);
    world(&devices, |member| {
        let mut factor = [0.5_f32, 10.0][member.rank];
        let on_device = member.floats(&[factor]);
        let device_address = std::ptr::without_provenance_mut(member.at(&on_device) as usize);
        let places = [
            (ncclScalarResidence_t::ncclScalarHostImmediate, (&raw mut factor).cast()),
            (ncclScalarResidence_t::ncclScalarDevice, device_address),
        ];
        for (residence, address) in places {
            let mut op = ncclRedOp_t(0);
            // SAFETY: the factor lives for the call, or until the operation has run.
            let made =
                unsafe { nccl().ncclRedOpCreatePreMulSum(&raw mut op, address, F32, residence, member.comm) };
            assert_eq!(made.unwrap(), OK);
            let buffer = member.floats(&[4.0, 6.0]);
            let at = member.at(&buffer);
            let args = Args { op, ..member.args(at, at, 2) };
            assert_eq!(member.call("AllReduce", args), OK, "{}", last_error());
            assert_eq!(member.stream.clone_dtoh(&buffer).unwrap(), [42.0, 63.0]);
            let other_type = Args { kind: ncclDataType_t::ncclFloat64, ..args };
            assert_ne!(member.call("AllReduce", other_type), OK);
            // SAFETY: no operation uses it any more.
            assert_eq!(unsafe { nccl().ncclRedOpDestroy(op, member.comm) }.unwrap(), OK);
            assert_ne!(member.call("AllReduce", args), OK);
        }
    });
}

#[test]
fn collectives_work_in_place() {
    let devices = devices(3);
    world(&devices, |member| {
        assert_eq!(member.all_reduce(&[1.0, member.rank as f32]), [3.0, 3.0]);
        let own = member.rank as u64 * 4;
        let all = member.floats(&[member.rank as f32; 3]);
        let at = member.at(&all);
        assert_eq!(member.call("AllGather", member.args(at + own, at, 1)), OK);
        assert_eq!(member.stream.clone_dtoh(&all).unwrap(), [0.0, 1.0, 2.0]);
        assert_eq!(member.call("ReduceScatter", member.args(at, at + own, 1)), OK);
        assert_eq!(member.stream.clone_dtoh(&all).unwrap()[member.rank], member.rank as f32 * 3.0);
    });
}

#[test]
fn operations_of_one_communicator_keep_their_order_on_two_streams() {
    control().set(Setting::JitterMicroseconds, 200);
    let devices = devices(4);
    world(&devices, |member| {
        let other = member.context.new_stream().unwrap();
        for round in 0..3_u8 {
            let first = member.floats(&[1.0, f32::from(round)]);
            let second = member.floats(&[10.0]);
            member.stream.synchronize().unwrap();
            let (a, b) = (member.at(&first), member.at(&second));
            assert_eq!(member.call("AllReduce", member.args(a, a, 2)), OK);
            let stream = other.cu_stream().cast();
            assert_eq!(member.call_on(stream, "AllReduce", member.args(b, b, 1)), OK);
            assert_eq!(member.call("AllReduce", member.args(a, a, 2)), OK);
            other.synchronize().unwrap();
            assert_eq!(member.stream.clone_dtoh(&first).unwrap(), [16.0, f32::from(round) * 16.0]);
            assert_eq!(other.clone_dtoh(&second).unwrap(), [40.0]);
        }
    });
    control().set(Setting::JitterMicroseconds, 0);
}

#[test]
fn an_operation_waits_for_the_one_before_it_on_another_stream() {
    let devices = devices(2);
    world(&devices, |member| {
        let other = member.context.new_stream().unwrap();
        let buffer = member.floats(&[1.0, 1.0]);
        member.stream.synchronize().unwrap();
        let (first, second) = (member.at(&buffer), member.at(&buffer) + 4);
        let release = hold(&member.stream);
        assert_eq!(member.call("AllReduce", member.args(first, first, 1)), OK);
        let stream = other.cu_stream().cast();
        assert_eq!(member.call_on(stream, "AllReduce", member.args(second, second, 1)), OK);
        let done = other.record_event(None).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!done.is_complete());
        drop(release);
        done.synchronize().unwrap();
        assert_eq!(member.stream.clone_dtoh(&buffer).unwrap(), [2.0, 2.0]);
    });
}

#[test]
fn a_call_without_data_does_not_wait_for_other_ranks() {
    let devices = devices(2);
    world(&devices, |member| {
        if member.rank == 0 {
            assert_eq!(member.call("AllReduce", member.args(0, 0, 0)), OK);
            member.stream.synchronize().unwrap();
        }
    });
}

#[test]
fn a_buffer_that_is_too_short_is_a_fault_and_not_corruption() {
    let devices = devices(2);
    world(&devices, |member| {
        let (input, output) = (member.floats(&[1.0; 4]), member.floats(&[7.0; 3]));
        let args = member.args(member.at(&input), member.at(&output), 4);
        if member.rank == 0 {
            assert_eq!(member.call("AllReduce", args), OK);
            assert!(member.stream.synchronize().is_err());
            assert_eq!(member.async_error(), nccl_sys::ncclResult_t::ncclUnhandledCudaError);
            control().reset_device(devices[0]);
            let faults = crate::common::faults_of(devices[0]);
            assert!(faults.iter().any(|fault| fault.contains("out of bounds")), "{faults:?}");
        } else {
            let big = member.floats(&[0.0; 4]);
            let args = Args { output: member.at(&big), ..args };
            assert_eq!(member.call("AllReduce", args), OK);
            assert_eq!(member.stream.clone_dtoh(&big).unwrap(), [2.0; 4]);
        }
    });
}
