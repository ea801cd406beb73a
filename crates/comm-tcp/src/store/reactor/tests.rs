//! Connections that do not authenticate cannot make the server hold many of them.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;

use comm_core::Notify;
use comm_mesh::pending_max;

use super::*;
use crate::socket;

fn reactor(notify: &Notify, config: StoreConfig) -> (Reactor, SocketAddr) {
    let listener = socket::listen("127.0.0.1:0".parse().unwrap(), &Options::store()).unwrap();
    let address = socket::local_address(&listener).unwrap();
    let reactor = Reactor::new(listener, Options::store(), notify.as_fd(), config, Arc::default()).unwrap();
    (reactor, address)
}

#[test]
fn silent_connections_are_bounded() {
    let notify = Notify::new().unwrap();
    for strangers_max in [3, usize::MAX] {
        let config = StoreConfig { strangers_max, ..StoreConfig::default() };
        let (mut reactor, address) = reactor(&notify, config);
        let _silent: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
        let max = pending_max().min(strangers_max);
        let pending = |reactor: &Reactor| reactor.acceptor.as_ref().map(Acceptor::pending);
        for _ in 0..10 {
            reactor.accept();
            assert!(pending(&reactor) <= Some(max));
        }
        assert_eq!((pending(&reactor), reactor.connections.len()), (Some(max), 0));
    }
}
