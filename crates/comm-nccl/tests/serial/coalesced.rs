//! Many buffers in one call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use comm_core::{Comm, DType, Error, ReduceOp};
use comm_nccl::{Cuda, CudaViewMut, DeviceBuffer, DeviceComm, DeviceCommunicator};
use comm_sim::exact::{self, Small, elements};

use crate::alone;
use crate::common::{Rank, SOON, control, devices, faults_of, in_all_worlds, options, world};

fn buffer<T: Small>(rank: &Rank, op: ReduceOp, len: usize) -> DeviceBuffer<T> {
    rank.buffer(&elements::<T>(0..len, |index| exact::contribution(op, rank.size, rank.rank, index)))
}

fn reduced<T: Small>(rank: &Rank, op: ReduceOp, len: usize) -> Vec<T> {
    elements(0..len, |index| exact::reduced(op, rank.size, index))
}

#[test]
fn each_buffer_has_the_result_of_a_separate_call() {
    let _alone = alone();
    in_all_worlds(|rank| {
        for op in [ReduceOp::Sum, ReduceOp::Avg] {
            let (mut floats, mut halves) =
                (buffer::<f32>(&rank, op, 100), buffer::<half::bf16>(&rank, op, 7));
            let (mut none, mut one) = (buffer::<f64>(&rank, op, 0), buffer::<f64>(&rank, op, 1));
            let views = vec![floats.view_mut(), halves.view_mut(), none.view_mut(), one.view_mut()];
            rank.comm.all_reduce_coalesced(views, op, &options()).unwrap();
            assert_eq!(floats.to_vec().unwrap(), reduced::<f32>(&rank, op, 100));
            assert_eq!(halves.to_vec().unwrap(), reduced::<half::bf16>(&rank, op, 7));
            assert_eq!((none.to_vec().unwrap(), one.to_vec().unwrap()), (vec![], reduced(&rank, op, 1)));
        }
        for root in 0..rank.size {
            let (mut words, mut bytes) =
                (rank.buffer(&[rank.rank as i16; 30]), rank.buffer(&[rank.rank as u8; 5]));
            let views = vec![words.view_mut(), bytes.view_mut()];
            rank.comm.broadcast_coalesced(root, views, &options()).unwrap();
            assert_eq!(
                (words.to_vec().unwrap(), bytes.to_vec().unwrap()),
                (vec![root as i16; 30], vec![root as u8; 5])
            );
        }
        rank.comm.all_reduce_coalesced(Vec::new(), ReduceOp::Sum, &options()).unwrap();
    });
}

/// Returns the number of groups of calls of two ranks, and of waits of a stream for another.
fn cost(body: impl Fn(Rank) + Sync) -> [usize; 2] {
    let devices = devices(2);
    drop(control().take_calls());
    world(&devices, body);
    assert_eq!(faults_of(&devices), Vec::<String>::new());
    let calls = control().take_calls();
    ["ncclGroupStart", "cuStreamWaitEvent"].map(|name| calls.iter().filter(|call| call.name == name).count())
}

/// Tensors of a framework, which uses all of them on one stream.
#[test]
fn hundreds_of_small_buffers_make_a_few_groups_and_join_their_stream_once_for_each() {
    const BUFFERS: usize = 600;
    let _alone = alone();
    let with = |calls: usize| {
        cost(|rank| {
            let memory = rank.buffer(&vec![rank.rank as f32 + 1.0; 3 * BUFFERS]);
            rank.stream.synchronize().unwrap();
            let start = memory.view().pointer();
            let part = |at: usize| {
                // SAFETY: the memory lives until the stream is waited for, and these views of its
                // parts are its only use.
                unsafe { CudaViewMut::from_raw(start + 12 * at as u64, 3, DType::F32, &rank.stream) }
            };
            for _ in 0..calls {
                let views = (0..BUFFERS).map(part).collect();
                rank.comm.all_reduce_coalesced(views, ReduceOp::Max, &options()).unwrap();
            }
            rank.stream.synchronize().unwrap();
            let wanted = if calls == 0 { rank.rank as f32 + 1.0 } else { 2.0 };
            assert_eq!(memory.to_vec().unwrap(), vec![wanted; 3 * BUFFERS]);
        })
    };
    let ([groups, waits], [groups_before, waits_before]) = (with(1), with(0));
    // Three on each of two ranks, and each is waited for once as it waits once.
    assert_eq!([groups - groups_before, waits - waits_before], [6, 12]);
}

#[test]
fn if_one_is_refused_nothing_is_done_with_any() {
    let _alone = alone();
    let devices = devices(2);
    world(&devices, |rank| {
        let (mut floats, mut words) = (rank.buffer(&[1.0_f32; 10]), rank.buffer(&[1_i16; 10]));
        let mut empty: Vec<DeviceBuffer<f32>> = (0..300).map(|_| rank.zeros(0)).collect();
        // More tensors than one group holds. The invalid one is not in the first group.
        let mut views = vec![floats.view_mut()];
        views.extend(empty.iter_mut().map(DeviceBuffer::view_mut));
        views.push(words.view_mut());
        let refused = rank.comm.all_reduce_coalesced(views, ReduceOp::Sum, &options()).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
        let views = vec![floats.view_mut()];
        let refused = rank.comm.broadcast_coalesced(2, views, &options()).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
        assert_eq!(floats.to_vec().unwrap(), [1.0; 10]);
        let views = vec![floats.view_mut()];
        rank.comm.all_reduce_coalesced(views, ReduceOp::Sum, &options()).unwrap();
        assert_eq!(floats.to_vec().unwrap(), [2.0; 10]);
    });
}

#[test]
fn a_handle_gives_its_options() {
    let _alone = alone();
    let devices = devices(2);
    world(&devices, |rank| {
        let (number, mut buffer) = (rank.rank, rank.buffer(&[1_u8; 10]));
        let comm = Comm::<Cuda>::over(Arc::new(rank.comm) as Arc<_>).with_timeout(SOON);
        comm.all_reduce_coalesced(vec![buffer.view_mut()], ReduceOp::Sum).unwrap();
        comm.broadcast_coalesced(1, vec![buffer.view_mut()]).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [2; 10]);
        // Only one rank makes the call, with a short timeout.
        if number == 0 {
            let short = comm.with_timeout(Duration::from_millis(300));
            short.all_reduce_coalesced(vec![buffer.view_mut()], ReduceOp::Sum).unwrap();
            let error = short.synchronize().unwrap_err();
            assert!(matches!(error.root_cause(), Error::Timeout { .. }), "{error}");
        } else {
            std::thread::sleep(Duration::from_millis(900));
        }
    });
}
