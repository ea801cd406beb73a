//! What other processes can make a listener hold.

use std::time::{Duration, Instant};

use comm_core::{GroupId, LaneId, LaneKind};
use rustix::event::{PollFd, PollFlags};

use super::*;
use crate::random;
use crate::record::Member;

fn reception() -> (Reception, Identity, LaneKey, u128) {
    let door = random::number().unwrap();
    let members = vec![Some(Member { door, token: 1 }), Some(Member { door: 0, token: 2 })];
    let key = LaneKey::new(LaneId { group: GroupId::WORLD, kind: LaneKind::Collective }, &[0, 1]);
    let reception = Reception::new(socket::open_door(door).unwrap()).unwrap();
    (reception, Identity { rank: 0, token: 1, members }, key, door)
}

fn collect(reception: &Reception, identity: &Identity, key: LaneKey) -> Vec<(usize, Arrival)> {
    let soon = Instant::now() + Duration::from_secs(10);
    socket::wait(&mut [PollFd::new(reception, PollFlags::IN)], soon).unwrap();
    reception.collect(identity, key, [1].into_iter()).unwrap()
}

#[test]
fn one_turn_accepts_a_bounded_number_and_all_turns_hold_no_more_than_the_limit() {
    let (reception, identity, key, door) = reception();
    reception.announce(key, Arc::new(Bell::new().unwrap()));
    let _silent: Vec<_> = (0..200).map(|_| socket::knock(door).unwrap()).collect();
    for turn in 1..=200 / ACCEPTS_PER_TURN {
        collect(&reception, &identity, key);
        let pending = reception.desk().guests.len();
        assert_eq!(pending, (turn * ACCEPTS_PER_TURN).min(pending_max(2)));
    }
}

#[test]
fn a_peer_is_heard_among_silent_connections() {
    let (reception, identity, key, door) = reception();
    let bell = Arc::new(Bell::new().unwrap());
    reception.announce(key, Arc::clone(&bell));
    let _silent: Vec<_> = (0..100).map(|_| socket::knock(door).unwrap()).collect();
    let (_segment, file) = Segment::create(rustix::param::page_size()).unwrap();
    let hello = |capacity| Hello { key, rank: 1, token: 2, to_token: 1, capacity };
    let dial = |capacity| {
        let socket = socket::knock(door).unwrap();
        socket::send(&socket, &hello(capacity).encode(), Some(file.as_fd())).unwrap();
        socket
    };
    let _absurd = dial(1 << 63);
    let _peer = dial(4096);
    let soon = Instant::now() + Duration::from_secs(10);
    let arrivals = loop {
        assert!(Instant::now() < soon);
        match collect(&reception, &identity, key) {
            none if none.is_empty() => {}
            arrivals => break arrivals,
        }
    };
    assert_eq!(
        arrivals.iter().map(|(rank, arrival)| (*rank, arrival.capacity)).collect::<Vec<_>>(),
        [(1, 4096)]
    );
    reception.withdraw(key, &bell);
    assert!(reception.desk().guests.is_empty(), "nothing stays pending when no lane is being opened");
}

#[test]
fn rings_of_an_impossible_capacity_are_refused() {
    for capacity in [0, 1, 5000, (1 << 30) + 4096, 1 << 31, 1 << 62, 1 << 63, u64::MAX] {
        let (reception, identity, key, door) = reception();
        reception.announce(key, Arc::new(Bell::new().unwrap()));
        let (_segment, file) = Segment::create(rustix::param::page_size()).unwrap();
        let hello = Hello { key, rank: 1, token: 2, to_token: 1, capacity };
        let socket = socket::knock(door).unwrap();
        socket::send(&socket, &hello.encode(), Some(file.as_fd())).unwrap();
        assert!(collect(&reception, &identity, key).is_empty());
        let closed = socket::recv(&socket, &mut [0; 8]).unwrap().unwrap();
        assert_eq!(closed.len, 0, "{capacity}");
    }
}
