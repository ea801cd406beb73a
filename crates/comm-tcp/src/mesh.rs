//! How TCP connects the ranks of a mesh.

use std::io;
use std::time::Instant;

use comm_core::{Group, LaneId, LaneKind, Result};
use comm_mesh::{Accept, ConnId, Destination, HandshakeState, Limits, Protocol, pending_max};
use socket2::Socket;

use crate::accept::{Accepted, Handshaking, accept};
use crate::config::TcpConfig;
use crate::connect::{Connector, LaneConnector};
use crate::identity::Identity;
use crate::probe::Probe;
use crate::socket::Options;
use crate::transport::TcpTransport;

/// What a control lane reads ahead per peer, in bytes: its frames are short, and there may be many
/// peers.
const CONTROL_READ_AHEAD: usize = 4096;

/// The sockets and handshakes of the lanes of one rank.
#[derive(Debug)]
pub(crate) struct TcpProtocol {
    pub(crate) identity: Identity,
    pub(crate) config: TcpConfig,
}

impl TcpProtocol {
    fn options(&self, lane: LaneId) -> Options {
        Options::lane(&self.config, lane.kind == LaneKind::Control)
    }
}

impl Accept for TcpProtocol {
    type Listener = Socket;
    type Conn = Handshaking<Destination<LaneId>>;
    type Accepted = Accepted<Destination<LaneId>>;

    const NAME: &'static str = "tcp lanes";

    fn limits(&self) -> Limits {
        Limits { pending_max: pending_max(), handshake_timeout: Some(self.config.handshake_timeout) }
    }

    fn accept(&self, listener: &Socket) -> io::Result<Option<HandshakeState<Self::Conn, Self::Accepted>>> {
        accept(listener, &Options::lane(&self.config, false), self.identity.secret.as_ref())
    }

    fn handshake(&self, conn: Self::Conn, has_capacity: bool) -> HandshakeState<Self::Conn, Self::Accepted> {
        conn.advance(has_capacity, |hello| self.identity.authorize(hello))
    }
}

impl Protocol for TcpProtocol {
    type Key = LaneId;
    type Connection = Socket;
    type Connect = LaneConnector;
    type Probe = Probe;
    type Lane = TcpTransport;

    fn key(&self, lane: LaneId, _members: &[usize]) -> LaneId {
        lane
    }

    fn connections_per_peer(&self, lane: LaneId) -> u8 {
        self.identity.stripes(lane).sockets
    }

    fn connections_max(&self) -> usize {
        let sockets = self.identity.members.first().map_or(1, |first| first.stripes.sockets);
        self.identity.members.len() * usize::from(sockets)
    }

    fn connect(&self, lane: LaneId, to: ConnId, _peers: usize) -> LaneConnector {
        let Identity { members, secret, .. } = &self.identity;
        let hello = self.identity.hello(to.world_rank, lane, to.index);
        let address = members[to.world_rank].address;
        // A rank listens before it publishes its address.
        let connector = Connector::new(address, hello, secret.clone(), self.options(lane)).reached_before();
        LaneConnector { rank: to.rank, connector }
    }

    fn probe(&self, now: Instant, awaited: &[ConnId]) -> Probe {
        let address = |id: &ConnId| (id.rank, self.identity.members[id.world_rank].address);
        let mut peers: Vec<_> = awaited.iter().map(address).collect();
        peers.dedup();
        Probe::new(peers, Options::lane(&self.config, false), now)
    }

    fn destination(&self, accepted: &Self::Accepted) -> Destination<LaneId> {
        accepted.authorized
    }

    fn establish(&self, lane: LaneId, accepted: Self::Accepted) -> io::Result<Socket> {
        self.options(lane).apply(&accepted.socket)?;
        Ok(accepted.socket)
    }

    fn lane(&self, lane: LaneId, group: Group, peers: Vec<(usize, Vec<Socket>)>) -> Result<TcpTransport> {
        let read_ahead = match lane.kind {
            LaneKind::Control => self.config.read_ahead.min(CONTROL_READ_AHEAD),
            _ => self.config.read_ahead,
        };
        TcpTransport::new(group, peers, self.identity.stripes(lane), read_ahead)
    }
}
