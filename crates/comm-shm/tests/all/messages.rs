//! Messages whose receivers read the memory of the sender in place.

#![allow(clippy::unwrap_used)]

use std::io::IoSlice;
use std::sync::{Barrier, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use comm_core::{ChannelId, ChannelKind, Comm, Fabric, GroupId, Transport};
use comm_ring::{RingCommunicator, RingConfig};
use comm_shm::SharedMemoryFabric;

use crate::common::stopping::Stopping;
use crate::common::{SOON, world};

/// Several parts of a message, and a rest. Far more than a ring holds.
const LEN: usize = (5 << 20) + 4321;
const RING: usize = 64 << 10;
/// Less than is read in place.
const SHORT: usize = 60 << 10;

fn communicator(fabric: SharedMemoryFabric) -> Comm {
    Comm::new(RingCommunicator::new(fabric, RingConfig::default(), SOON).unwrap()).with_timeout(SOON)
}

fn byte(rank: usize, at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8 ^ rank as u8
}

fn fill(buffer: &mut [u8], rank: usize) {
    buffer.iter_mut().enumerate().for_each(|(at, element)| *element = byte(rank, at));
}

fn is_from(buffer: &[u8], rank: usize) -> bool {
    buffer.iter().enumerate().all(|(at, element)| *element == byte(rank, at))
}

#[test]
fn long_pieces_are_sent_by_reference_and_short_ones_are_copied() {
    let have_sent = Barrier::new(2);
    let accepted = comm_sim::run_each(world(2, RING), |fabric| {
        let buffer = fabric.allocate(LEN).unwrap();
        // Nobody reads what is sent.
        let send = |group, kind, len| {
            let channel = ChannelId { group: GroupId(group), kind };
            let mut transport = fabric.open(channel, Instant::now() + SOON).unwrap();
            let peer = 1 - transport.group().rank();
            let sent = transport.try_send(peer, &[IoSlice::new(&buffer.bytes()[..len])]).unwrap();
            let released = transport.released(peer);
            (transport, sent, released)
        };
        let sent = [
            send(1, ChannelKind::PointToPoint, LEN),
            send(2, ChannelKind::PointToPoint, SHORT),
            send(3, ChannelKind::Control, LEN),
        ];
        have_sent.wait();
        sent.map(|(_, sent, released)| (sent, released as usize))
    });
    for [long, short, control] in accepted {
        assert_eq!((long, short), ((LEN, 0), (SHORT, SHORT)));
        assert!(control.0 == control.1 && control.0 < SHORT, "{control:?}");
    }
}

#[test]
fn a_buffer_may_be_reused_after_each_way_of_sending() {
    for n in [2, 3] {
        comm_sim::run_each(world(n, RING), |fabric| {
            let comm = communicator(fabric);
            let (next, previous) = ((comm.rank() + 1) % n, (comm.rank() + n - 1) % n);
            let mut outgoing = comm.alloc::<u8>(LEN).unwrap();
            for len in [LEN, LEN - 1, 128 << 10, (128 << 10) - 1, 1] {
                let (mut first, mut second) = (vec![0; len], comm.alloc::<u8>(len).unwrap());
                fill(&mut outgoing[..len], comm.rank());
                let received = comm.send_recv((next, 0), &outgoing[..len], (previous, 0), &mut first[..]);
                received.unwrap().exactly(len).unwrap();
                outgoing.fill(0xee);
                assert!(is_from(&first, previous), "{len} bytes with send_recv");
                let received = comm.recv_async::<u8, _>(previous, 1, first).unwrap();
                fill(&mut outgoing[..len], comm.rank());
                comm.send(next, 1, &outgoing[..len]).unwrap();
                outgoing.fill(0xee);
                let (first, _) = received.wait().unwrap();
                assert!(is_from(&first, previous), "{len} bytes with send");
                fill(&mut outgoing[..len], comm.rank());
                let mut copy = comm.alloc::<u8>(len).unwrap();
                copy.copy_from_slice(&outgoing[..len]);
                let sent = comm.send_async::<u8, _>(next, 2, copy).unwrap();
                comm.recv(previous, 2, &mut second[..]).unwrap().exactly(len).unwrap();
                sent.wait().unwrap().fill(0xee);
                assert!(is_from(&second, previous), "{len} bytes with send_async");
            }
        });
    }
}

/// The sender of a message that is half read gets its memory back when its group ends. The receiver
/// does not take what is written there afterwards for the rest of the message.
#[test]
fn a_receiver_in_the_middle_of_a_message_fails_if_the_sender_takes_its_memory_back() {
    let (stopped, has_stopped) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let mut ends = [Some((None, Some(go_on))), Some((Some((stopped, may_go_on)), None))];
    let ranks = world(2, RING).into_iter().zip(ends.iter_mut().map(|end| end.take().unwrap()));
    let has_stopped = Mutex::new(has_stopped);
    comm_sim::run_each(ranks.collect(), |(fabric, (receiver, go_on))| {
        let comm = communicator(fabric);
        if let Some((stopped, may_go_on)) = receiver {
            let buffer = Stopping::new(vec![0; LEN], stopped, may_go_on);
            let received = comm.recv_async::<u8, _>(0, 0, buffer).unwrap().wait();
            assert!(received.is_err(), "torn: {}", !is_from(received.unwrap().0.bytes(), 0));
            return;
        }
        let mut buffer = comm.alloc::<u8>(LEN).unwrap();
        fill(&mut buffer, 0);
        thread::scope(|scope| {
            let sending = scope.spawn(|| comm.send(1, 0, &buffer));
            has_stopped.lock().unwrap().recv().unwrap();
            comm.abort("the program has changed its mind");
            sending.join().unwrap().unwrap_err();
        });
        buffer.fill(0xee);
        go_on.unwrap().send(()).unwrap();
    });
}
