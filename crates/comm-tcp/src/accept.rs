//! The accepting side of the handshake, for the store and for channels.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use comm_core::Refusal;
use comm_mesh::{HandshakeState, PendingConn};
use socket2::Socket;

use crate::handshake::{Handshake, Progress};
use crate::hello::Hello;
use crate::protection::{Established, ProtectionConfig};
use crate::socket::{self, Options};

/// An accepted connection that has not completed its handshake.
#[derive(Debug)]
pub(crate) struct Handshaking<T> {
    socket: Socket,
    address: SocketAddr,
    handshake: Box<Handshake>,
    /// Set once the hello was authorized and the verdict is being sent.
    authorized: Option<T>,
}

/// A connection whose peer is authenticated, and its authorization.
#[derive(Debug)]
pub(crate) struct Accepted<T> {
    pub(crate) established: Established,
    pub(crate) address: SocketAddr,
    pub(crate) authorized: T,
}

/// Accepts a connection if there is one, and sets it up.
pub(crate) fn accept<T>(
    listener: &Socket,
    options: &Options,
    config: &ProtectionConfig,
) -> io::Result<Option<HandshakeState<Handshaking<T>, Accepted<T>>>> {
    let Some((socket, address)) = socket::accept(listener)? else { return Ok(None) };
    let set_up = options.apply_accepted(&socket, listener);
    Ok(Some(match set_up.and_then(|()| Handshake::accept(config.clone())) {
        Ok(handshake) => {
            let handshake = Box::new(handshake);
            HandshakeState::Pending(Handshaking { socket, address, handshake, authorized: None })
        }
        Err(error) => HandshakeState::Rejected(format!("it cannot be set up: {error}")),
    }))
}

impl<T> Handshaking<T> {
    /// Continues the handshake without blocking. If there is no capacity, the connection is closed
    /// when the hello has arrived, and the peer tries again.
    pub(crate) fn advance(
        mut self,
        has_capacity: bool,
        authorize: impl FnOnce(&Hello) -> Result<T, Refusal> + Copy,
    ) -> HandshakeState<Self, Accepted<T>> {
        loop {
            match self.handshake.advance(&self.socket) {
                Ok(Progress::Pending) => return HandshakeState::Pending(self),
                Ok(Progress::Authorize(_)) if !has_capacity => {
                    return HandshakeState::Rejected("there are too many connections".into());
                }
                Ok(Progress::Authorize(hello)) => {
                    let authorized = authorize(&hello);
                    self.handshake.answer(authorized.as_ref().map(drop).map_err(Clone::clone));
                    self.authorized = authorized.ok();
                }
                Ok(Progress::Done) => {
                    let Self { socket, address, authorized, handshake } = self;
                    let unauthorized = || HandshakeState::Rejected("it is not authorized".into());
                    return authorized.map_or_else(unauthorized, |authorized| {
                        let established = handshake.into_established(socket);
                        HandshakeState::Accepted(Accepted { established, address, authorized })
                    });
                }
                Ok(Progress::Refused(refusal)) => return HandshakeState::Rejected(refusal.to_string()),
                Err(error) => return HandshakeState::Broken(error),
            }
        }
    }
}

impl<T> AsFd for Handshaking<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<T> PendingConn for Handshaking<T> {
    fn address(&self) -> Option<SocketAddr> {
        Some(self.address)
    }

    fn has_greeted(&self) -> bool {
        self.handshake.has_greeted()
    }

    fn wants_write(&self) -> bool {
        self.handshake.wants_write()
    }
}
