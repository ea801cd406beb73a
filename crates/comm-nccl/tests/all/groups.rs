//! Subgroups, messages, batches, and buffers that are registered with NCCL.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use comm_core::{Buffers, Call, Comm, Communicator, Counts, Error, Groups, Invalid, ReduceOp};
use comm_nccl::{Cuda, DeviceBuffer, DeviceComm, NcclCommunicator, ShrinkMode};

use crate::common::{
    Rank, WORLDS, config, control, devices, faults_of, in_all_worlds, options, world, world_with,
};

/// Long enough for a device to make progress, and short enough for a test.
const SHORT: Duration = Duration::from_millis(500);

/// Returns the sum of a value over all ranks of a group.
fn sum(comm: &dyn Communicator<Cuda>, rank: &Rank, ours: i64) -> i64 {
    let mut buffer = rank.buffer(&[ours]);
    comm.run(Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum }, &options())
        .unwrap();
    buffer.to_vec().unwrap()[0]
}

#[test]
fn groups_have_their_own_names_and_outlive_their_parent() {
    let devices = devices(3);
    let ids = world(&devices, |mut rank| {
        let listed = rank.comm.new_group(&[2, 0], &options()).unwrap();
        let again = rank.comm.new_group(&[2, 0], &options()).unwrap();
        let all = rank.comm.duplicate(&options()).unwrap();
        assert_eq!(listed.is_some(), rank.rank != 1);
        let refused = rank.comm.new_group(&[0, 0], &options()).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
        let other = alone(&rank);
        let parent = std::mem::replace(&mut rank.comm, other);
        drop(parent);
        assert_eq!(sum(&*all, &rank, 5), 15);
        let named = |group: &Option<Box<dyn comm_nccl::DeviceCommunicator>>| {
            group.as_ref().map(|group| {
                assert_eq!(group.group().rank(), usize::from(rank.rank == 0));
                assert_eq!(sum(&**group, &rank, rank.rank as i64), 2);
                group.group().id()
            })
        };
        (named(&listed), named(&again), all.group().id())
    });
    let [(first, again, all), (None, None, middle), last] = ids[..] else { panic!("{ids:?}") };
    assert!(first != again && first != Some(all) && again != Some(all));
    assert_eq!(((first, again, all), all), (last, middle));
}

/// A communicator of one rank.
fn alone(rank: &Rank) -> NcclCommunicator {
    let id = comm_nccl::UniqueId::generate(&crate::common::library()).unwrap();
    NcclCommunicator::with_id(&crate::common::library(), &rank.device, &id, config(0, 1)).unwrap()
}

#[test]
fn a_shrunk_group_contains_the_remaining_ranks() {
    world(&devices(5), |rank| {
        assert_eq!(sum(&rank.comm, &rank, 1), 5);
        if rank.rank == 1 || rank.rank == 4 {
            return;
        }
        let left = rank.comm.shrink(&[4, 1], ShrinkMode::Default, &options()).unwrap();
        assert_eq!((left.group().rank(), left.group().size()), ([0, 9, 1, 2][rank.rank], 3));
        assert_eq!(sum(&left, &rank, 10 + rank.rank as i64), 35);
    });
}

#[test]
fn a_handle_makes_groups_too() {
    world(&devices(2), |rank| {
        let stream = rank.stream.clone();
        let comm = Comm::<Cuda>::over(Arc::new(rank.comm) as Arc<_>);
        let half = comm.split(Some(comm.rank() as u64), 0).unwrap().unwrap();
        let mut buffer = DeviceBuffer::from_host(&stream, &[1.5_f64]).unwrap();
        half.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        comm.duplicate().unwrap().all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        assert_eq!((half.size(), buffer.to_vec().unwrap()), (1, vec![3.0]));
    });
}

#[test]
fn messages_arrive_in_their_order() {
    world(&devices(2), |rank| {
        let (comm, options) = (&rank.comm, &options());
        for value in 0..5_i16 {
            if rank.rank == 0 {
                comm.send(1, rank.buffer(&[value, -value]).view(), options).unwrap();
            } else {
                let mut buffer = rank.zeros::<i16>(2);
                comm.recv(0, buffer.view_mut(), options).unwrap();
                assert_eq!(buffer.to_vec().unwrap(), [value, -value]);
            }
        }
    });
}

