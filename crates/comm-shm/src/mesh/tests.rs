//! Other processes can neither make a listener hold many connections nor pass as members.

use std::os::fd::AsFd;
use std::time::Duration;

use comm_core::GroupId;
use comm_mesh::{Acceptor, deadline_after, wait_for};
use comm_rendezvous::random_bytes;
use rustix::event::PollFlags;

use super::*;

const SOON: Duration = Duration::from_secs(60);

/// A member of a world of two, and the name on which it listens.
struct Rank {
    protocol: SharedMemoryProtocol,
    acceptor: Acceptor<SharedMemoryProtocol>,
    listener: u128,
}

fn rank_zero() -> Rank {
    let listener = u128::from_ne_bytes(random_bytes().unwrap());
    let members = vec![Some(Address { listener, token: 1 }), Some(Address { listener: 0, token: 2 })];
    let identity = Identity { rank: 0, token: 1, members, processors: None };
    let protocol = SharedMemoryProtocol::new(identity, SharedMemoryConfig::default());
    let acceptor = Acceptor::new([socket::listen(listener).unwrap()]).unwrap();
    Rank { protocol, acceptor, listener }
}

impl Rank {
    fn turn(&mut self, capacity: usize) -> Vec<Accepted> {
        wait_for(&self.acceptor, PollFlags::IN, deadline_after(SOON)).unwrap();
        self.acceptor.turn(&self.protocol, capacity).unwrap()
    }

    /// Connects and sends a hello.
    fn connect(&self, hello: &Hello) -> OwnedFd {
        let (_segment, file) = Segment::create(rustix::param::page_size()).unwrap();
        let socket = socket::connect(self.listener).unwrap();
        socket::send(&socket, &hello.encode(), Some(file.as_fd())).unwrap();
        socket
    }
}

fn hello() -> Hello {
    let key = ChannelKey::new(ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective }, &[0, 1]);
    Hello { key, rank: 1, token: 2, to_token: 1, capacity: 4096 }
}

fn is_closed(socket: &OwnedFd) -> bool {
    socket::recv(socket, &mut [0; 8]).is_ok_and(|packet| packet.is_some_and(|packet| packet.len == 0))
}

#[test]
fn silent_connections_are_bounded() {
    let mut rank = rank_zero();
    let _silent: Vec<_> = (0..200).map(|_| socket::connect(rank.listener).unwrap()).collect();
    let max = pending_max().max(2 * PENDING_PER_PEER);
    for _ in 0..13 {
        assert!(rank.turn(1).is_empty());
        assert!(rank.acceptor.pending() <= max);
    }
    assert_eq!(rank.acceptor.pending(), max);
}

#[test]
fn a_peer_is_accepted_among_silent_connections() {
    let mut rank = rank_zero();
    let _silent: Vec<_> = (0..100).map(|_| socket::connect(rank.listener).unwrap()).collect();
    let _peer = rank.connect(&hello());
    let accepted = (0..7).flat_map(|_| rank.turn(1)).next().unwrap();
    assert_eq!(accepted.hello, hello());
    let destination = Destination { key: hello().key, world_rank: 1, index: 0 };
    assert_eq!(rank.protocol.destination(&accepted), destination);
}

#[test]
fn rings_of_an_impossible_capacity_are_rejected() {
    let mut rank = rank_zero();
    for capacity in [0, 1, 5000, (1 << 30) + 4096, 1 << 31, 1 << 62, 1 << 63, u64::MAX] {
        let socket = rank.connect(&Hello { capacity, ..hello() });
        assert!(rank.turn(1).is_empty());
        assert!(is_closed(&socket), "{capacity}");
    }
}

#[test]
fn processes_that_are_no_members_are_rejected() {
    let mut rank = rank_zero();
    let wrong_token = Hello { token: 3, ..hello() };
    let for_another = Hello { to_token: 3, ..hello() };
    let own_rank = Hello { rank: 0, token: 1, ..hello() };
    let no_rank = Hello { rank: 2, ..hello() };
    for hello in [wrong_token, for_another, own_rank, no_rank] {
        let socket = rank.connect(&hello);
        assert!(rank.turn(1).is_empty());
        assert!(is_closed(&socket), "{hello:?}");
    }
    let without_memory = socket::connect(rank.listener).unwrap();
    socket::send(&without_memory, &hello().encode(), None).unwrap();
    assert!(rank.turn(1).is_empty());
    assert!(is_closed(&without_memory));
}

#[test]
fn a_member_is_rejected_when_too_many_connections_wait_for_their_channel() {
    let mut rank = rank_zero();
    let socket = rank.connect(&hello());
    assert!(rank.turn(0).is_empty());
    assert!(is_closed(&socket));
}
