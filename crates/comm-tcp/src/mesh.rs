//! Connects the ranks of a mesh with TCP.

use std::io;
use std::time::Instant;

use comm_core::{ChannelId, ChannelKind, Group, Result};
use comm_mesh::{Accept, ConnId, Destination, HandshakeState, Limits, Protocol, pending_max};
use socket2::Socket;

use crate::accept::{Accepted, Handshaking, accept};
use crate::config::TcpConfig;
use crate::connect::{ChannelConnector, Connector};
use crate::identity::Identity;
use crate::peer::Peer;
use crate::probe::Probe;
use crate::protection::Established;
use crate::socket::Options;
use crate::transport::TcpTransport;

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
    type Probe = Probe;
    type Channel = TcpTransport;

    fn key(&self, channel: ChannelId, _members: &[usize]) -> ChannelId {
        channel
    }

    fn connections_per_peer(&self, channel: ChannelId) -> u8 {
        self.identity.stripes(channel).sockets
    }

    fn connections_max(&self) -> usize {
        let sockets = self.identity.members.first().map_or(1, |first| first.stripes.sockets);
        self.identity.members.len() * usize::from(sockets)
    }

    fn connect(&self, channel: ChannelId, to: ConnId, _peers: usize) -> ChannelConnector {
        let Identity { members, protection, .. } = &self.identity;
        let hello = self.identity.hello(to.world_rank, channel, to.index);
        let address = members[to.world_rank].address;
        // A rank listens before it publishes its address.
        let connector =
            Connector::new(address, hello, protection.clone(), self.options(channel)).reached_before();
        ChannelConnector { rank: to.rank, connector }
    }

    fn probe(&self, now: Instant, expected: &[ConnId]) -> Probe {
        let address = |id: &ConnId| (id.rank, self.identity.members[id.world_rank].address);
        let mut peers: Vec<_> = expected.iter().map(address).collect();
        peers.dedup();
        Probe::new(peers, Options::channel(&self.config, None), now)
    }

    fn destination(&self, accepted: &Self::Accepted) -> Destination<ChannelId> {
        accepted.authorized
    }

    fn establish(&self, channel: ChannelId, accepted: Self::Accepted) -> io::Result<Established> {
        self.options(channel).apply(&accepted.established.socket)?;
        Ok(accepted.established)
    }

    fn channel(
        &self,
        channel: ChannelId,
        group: Group,
        peers: Vec<(usize, Vec<Established>)>,
    ) -> Result<TcpTransport> {
        let read_ahead = match channel.kind {
            ChannelKind::Control => self.config.read_ahead.min(CONTROL_READ_AHEAD),
            _ => self.config.read_ahead,
        };
        let transport = TcpTransport::new(group, peers, self.identity.stripes(channel), read_ahead)?;
        match self.config.keepalive(channel.kind) {
            Some(keepalive) => transport.detect_lost_hosts(keepalive, Peer::is_on_another_host),
            None => Ok(transport),
        }
    }
}