/// Every rank sends to the next rank and receives from the previous one. Consecutive calls would
/// wait forever.
#[test]
fn a_batch_of_messages_is_sent_around_a_ring() {
    in_all_worlds(|rank| {
        let (next, before) = ((rank.rank + 1) % rank.size, (rank.rank + rank.size - 1) % rank.size);
        let ours = rank.buffer(&[rank.rank as u64; 3]);
        let mut theirs = rank.zeros::<u64>(3);
        let mut batch = rank.comm.batch();
        batch.send(next, ours.view()).unwrap();
        assert!(batch.send(rank.size, ours.view()).is_err(), "the batch is unchanged");
        batch.recv(before, theirs.view_mut()).unwrap();
        batch.run(&options()).unwrap();
        assert_eq!(theirs.to_vec().unwrap(), [before as u64; 3]);
    });
}

#[test]
fn a_batch_has_the_results_of_its_collectives() {
    in_all_worlds(|rank| {
        let size = rank.size;
        let (mut total, mut largest) = (rank.buffer(&[1_i32, 2]), rank.buffer(&[rank.rank as u8]));
        let mut halves = rank.buffer(&[rank.rank as f32]);
        let (mut told, ours) = (rank.buffer(&[rank.rank as i64]), rank.buffer(&[rank.rank as u16]));
        let (mut all, mut block) = (rank.zeros::<u16>(size), rank.zeros::<f64>(1));
        let blocks = rank.buffer(&vec![1.0_f64; size]);
        let mut batch = rank.comm.batch();
        batch
            .add(Call::AllReduce { buffers: Buffers::InPlace(total.view_mut()), op: ReduceOp::Sum })
            .unwrap()
            .add(Call::Reduce {
                root: size - 1,
                buffers: Buffers::InPlace(largest.view_mut()),
                op: ReduceOp::Max,
            })
            .unwrap()
            .add(Call::AllReduce {
                buffers: Buffers::InPlace(halves.view_mut()),
                op: ReduceOp::PreMulSum(0.5),
            })
            .unwrap()
            .add(Call::Broadcast { root: size - 1, buffer: told.view_mut() })
            .unwrap()
            .add(Call::AllGather {
                buffers: Buffers::Separate { send: ours.view(), recv: all.view_mut() },
                counts: Counts::Equal,
            })
            .unwrap()
            .add(Call::ReduceScatter {
                buffers: Buffers::Separate { send: blocks.view(), recv: block.view_mut() },
                counts: Counts::Equal,
                op: ReduceOp::Sum,
            })
            .unwrap();
        batch.run(&options()).unwrap();
        let n = size as i32;
        assert_eq!(total.to_vec().unwrap(), [n, 2 * n]);
        let kept = if rank.rank == size - 1 { size - 1 } else { rank.rank };
        assert_eq!(largest.to_vec().unwrap(), [kept as u8]);
        assert_eq!(halves.to_vec().unwrap(), [(size * (size - 1)) as f32 / 4.0]);
        assert_eq!(told.to_vec().unwrap(), [size as i64 - 1]);
        assert_eq!(all.to_vec().unwrap(), (0..size as u16).collect::<Vec<_>>());
        assert_eq!(block.to_vec().unwrap(), [size as f64]);
        rank.comm.batch().run(&options()).unwrap();
    });
}

#[test]
fn a_registered_buffer_is_a_buffer_like_others() {
    world(&devices(2), |rank| {
        let ordered = rank.buffer(&[1.0_f32, 2.0]);
        let refused = rank.comm.register(&ordered).unwrap_err();
        assert!(matches!(refused, Error::Invalid(Invalid::Register { .. })), "{refused}");
        assert!(refused.to_string().contains("DeviceBuffer::by_nccl"), "{refused}");
        let mut buffer = DeviceBuffer::by_nccl(&crate::common::library(), &rank.stream, 2).unwrap();
        buffer.copy_from_host(&[1.0_f32, 2.0]).unwrap();
        let registered = rank.comm.register(&buffer).unwrap();
        let empty = rank.comm.register(&rank.zeros::<u8>(0)).unwrap();
        rank.comm
            .run(
                Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum },
                &options(),
            )
            .unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [2.0, 4.0]);
        // The memory is deregistered from NCCL before it is freed, in either order of drops.
        drop((buffer, empty));
        drop(registered);
    });
}

