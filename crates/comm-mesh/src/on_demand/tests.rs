//! Pairs are connected once, by whichever side needs the connection, although no rank waits in a
//! call of its transport.

use std::io::{ErrorKind, Read, Write};

use comm_core::{ChannelKind, Until};
use rustix::event::{PollFd, PollFlags};

use super::*;
use crate::opening::complete;
use crate::poll::deadline_after;
use crate::testing::{SOON, TestChannel, TestConnection, TestProtocol, channel, meshes_with};
use crate::{Mesh, wait};

/// Opens the channel on one rank, which waits for no other.
fn open(mesh: &Mesh<TestProtocol>, kind: ChannelKind) -> TestChannel {
    let members: Vec<usize> = (0..mesh.group().size()).collect();
    let opening = mesh.begin(channel(kind), &members, &|_| true).unwrap();
    complete(opening, Until::from(deadline_after(SOON)), None).unwrap()
}

/// Waits for the next outcomes of attempts to connect.
fn outcomes(channel: &mut TestChannel) -> Vec<(usize, Option<TestConnection>)> {
    let registration = channel.registration.as_mut().unwrap();
    loop {
        let made = registration.take_made();
        if !made.is_empty() {
            return made;
        }
        let [_, descriptor] = registration.descriptors();
        let mut descriptors = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        assert!(wait(&mut descriptors, Some(deadline_after(SOON))).unwrap());
        registration.clear();
    }
}

/// Waits for the connection to a rank.
fn connection(channel: &mut TestChannel, rank: usize) -> TestConnection {
    let mut made = outcomes(channel);
    assert_eq!(made.len(), 1);
    let (from, connection) = made.remove(0);
    assert_eq!(from, rank);
    connection.unwrap()
}

fn request(channel: &mut TestChannel, rank: usize) {
    assert!(channel.registration.as_mut().unwrap().request(rank).unwrap());
}

/// Checks that bytes that one side writes arrive at the other.
fn check_pair(low: &mut TestConnection, high: &mut TestConnection) {
    low.stream.write_all(b"low").unwrap();
    high.stream.write_all(b"high").unwrap();
    let (mut at_low, mut at_high) = ([0; 4], [0; 3]);
    low.stream.set_nonblocking(false).unwrap();
    high.stream.set_nonblocking(false).unwrap();
    low.stream.read_exact(&mut at_low).unwrap();
    high.stream.read_exact(&mut at_high).unwrap();
    assert_eq!((&at_low, &at_high), (b"high", b"low"));
}

/// The sides of a pair that request the connection.
#[derive(Debug, Clone, Copy)]
enum By {
    Low,
    High,
    Both,
}

#[test]
fn a_pair_is_connected_once_whichever_side_requests_it() {
    for by in [By::Low, By::High, By::Both] {
        let meshes = meshes_with(3, 0);
        let [mut low, mut high] = [0, 2].map(|rank| open(&meshes[rank], ChannelKind::Collective));
        assert!(low.peers.is_empty() && low.on_demand.len() == 2);
        if let By::Low | By::Both = by {
            request(&mut low, 2);
        }
        if let By::High | By::Both = by {
            request(&mut high, 0);
        }
        check_pair(&mut connection(&mut low, 2), &mut connection(&mut high, 0));
        for channel in [&mut low, &mut high] {
            assert!(channel.registration.as_mut().unwrap().take_made().is_empty(), "{by:?}");
        }
    }
}

#[test]
fn a_connection_waits_until_the_peer_opens_the_channel() {
    for requested_by in [0, 1] {
        let meshes = meshes_with(2, 1);
        // The peer's thread exists, because another of its channels is open.
        let _other = open(&meshes[1 - requested_by], ChannelKind::PointToPoint);
        let mut first = open(&meshes[requested_by], ChannelKind::Collective);
        request(&mut first, 1 - requested_by);
        assert!(first.registration.as_mut().unwrap().take_made().is_empty());
        let mut second = open(&meshes[1 - requested_by], ChannelKind::Collective);
        let (mut a, mut b) =
            (connection(&mut first, 1 - requested_by), connection(&mut second, requested_by));
        check_pair(&mut a, &mut b);
    }
}

#[test]
fn a_request_to_a_rank_that_has_closed_the_channel_gets_a_connection_that_ends() {
    for requested_by in [0, 1] {
        let meshes = meshes_with(2, 0);
        let [mut here, there] =
            [requested_by, 1 - requested_by].map(|rank| open(&meshes[rank], ChannelKind::Collective));
        drop(there);
        request(&mut here, 1 - requested_by);
        let mut made = connection(&mut here, 1 - requested_by);
        made.stream.set_nonblocking(false).unwrap();
        let end = made.stream.read(&mut [0]);
        assert!(matches!(&end, Ok(0)) || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    }
}

#[test]
fn a_request_to_a_rank_that_has_exited_fails_and_names_it() {
    for requested_by in [0, 1] {
        let mut meshes = meshes_with(2, 0);
        let mut here = open(&meshes[requested_by], ChannelKind::Collective);
        drop(meshes.remove(1 - requested_by));
        let exited = 1 - requested_by;
        request(&mut here, exited);
        let made = outcomes(&mut here);
        assert!(matches!(made[..], [(rank, None)] if rank == exited));
        let registration = here.registration.as_mut().unwrap();
        assert!(registration.has_failed(exited));
        let error = registration.request(exited).unwrap_err();
        assert!(matches!(error, Error::PeerLost { peer, .. } if peer == exited), "{error:?}");
    }
}

#[test]
fn small_channels_and_control_channels_connect_all_pairs_when_they_are_opened() {
    for (full_mesh_max, kind) in [(2, ChannelKind::Collective), (0, ChannelKind::Control)] {
        let meshes = meshes_with(2, full_mesh_max);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| open(&meshes[1], kind));
            let channel = open(&meshes[0], kind);
            assert_eq!((channel.peers.len(), channel.on_demand.len()), (1, 0));
            assert!(!channel.registration.unwrap().is_on_demand());
            drop(other.join().unwrap());
        });
    }
}

#[test]
fn the_end_of_a_mesh_ends_its_thread_while_attempts_are_pending() {
    let meshes = meshes_with(2, 0);
    let mut channel = open(&meshes[0], ChannelKind::Collective);
    request(&mut channel, 1);
    drop(channel);
    drop(meshes);
}
