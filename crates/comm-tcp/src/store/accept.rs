//! Authenticates the clients of a store.

use std::io;

use comm_mesh::{Accept, HandshakeState, Limits, pending_max};
use socket2::Socket;

use super::StoreConfig;
use crate::accept::{Accepted, Handshaking, accept};
use crate::socket::Options;

/// The handshake of a store.
#[derive(Debug)]
pub(super) struct StoreProtocol {
    pub(super) config: StoreConfig,
    pub(super) options: Options,
}

impl Accept for StoreProtocol {
    type Listener = Socket;
    type Conn = Handshaking<()>;
    type Accepted = Accepted<()>;

    const NAME: &'static str = "store";

    fn limits(&self) -> Limits {
        let pending_max = self.config.pending_max.min(pending_max()).max(1);
        Limits { pending_max, handshake_timeout: Some(self.config.handshake_timeout) }
    }

    fn accept(&self, listener: &Socket) -> io::Result<Option<HandshakeState<Self::Conn, Self::Accepted>>> {
        accept(listener, &self.options, &self.config.protection())
    }

    fn handshake(&self, conn: Self::Conn, has_capacity: bool) -> HandshakeState<Self::Conn, Self::Accepted> {
        conn.advance(has_capacity, |hello| self.config.authorize(hello))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_lowers_the_limit_of_pending_connections() {
        for (setting, limit) in [(0, 1), (3, 3), (usize::MAX, pending_max())] {
            let config = StoreConfig { pending_max: setting, ..StoreConfig::default() };
            let protocol = StoreProtocol { config, options: Options::store_server(None) };
            assert_eq!(protocol.limits().pending_max, limit);
        }
    }
}
