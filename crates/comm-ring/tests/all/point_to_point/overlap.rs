//! Concurrent messages from several threads, also during collectives.

use std::thread;

use comm_core::{Comm, ReduceOp, Source};
use fastrand::Rng;

use super::{payload, run, run_everywhere};

#[test]
fn threads_of_one_rank_receive_different_tags() {
    run_everywhere(2, |comm| {
        let lens = [0, 1, 64, 65, 300];
        thread::scope(|scope| {
            for tag in 0..4_u64 {
                let comm = comm.clone();
                scope.spawn(move || {
                    for len in lens {
                        let (message, mut buffer) = (payload(0, tag, len), vec![0; len]);
                        if comm.rank() == 0 {
                            comm.send(1, tag, &message).unwrap();
                            comm.recv(1, tag, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
                        } else {
                            comm.recv(0, tag, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
                            comm.send(0, tag, &buffer).unwrap();
                        }
                        assert_eq!(buffer, message);
                    }
                });
            }
        });
    });
}

/// Sends or receives in a way that the seed selects: in this thread, in the background, or after a
/// probe.
fn one_of_many(comm: &Comm, random: &mut Rng, tag: u64, len: usize) {
    let (message, way) = (payload(0, tag, len), random.u8(..3));
    if comm.rank() == 0 {
        match way {
            0 => comm.send(1, tag, &message).unwrap(),
            _ => assert_eq!(comm.send_async(1, tag, message.clone()).unwrap().wait().unwrap(), message),
        }
        return;
    }
    let mut buffer = vec![0; len];
    match way {
        0 => assert_eq!(comm.recv(0, tag, &mut buffer).unwrap().len, len),
        1 => buffer = comm.recv_async(0, tag, buffer).unwrap().wait().unwrap().0,
        _ => {
            while comm.try_probe(0, tag).unwrap().is_none() {
                thread::yield_now();
            }
            comm.recv(Source::Any, tag, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
        }
    }
    assert_eq!(buffer, message);
}

#[test]
fn many_threads_take_turns_in_every_way() {
    run_everywhere(2, |comm| {
        thread::scope(|scope| {
            for number in 0..6_u64 {
                let comm = comm.clone();
                scope.spawn(move || {
                    let mut random = Rng::with_seed(number * 2 + comm.rank() as u64);
                    let mut lens = Rng::with_seed(number);
                    for round in 0..40 {
                        one_of_many(&comm, &mut random, number * 1000 + round, lens.usize(..200));
                    }
                });
            }
        });
    });
}

#[test]
fn a_thread_that_only_waits_gets_large_messages_too() {
    const LEN: usize = 1_000_000;
    run(2, |comm| {
        if comm.rank() == 1 {
            comm.recv(0, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
            comm.send(0, 4, &[0_u8]).unwrap();
            comm.recv(0, 5, &mut [0_u8]).unwrap().exactly(1).unwrap();
            comm.send(0, 2, &payload(1, 2, LEN)).unwrap();
            let mut buffer = vec![0; LEN];
            comm.recv(0, 3, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
            assert_eq!(buffer, payload(0, 3, LEN));
            return comm.send(0, 1, &[1_u8]).unwrap();
        }
        thread::scope(|scope| {
            // This thread waits until the end, and drives for calls that begin later.
            let first = scope.spawn(|| comm.send_recv((1, 0), &[0_u8], (1, 1), &mut [0_u8]).unwrap());
            comm.recv(1, 4, &mut [0_u8]).unwrap().exactly(1).unwrap();
            comm.send(1, 5, &[0_u8]).unwrap();
            let mut buffer = vec![0; LEN];
            comm.recv(1, 2, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
            assert_eq!(buffer, payload(1, 2, LEN));
            comm.send(1, 3, &payload(0, 3, LEN)).unwrap();
            let _ = first.join().unwrap();
        });
    });
}

#[test]
fn a_waiting_thread_takes_over_from_the_driver() {
    const LEN: usize = 300_000;
    run(2, |comm| {
        let recv = |from, tag| comm.recv(from, tag, &mut [0_u8]).unwrap().exactly(1).unwrap();
        if comm.rank() == 1 {
            recv(0, 3);
            comm.send(0, 8, &[0_u8]).unwrap();
            // Both threads of rank 0 are in their calls.
            recv(0, 4);
            comm.send(0, 1, &[1_u8]).unwrap();
            recv(0, 5);
            return comm.send(0, 2, &payload(1, 2, LEN)).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                comm.send_recv((1, 3), &[0_u8], (1, 1), &mut [0_u8]).unwrap().exactly(1).unwrap();
                comm.send(1, 5, &[0_u8]).unwrap();
            });
            recv(1, 8);
            let mut buffer = vec![0; LEN];
            let received = comm.send_recv((1, 4), &[0_u8], (Source::Any, 2), &mut buffer).unwrap();
            received.exactly(LEN).unwrap();
            assert_eq!(buffer, payload(1, 2, LEN));
        });
    });
}

#[test]
fn messages_do_not_wait_for_a_collective() {
    for ranks in [2, 3, 5] {
        run(ranks, |comm| {
            let (next, last) = ((comm.rank() + 1) % ranks, (comm.rank() + ranks - 1) % ranks);
            thread::scope(|scope| {
                let collective = scope.spawn(|| {
                    let mut buffer = vec![1_u32; 10_000];
                    for _ in 0..30 {
                        buffer.fill(1);
                        comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                    }
                    // Rank 0 enters the barrier only once all its messages have completed.
                    if comm.rank() != 0 {
                        comm.barrier().unwrap();
                    }
                    buffer
                });
                for number in 0..200_u32 {
                    let mut buffer = [0];
                    comm.send_recv((next, 1), &[number], (last, 1), &mut buffer)
                        .unwrap()
                        .exactly(buffer.len())
                        .unwrap();
                    assert_eq!(buffer, [number]);
                }
                assert!(collective.join().unwrap().iter().all(|&sum| sum == ranks as u32));
                if comm.rank() == 0 {
                    comm.barrier().unwrap();
                }
            });
        });
    }
}
