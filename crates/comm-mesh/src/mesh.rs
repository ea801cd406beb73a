//! The channels between the ranks of a world, as seen by one of them.

use std::convert::Infallible;
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use comm_core::{ChannelId, ChannelKind, Group, Result};

use crate::accept_queue::{AcceptQueue, Registration};
use crate::acceptor::Accept;
use crate::connect::{ConnId, Connect, LivenessProbe};
use crate::dialer::DialerThread;
use crate::opening::{MeshOpening, Opening, Peers};

/// The parts that a transport supplies to connect ranks.
pub trait Protocol:
    Accept<Listener: Debug + Send, Conn: Debug + Send, Accepted: Debug + Send>
    + Debug
    + Sized
    + Send
    + Sync
    + 'static
{
    /// Identifies a channel on both sides of a connection.
    type Key: Copy + Debug + Ord + Send;
    /// An established connection.
    type Connection: Debug + Send;
    /// Connects to a peer.
    type Connect: Connect<Connection = Self::Connection> + Debug + Send;
    /// Asks a peer with a higher world rank to connect to this rank, until it is dropped. It never
    /// returns a connection.
    type Ask: Connect<Connection = Infallible> + Debug + Send;
    /// Detects the exit of peers.
    type Probe: LivenessProbe + Debug;
    /// A channel whose connections are all established.
    type Channel;

    /// The key of a channel between these members.
    fn key(&self, channel: ChannelId, members: &[usize]) -> Self::Key;

    /// The most connections that peers make to a channel.
    fn connections_max(&self) -> usize;

    /// The largest number of members of a channel whose connections are all made when it is opened.
    /// Those of larger channels are made when they are first used. Equal on all ranks.
    fn full_mesh_max(&self) -> usize;

    /// Begins to connect to a peer. `peers` is the number of peers that the channel connects.
    fn connect(&self, key: Self::Key, to: ConnId, peers: usize) -> Self::Connect;

    /// Begins to ask a peer to connect to this rank. The peer accepts a connection with the index
    /// [`ASK_INDEX`], which stays open until the peer has connected.
    fn ask(&self, key: Self::Key, to: ConnId) -> Self::Ask;

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
    /// The connections that were made, in ascending order of rank.
    pub peers: Vec<(ConnId, P::Connection)>,
    /// The peers whose connections are made when they are first used, in ascending order of rank.
    pub on_demand: Vec<ConnId>,
    /// Makes these connections, and accepts those that members add to the channel. `None` if this
    /// rank has no listener.
    pub registration: Option<Registration<P>>,
}

/// The channel and the peer to which a connection belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination<K> {
    /// The key of the channel.
    pub key: K,
    /// The peer's rank in the world.
    pub world_rank: usize,
    /// Zero for the connection with which the channel is opened, the number of one that the peer
    /// adds later, or [`ASK_INDEX`].
    pub index: u8,
}

/// The index of a connection by which a peer asks this rank to connect to it.
pub const ASK_INDEX: u8 = u8::MAX;

/// Opens channels between the ranks of a world.
#[derive(Debug)]
pub struct Mesh<P: Protocol> {
    group: Group,
    protocol: Arc<P>,
    /// `None` in a world of one rank, and for a rank without a listener.
    queue: Option<Arc<AcceptQueue<P>>>,
    /// The thread that makes connections on demand, once a channel needs it.
    dialer: Mutex<Option<Arc<DialerThread<P>>>>,
}

impl<P: Protocol> Mesh<P> {
    /// Creates the mesh of a rank, which accepts connections on all listeners. Without one it has
    /// no connections.
    ///
    /// # Errors
    /// [`Error::Io`](comm_core::Error::Io) if the system has no descriptor left.
    pub fn new(group: Group, protocol: P, listeners: impl IntoIterator<Item = P::Listener>) -> Result<Self> {
        let listeners: Vec<P::Listener> = listeners.into_iter().collect();
        let queue = if listeners.is_empty() { None } else { Some(Arc::new(AcceptQueue::new(listeners)?)) };
        Ok(Self { group, protocol: Arc::new(protocol), queue, dialer: Mutex::new(None) })
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
    /// which `reaches` returns `true`. It connects to all of them at once if the channel is small,
    /// and to those that this rank watches ([`Group::watches`]) if it carries control messages; to
    /// others when their connection is first used.
    ///
    /// # Errors
    /// As [`Fabric::open_among`](comm_core::Fabric::open_among), for an invalid list of members.
    /// [`Error::Io`](comm_core::Error::Io) if the system has no thread or descriptor left.
    pub fn begin(
        &self,
        channel: ChannelId,
        members: &[usize],
        reaches: &dyn Fn(usize) -> bool,
    ) -> Result<impl Opening<Channel = P::Channel> + use<P>> {
        let group = self.group.subgroup(channel.group, members)?;
        let key = self.protocol.key(channel, members);
        let is_reached = |id: &ConnId| {
            self.queue.is_some() && id.world_rank != self.group.rank() && reaches(id.world_rank)
        };
        let ids = members.iter().enumerate().map(|(rank, &world_rank)| ConnId { rank, world_rank });
        let has_full_mesh = members.len() <= self.protocol.full_mesh_max();
        let is_control = channel.kind == ChannelKind::Control;
        let (now, on_demand): (Vec<ConnId>, Vec<ConnId>) =
            ids.filter(is_reached).partition(|id| has_full_mesh || is_control && group.watches(id.rank));
        let queue = self.queue.as_ref().map(|queue| queue.register(&self.protocol, key)).transpose()?;
        let dialer = if on_demand.is_empty() { None } else { self.dialer()? };
        let peers = Peers { now, on_demand, dialer };
        Ok(MeshOpening::new((Arc::clone(&self.protocol), queue), key, (group, self.group.rank()), peers))
    }

    /// Returns the thread that makes connections on demand, which is started the first time.
    fn dialer(&self) -> Result<Option<Arc<DialerThread<P>>>> {
        let Some(queue) = &self.queue else { return Ok(None) };
        let mut dialer = self.dialer.lock().unwrap_or_else(PoisonError::into_inner);
        if dialer.is_none() {
            *dialer = Some(Arc::new(DialerThread::start(
                self.group.rank(),
                Arc::clone(queue),
                Arc::clone(&self.protocol),
            )?));
        }
        Ok(dialer.clone())
    }
}
