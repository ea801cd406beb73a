//! A broken or hostile peer can only end its own stream, or send wrong bytes.

mod cma;
mod hostile;
mod regions;
mod windows;

use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comm_core::{GroupId, Loss, Membership};

use super::*;
use crate::copy_path::CopyPath;
use crate::segment::{Direction, Segment};
use crate::socket;

const CAPACITY: usize = 4096;

/// Both ends of the connection of two ranks.
fn connections() -> [Connection; 2] {
    watched_connections().0
}

/// The same, and their shared memory.
fn watched_connections() -> ([Connection; 2], Segment) {
    let (near, file) = Segment::create(CAPACITY).unwrap();
    let far = Segment::open(&file, CAPACITY).unwrap();
    let watched = Segment::open(&file, CAPACITY).unwrap();
    let name = u128::from(fastrand::u64(..));
    let listener = socket::listen(name).unwrap();
    let ours = socket::connect(name).unwrap();
    let theirs = socket::accept(&listener).unwrap().unwrap();
    let near = Connection { socket: ours, process: None, segment: near, outgoing: Direction::Out };
    let far = Connection { socket: theirs, process: None, segment: far, outgoing: Direction::Back };
    ([near, far], watched)
}

fn transport(rank: usize, connection: Connection, export: Option<&ExportConfig>) -> SharedMemoryTransport {
    let group = Group::new(GroupId::WORLD, Membership { rank, size: 2 }).unwrap();
    SharedMemoryTransport::new(group, [(1 - rank, connection)], None, export.cloned()).unwrap()
}

/// A transport, and the other end of its only connection.
fn with_peer() -> (SharedMemoryTransport, Connection) {
    let [near, far] = connections();
    (transport(0, near, None), far)
}

fn both() -> Interest {
    let mut interest = Interest::default();
    interest.add_recv(1);
    interest.add_send(1);
    interest
}

fn is_garbage<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::PeerLost { peer: 1, loss: Loss::Protocol(_), .. }))
}

fn is_revoked<T>(result: &Result<T>) -> bool {
    let kind = match result {
        Err(Error::PeerLost { loss: Loss::Io(error), .. }) => Some(error.kind()),
        _ => None,
    };
    kind == Some(std::io::ErrorKind::ConnectionAborted)
}

#[test]
fn an_invalid_position_ends_both_streams_for_good() {
    for tail in [CAPACITY as u64 + 1, u64::MAX, 1 << 63] {
        let (mut transport, peer) = with_peer();
        peer.segment.control(Direction::Back).overwrite(Some(tail), None);
        assert_eq!(transport.arm(&both()).unwrap(), Armed::Ready);
        assert!(is_garbage(&transport.try_recv(1, &mut [0; 8])));
        // This also holds if the peer publishes a valid one later.
        peer.segment.control(Direction::Back).overwrite(Some(8), None);
        assert!(is_garbage(&transport.try_recv(1, &mut [0; 8])));
        assert!(is_garbage(&transport.fill_buf(1, 8)));
        assert!(is_garbage(&transport.try_send(1, &[IoSlice::new(&[0; 8])])));
        assert_eq!(transport.arm(&both()).unwrap(), Armed::Ready);
    }
    for head in [1, u64::MAX, 1 << 63] {
        let (mut transport, peer) = with_peer();
        peer.segment.control(Direction::Back).overwrite(Some(16), None);
        assert_eq!(transport.try_recv(1, &mut [0; 8]).unwrap(), 8);
        peer.segment.control(Direction::Out).overwrite(None, Some(head));
        assert!(is_garbage(&transport.try_send(1, &[IoSlice::new(&[0; CAPACITY + 1])])), "{head}");
        // Not even bytes that had arrived before.
        assert!(is_garbage(&transport.try_recv(1, &mut [0; 8])));
    }
}

