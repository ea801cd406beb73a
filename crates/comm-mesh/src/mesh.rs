//! The channels between the ranks of a world, as seen by one of them.

use std::fmt::Debug;
use std::hash::Hash;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use comm_core::{ChannelId, Group, Result};

use crate::accept_queue::{AcceptQueue, Registration};
use crate::acceptor::Accept;
use crate::connect::{ConnId, Connect, LivenessProbe};
use crate::opening::{MeshOpening, Opening};

/// The parts that a transport supplies to connect ranks.
pub trait Protocol: Accept<Listener: Debug, Conn: Debug, Accepted: Debug> + Debug + Sized {
    /// Identifies a channel on both sides of a connection.
    type Key: Copy + Debug + Eq + Hash;
    /// An established connection.
    type Connection: Debug;
    /// Connects to a peer.
    type Connect: Connect<Connection = Self::Connection> + Debug;
    /// Detects the exit of peers.
    type Probe: LivenessProbe + Debug;
    /// A channel whose connections are all established.
    type Channel;

    /// The key of a channel between these members.
    fn key(&self, channel: ChannelId, members: &[usize]) -> Self::Key;

    /// The most connections that peers make to a channel.
    fn connections_max(&self) -> usize;

    /// Begins to connect to a peer. `peers` is the number of peers that the channel connects.
    fn connect(&self, key: Self::Key, to: ConnId, peers: usize) -> Self::Connect;

    /// A probe of the peers from which a channel expects these connections, in ascending order.
    fn probe(&self, now: Instant, expected: &[ConnId]) -> Self::Probe;

    /// The channel to which an accepted connection belongs.
    fn destination(&self, accepted: &Self::Accepted) -> Destination<Self::Key>;

    /// Establishes an accepted connection once its channel is being opened on this rank.
    ///
    /// # Errors
    /// The reason why the connection cannot be used. The peer is expected to connect again.
    fn establish(&self, key: Self::Key, accepted: Self::Accepted) -> io::Result<Self::Connection>;

    /// Makes a channel from its connections.
    ///
    /// # Errors
    /// [`Error::Io`](comm_core::Error::Io) if the system has no descriptor left.
    fn channel(&self, connected: ConnectedChannel<Self>) -> Result<Self::Channel>;
}

/// The connections of a channel to all its members.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConnectedChannel<P: Protocol> {
    /// The key of the channel.
    pub key: P::Key,
    /// The group, with this rank's number in it.
    pub group: Group,
    /// The connection to each peer, in ascending order of rank.
    pub peers: Vec<(ConnId, P::Connection)>,
    /// Accepts connections that members add to the channel. `None` if this rank has no listener.
    pub registration: Option<Registration<P>>,
}

/// The channel and the peer to which a connection belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination<K> {
    /// The key of the channel.
    pub key: K,
    /// The peer's rank in the world.
    pub world_rank: usize,
    /// Zero for the connection with which the channel is opened, and the number of one that the
    /// peer adds later.
    pub index: u8,
}

/// Opens channels between the ranks of a world.
#[derive(Debug)]
pub struct Mesh<P: Protocol> {
    group: Group,
    protocol: Arc<P>,
    /// `None` in a world of one rank, and for a rank without a listener.
    queue: Option<Arc<AcceptQueue<P>>>,
}

impl<P: Protocol> Mesh<P> {
    /// Creates the mesh of a rank. Without a listener it has no connections.
    ///
    /// # Errors
    /// [`Error::Io`](comm_core::Error::Io) if the system has no descriptor left.
    pub fn new(group: Group, protocol: P, listener: Option<P::Listener>) -> Result<Self> {
        let queue = listener.map(AcceptQueue::new).transpose()?.map(Arc::new);
        Ok(Self { group, protocol: Arc::new(protocol), queue })
    }

    /// The group of all ranks.
    #[must_use]
    pub const fn group(&self) -> Group {
        self.group
    }

    /// The protocol of the transport.
    #[must_use]
    pub fn protocol(&self) -> &P {
        &self.protocol
    }

    /// Begins to open a channel between `members`, which connects this rank to the members for
    /// which `reaches` returns `true`.
    ///
    /// # Errors
    /// As [`Fabric::open_among`](comm_core::Fabric::open_among), for an invalid list of members.
    pub fn begin(
        &self,
        channel: ChannelId,
        members: &[usize],
        reaches: &dyn Fn(usize) -> bool,
    ) -> Result<impl Opening<Channel = P::Channel> + use<P>> {
        let group = self.group.subgroup(channel.group, members)?;
        let key = self.protocol.key(channel, members);
        let is_reached = |(_, world_rank): &(usize, usize)| {
            self.queue.is_some() && *world_rank != self.group.rank() && reaches(*world_rank)
        };
        let peers: Vec<(usize, usize)> = members.iter().copied().enumerate().filter(is_reached).collect();
        let queue = self.queue.as_ref().map(|queue| queue.register(&self.protocol, key)).transpose()?;
        Ok(MeshOpening::new((Arc::clone(&self.protocol), queue), key, (group, self.group.rank()), &peers))
    }
}
