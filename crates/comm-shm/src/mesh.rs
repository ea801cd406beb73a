//! Connects ranks that share memory in a mesh.

use std::io;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use comm_core::{ChannelId, ChannelKind, Result};
use comm_mesh::{
    ASK_INDEX, Accept, ConnId, ConnectedChannel, Destination, HandshakeState, Limits, Protocol, Registration,
    pending_max,
};

use crate::ask::Asker;
use crate::config::SharedMemoryConfig;
use crate::connect::Connector;
use crate::credentials;
use crate::exporter::ExportConfig;
use crate::hello::{ChannelKey, HELLO_BYTES, Hello, WELCOME};
use crate::identity::Identity;
use crate::peer::Connection;
use crate::probe::Probe;
use crate::process::Processes;
use crate::record::Address;
use crate::regions::Regions;
use crate::segment::{Direction, Segment};
use crate::socket;
use crate::transport::SharedMemoryTransport;

/// The maximum number of silent connections per peer: a probe for each channel that it is opening.
const PENDING_PER_PEER: usize = 4;

/// The address of a rank that has none. Channels connect only neighbours, all of which have one. No
/// listener has the name 0.
const NOBODY: Address = Address { listener: 0, token: 0 };

/// The sockets, handshakes and memory of the channels of one rank.
#[derive(Debug)]
pub(crate) struct SharedMemoryProtocol {
    pub(crate) identity: Identity,
    pub(crate) config: SharedMemoryConfig,
    /// Memory that neighbours can read in place.
    pub(crate) regions: Arc<Regions>,
    pub(crate) processes: Arc<Processes>,
}

/// A connection from a member.
#[derive(Debug)]
pub(crate) struct Accepted {
    socket: OwnedFd,
    /// The memory that it wants to share. `None` if it asks for a connection.
    segment: Option<OwnedFd>,
    hello: Hello,
}

type PendingHandshake = HandshakeState<OwnedFd, Accepted>;

impl SharedMemoryProtocol {
    pub(crate) fn new(identity: Identity, config: SharedMemoryConfig) -> Self {
        let regions = Arc::new(Regions::new(config.heap_piece_bytes()));
        Self { identity, config, regions, processes: Arc::default() }
    }

    fn member(&self, world_rank: usize) -> Option<Address> {
        self.identity.members.get(world_rank).copied().flatten()
    }
}

impl Accept for SharedMemoryProtocol {
    type Listener = OwnedFd;
    type Conn = OwnedFd;
    type Accepted = Accepted;

    const NAME: &'static str = "shared memory channels";

    /// A peer that opens a channel sends its hello immediately, but a probe stays silent, so there
    /// is no timeout.
    fn limits(&self) -> Limits {
        let peers = self.identity.members.iter().flatten().count();
        Limits { pending_max: pending_max().max(peers * PENDING_PER_PEER), handshake_timeout: None }
    }

    fn accept(&self, listener: &OwnedFd) -> io::Result<Option<PendingHandshake>> {
        let Some(socket) = socket::accept(listener)? else { return Ok(None) };
        Ok(Some(match credentials::user(&socket) {
            Ok(user) if user == credentials::own_user() => HandshakeState::Pending(socket),
            Ok(_) => HandshakeState::Rejected("it belongs to another user".into()),
            Err(error) => HandshakeState::Broken(error),
        }))
    }

