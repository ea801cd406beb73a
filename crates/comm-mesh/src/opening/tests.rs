//! Channels connect all members, and an opening ends with the most specific error.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use comm_core::ChannelKind;

use super::*;
use crate::Mesh;
use crate::poll::deadline_after;
use crate::testing::{GREETING, SOON, TestChannel, TestProtocol, channel, lost, meshes};

fn any_rank(_: usize) -> bool {
    true
}

/// Drives openings until all are connected, in one thread that sleeps only on their descriptors.
fn drive<O: Opening>(openings: &mut [O]) {
    let deadline = deadline_after(SOON);
    // `count` advances every opening, where `all` would stop at the first that is not connected.
    while openings.iter_mut().map(|opening| opening.advance().unwrap()).filter(|is_open| !is_open).count() > 0
    {
        assert!(Instant::now() < deadline);
        let due = openings.iter().filter_map(Opening::next_attempt).min();
        let mut descriptors: Vec<_> = openings.iter().flat_map(Opening::poll_fds).collect();
        wait(&mut descriptors, Some(due.map_or(deadline, |due| due.min(deadline)))).unwrap();
    }
}

/// Sends the ranks that the sender knows over each connection, and checks that the receiver knows
/// the same.
fn check(channels: &mut [TestChannel], members: &[usize]) {
    for channel in channels.iter_mut() {
        let own = u8::try_from(members[channel.group.rank()]).unwrap();
        let ranks: Vec<usize> = channel.peers.iter().map(|(id, _)| id.rank).collect();
        assert_eq!(ranks, channel.group.peers().collect::<Vec<_>>());
        for (id, connection) in &mut channel.peers {
            assert_eq!([connection.world_rank, id.world_rank], [members[id.rank]; 2]);
            let to = u8::try_from(connection.world_rank).unwrap();
            connection.stream.write_all(&[own, to]).unwrap();
        }
    }
    for channel in channels {
        let own = u8::try_from(members[channel.group.rank()]).unwrap();
        for (_, connection) in &mut channel.peers {
            let mut received = [0; 2];
            connection.stream.set_nonblocking(false).unwrap();
            connection.stream.read_exact(&mut received).unwrap();
            assert_eq!(received, [u8::try_from(connection.world_rank).unwrap(), own]);
        }
    }
}

fn open(meshes: &[Mesh<TestProtocol>], members: &[usize]) -> Vec<TestChannel> {
    let begin =
        |rank: &usize| meshes[*rank].begin(channel(ChannelKind::Collective), members, &any_rank).unwrap();
    let mut openings: Vec<_> = members.iter().map(begin).collect();
    drive(&mut openings);
    let mut channels: Vec<_> = openings.into_iter().map(|opening| opening.finish().unwrap()).collect();
    check(&mut channels, members);
    channels
}

#[test]
fn every_pair_of_members_is_connected() {
    for size in [1, 2, 3, 5, 8] {
        let meshes = meshes(size);
        let forward: Vec<usize> = (0..size).collect();
        let backward: Vec<usize> = (0..size).rev().collect();
        let some: Vec<usize> = (0..size).rev().step_by(2).collect();
        for members in [forward, backward, some] {
            open(&meshes, &members);
        }
    }
}

const KINDS: [ChannelKind; 3] = [ChannelKind::Control, ChannelKind::Collective, ChannelKind::PointToPoint];

/// Begins to open channels of these kinds between all ranks, on each of them.
fn begin_all<'m>(
    meshes: &'m [Mesh<TestProtocol>],
    kinds: &'m [ChannelKind],
) -> Vec<Vec<impl Opening<Channel = TestChannel> + use<'m>>> {
    let members: Vec<usize> = (0..meshes.len()).collect();
    let begin = |mesh: &'m Mesh<TestProtocol>| {
        kinds.iter().map(|kind| mesh.begin(channel(*kind), &members, &any_rank).unwrap()).collect()
    };
    meshes.iter().map(begin).collect()
}

