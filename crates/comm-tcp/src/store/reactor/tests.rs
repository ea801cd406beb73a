//! What strangers can make the server hold.

use std::net::TcpStream;
use std::os::fd::AsFd;

use comm_core::Bell;

use super::*;

fn reactor(bell: &Bell, config: StoreConfig) -> (Reactor, SocketAddr) {
    let listener = socket::listen("127.0.0.1:0".parse().unwrap(), &Options::store()).unwrap();
    let address = socket::local_address(&listener).unwrap();
    let reactor = Reactor::new(listener, Options::store(), bell.as_fd(), config, Arc::default()).unwrap();
    (reactor, address)
}

#[test]
fn one_turn_accepts_a_bounded_number_and_all_turns_hold_no_more_than_the_limit() {
    let bell = Bell::new().unwrap();
    let config = StoreConfig { strangers_max: usize::MAX, ..StoreConfig::default() };
    let (mut reactor, address) = reactor(&bell, config);
    let _silent: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    for turn in 1..=200 / ACCEPTS_PER_TURN {
        reactor.accept_some();
        assert_eq!(reactor.strangers.len(), (turn * ACCEPTS_PER_TURN).min(pending_max()));
        assert_eq!(reactor.connections.len(), reactor.strangers.len());
    }
}