    fn handshake(&self, socket: OwnedFd, has_capacity: bool) -> PendingHandshake {
        let mut bytes = [0; HELLO_BYTES];
        let packet = match socket::recv(&socket, &mut bytes) {
            Ok(None) => return HandshakeState::Pending(socket),
            Ok(Some(packet)) if packet.len > 0 => packet,
            Ok(Some(_)) => return HandshakeState::Broken(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => return HandshakeState::Broken(error),
        };
        let hello = Hello::decode(&bytes).ok().filter(|_| packet.len == HELLO_BYTES);
        let reason = match (hello.filter(|hello| self.identity.authorize(hello)), packet.fd) {
            (Some(hello), _) if hello.capacity == 0 && has_capacity => {
                return HandshakeState::Accepted(Accepted { socket, segment: None, hello });
            }
            (Some(hello), _) if hello.capacity > 0 && !Segment::can_hold(hello.capacity) => {
                "it offers rings of an invalid capacity"
            }
            (Some(_), _) if !has_capacity => "there are too many connections",
            (Some(hello), segment @ Some(_)) => {
                return HandshakeState::Accepted(Accepted { socket, segment, hello });
            }
            _ => "it is not a member of this job",
        };
        HandshakeState::Rejected(reason.into())
    }
}

impl Protocol for SharedMemoryProtocol {
    type Key = ChannelKey;
    type Connection = Connection;
    type Connect = Connector;
    type Ask = Asker;
    type Probe = Probe;
    type Channel = SharedMemoryTransport;

    fn key(&self, channel: ChannelId, members: &[usize]) -> ChannelKey {
        ChannelKey::new(channel, members)
    }

    fn connections_max(&self) -> usize {
        self.identity.members.len()
    }

    fn connect(&self, key: ChannelKey, to: ConnId, peers: usize) -> Connector {
        let processors = self.identity.processors.map_or(usize::MAX, NonZero::get);
        let capacity = self.config.capacity(key.channel.kind, 1 + peers, processors);
        let member = self.member(to.world_rank).unwrap_or(NOBODY);
        let hello = self.identity.hello(member, key, capacity);
        Connector::new(to.rank, member.listener, hello, Arc::clone(&self.processes))
    }

    fn full_mesh_max(&self) -> usize {
        self.config.full_mesh_max
    }

    fn ask(&self, key: ChannelKey, to: ConnId) -> Asker {
        let member = self.member(to.world_rank).unwrap_or(NOBODY);
        Asker::new(to.rank, member.listener, self.identity.hello(member, key, 0))
    }

    fn probe(&self, _now: Instant, expected: &[ConnId]) -> Probe {
        Probe::new(expected.iter().filter_map(|id| Some((*id, self.member(id.world_rank)?.listener))))
    }

    fn destination(&self, accepted: &Accepted) -> Destination<ChannelKey> {
        let Hello { key, rank, .. } = accepted.hello;
        let index = if accepted.segment.is_some() { 0 } else { ASK_INDEX };
        Destination { key, world_rank: rank as usize, index }
    }

    /// Maps the memory that the peer offers, and accepts it.
    fn establish(&self, _key: ChannelKey, accepted: Accepted) -> io::Result<Connection> {
        let Accepted { socket, segment, hello } = accepted;
        let segment = segment.ok_or(io::ErrorKind::InvalidData)?;
        let segment = Segment::open(&segment, usize::try_from(hello.capacity).unwrap_or(0))?;
        let process = self.processes.watch(&socket)?;
        socket::send(&socket, &WELCOME, None)?;
        Ok(Connection { socket, process, segment, outgoing: Direction::Back })
    }

    fn channel(&self, connected: ConnectedChannel<Self>) -> Result<SharedMemoryTransport> {
        let ConnectedChannel { key, group, peers, registration, .. } = connected;
        let registration = registration.filter(Registration::is_on_demand);
        let export = match key.channel.kind {
            ChannelKind::Collective => Some((self.config.region_bytes_min(), self.config.cma_bytes_min())),
            // Nothing is registered there. Short messages are copied, so that their senders need
            // not wait for the receivers.
            ChannelKind::PointToPoint => Some((self.config.zero_copy_bytes.max(1), usize::MAX)),
            // Senders do not wait until their memory is released.
            _ => None,
        };
        let export = export.map(|(bytes_min, cma_bytes_min)| ExportConfig {
            regions: Arc::clone(&self.regions),
            bytes_min,
            cma_bytes_min,
        });
        let connections = peers.into_iter().map(|(id, connection)| (id.rank, connection));
        SharedMemoryTransport::new(group, connections, registration, export)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