/// Returns the number of times that every rank makes progress until all channels of these kinds are
/// open.
fn turns(meshes: &[Mesh<TestProtocol>], kinds: &[ChannelKind]) -> usize {
    let mut openings = begin_all(meshes, kinds);
    let mut turns = 1;
    while openings.iter_mut().map(|opening| opening.advance().unwrap()).filter(|is_open| !is_open).count() > 0
    {
        turns += 1;
        assert!(turns < 1000);
    }
    turns
}

#[test]
fn several_channels_are_open_after_as_many_turns_as_one() {
    for size in [2, 3, 5] {
        assert_eq!(turns(&meshes(size), &KINDS), turns(&meshes(size), &KINDS[1..2]));
    }
}

#[test]
fn each_of_several_channels_connects_every_pair() {
    for size in [1, 2, 3, 5] {
        let (meshes, members): (_, Vec<usize>) = (meshes(size), (0..size).collect());
        let mut openings = begin_all(&meshes, &KINDS);
        drive(&mut openings);
        let mut opened: Vec<_> = openings.into_iter().map(|opening| opening.finish().unwrap()).collect();
        for _ in KINDS {
            let mut channels: Vec<_> =
                opened.iter_mut().map(|channels: &mut Vec<TestChannel>| channels.remove(0)).collect();
            check(&mut channels, &members);
        }
    }
}

#[test]
fn a_timeout_of_several_channels_names_each_awaited_member_once() {
    let meshes = meshes(4);
    let openings = begin_all(&meshes, &KINDS).swap_remove(1);
    let outcome = complete(openings, Until::from(deadline_after(Duration::from_millis(20))), None);
    let Err(Error::Timeout { waiting_for, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(waiting_for, [0, 2, 3]);
}

#[test]
fn a_member_adds_connections_to_an_open_channel() {
    let meshes = meshes(2);
    let channels = open(&meshes, &[0, 1]);
    let address = &meshes[0].protocol().addresses[0];
    let key = ChannelKind::Collective as u8;
    let _added = [3, 1].map(|index| crate::testing::connect(address, &[GREETING, key, 1, index]));
    let registration = channels[0].registration.as_ref().unwrap();
    let mut indices = Vec::new();
    while indices.len() < 2 {
        let descriptors = registration.descriptors();
        let mut descriptors = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        assert!(wait(&mut descriptors, Some(deadline_after(SOON))).unwrap());
        let added = registration.accept_added().unwrap();
        indices.extend(added.into_iter().map(|added| added.index));
    }
    indices.sort_unstable();
    assert_eq!(indices, [1, 3]);
}

#[test]
fn ranks_open_channels_in_any_order() {
    let meshes = meshes(2);
    let begin = |rank: usize, kind| meshes[rank].begin(channel(kind), &[0, 1], &any_rank).unwrap();
    let (early, late) = (ChannelKind::Collective, ChannelKind::Control);
    let mut waits = begin(1, late);
    assert!(!waits.advance().unwrap());
    let mut both = [begin(0, early), begin(1, early)];
    drive(&mut both);
    let mut both = [begin(0, late), waits];
    drive(&mut both);
}

#[test]
fn members_out_of_reach_are_left_out() {
    let meshes = meshes(3);
    let begin = |rank: usize| {
        meshes[rank].begin(channel(ChannelKind::Collective), &[0, 1, 2], &|other| rank + other == 2).unwrap()
    };
    let mut openings = [0, 1, 2].map(begin);
    drive(&mut openings);
    let peers = openings.map(|opening| {
        opening.finish().unwrap().peers.into_iter().map(|(id, _)| id.rank).collect::<Vec<_>>()
    });
    assert_eq!(peers, [vec![2], vec![], vec![0]]);
}

#[test]
fn two_channels_are_opened_together() {
    let meshes = meshes(2);
    let begin = |rank: usize| {
        let begin = |kind| meshes[rank].begin(channel(kind), &[0, 1], &any_rank).unwrap();
        (begin(ChannelKind::Collective), begin(ChannelKind::Control))
    };
    let until = || Until::from(deadline_after(SOON));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| complete(begin(1), until(), None).unwrap());
        let channels = complete(begin(0), until(), None).unwrap();
        let other = other.join().unwrap();
        for mut pair in [[channels.0, other.0], [channels.1, other.1]] {
            check(&mut pair, &[0, 1]);
        }
    });
}