#[test]
fn a_decreasing_position_ends_the_stream() {
    let (mut transport, peer) = with_peer();
    peer.segment.control(Direction::Back).overwrite(Some(100), None);
    assert_eq!(transport.try_recv(1, &mut [0; 100]).unwrap(), 100);
    peer.segment.control(Direction::Back).overwrite(Some(99), None);
    assert!(is_garbage(&transport.try_recv(1, &mut [0; 1])));
}

/// A valid position makes bytes of the ring readable, and no others.
#[test]
fn plausible_positions_show_some_bytes_and_no_others() {
    let (mut transport, peer) = with_peer();
    peer.segment.copy_in(CopyPath::Cached, Direction::Back, 0, &[9; CAPACITY]);
    peer.segment.control(Direction::Back).overwrite(Some(CAPACITY as u64), None);
    let mut into = vec![0; 3 * CAPACITY];
    assert_eq!(transport.try_recv(1, &mut into).unwrap(), CAPACITY);
    assert!(into[..CAPACITY].iter().all(|&byte| byte == 9) && into[CAPACITY..].iter().all(|&byte| byte == 0));
}

/// Messages go through boxes while they are free and through the ring otherwise, in both
/// directions, and are received in parts.
#[test]
fn bytes_arrive_in_order_through_boxes_and_the_ring() {
    for seed in 0..100 {
        let mut random = fastrand::Rng::with_seed(seed);
        let [near, far] = connections();
        let mut ranks = [transport(0, near, None), transport(1, far, None)];
        let mut sent = [0_usize; 2];
        let mut received = [0_usize; 2];
        for _ in 0..500 {
            let (from, to) = if random.bool() { (0, 1) } else { (1, 0) };
            let most = [100, 1000, CAPACITY][random.usize(..3)];
            let len = random.usize(1..=most);
            if random.bool() {
                let bytes: Vec<u8> = (sent[from]..sent[from] + len).map(|at| (at % 251) as u8).collect();
                let (first, second) = bytes.split_at(random.usize(..=len));
                sent[from] += ranks[from].try_send(to, &[IoSlice::new(first), IoSlice::new(second)]).unwrap();
            } else {
                let mut into = vec![0; len];
                let count = ranks[to].try_recv(from, &mut into).unwrap();
                assert_eq!(count, len.min(sent[from] - received[from]), "all that was sent is there");
                for byte in &into[..count] {
                    assert_eq!(*byte, (received[from] % 251) as u8, "{seed}: {}", received[from]);
                    received[from] += 1;
                }
            }
        }
    }
}

/// A small message is received from a box.
#[test]
fn bytes_after_a_message_in_a_box_follow_it() {
    for (first, read, second) in [(8, 0, 8), (8, 3, 8), (96, 95, 1), (40, 40, 3), (33, 8, 200)] {
        let [near, far] = connections();
        let (mut near, mut far) = (transport(0, near, None), transport(1, far, None));
        let bytes: Vec<u8> = (0..first + second).map(|at| at as u8).collect();
        let mut into = vec![0xff; bytes.len()];
        near.try_send(1, &[IoSlice::new(&bytes[..first])]).unwrap();
        assert_eq!(far.fill_buf(0, first).unwrap().len(), first);
        assert_eq!(far.try_recv(0, &mut into[..read]).unwrap(), read);
        near.try_send(1, &[IoSlice::new(&bytes[first..])]).unwrap();
        let mut received = read;
        while received < into.len() {
            received += far.try_recv(0, &mut into[received..]).unwrap();
        }
        assert_eq!(into, bytes, "{first} {read} {second}");
    }
}

/// A thread writes anything anywhere while this side sends, receives and sleeps. Nothing panics or
/// blocks, and at most the stream ends.
#[test]
fn random_writes_to_shared_memory_only_end_the_stream() {
    const ROUNDS: u64 = 200;
    for seed in 0..ROUNDS {
        let (mut transport, peer) = with_peer();
        let (stop, begun) = (AtomicBool::new(false), Barrier::new(2));
        std::thread::scope(|scope| {
            let (stop, begun) = (&stop, &begun);
            scope.spawn(move || {
                overwrite(&peer, seed, &AtomicBool::new(true));
                begun.wait();
                overwrite(&peer, seed, stop);
            });
            begun.wait();
            let mut random = fastrand::Rng::with_seed(seed);
            let ended = (0..2000).any(|_| !attempt(&mut transport, &mut random));
            stop.store(true, Ordering::Relaxed);
            assert!(ended || seed.is_multiple_of(2), "invalid positions were not detected");
        });
    }
}

