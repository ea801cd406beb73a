//! Tests of messages between two ranks over TCP.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::thread;
use std::time::Duration;

use crate::common::{world, world_with};
use comm::{ANY_TAG, Comm, Config, Error, ReduceOp, Source};

/// The payload of a message, which depends on its envelope.
fn payload(from: usize, tag: u64, len: usize) -> Vec<u32> {
    (0..len).map(|at| (from as u32) << 24 ^ (tag as u32) << 16 ^ at as u32).collect()
}

/// Sets tiny socket buffers, so that most sends are partial.
fn tiny(config: &mut Config) {
    config.tcp.send_buffer = Some(4096);
    config.tcp.recv_buffer = Some(4096);
}

/// Every rank sends to every rank, including itself, and receives from any source.
fn send_to_all(comm: &Comm, len: usize) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let sends: Vec<_> =
        (0..ranks).map(|to| comm.send_async(to, len as u64, payload(rank, 1, len + rank)).unwrap()).collect();
    let mut seen = vec![0; ranks];
    for _ in 0..ranks {
        let mut buffer = vec![0; len + ranks];
        let received = comm.recv(Source::Any, len as u64, &mut buffer).unwrap();
        seen[received.source] += 1;
        assert_eq!(buffer[..received.len], payload(received.source, 1, len + received.source));
    }
    assert_eq!(seen, vec![1; ranks]);
    sends.into_iter().for_each(|send| drop(send.wait().unwrap()));
}

#[test]
fn every_rank_sends_to_every_rank() {
    for ranks in [1, 2, 3, 5, 8] {
        for adjust in [tiny, |_: &mut Config| {}] {
            world_with(ranks, adjust, |comm| {
                for len in [0, 1, 1000, 16_383, 16_384, 16_385, 200_000] {
                    send_to_all(&comm, len);
                }
            });
        }
    }
}

#[test]
fn a_ring_of_large_send_recvs_does_not_deadlock() {
    for ranks in [1, 2, 3, 5, 8] {
        world_with(ranks, tiny, |comm| {
            let (next, last) = ((comm.rank() + 1) % ranks, (comm.rank() + ranks - 1) % ranks);
            let mut buffer = vec![0; 1_000_000];
            let message = payload(comm.rank(), 1, 1_000_000);
            comm.send_recv((next, 1), &message, (last, ANY_TAG), &mut buffer)
                .unwrap()
                .exactly(buffer.len())
                .unwrap();
            assert!(buffer == payload(last, 1, 1_000_000));
        });
    }
}

#[test]
fn thousands_of_background_messages_run_beside_collectives() {
    const MESSAGES: u64 = 2000;
    world(3, |comm| {
        let (next, last) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
        let recvs: Vec<_> =
            (0..MESSAGES).rev().map(|tag| comm.recv_async(last, tag, vec![0; 100]).unwrap()).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50 {
                    let mut buffer = [1_u32; 1000];
                    comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                    assert_eq!(buffer, [3; 1000]);
                }
            });
            scope.spawn(|| {
                for number in 0..200 {
                    let mut buffer = [0];
                    comm.send_recv((next, 1 << 40), &[number], (last, 1 << 40), &mut buffer)
                        .unwrap()
                        .exactly(buffer.len())
                        .unwrap();
                    assert_eq!(buffer, [number]);
                }
            });
            let rank = comm.rank();
            let sends: Vec<_> = (0..MESSAGES)
                .map(|tag| comm.send_async(next, tag, payload(rank, tag, tag as usize % 100)).unwrap())
                .collect();
            for (tag, recv) in (0..MESSAGES).rev().zip(recvs) {
                let (buffer, received) = recv.wait().unwrap();
                assert_eq!(buffer[..received.len], payload(last, tag, tag as usize % 100));
            }
            sends.into_iter().for_each(|send| drop(send.wait().unwrap()));
        });
    });
}

#[test]
fn small_messages_overtake_a_large_one() {
    let (large, numbers) = (64 << 20, 0..20_u32);
    world(2, |comm| {
        let peer = 1 - comm.rank();
        if comm.rank() == 0 {
            let sent = comm.send_async(peer, 1, vec![3_u8; large]).unwrap();
            comm.recv(peer, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
            numbers.clone().for_each(|number| comm.send(peer, 2, &[number]).unwrap());
            sent.wait().unwrap();
        } else {
            let received = comm.recv_async(peer, 1, vec![0_u8; large]).unwrap();
            comm.send(peer, 0, &[0_u8]).unwrap();
            let small = numbers.clone().map(|_| comm.recv_vec::<u32>(peer, 2).unwrap().0);
            assert!(small.eq(numbers.clone().map(|number| vec![number])));
            assert!(received.wait().unwrap().0.iter().all(|&byte| byte == 3));
        }
    });
}

#[test]
fn unexpected_messages_wait_at_the_sender() {
    const MESSAGES: u64 = 100_000;
    world(2, |comm| {
        if comm.rank() == 0 {
            (0..MESSAGES).for_each(|number| comm.send(1, number % 7, &[number]).unwrap());
        } else {
            let short = comm.with_timeout(Duration::from_millis(200));
            assert!(matches!(short.recv(0, 99, &mut [0_u8]), Err(Error::Timeout { .. })));
            for number in 0..MESSAGES {
                let mut buffer = [0];
                comm.recv(0, number % 7, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
                assert_eq!(buffer, [number]);
            }
        }
    });
}

#[test]
fn an_abort_ends_messages_on_every_rank() {
    let errors = world(3, |comm| {
        if comm.rank() == 1 {
            comm.abort("enough");
        }
        comm.recv((comm.rank() + 1) % 3, 1, &mut [0_u8]).unwrap_err()
    });
    for error in errors {
        let Error::Aborted { by: 1, reason } = error.root_cause() else { panic!("{error}") };
        assert_eq!(reason, "enough");
    }
}
