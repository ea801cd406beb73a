//! Collectives in the background.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::common::{contributions, reductions, world};
use comm_core::{AsViewMut, Comm, Error, HostViewMut, ReduceOp, Result, Worker};
use comm_ring::RingConfig;
use comm_sim::in_process::InProcessConfig;

fn run<R: Send>(ranks: usize, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    world(ranks, &InProcessConfig::default(), &RingConfig::default(), rank)
}

#[test]
fn many_calls_may_be_outstanding_and_complete_in_order() {
    run(4, |comm| {
        let works: Vec<_> = (1..=200_u32)
            .map(|call| comm.all_reduce_async(vec![call; call as usize], ReduceOp::Sum).unwrap())
            .collect();
        for (work, call) in works.into_iter().zip(1_u32..) {
            assert_eq!(work.wait().unwrap(), vec![4 * call; call as usize]);
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn a_dropped_handle_completes_all_the_same() {
    run(3, |comm| {
        drop(comm.all_reduce_async(vec![1_i64; 10], ReduceOp::Sum).unwrap());
        let kept = comm.broadcast_async(2, vec![comm.rank() as u8; 5]).unwrap();
        assert_eq!(kept.wait().unwrap(), [2; 5]);
        // Dropping the last clone waits for pending calls.
        drop(comm.barrier_async().unwrap());
    });
}

#[test]
fn buffers_are_returned() {
    run(3, |comm| {
        let (rank, len) = (comm.rank(), 7);
        let gathered = comm.all_gather_async(contributions::<f32>(rank, len), vec![0.0; 3 * len]).unwrap();
        let scattered = comm
            .reduce_scatter_async(contributions::<f64>(rank, 3 * len), vec![0.0; len], ReduceOp::Sum)
            .unwrap();
        let reduced = comm.reduce_async(1, contributions::<u16>(rank, len), ReduceOp::Max).unwrap();
        let exchanged = comm.all_to_all_async(vec![rank as u64; 3], vec![9_u64; 3]).unwrap();
        let up_to = comm.scan_async(contributions::<i32>(rank, len), ReduceOp::Sum).unwrap();
        let before = comm.exscan_async(vec![1_u8], ReduceOp::Sum).unwrap();
        assert_eq!(up_to.wait().unwrap(), reductions::<i32>(rank + 1, len, ReduceOp::Sum));
        assert_eq!(before.wait().unwrap(), [[1_u8], [1], [2]][rank]);
        let (send, recv) = gathered.wait().unwrap();
        assert_eq!(send, contributions::<f32>(rank, len));
        assert_eq!(recv[..len], contributions::<f32>(0, len));
        let (_, share) = scattered.wait().unwrap();
        assert_eq!(share, reductions::<f64>(3, 3 * len, ReduceOp::Sum)[rank * len..][..len]);
        let reduced = reduced.wait().unwrap();
        let expected = if rank == 1 { reductions(3, len, ReduceOp::Max) } else { contributions(rank, len) };
        assert_eq!(reduced, expected);
        assert_eq!(exchanged.wait().unwrap().1, [0, 1, 2]);
    });
}

#[test]
fn errors_are_returned_by_the_handle() {
    run(2, |comm| {
        let wrong = comm.all_reduce_async(vec![1.0_f32; 3], ReduceOp::BitAnd).unwrap();
        let right = comm.all_reduce_async(vec![1.0_f32; 3], ReduceOp::Sum).unwrap();
        assert!(matches!(wrong.wait(), Err(Error::Invalid(_))));
        assert_eq!(right.wait().unwrap(), [2.0; 3]);
    });
}

#[test]
fn a_handle_waits_no_longer_than_its_timeout() {
    let waited = Barrier::new(2);
    run(2, |comm| {
        if comm.rank() == 1 {
            waited.wait();
            return comm.barrier().unwrap();
        }
        let work = comm.barrier_async().unwrap();
        let Err(work) = work.wait_timeout(Duration::from_millis(20)) else {
            panic!("rank 1 has not arrived yet")
        };
        waited.wait();
        work.wait().unwrap();
    });
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A minimal runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn it_can_be_awaited_on_any_runtime() {
    run(3, |comm| {
        let sum = block_on(async {
            let first = comm.all_reduce_async([1_u8; 4], ReduceOp::Sum)?.await?;
            comm.all_reduce_async(first, ReduceOp::Sum)?.await
        });
        assert_eq!(sum.unwrap(), [9; 4]);
    });
}

/// Returns the counts 1, 2, ..., with a zero in the middle.
fn uneven(ranks: usize) -> Vec<usize> {
    (0..ranks).map(|rank| if rank == ranks / 2 { 0 } else { rank + 1 }).collect()
}

#[test]
fn gathers_and_scatters() {
    for ranks in [1, 2, 3, 5, 8] {
        run(ranks, |comm| {
            let (rank, root, len) = (comm.rank(), ranks - 1, 6);
            let all: Vec<f32> = (0..ranks).flat_map(|rank| contributions(rank, len)).collect();
            let of_root = |all: Vec<f32>| if rank == root { all } else { Vec::new() };
            let own: Vec<f32> = contributions(rank, len);
            let recv = of_root(vec![0.0; all.len()]);
            let gathered = comm.gather_async(root, own.clone(), recv).unwrap();
            let scattered = comm.scatter_async(root, of_root(all.clone()), vec![0.0; len]).unwrap();
            let mut in_place = vec![0.0; all.len()];
            in_place[rank * len..][..len].copy_from_slice(&own);
            let in_place = comm.all_gather_in_place_async(in_place).unwrap();
            let contribution = contributions::<i64>(rank, ranks * len);
            let shared = comm.reduce_scatter_in_place_async(contribution, ReduceOp::Sum).unwrap();
            let exchanged = comm.all_to_all_in_place_async(vec![rank as u8; ranks]).unwrap();
            assert_eq!(gathered.wait().unwrap(), (own.clone(), of_root(all.clone())));
            assert_eq!(scattered.wait().unwrap(), (of_root(all.clone()), own));
            assert_eq!(in_place.wait().unwrap(), all);
            let sums = reductions::<i64>(ranks, ranks * len, ReduceOp::Sum);
            assert_eq!(shared.wait().unwrap()[rank * len..][..len], sums[rank * len..][..len]);
            assert_eq!(exchanged.wait().unwrap(), (0..ranks as u8).collect::<Vec<_>>());
        });
    }
}

#[test]
fn collectives_with_counts() {
    for ranks in [1, 2, 3, 5, 8] {
        run(ranks, |comm| {
            let (rank, root, counts) = (comm.rank(), ranks / 2, uneven(ranks));
            let total = counts.iter().sum::<usize>();
            let all: Vec<u32> = (0..ranks).flat_map(|rank| contributions(rank, counts[rank])).collect();
            let own: Vec<u32> = contributions(rank, counts[rank]);
            let of_root = |all: Vec<u32>| if rank == root { all } else { Vec::new() };
            let (own_len, zeros) = (own.len(), vec![0; total]);
            let everywhere = comm.all_gather_v_async(own.clone(), zeros.clone(), counts.clone()).unwrap();
            let gathered = comm.gather_v_async(root, own.clone(), of_root(zeros), counts.clone()).unwrap();
            let share = vec![0; own_len];
            let scattered =
                comm.scatter_v_async(root, of_root(all.clone()), share.clone(), counts.clone()).unwrap();
            let contribution = contributions::<u32>(rank, total);
            let reduced =
                comm.reduce_scatter_v_async(contribution, share, counts.clone(), ReduceOp::Sum).unwrap();
            // Rank i sends j + 1 elements to rank j.
            let sent: Vec<u16> = (0..ranks).flat_map(|to| vec![(rank * 10 + to) as u16; to + 1]).collect();
            let received = vec![0; ranks * (rank + 1)];
            let (sends, recvs) = ((1..=ranks).collect(), vec![rank + 1; ranks]);
            let exchanged = comm.all_to_all_v_async(sent, sends, received, recvs).unwrap();
            assert_eq!(everywhere.wait().unwrap().1, all);
            assert_eq!(gathered.wait().unwrap().1, of_root(all));
            assert_eq!(scattered.wait().unwrap().1, own);
            let start = counts[..rank].iter().sum::<usize>();
            let sums = reductions::<u32>(ranks, total, ReduceOp::Sum);
            assert_eq!(reduced.wait().unwrap().1, sums[start..][..own_len]);
            let from = |from: usize| vec![(from * 10 + rank) as u16; rank + 1];
            assert_eq!(exchanged.wait().unwrap().1, (0..ranks).flat_map(from).collect::<Vec<_>>());
        });
    }
}

#[test]
fn many_buffers_at_once_between_other_calls() {
    run(3, |comm| {
        let rank = comm.rank();
        let before = comm.all_reduce_async([1_u64], ReduceOp::Sum).unwrap();
        let buffers: Vec<Vec<f64>> = (0..100).map(|length| contributions(rank, length)).collect();
        let reduced = comm.all_reduce_coalesced_async(buffers.clone(), ReduceOp::Sum).unwrap();
        let between = comm.barrier_async().unwrap();
        let sent = comm.broadcast_coalesced_async(1, buffers).unwrap();
        let gathered = comm
            .all_gather_coalesced_async(vec![vec![rank as u8; 2], vec![]], vec![vec![9; 6], vec![]])
            .unwrap();
        let shares = comm
            .reduce_scatter_coalesced_async(vec![[1_i32; 3], [2; 3]], vec![[0; 1]; 2], ReduceOp::Sum)
            .unwrap();
        // Awaited in a different order from the one in which they were made.
        let (_, shares) = block_on(shares).unwrap();
        assert_eq!(shares, [[3], [6]]);
        assert_eq!(block_on(gathered).unwrap().1, [vec![0, 0, 1, 1, 2, 2], vec![]]);
        let of_rank_1: Vec<Vec<f64>> = (0..100).map(|length| contributions(1, length)).collect();
        assert_eq!(block_on(sent).unwrap(), of_rank_1);
        block_on(between).unwrap();
        let sums: Vec<Vec<f64>> = (0..100).map(|length| reductions(3, length, ReduceOp::Sum)).collect();
        assert_eq!(block_on(reduced).unwrap(), sums);
        assert_eq!(block_on(before).unwrap(), [3]);
    });
}

#[test]
fn a_refused_background_call_does_not_disturb_later_calls() {
    run(2, |comm| {
        let refused = [
            comm.all_to_all_v_async([1_u8; 2], vec![2], [0_u8; 4], vec![2, 2]).unwrap().wait().err(),
            comm.scatter_async(2, [1_u8; 4], [0_u8; 2]).unwrap().wait().err(),
            comm.all_gather_v_async([1_u8; 2], [0_u8; 4], vec![2, 3]).unwrap().wait().err(),
            comm.all_gather_coalesced_async(vec![[1_u8]], vec![[1_u8]]).unwrap().wait().err(),
        ];
        assert!(refused.iter().all(|error| matches!(error, Some(Error::Invalid(_)))), "{refused:?}");
        assert_eq!(comm.all_reduce_async([1_u8], ReduceOp::Sum).unwrap().wait().unwrap(), [2]);
    });
}

/// A buffer that panics when it is accessed.
#[derive(Debug)]
struct Explosive;

impl AsViewMut for Explosive {
    type Element = f32;

    fn as_view_mut(&mut self) -> Result<HostViewMut<'_>> {
        panic!("this buffer has no memory")
    }
}

#[test]
fn a_buffer_that_panics_aborts_every_rank_before_any_result_is_wrong() {
    for ranks in [2, 3, 5] {
        let errors = run(ranks, |comm| {
            comm.barrier().unwrap();
            let first = match comm.rank() {
                0 => comm.all_reduce_async(Explosive, ReduceOp::Sum).unwrap().wait().err(),
                _ => comm.all_reduce_async(vec![1.0_f32; 4], ReduceOp::Sum).unwrap().wait().err(),
            };
            let next = comm.all_reduce(&mut [1.0_f32; 4], ReduceOp::Sum).err();
            (first.unwrap(), next.unwrap())
        });
        for (rank, (first, next)) in errors.into_iter().enumerate() {
            let aborted = |error: &Error| matches!(error.root_cause(), Error::Aborted { by: 0, reason } if reason.contains("no memory"));
            assert_eq!(matches!(first, Error::Panicked { .. }), rank == 0, "{first}");
            assert!(rank == 0 || aborted(&first), "rank {rank}: {first}");
            assert!(aborted(&next), "rank {rank}: {next}");
        }
    }
}

#[test]
fn an_abort_ends_calls_in_the_background_that_have_not_begun() {
    let ended = Barrier::new(2);
    run(2, |comm| {
        // Rank 1 never makes the first call, and leaves only after the calls of rank 0 have ended.
        let works: Vec<_> = match comm.rank() {
            0 => (0..100).map(|_| comm.barrier_async().unwrap()).collect(),
            _ => Vec::new(),
        };
        if comm.rank() == 0 {
            comm.abort("enough");
        }
        for work in works {
            let error = work.wait().unwrap_err();
            assert!(matches!(error.root_cause(), Error::Aborted { by: 0, .. }), "{error}");
        }
        ended.wait();
    });
}

#[test]
fn the_last_handle_may_be_dropped_by_an_operation_of_its_worker() {
    run(1, |comm| {
        let worker = Arc::new(Worker::new(comm).unwrap());
        let (released, release) = std::sync::mpsc::channel::<()>();
        let own = Arc::clone(&worker);
        let work = worker.submit(move |_| {
            release.recv().unwrap_err();
            drop(own);
            Ok(5)
        });
        drop(worker);
        drop(released);
        assert_eq!(work.wait().unwrap(), 5);
    });
}
