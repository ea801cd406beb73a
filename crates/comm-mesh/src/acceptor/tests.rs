//! Other processes cannot make an acceptor hold many connections, or lock out a peer.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;

use super::*;
use crate::poll::wait_for;
use crate::testing::{GREETING, SOON, TestProtocol, connect, is_closed, listen};

fn acceptor() -> (Acceptor<TestProtocol>, impl Fn(&[u8]) -> UnixStream) {
    let (listener, address) = listen();
    (Acceptor::new([listener]).unwrap(), move |bytes: &[u8]| connect(&address, bytes))
}

fn protocol(pending_max: usize, handshake_timeout: Option<Duration>) -> TestProtocol {
    TestProtocol { limits: Limits { pending_max, handshake_timeout }, ..TestProtocol::default() }
}

/// Takes turns until a connection has authenticated. Returns its rank.
fn accept_one(acceptor: &mut Acceptor<TestProtocol>, protocol: &TestProtocol) -> usize {
    let deadline = deadline_after(SOON);
    while Instant::now() < deadline {
        let until = acceptor.next_deadline().map_or(deadline, |due| due.min(deadline));
        wait_for(&*acceptor, PollFlags::IN, until).unwrap();
        if let [accepted] = &acceptor.turn(protocol, 1).unwrap()[..] {
            return accepted.destination.world_rank;
        }
    }
    panic!("no connection was accepted");
}

#[test]
fn a_turn_accepts_few_connections_and_no_more_than_the_limit_stay_pending() {
    let ((mut acceptor, connect), protocol) = (acceptor(), protocol(40, None));
    let silent: Vec<_> = (0..100).map(|_| connect(&[])).collect();
    for turn in 1..=7 {
        assert!(acceptor.turn(&protocol, usize::MAX).unwrap().is_empty());
        assert_eq!(acceptor.pending(), (turn * ACCEPTS_PER_TURN).min(40));
    }
    // The oldest were closed in favour of the latest.
    assert!(silent[..60].iter().all(is_closed));
    silent[60].set_nonblocking(true).unwrap();
    assert_eq!((&silent[60]).read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_peer_is_accepted_among_silent_connections() {
    let ((mut acceptor, connect), protocol) = (acceptor(), protocol(4, None));
    let _silent: Vec<_> = (0..50).map(|_| connect(&[])).collect();
    let _peer = connect(&[GREETING, 0, 7, 0]);
    assert_eq!(accept_one(&mut acceptor, &protocol), 7);
}

#[test]
fn peers_are_accepted_on_every_listener_also_after_a_pause() {
    let listening = [(); 3].map(|()| listen());
    let addresses = listening.each_ref().map(|(_, address)| address.clone());
    let mut acceptor = Acceptor::<TestProtocol>::new(listening.map(|(listener, _)| listener)).unwrap();
    let protocol = protocol(40, None);
    for round in 0..2 {
        for (at, address) in (1..).zip(&addresses) {
            let _peer = connect(address, &[GREETING, 0, at + round, 0]);
            assert_eq!(accept_one(&mut acceptor, &protocol), usize::from(at + round));
        }
        acceptor.pause();
    }
}

#[test]
fn a_peer_is_accepted_while_all_pending_connections_have_greeted() {
    let ((mut acceptor, connect), protocol) = (acceptor(), protocol(4, None));
    let greeted: Vec<_> = (0..4).map(|_| connect(&[GREETING])).collect();
    while acceptor.pending() < 4 {
        acceptor.turn(&protocol, 1).unwrap();
    }
    // It waits until the grace period of the others is over.
    let _peer = connect(&[GREETING, 0, 7, 0]);
    assert_eq!(accept_one(&mut acceptor, &protocol), 7);
    drop(greeted);
}

#[test]
fn a_handshake_may_arrive_in_pieces() {
    let ((mut acceptor, connect), protocol) = (acceptor(), protocol(4, None));
    let mut peer = connect(&[GREETING, 0]);
    wait_for(&acceptor, PollFlags::IN, deadline_after(SOON)).unwrap();
    assert!(acceptor.turn(&protocol, 1).unwrap().is_empty());
    assert_eq!(acceptor.pending(), 1);
    peer.write_all(&[7, 0]).unwrap();
    assert_eq!(accept_one(&mut acceptor, &protocol), 7);
    assert_eq!(acceptor.pending(), 0);
}

#[test]
fn connections_that_break_or_speak_another_protocol_are_closed() {
    let ((mut acceptor, connect), protocol) = (acceptor(), protocol(4, None));
    drop(connect(&[]));
    let other = connect(b"HTTP");
    assert!(acceptor.turn(&protocol, 1).unwrap().is_empty());
    assert_eq!(acceptor.pending(), 0);
    assert!(is_closed(&other));
}

#[test]
fn a_handshake_that_takes_too_long_is_closed() {
    let timeout = Duration::from_millis(5);
    let ((mut acceptor, connect), protocol) = (acceptor(), protocol(4, Some(timeout)));
    let silent = connect(&[]);
    acceptor.turn(&protocol, 1).unwrap();
    let began = Instant::now();
    while acceptor.pending() > 0 {
        assert!(began.elapsed() < SOON);
        wait_for(&acceptor, PollFlags::IN, acceptor.next_deadline().unwrap()).unwrap();
        acceptor.turn(&protocol, 1).unwrap();
    }
    assert!(is_closed(&silent));
    assert_eq!(acceptor.next_deadline(), None);
}

#[test]
fn no_more_connections_are_accepted_than_there_is_capacity() {
    let ((mut acceptor, connect), protocol) = (acceptor(), protocol(8, None));
    let peers = [0, 1, 2].map(|rank| connect(&[GREETING, 0, rank, 0]));
    let accepted = acceptor.turn(&protocol, 2).unwrap();
    let ranks: Vec<usize> = accepted.iter().map(|accepted| accepted.destination.world_rank).collect();
    assert_eq!(ranks, [0, 1]);
    assert!(is_closed(&peers[2]));
}

#[test]
fn without_descriptors_pending_connections_are_closed_and_the_listener_pauses() {
    let ((mut acceptor, connect), protocol) = (acceptor(), protocol(8, None));
    let silent: Vec<_> = (0..3).map(|_| connect(&[])).collect();
    acceptor.turn(&protocol, 1).unwrap();
    assert_eq!(acceptor.pending(), 3);
    protocol.is_exhausted.store(true, Ordering::Relaxed);
    let _peer = connect(&[GREETING, 0, 7, 0]);
    acceptor.turn(&protocol, 1).unwrap();
    assert!(silent.iter().all(is_closed));
    assert_eq!(acceptor.accept_error().unwrap().to_string(), "no descriptor left");
    assert!(acceptor.next_deadline().is_some(), "it tries again after a pause");
    assert!(!wait_for(&acceptor, PollFlags::IN, Instant::now()).unwrap(), "it does not spin meanwhile");
    protocol.is_exhausted.store(false, Ordering::Relaxed);
    assert_eq!(accept_one(&mut acceptor, &protocol), 7);
    assert!(acceptor.accept_error().is_none());
}