#[test]
fn a_member_to_connect_to_that_has_exited_is_named() {
    let mut meshes = meshes(3);
    drop(meshes.remove(0));
    let opening = meshes[1].begin(channel(ChannelKind::Collective), &[1, 2, 0], &any_rank).unwrap();
    let outcome = complete(opening, Until::from(deadline_after(SOON)), None);
    assert!(matches!(outcome, Err(Error::PeerLost { peer: 2, .. })), "{outcome:?}");
}

#[test]
fn an_awaited_member_that_has_exited_is_named() {
    let (listener, _) = crate::testing::listen();
    let group = meshes(3)[0].group();
    let protocol = TestProtocol { exited: Some(2), ..TestProtocol::default() };
    let mesh = Mesh::new(group, protocol, Some(listener)).unwrap();
    let opening = mesh.begin(channel(ChannelKind::Collective), &[2, 0, 1], &any_rank).unwrap();
    let outcome = complete(opening, Until::from(deadline_after(SOON)), None);
    assert!(matches!(outcome, Err(Error::PeerLost { peer: 0, .. })), "{outcome:?}");
}

#[test]
fn a_timeout_names_the_awaited_members_by_their_ranks_on_the_channel() {
    let meshes = meshes(4);
    let opening = meshes[1].begin(channel(ChannelKind::Collective), &[3, 1, 0, 2], &any_rank).unwrap();
    let outcome = complete(opening, Until::from(deadline_after(Duration::from_millis(20))), None);
    let Err(Error::Timeout { waiting_for, during: During::Connect, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(waiting_for, [0, 2, 3]);
}

#[test]
fn a_listener_that_cannot_accept_is_the_reason_of_a_timeout() {
    let meshes = meshes(2);
    meshes[0].protocol().is_exhausted.store(true, Ordering::Relaxed);
    let begin =
        |rank: usize| meshes[rank].begin(channel(ChannelKind::Collective), &[0, 1], &any_rank).unwrap();
    let (mut accepting, mut connecting) = (begin(0), begin(1));
    assert!(!connecting.advance().unwrap() && !accepting.advance().unwrap());
    let error = accepting.timeout();
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
    assert!(error.to_string().contains("accept connections from other ranks"), "{error}");
}

/// An opening that never ends.
struct Never(Error);

impl Opening for Never {
    type Channel = ();

    fn advance(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn poll_fds(&self) -> Vec<PollFd<'_>> {
        Vec::new()
    }

    fn next_attempt(&self) -> Option<Instant> {
        None
    }

    fn timeout(&self) -> Error {
        self.0.clone()
    }

    fn finish(self) -> Result<()> {
        Err(self.0)
    }
}

fn timeout(ranks: &[usize]) -> Error {
    Error::Timeout { waiting_for: ranks.to_vec(), after: Duration::ZERO, during: During::Connect }
}

#[test]
fn two_timeouts_are_one_and_a_better_reason_replaces_them() {
    let waiting_for = |a: Error, b: Error| match (Never(a), Never(b)).timeout() {
        Error::Timeout { waiting_for, .. } => Ok(waiting_for),
        Error::PeerLost { peer, .. } => Err(peer),
        error => panic!("{error:?}"),
    };
    let unreachable = || lost(7, ErrorKind::ConnectionRefused.into());
    assert_eq!(waiting_for(timeout(&[1, 4]), timeout(&[0, 3])), Ok(vec![0, 1, 3, 4]));
    assert_eq!(waiting_for(timeout(&[1]), unreachable()), Err(7));
    assert_eq!(waiting_for(unreachable(), timeout(&[1])), Err(7));
}

#[test]
fn waiting_ends_when_its_check_fails() {
    let check = || Err(lost(3, ErrorKind::BrokenPipe.into()));
    let until = Until::from(deadline_after(SOON)).while_ok(&check);
    let outcome = complete(Never(timeout(&[])), until, None);
    assert!(matches!(outcome, Err(Error::PeerLost { peer: 3, .. })), "{outcome:?}");
}
