//! Authenticates the clients of a store.

use std::io;

use comm_core::Refusal;
use comm_mesh::{Accept, HandshakeState, Limits, pending_max};
use socket2::Socket;

use super::StoreConfig;
use crate::accept::{Accepted, Handshaking, accept};
use crate::hello::{Hello, Purpose};
use crate::socket::Options;

/// The handshake of a store.
#[derive(Debug)]
pub(super) struct StoreProtocol {
    pub(super) config: StoreConfig,
    pub(super) options: Options,
}

impl StoreProtocol {
    fn authorize(&self, hello: &Hello) -> Result<(), Refusal> {
        match hello.purpose {
            Purpose::Store if hello.job == self.config.job => Ok(()),
            Purpose::Store => Err(Refusal::Job),
            Purpose::Channel(_) => Err(Refusal::NotAPeer),
        }
    }
}

impl Accept for StoreProtocol {
    type Listener = Socket;
    type Conn = Handshaking<()>;
    type Accepted = Accepted<()>;

    const NAME: &'static str = "store";

    fn limits(&self) -> Limits {
        let pending_max = self.config.strangers_max.min(pending_max()).max(1);
        Limits { pending_max, handshake_timeout: Some(self.config.handshake_timeout) }
    }

    fn accept(&self, listener: &Socket) -> io::Result<Option<HandshakeState<Self::Conn, Self::Accepted>>> {
        accept(listener, &self.options, self.config.secret.as_ref())
    }

    fn handshake(&self, conn: Self::Conn, has_capacity: bool) -> HandshakeState<Self::Conn, Self::Accepted> {
        conn.advance(has_capacity, |hello| self.authorize(hello))
    }
}