#[test]
fn memory_of_nccls_own_is_zero_and_a_buffer_like_others() {
    let devices = devices(2);
    world(&devices, |rank| {
        let mut buffer = DeviceBuffer::by_nccl(&crate::common::library(), &rank.stream, 3).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [0.0_f64; 3]);
        let registered = rank.comm.register(&buffer).unwrap();
        buffer.copy_from_host(&[1.0, 2.0, rank.rank as f64]).unwrap();
        let whole = Buffers::InPlace(buffer.view_mut());
        rank.comm.run(Call::AllReduce { buffers: whole, op: ReduceOp::Sum }, &options()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [2.0, 4.0, 1.0]);
        let empty = DeviceBuffer::<u8>::by_nccl(&crate::common::library(), &rank.stream, 0).unwrap();
        assert!(empty.is_empty() && empty.to_vec().unwrap().is_empty());
        // While work on it is in progress, and before it is deregistered.
        let whole = Buffers::InPlace(buffer.view_mut());
        rank.comm.run(Call::AllReduce { buffers: whole, op: ReduceOp::Sum }, &options()).unwrap();
        drop((buffer, registered));
        let too_large =
            DeviceBuffer::<u8>::by_nccl(&crate::common::library(), &rank.stream, 1 << 40).unwrap_err();
        assert!(too_large.to_string().contains("ncclMemAlloc"), "{too_large}");
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn calls_in_the_background_are_in_order_on_the_stream() {
    world(&devices(2), |rank| {
        let stream = rank.stream.clone();
        let comm = Comm::<Cuda>::over(Arc::new(rank.comm) as Arc<_>);
        let buffer = DeviceBuffer::from_host(&stream, &[1_u32 + comm.rank() as u32]).unwrap();
        let sum = comm.all_reduce_async(buffer, ReduceOp::Sum).unwrap();
        let own = DeviceBuffer::from_host(&stream, &[10 * comm.rank() as u32]).unwrap();
        let all = DeviceBuffer::<u32>::zeros(&stream, 2).unwrap();
        let gathered = comm.all_gather_async(own, all).unwrap();
        assert_eq!(sum.wait().unwrap().to_vec().unwrap(), [1 + 2]);
        assert_eq!(gathered.wait().unwrap().1.to_vec().unwrap(), [0, 10]);
        let refused = comm.broadcast_async(2, DeviceBuffer::<u32>::zeros(&stream, 1).unwrap()).unwrap();
        assert!(matches!(refused.wait(), Err(Error::Invalid(_))));
    });
}

#[test]
fn a_handle_waits_for_its_device() {
    world(&devices(2), |rank| {
        let (device, stream) = (rank.device.clone(), rank.stream.clone());
        let comm = Comm::<Cuda>::over(Arc::new(rank.comm) as Arc<_>).with_timeout(SHORT);
        assert!(comm.device() == &device && comm.stream().device() == device);
        let mut buffer = DeviceBuffer::from_host(&stream, &[1_u32]).unwrap();
        comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        comm.synchronize().unwrap();
        let half = comm.split(Some(comm.rank() as u64), 0).unwrap().unwrap();
        half.synchronize().unwrap();
        if comm.rank() == 0 {
            comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            let error = comm.synchronize().unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        } else {
            // Until the other rank has timed out.
            std::thread::sleep(2 * SHORT);
        }
    });
}

#[test]
fn settings_reach_nccl() {
    let devices = devices(2);
    let with = |rank, size| {
        let mut config = config(rank, size);
        (config.ctas, config.name, config.blocking) = (Some(2..=7), Some("a-name".into()), true);
        config
    };
    world_with(&devices, with, |rank| assert_eq!(sum(&rank.comm, &rank, 2), 4));
    let calls = control().calls_of(&devices);
    for device in devices {
        let made = calls.iter().find(|call| {
            call.name == "ncclCommInitRankConfig" && call.argument("device") == Some(&device.to_string())
        });
        let [blocking, min, max, name] = ["blocking", "min_ctas", "max_ctas", "name"]
            .map(|argument| made.unwrap().argument(argument).unwrap());
        assert_eq!((blocking, min, max, name), ("1", "2", "7", "a-name"));
    }
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let device = comm_nccl::Device::open(devices(1)[0]).unwrap();
    let id = comm_nccl::UniqueId::generate(&crate::common::library()).unwrap();
    let (mut no_ctas, mut zero_byte) = (config(0, 1), config(0, 1));
    (no_ctas.ctas, zero_byte.name) = (Some(0..=4), Some("a\0b".into()));
    for config in [no_ctas, zero_byte] {
        let error = NcclCommunicator::with_id(&crate::common::library(), &device, &id, config).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
}

#[test]
fn what_is_made_is_freed() {
    let devices = devices(2);
    for _ in 0..5 {
        world(&devices, |rank| {
            assert_eq!(sum(&rank.comm, &rank, 1), 2);
            let half = rank.comm.split(Some(rank.rank as u64), 0, &options()).unwrap().unwrap();
            assert_eq!(sum(&*half, &rank, 1), 1);
        });
    }
    assert_eq!(faults_of(&devices), Vec::<String>::new());
    assert!(WORLDS.contains(&2));
}
