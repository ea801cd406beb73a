//! Connects the ranks of a mesh with TCP.

use std::io;
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
use crate::identity::Identity;
use crate::probe::Probe;
use crate::protection::Established;
use crate::socket::Options;
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

    /// Begins to connect the socket of this number to a rank of the world.
    pub(crate) fn connector(&self, channel: ChannelId, world_rank: usize, number: u8) -> Connector {
        let Identity { members, protection, .. } = &self.identity;
        let hello = self.identity.hello(world_rank, channel, number);
        // A rank listens before it publishes its address.
        Connector::new(members[world_rank].address, hello, protection.clone(), self.options(channel))
            .reached_before()
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
        self.options(channel).apply(&accepted.established.socket)?;
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
