//! Connects the ranks of a mesh with TCP.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use comm_core::{ChannelId, ChannelKind, Result};
use comm_mesh::{
    ASK_INDEX, Accept, ConnId, ConnectedChannel, Destination, HandshakeState, Limits, Protocol, pending_max,
};
use socket2::Socket;

use crate::accept::{Accepted, Handshaking, accept};
use crate::added::AddedSockets;
use crate::ask::Asker;
use crate::config::TcpConfig;
use crate::connect::{ChannelConnector, Connector};
use crate::hello::Hello;
use crate::identity::Identity;
use crate::keepalive::Keepalive;
use crate::outgoing::NewSocket;
use crate::probe::Probe;
use crate::protection::Established;
use crate::socket::{self, Options};
use crate::transport::{ChannelConfig, TcpTransport};

/// The number of bytes that a control channel reads ahead per peer: its frames are short, and there
/// may be many peers.
const CONTROL_READ_AHEAD: usize = 4096;

/// The sockets and handshakes of the channels of one rank.
#[derive(Debug)]
pub(crate) struct TcpProtocol {
    pub(crate) identity: Identity,
    pub(crate) config: TcpConfig,
}

impl TcpProtocol {
    fn options(&self, channel: ChannelId) -> Options {
        Options::channel(&self.config, self.config.keepalive(channel.kind))
    }

    /// Begins to connect the socket with which a channel is opened to a rank of the world, or one
    /// that asks for it.
    fn connector(&self, channel: ChannelId, world_rank: usize, number: u8) -> Connector {
        let address = self.identity.members[world_rank].address;
        self.connector_at(address, self.options(channel), self.identity.hello(world_rank, channel, number))
    }

    /// Begins to connect a socket that is added to a stream to a rank of the world.
    pub(crate) fn connector_of_added(
        &self,
        channel: ChannelId,
        world_rank: usize,
        socket: NewSocket,
    ) -> Option<Connector> {
        let NewSocket { number, address } = socket;
        let hello = self.identity.hello(world_rank, channel, number);
        let options = match address {
            0 => self.options(channel),
            _ => Options::channel(&self.config, self.config.keepalive_of_others()),
        };
        Some(self.connector_at(self.addresses(world_rank).nth(address)?, options, hello))
    }

    fn connector_at(&self, address: SocketAddr, options: Options, hello: Hello) -> Connector {
        // A rank listens before it publishes its addresses.
        Connector::new(address, hello, self.identity.protection.clone(), options).reached_before()
    }

    /// The addresses of a rank of the world, except addresses that this host has, too, such as the
    /// address of a bridge for containers.
    pub(crate) fn addresses(&self, world_rank: usize) -> impl Iterator<Item = SocketAddr> {
        let Identity { members, rank, .. } = &self.identity;
        let (own, first) = (&members[*rank], members[world_rank].address);
        let is_own = |other: SocketAddr| own.addresses().any(|address| address.ip() == other.ip());
        members[world_rank].addresses().filter(move |address| *address == first || !is_own(*address))
    }

    /// The time when the host of a peer is lost that has connected this socket, if it did so
    /// through another interface than the channel's.
    pub(crate) fn keepalive_of(&self, socket: &Socket) -> Option<Keepalive> {
        let Identity { members, rank, .. } = &self.identity;
        let local = socket::local_address(socket).ok()?.ip();
        let is_other = members[*rank].others.iter().any(|other| other.ip() == local);
        self.config.keepalive_of_others().filter(|_| is_other)
    }
}

impl Accept for TcpProtocol {
    type Listener = Socket;
    type Conn = Handshaking<Destination<ChannelId>>;
    type Accepted = Accepted<Destination<ChannelId>>;

    const NAME: &'static str = "tcp channels";

    fn limits(&self) -> Limits {
        Limits { pending_max: pending_max(), handshake_timeout: Some(self.config.handshake_timeout) }
    }

    fn accept(&self, listener: &Socket) -> io::Result<Option<HandshakeState<Self::Conn, Self::Accepted>>> {
        accept(listener, &Options::channel(&self.config, None), &self.identity.protection)
    }

    fn handshake(&self, conn: Self::Conn, has_capacity: bool) -> HandshakeState<Self::Conn, Self::Accepted> {
        conn.advance(has_capacity, |hello| self.identity.authorize(hello))
    }
}

impl Protocol for TcpProtocol {
    type Key = ChannelId;
    type Connection = Established;
    type Connect = ChannelConnector;
    type Ask = Asker;
    type Probe = Probe;
    type Channel = TcpTransport;

    fn key(&self, channel: ChannelId, _members: &[usize]) -> ChannelId {
        channel
    }

    /// Peers add sockets only to channels that are open on this rank, at most to a few at a time.
    fn connections_max(&self) -> usize {
        self.identity.members.len()
    }

    fn full_mesh_max(&self) -> usize {
        self.config.full_mesh_max
    }

    fn connect(&self, channel: ChannelId, to: ConnId, _peers: usize) -> ChannelConnector {
        ChannelConnector { rank: to.rank, connector: self.connector(channel, to.world_rank, 0) }
    }

    fn ask(&self, channel: ChannelId, to: ConnId) -> Asker {
        Asker::new(to.rank, self.connector(channel, to.world_rank, ASK_INDEX))
    }

    fn probe(&self, now: Instant, expected: &[ConnId]) -> Probe {
        let address = |id: &ConnId| (id.rank, self.identity.members[id.world_rank].address);
        Probe::new(expected.iter().map(address).collect(), Options::channel(&self.config, None), now)
    }

    fn destination(&self, accepted: &Self::Accepted) -> Destination<ChannelId> {
        accepted.authorized
    }

    fn establish(&self, channel: ChannelId, accepted: Self::Accepted) -> io::Result<Established> {
        let socket = &accepted.established.socket;
        let others = self.keepalive_of(socket).map(|of| Options::channel(&self.config, Some(of)));
        others.unwrap_or_else(|| self.options(channel)).apply(socket)?;
        Ok(accepted.established)
    }

    fn channel(&self, connected: ConnectedChannel<Self>) -> Result<TcpTransport> {
        let ConnectedChannel { key: ChannelId { kind, .. }, group, peers, on_demand, registration, .. } =
            connected;
        let mut config = self.config.clone();
        if kind == ChannelKind::Control {
            config.read_ahead = config.read_ahead.min(CONTROL_READ_AHEAD);
        }
        let mut world_ranks = vec![usize::MAX; group.size()];
        let ids = peers.iter().map(|(id, _)| id).chain(&on_demand);
        ids.for_each(|id| world_ranks[id.rank] = id.world_rank);
        let sockets = peers.into_iter().map(|(id, socket)| (id.rank, socket));
        let added = registration
            .filter(|registration| kind != ChannelKind::Control || registration.is_on_demand())
            .map(|registration| AddedSockets::new(registration, world_ranks, config.read_ahead));
        TcpTransport::new(group, sockets, added, ChannelConfig { kind, tcp: config })
    }
}
