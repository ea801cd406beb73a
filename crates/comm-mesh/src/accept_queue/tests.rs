//! Connections wait for their channel, and none outlives the threads that open channels.

use std::io::Read;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags};

use super::*;
use crate::poll::{deadline_after, wait, wait_for};
use crate::testing::{GREETING, SOON, TestProtocol, connect, is_closed, listen};

fn queue() -> (Arc<AcceptQueue<TestProtocol>>, impl Fn(&[u8]) -> UnixStream) {
    let (listener, address) = listen();
    (Arc::new(AcceptQueue::new(vec![listener]).unwrap()), move |bytes: &[u8]| connect(&address, bytes))
}

const fn id(world_rank: usize) -> ConnId {
    ConnId { rank: world_rank, world_rank }
}

fn register(queue: &Arc<AcceptQueue<TestProtocol>>, key: u8) -> Registration<TestProtocol> {
    queue.register(&Arc::default(), key).unwrap()
}

fn accept(registration: &Registration<TestProtocol>, expected: &[ConnId]) -> Vec<ConnId> {
    let accepted = registration.accept(expected).unwrap();
    accepted.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn a_connection_is_handed_to_the_channel_and_rank_that_it_names() {
    let (queue, connect) = queue();
    let channel = register(&queue, 2);
    let _peers = [[GREETING, 2, 5, 0], [GREETING, 2, 6, 1], [GREETING, 1, 5, 0]].map(|hello| connect(&hello));
    wait_for(&*queue, PollFlags::IN, deadline_after(SOON)).unwrap();
    assert_eq!(accept(&channel, &[id(4), id(5), id(6)]), [id(5)]);
    let added = channel.accept_added().unwrap();
    assert_eq!(added.iter().map(|added| (added.world_rank, added.index)).collect::<Vec<_>>(), [(6, 1)]);
    assert!(channel.accept_added().unwrap().is_empty());
    assert_eq!(accept(&register(&queue, 1), &[id(5)]), [id(5)]);
}

#[test]
fn a_thread_is_notified_of_a_connection_that_another_one_accepted_for_it() {
    let (queue, connect) = queue();
    let (one, two) = (register(&queue, 1), register(&queue, 2));
    let is_ready = |registration: &Registration<_>| {
        let descriptors = registration.descriptors();
        let mut descriptors = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        wait(&mut descriptors, Some(Instant::now())).unwrap()
    };
    let _peer = connect(&[GREETING, 2, 5, 0]);
    assert!(accept(&one, &[id(5)]).is_empty());
    assert!(!is_ready(&one) && is_ready(&two));
    assert_eq!(accept(&two, &[id(5)]), [id(5)]);
    assert!(!is_ready(&two));
}

#[test]
fn the_dialer_is_notified_of_connections_that_others_accept() {
    let (queue, connect) = queue();
    let dialer = Arc::new(Notify::new().unwrap());
    queue.lock().dialer = Some(Arc::clone(&dialer));
    let is_woken = || wait_for(&*dialer, PollFlags::IN, Instant::now()).unwrap();
    let channel = register(&queue, 1);
    assert!(accept(&channel, &[]).is_empty() && !is_woken());
    // Of a channel that nobody opens at present, and for which the dialer may be responsible.
    let _peer = connect(&[GREETING, 2, 5, 0]);
    assert!(accept(&channel, &[]).is_empty() && is_woken());
    dialer.clear();
    assert!(channel.accept_added().unwrap().is_empty() && !is_woken());
}

#[test]
fn a_later_connection_replaces_an_earlier_one() {
    let (queue, connect) = queue();
    let channel = register(&queue, 1);
    let [given_up, current] = [(); 2].map(|()| connect(&[GREETING, 1, 5, 0]));
    assert_eq!(accept(&channel, &[]), []);
    assert!(is_closed(&given_up));
    let accepted = channel.accept(&[id(5)]).unwrap();
    current.set_nonblocking(true).unwrap();
    assert_eq!((&current).read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(accepted);
}

#[test]
fn connections_that_a_channel_did_not_take_are_closed_with_it() {
    let (queue, connect) = queue();
    let (one, two) = (register(&queue, 1), register(&queue, 2));
    let [mine, other] = [[GREETING, 1, 5, 0], [GREETING, 2, 5, 0]].map(|hello| connect(&hello));
    assert!(accept(&one, &[]).is_empty());
    drop(one);
    assert!(is_closed(&mine));
    assert_eq!(accept(&two, &[id(5)]), [id(5)]);
    drop(other);
}

#[test]
fn no_connection_stays_pending_when_no_channel_is_being_opened() {
    let (queue, connect) = queue();
    let [one, two] = [(); 2].map(|()| register(&queue, 1));
    let _silent: Vec<_> = (0..5).map(|_| connect(&[])).collect();
    assert!(accept(&one, &[]).is_empty());
    drop(one);
    assert_eq!(queue.lock().acceptor.pending(), 5);
    drop(two);
    assert_eq!(queue.lock().acceptor.pending(), 0);
}