/// Overwrites shared memory at least once, until it is stopped. Positions are plausible if the seed
/// is even, and arbitrary if it is odd.
fn overwrite(peer: &Connection, seed: u64, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed ^ 0xbad);
    let most = if seed.is_multiple_of(2) { CAPACITY as u64 } else { u64::MAX };
    loop {
        for direction in [Direction::Out, Direction::Back] {
            let control = peer.segment.control(direction);
            control.overwrite(Some(random.u64(..=most)), Some(random.u64(..=most)));
            control.reader().overwrite(random.u32(..));
            control.writer().overwrite(random.u32(..));
            peer.segment.copy_in(CopyPath::Cached, direction, random.u64(..), &random.u64(..).to_le_bytes());
        }
        if random.u8(..) == 0 {
            socket::notify(&peer.socket);
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Makes a random call. Returns whether the stream is open.
fn attempt(transport: &mut SharedMemoryTransport, random: &mut fastrand::Rng) -> bool {
    let mut bytes = vec![0; random.usize(..2 * CAPACITY)];
    let outcome = match random.u8(..4) {
        0 => transport.try_send(1, &[IoSlice::new(&bytes)]).map(drop),
        1 => transport.try_recv(1, &mut bytes).map(drop),
        2 => transport.fill_buf(1, bytes.len()).map(|filled| filled.copy_to(&mut bytes)).and_then(|len| {
            assert!(len <= bytes.len());
            transport.consume(1, random.usize(..=len))
        }),
        _ => transport.arm(&both()).map(drop),
    };
    assert!(outcome.is_ok() || is_garbage(&outcome), "{outcome:?}");
    outcome.is_ok()
}

/// File descriptors that come with such packets are closed.
#[test]
fn unknown_packets_on_the_socket_are_notifications_only() {
    let (mut transport, peer) = with_peer();
    let own = |number: i32| std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
    let sent = own(peer.socket.as_raw_fd());
    let descriptors = || (0..1024).filter(|number| own(*number) == sent).count();
    let mut recv = Interest::default();
    recv.add_recv(1);
    for len in [1, 8, 100, 60_000] {
        socket::send(&peer.socket, &vec![0xff; len], Some(peer.socket.as_fd())).unwrap();
    }
    while transport.arm(&recv).unwrap() == Armed::Ready {}
    assert_eq!(transport.try_recv(1, &mut [0; 8]).unwrap(), 0);
    assert_eq!(descriptors(), 1, "a file descriptor is kept");
    peer.segment.copy_in(CopyPath::Cached, Direction::Back, 0, b"still up");
    peer.segment.control(Direction::Back).overwrite(Some(8), None);
    let mut into = [0; 8];
    assert_eq!(transport.try_recv(1, &mut into).unwrap(), 8);
    assert_eq!(&into, b"still up");
}

/// Sleepers that were woken for another reason clear their flag.
#[test]
fn only_sleepers_are_notified() {
    let (mut transport, peer) = with_peer();
    let is_notified = || socket::recv(&peer.socket, &mut [0; 8]).unwrap().is_some();
    let (out, back) = (peer.segment.control(Direction::Out), peer.segment.control(Direction::Back));
    assert_eq!(transport.try_send(1, &[IoSlice::new(&[0; 10])]).unwrap(), 10);
    assert!(!is_notified());
    out.reader().prepare_sleep();
    assert_eq!(transport.try_send(1, &[IoSlice::new(&[0; 10])]).unwrap(), 10);
    assert!(is_notified());
    assert_eq!(transport.try_send(1, &[IoSlice::new(&[0; 10])]).unwrap(), 10);
    assert!(!is_notified());
    let mut recv = Interest::default();
    recv.add_recv(1);
    while transport.arm(&recv).unwrap() == Armed::Ready {}
    assert!(back.reader().is_set());
    assert_eq!(transport.try_recv(1, &mut [0]).unwrap(), 0);
    assert!(!back.reader().is_set());
}

#[test]
fn half_an_element_neither_keeps_awake_nor_hides_the_end() {
    let (mut transport, peer) = with_peer();
    let mut recv = Interest::default();
    recv.add_recv(1);
    peer.segment.control(Direction::Back).overwrite(Some(3), None);
    assert_eq!(transport.fill_buf(1, 8).unwrap().len(), 3);
    assert_eq!(transport.arm(&recv).unwrap(), Armed::Sleep);
    peer.segment.control(Direction::Back).overwrite(Some(5), None);
    assert_eq!(transport.arm(&recv).unwrap(), Armed::Ready);
    drop(peer);
    while transport.fill_buf(1, 8).is_ok() {
        assert_eq!(transport.arm(&recv).unwrap(), Armed::Ready, "the end is not reported");
    }
    let mut rest = [0; 8];
    assert_eq!(transport.try_recv(1, &mut rest).unwrap(), 5);
    assert!(matches!(transport.try_recv(1, &mut rest), Err(Error::PeerLost { loss: Loss::Closed, .. })));
}

#[test]
fn an_exit_is_detected_while_other_peers_are_busy() {
    let ([first, living], [second, dead]) = (connections(), connections());
    let group = Group::new(GroupId::WORLD, Membership { rank: 0, size: 3 }).unwrap();
    let mut near = SharedMemoryTransport::new(group, [(1, first), (2, second)], None, None).unwrap();
    let mut living = transport(1, living, None);
    drop(dead);
    let noticed = (0..100_000).any(|_| {
        assert_eq!(living.try_send(0, &[IoSlice::new(&[7])]).unwrap(), 1);
        assert_eq!(near.try_recv(1, &mut [0]).unwrap(), 1);
        near.try_recv(2, &mut [0]).is_err()
    });
    assert!(noticed, "the exit of rank 2");
}

#[test]
fn an_exit_is_detected_without_sleeping() {
    for send in [false, true] {
        let (mut transport, peer) = with_peer();
        if send {
            while transport.try_send(1, &[IoSlice::new(&[0; CAPACITY])]).unwrap() > 0 {}
        }
        drop(peer);
        let limit = Instant::now() + Duration::from_secs(10);
        let mut attempt = || match send {
            true => transport.try_send(1, &[IoSlice::new(&[0])]),
            false => transport.try_recv(1, &mut [0]),
        };
        while attempt().is_ok() {
            assert!(Instant::now() < limit, "the exit is not noticed");
        }
    }
}

#[test]
fn a_peer_is_elsewhere_if_it_was_seen_on_another_processor() {
    let wait = || {
        let own = rustix::thread::sched_getcpu();
        let mut only = rustix::thread::CpuSet::new();
        only.set(own);
        rustix::thread::sched_setaffinity(None, &only).unwrap();
        let (mut transport, far) = with_peer();
        let (theirs, ours) = (far.segment.control(Direction::Back), far.segment.control(Direction::Out));
        assert!(!transport.peers_run_elsewhere(), "the peer was not seen yet");
        // An answer holds for some questions.
        let runs_now =
            |transport: &SharedMemoryTransport| (0..100).fold(false, |_, _| transport.run_now(&[1]));
        assert!(!runs_now(&transport));
        assert!(ours.may_be_on(own) && !ours.may_be_on(own + 1));
        ours.show_processor(own + 1);
        transport.poll_events().unwrap();
        assert!(!ours.may_be_on(own + 1), "also a rank without rivals shows where it is");
        theirs.show_processor(own);
        assert!(!transport.peers_run_elsewhere() && !runs_now(&transport));
        theirs.show_processor(own + 1);
        assert!(transport.peers_run_elsewhere() && runs_now(&transport));
    };
    std::thread::spawn(wait).join().unwrap();
}
