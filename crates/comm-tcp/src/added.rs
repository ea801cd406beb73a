//! Connects the sockets that this rank adds to its streams, accepts those that peers add to theirs,
//! and makes connections on demand, while a channel is used.

use std::os::fd::OwnedFd;
use std::time::Instant;

use comm_core::Result;
use comm_mesh::{Added, Registration};
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::connect::{Connected, Connector};
use crate::connection::Connection;
use crate::mesh::TcpProtocol;
use crate::protection::Established;

/// The sockets of one channel that are being added.
#[derive(Debug)]
pub(crate) struct AddedSockets {
    registration: Registration<TcpProtocol>,
    /// The rank in the world of each rank on the channel.
    world_ranks: Vec<usize>,
    connecting: Vec<Connecting>,
    read_ahead: usize,
}

/// A socket that is being connected.
#[derive(Debug)]
struct Connecting {
    rank: usize,
    number: u8,
    connector: Connector,
}

/// A connection that a peer has added to its stream.
#[derive(Debug)]
pub(crate) struct IncomingSocket {
    /// The rank of the peer on the channel.
    pub(crate) rank: usize,
    pub(crate) number: u8,
    pub(crate) connection: Connection,
}

impl AddedSockets {
    /// `read_ahead` is the number of bytes that a protected connection reads ahead.
    pub(crate) const fn new(
        registration: Registration<TcpProtocol>,
        world_ranks: Vec<usize>,
        read_ahead: usize,
    ) -> Self {
        Self { registration, world_ranks, connecting: Vec::new(), read_ahead }
    }

    /// Reports events of the listener and of other threads that have accepted connections.
    pub(crate) fn watch(&self, epoll: &OwnedFd, data: EventData) -> rustix::io::Result<()> {
        // If connections are made on demand, a thread watches the listener.
        let descriptors = self.registration.descriptors();
        let mut descriptors = descriptors.iter().skip(usize::from(self.registration.is_on_demand()));
        descriptors.try_for_each(|descriptor| epoll::add(epoll, descriptor, data, EventFlags::IN))
    }

    /// Takes the connections that peers have added.
    pub(crate) fn accept(&self) -> Result<Vec<IncomingSocket>> {
        let incoming = |added: Added<Established>| {
            let rank = self.world_ranks.iter().position(|rank| *rank == added.world_rank)?;
            let connection = Connection::new(added.connection, self.read_ahead).assume_ready();
            Some(IncomingSocket { rank, number: added.index, connection })
        };
        Ok(self.registration.accept_added()?.into_iter().filter_map(incoming).collect())
    }

    /// Requests the connection to a rank, as [`Registration::request`] does.
    pub(crate) fn request(&mut self, rank: usize) -> Result<bool> {
        self.registration.request(rank)
    }

    /// Whether the connection to a rank cannot be made.
    pub(crate) fn has_failed(&self, rank: usize) -> bool {
        self.registration.has_failed(rank)
    }

    /// Takes the connections that were made on demand.
    pub(crate) fn take_made(&mut self) -> Vec<(usize, Option<Established>)> {
        self.registration.take_made()
    }

    /// Begins to connect a socket to a rank. Returns `false` if that failed at once. Otherwise
    /// epoll reports its events with this token.
    pub(crate) fn connect(&mut self, epoll: &OwnedFd, (rank, number): (usize, u8), data: EventData) -> bool {
        let protocol = self.registration.protocol();
        let mut connector = protocol.connector(self.registration.key(), self.world_ranks[rank], number);
        let is_pending = matches!(connector.advance(Instant::now()), Connected::Pending);
        let watched = connector.socket().filter(|_| is_pending).is_some_and(|socket| {
            epoll::add(epoll, socket, data, EventFlags::IN | EventFlags::OUT | EventFlags::ET).is_ok()
        });
        if watched {
            self.connecting.push(Connecting { rank, number, connector });
        }
        watched
    }

    /// Continues to connect a socket. Returns `None` while it is being connected, and `Some(None)`
    /// if it cannot be: there is one attempt, because a peer may already have accepted the socket
    /// of a failed one.
    pub(crate) fn resume(&mut self, rank: usize, number: u8) -> Option<Option<Connection>> {
        let at = self.connecting.iter().position(|conn| (conn.rank, conn.number) == (rank, number))?;
        let connector = &mut self.connecting[at].connector;
        let connected = match connector.advance(Instant::now()) {
            Connected::Pending if connector.socket().is_some() => return None,
            Connected::Open(established) => {
                Some(Connection::new(established, self.read_ahead).assume_ready())
            }
            Connected::Pending => {
                tracing::debug!(rank, number, reason = %connector.reason(), "cannot add a socket to a stream");
                None
            }
            Connected::Refused(refusal) => {
                tracing::debug!(rank, number, %refusal, "cannot add a socket to a stream");
                None
            }
        };
        self.connecting.swap_remove(at);
        Some(connected)
    }
}
