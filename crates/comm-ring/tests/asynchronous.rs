//! Collectives in the background.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use comm_core::{Comm, Error, ReduceOp};
use comm_ring::RingConfig;
use comm_sim::in_process::InProcessConfig;
use common::{contributions, reductions, world};

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
        // The last clone waits for what is under way.
        drop(comm.barrier_async().unwrap());
    });
}

#[test]
fn buffers_come_back() {
    run(3, |comm| {
        let (rank, len) = (comm.rank(), 7);
        let gathered = comm.all_gather_async(contributions::<f32>(rank, len), vec![0.0; 3 * len]).unwrap();
        let scattered = comm
            .reduce_scatter_async(contributions::<f64>(rank, 3 * len), vec![0.0; len], ReduceOp::Sum)
            .unwrap();
        let reduced = comm.reduce_async(1, contributions::<u16>(rank, len), ReduceOp::Max).unwrap();
        let exchanged = comm.all_to_all_async(vec![rank as u64; 3], vec![9_u64; 3]).unwrap();
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
fn errors_come_out_of_the_handle() {
    run(2, |comm| {
        let wrong = comm.all_reduce_async(vec![1.0_f32; 3], ReduceOp::BitAnd).unwrap();
        let right = comm.all_reduce_async(vec![1.0_f32; 3], ReduceOp::Sum).unwrap();
        assert!(matches!(wrong.wait(), Err(Error::Invalid(_))));
        assert_eq!(right.wait().unwrap(), [2.0; 3]);
    });
}

#[test]
fn a_handle_waits_no_longer_than_it_is_told() {
    run(2, |comm| {
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(200));
        }
        let mut work = comm.barrier_async().unwrap();
        if comm.rank() == 0 {
            work = match work.wait_timeout(Duration::from_millis(20)) {
                Ok(_) => panic!("rank 1 has not come yet"),
                Err(work) => work,
            };
        }
        work.wait().unwrap();
    });
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest of runtimes.
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
