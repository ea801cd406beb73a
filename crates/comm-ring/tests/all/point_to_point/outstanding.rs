//! Many messages in flight at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use comm_core::{ANY_TAG, Comm, Source};
use comm_ring::RingConfig;
use comm_sim::in_process::InProcessConfig;
use fastrand::Rng;

use super::{networks, payload, run, tight};

/// The lengths and tags of the messages from one rank to another, which both can compute.
fn plan(seed: u64, from: usize, to: usize) -> Vec<(u64, usize)> {
    let mut random = Rng::with_seed(seed ^ (from * 64 + to) as u64);
    (0..random.usize(..30)).map(|_| (random.u64(..4), random.usize(..200))).collect()
}

/// Every rank sends to every rank, itself included, and receives in its own order.
fn all_to_all(comm: &Comm, seed: u64) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let mut random = Rng::with_seed(seed ^ (rank as u64) << 32);
    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
    let mut begin_sends = |random: &mut Rng| {
        let mut targets: Vec<usize> = (0..ranks).collect();
        random.shuffle(&mut targets);
        for to in targets {
            for (number, (tag, len)) in plan(seed, rank, to).into_iter().enumerate() {
                sends.push(comm.send_async(to, tag, payload(rank, number as u64, len)).unwrap());
            }
        }
    };
    let sends_first = random.bool();
    if sends_first {
        begin_sends(&mut random);
    }
    for from in 0..ranks {
        for (number, (tag, len)) in plan(seed, from, rank).into_iter().enumerate() {
            recvs.push((from, number, tag, len));
        }
    }
    // The order of receives that match the same messages must be kept.
    let mut keys: Vec<u64> = (0..ranks as u64 * 4).collect();
    random.shuffle(&mut keys);
    recvs.sort_by_key(|&(from, number, tag, _)| (keys[from * 4 + tag as usize], number));
    let works: Vec<_> = recvs
        .into_iter()
        .map(|(from, number, tag, len)| {
            let buffer = vec![0_u32; len + random.usize(..3)];
            (from, number, len, comm.recv_async(from, tag, buffer).unwrap())
        })
        .collect();
    if !sends_first {
        begin_sends(&mut random);
    }
    for (from, number, len, work) in works {
        let (buffer, received) = work.wait().unwrap();
        assert_eq!((received.source, received.len), (from, len));
        assert_eq!(buffer[..len], payload(from, number as u64, len));
    }
    sends.into_iter().for_each(|send| drop(send.wait().unwrap()));
}

#[test]
fn every_rank_sends_to_every_rank_in_any_order() {
    for ranks in [1, 2, 3, 5, 8] {
        for (at, network) in networks().into_iter().enumerate() {
            crate::common::world(ranks, &network, &tight(), |comm| {
                all_to_all(&comm, (ranks * 10 + at) as u64);
            });
        }
    }
}

#[test]
fn thousands_may_be_outstanding_and_complete_in_any_order() {
    const MESSAGES: u64 = 5000;
    run(2, |comm| {
        let other = 1 - comm.rank();
        let recvs: Vec<_> =
            (0..MESSAGES).map(|tag| comm.recv_async(other, tag, vec![0_u64; 2]).unwrap()).collect();
        let sends: Vec<_> =
            (0..MESSAGES).rev().map(|tag| comm.send_async(other, tag, vec![tag; 2]).unwrap()).collect();
        for (tag, recv) in (0..MESSAGES).zip(recvs) {
            assert_eq!(recv.wait().unwrap().0, [tag; 2]);
        }
        sends.into_iter().for_each(|send| drop(send.wait().unwrap()));
    });
}

#[test]
fn a_pending_receive_blocks_no_other_message() {
    run(3, |comm| {
        if comm.rank() == 0 {
            let late = comm.recv_async(1, 1, vec![0_u8; 1]).unwrap();
            comm.send_async(2, 2, vec![7_u8; 100_000]).unwrap().wait().unwrap();
            let (answer, _) = comm.recv_async(2, 3, vec![0_u8; 1]).unwrap().wait().unwrap();
            assert_eq!(answer, [9]);
            assert!(!late.is_done());
            comm.send(1, 0, &[0_u8]).unwrap();
            assert_eq!(late.wait().unwrap().0, [5]);
        } else if comm.rank() == 1 {
            comm.recv(0, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
            comm.send(0, 1, &[5_u8]).unwrap();
        } else {
            let mut buffer = vec![0_u8; 100_000];
            comm.recv(0, 2, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
            comm.send(0, 3, &[9_u8]).unwrap();
        }
    });
}

#[test]
fn a_flood_waits_at_the_sender() {
    const MESSAGES: u64 = 20_000;
    // A message uses its 32 bytes plus 64 of a credit of 1 MiB.
    const MOST: usize = (1 << 20) / 96;
    let sent = AtomicUsize::new(0);
    crate::common::virtual_world(2, 0, &RingConfig::default(), |comm, _| {
        if comm.rank() == 0 {
            for number in 0..MESSAGES {
                comm.send(1, number % 3, &[number; 4]).unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        // While it waits for a message that never arrives, it buffers as many others as the credit
        // allows.
        comm.with_timeout(Duration::from_secs(10)).recv(0, 99, &mut [0_u8]).unwrap_err();
        assert_eq!(sent.load(Ordering::Relaxed), MOST);
        for number in 0..MESSAGES {
            let mut buffer = [0; 4];
            comm.recv(0, number % 3, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
            assert_eq!(buffer, [number; 4]);
        }
    });
}

#[test]
fn a_large_message_and_small_ones_pass_each_other() {
    const LARGE: usize = 64 << 20;
    run(2, |comm| {
        if comm.rank() == 0 {
            let large = comm.send_async(1, 1, vec![3_u8; LARGE]).unwrap();
            comm.recv(1, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
            for number in 0..20_u32 {
                comm.send(1, 2, &[number]).unwrap();
            }
            assert_eq!(large.wait().unwrap().len(), LARGE);
        } else {
            let large = comm.recv_async(0, 1, vec![0_u8; LARGE]).unwrap();
            comm.send(0, 0, &[0_u8]).unwrap();
            for number in 0..20 {
                let mut buffer = [0_u32];
                comm.recv(0, 2, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
                assert_eq!(buffer, [number]);
            }
            assert!(large.wait().unwrap().0.iter().all(|&byte| byte == 3));
        }
    });
}

#[test]
fn a_dropped_handle_completes_all_the_same() {
    let default = RingConfig::default();
    crate::common::world(2, &InProcessConfig::default(), &default, |comm| {
        if comm.rank() == 0 {
            drop(comm.recv_async(1, 2, vec![0_u8; 5]).unwrap());
            // Dropping the last clone waits for pending operations.
            drop(comm.send_async(1, 1, vec![1_u8; 1_000_000]).unwrap());
            comm.send(1, 3, &[0_u8]).unwrap();
        } else {
            // By then, the other rank has dropped both handles.
            comm.recv(0, 3, &mut [0_u8]).unwrap().exactly(1).unwrap();
            comm.send(0, 2, &[1_u8; 5]).unwrap();
            let _ = comm.recv(Source::Any, ANY_TAG, &mut vec![0_u8; 1_000_000]).unwrap();
        }
    });
}
