//! Connects the sockets that this rank adds to its streams, accepts those that peers add to theirs,
//! and makes connections on demand, while a channel is used.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use comm_core::{Result, simulation};
use comm_mesh::{Added, Registration};
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::connect::{Connected, Connector};
use crate::connection::Connection;
use crate::keepalive::Keepalive;
use crate::mesh::TcpProtocol;
use crate::outgoing::NewSocket;
use crate::protection::Established;

/// The time after which a host that has not answered a request for a connection does not lead to
/// the peer. The kernel repeats a request that was lost after a second.
const UNANSWERED_MAX: Duration = Duration::from_millis(1500);

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
    socket: NewSocket,
    connector: Connector,
    since: Instant,
}

/// A connection that a peer has added to its stream.
#[derive(Debug)]
pub(crate) struct IncomingSocket {
    /// The rank of the peer on the channel.
    pub(crate) rank: usize,
    pub(crate) number: u8,
    pub(crate) connection: Connection,
    /// The time when its host is lost, if it has come through another interface than the channel's.
    pub(crate) keepalive: Option<Keepalive>,
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
            let keepalive = self.registration.protocol().keepalive_of(&added.connection.socket);
            let connection = Connection::new(added.connection, self.read_ahead).assume_ready();
            Some(IncomingSocket { rank, number: added.index, connection, keepalive })
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

    /// The number of addresses of a rank to which sockets may be added, at least one.
    pub(crate) fn addresses(&self, rank: usize) -> usize {
        self.registration.protocol().addresses(self.world_ranks[rank]).count().max(1)
    }

    /// One of the addresses of a rank.
    pub(crate) fn address(&self, rank: usize, address: usize) -> Option<SocketAddr> {
        self.registration.protocol().addresses(self.world_ranks[rank]).nth(address)
    }

    /// When the host of a rank is lost to which a socket leads, if it is not at the address of
    /// the channel.
    pub(crate) fn keepalive(&self, socket: NewSocket) -> Option<Keepalive> {
        self.registration.protocol().config.keepalive_of_others().filter(|_| socket.address > 0)
    }

    /// Begins to connect a socket to a rank. Returns `false` if that failed at once. Otherwise
    /// epoll reports its events with this token.
    pub(crate) fn connect(
        &mut self,
        epoll: &OwnedFd,
        (rank, socket): (usize, NewSocket),
        data: EventData,
    ) -> bool {
        let protocol = self.registration.protocol();
        let to = self.world_ranks[rank];
        let Some(mut connector) = protocol.connector_of_added(self.registration.key(), to, socket) else {
            return false;
        };
        let since = simulation::now();
        // The handshake follows once events are reported: it may end at once if the peer is fast.
        let begun = connector.begin(since);
        let watched = begun.is_ok()
            && connector.socket().is_some_and(|socket| {
                epoll::add(epoll, socket, data, EventFlags::IN | EventFlags::OUT | EventFlags::ET).is_ok()
            });
        if watched {
            self.connecting.push(Connecting { rank, socket, connector, since });
        }
        watched
    }

    /// Gives up the sockets to a rank whose host has not answered for too long. Returns these.
    pub(crate) fn give_up_unanswered(&mut self, rank: usize, now: Instant) -> Vec<NewSocket> {
        let is_late = |conn: &mut Connecting| {
            let waits = now.saturating_duration_since(conn.since);
            conn.rank == rank && waits >= UNANSWERED_MAX && conn.connector.is_still_unanswered()
        };
        self.connecting.extract_if(.., is_late).map(|conn| conn.socket).collect()
    }

    /// Continues to connect a socket. Returns `None` while it is being connected, and otherwise the
    /// connection, or `None` if it cannot be: there is one attempt, because a peer may already have
    /// accepted the socket of a failed one.
    pub(crate) fn resume(&mut self, rank: usize, number: u8) -> Option<(NewSocket, Option<Connection>)> {
        let is_it = |conn: &Connecting| (conn.rank, conn.socket.number) == (rank, number);
        let at = self.connecting.iter().position(is_it)?;
        let connector = &mut self.connecting[at].connector;
        let address = connector.address;
        let connected = match connector.advance(simulation::now()) {
            Connected::Pending if connector.socket().is_some() => return None,
            Connected::Open(established) => {
                Some(Connection::new(established, self.read_ahead).assume_ready())
            }
            Connected::Pending => {
                let reason = connector.reason();
                tracing::debug!(rank, number, %address, %reason, "cannot add a socket to a stream");
                None
            }
            Connected::Refused(refusal) => {
                tracing::debug!(rank, number, %address, %refusal, "cannot add a socket to a stream");
                None
            }
        };
        Some((self.connecting.swap_remove(at).socket, connected))
    }
}
