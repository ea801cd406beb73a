//! What strangers can make a listener hold.

use std::net::TcpStream;
use std::time::Duration;

use comm_core::{GroupId, LaneKind};
use rustix::event::PollFlags;

use super::*;
use crate::record::Member;
use crate::stripes::Stripes;

const LANE: LaneId = LaneId { group: GroupId::WORLD, kind: LaneKind::Collective };

fn reception() -> (Reception, Identity, SocketAddr) {
    let options = Options::lane(&TcpConfig::default(), false);
    let listener = socket::listen("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let address = socket::local_address(&listener).unwrap();
    let members = vec![Member { process: 1, address, stripes: Stripes::NONE }; 2];
    (Reception::new(listener).unwrap(), Identity { rank: 0, job: 0, secret: None, members }, address)
}

fn collect(reception: &Reception, identity: &Identity) {
    socket::wait_for(reception, PollFlags::IN, socket::after(Duration::from_secs(10))).unwrap();
    assert!(reception.collect(identity, &TcpConfig::default(), LANE, &[]).unwrap().is_empty());
}

#[test]
fn one_turn_accepts_a_bounded_number_and_all_turns_hold_no_more_than_the_limit() {
    let (reception, identity, address) = reception();
    let bell = Arc::new(Bell::new().unwrap());
    reception.announce(LANE, Arc::clone(&bell));
    let _silent: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    for turn in 1..=200 / ACCEPTS_PER_TURN {
        collect(&reception, &identity);
        let pending = reception.desk().guests.len();
        assert!(pending <= turn * ACCEPTS_PER_TURN && pending <= pending_max(), "{pending} in turn {turn}");
    }
    assert_eq!(reception.desk().guests.len(), pending_max());
}

#[test]
fn nothing_stays_pending_when_no_lane_is_being_opened() {
    let (reception, identity, address) = reception();
    let bells = [(); 2].map(|()| Arc::new(Bell::new().unwrap()));
    bells.iter().for_each(|bell| reception.announce(LANE, Arc::clone(bell)));
    let _silent: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
    collect(&reception, &identity);
    reception.withdraw(LANE, &bells[0]);
    assert_eq!(reception.desk().guests.len(), 5);
    reception.withdraw(LANE, &bells[1]);
    assert_eq!(reception.desk().guests.len(), 0);
}
