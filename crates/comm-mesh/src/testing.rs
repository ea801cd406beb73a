//! A protocol for tests: a hello of four bytes over Unix sockets, which is answered by one byte.

use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use comm_core::{
    ChannelId, ChannelKind, During, Error, Group, GroupId, Loss, Membership, Result, simulation,
};
use rustix::event::{PollFd, PollFlags};

use crate::{
    ASK_INDEX, Accept, ConnId, Connect, ConnectedChannel, Destination, HandshakeState, Limits, LivenessProbe,
    Mesh, PendingConn, Protocol, Registration,
};

/// Longer than any wait of a test that passes.
pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const GREETING: u8 = b'G';
const ANSWER: u8 = b'A';
const HELLO_BYTES: usize = 4;

pub(crate) fn channel(kind: ChannelKind) -> ChannelId {
    ChannelId { group: GroupId::WORLD, kind }
}

/// Listens under a name that no other process uses.
pub(crate) fn listen() -> (UnixListener, SocketAddr) {
    let name = format!("comm-mesh-{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    (listener, address)
}

/// Connects and sends bytes.
pub(crate) fn connect(address: &SocketAddr, bytes: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect_addr(address).unwrap();
    stream.write_all(bytes).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

pub(crate) fn is_closed(mut stream: &UnixStream) -> bool {
    stream.read(&mut [0]).is_ok_and(|read| read == 0)
}

/// The mesh of each rank of a world, in which every pair is connected when a channel is opened.
pub(crate) fn meshes(size: usize) -> Vec<Mesh<TestProtocol>> {
    meshes_with(size, usize::MAX)
}

/// The mesh of each rank of a world, in which channels of more than `full_mesh_max` ranks connect
/// pairs on demand.
pub(crate) fn meshes_with(size: usize, full_mesh_max: usize) -> Vec<Mesh<TestProtocol>> {
    let (listeners, addresses): (Vec<_>, Vec<_>) = (0..size).map(|_| listen()).unzip();
    let mesh = |(rank, listener)| {
        let group = Group::new(GroupId::WORLD, Membership { rank, size }).unwrap();
        let addresses = addresses.clone();
        let protocol = TestProtocol { rank, addresses, full_mesh_max, ..TestProtocol::default() };
        Mesh::new(group, protocol, Some(listener)).unwrap()
    };
    listeners.into_iter().enumerate().map(mesh).collect()
}

#[derive(Debug)]
pub(crate) struct TestProtocol {
    pub(crate) rank: usize,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) limits: Limits,
    /// Whether the system has no descriptor left.
    pub(crate) is_exhausted: AtomicBool,
    /// A rank that the probe reports as exited.
    pub(crate) exited: Option<usize>,
    pub(crate) full_mesh_max: usize,
}

impl Default for TestProtocol {
    fn default() -> Self {
        Self {
            rank: 0,
            addresses: Vec::new(),
            limits: Limits { pending_max: 8, handshake_timeout: None },
            is_exhausted: AtomicBool::new(false),
            exited: None,
            full_mesh_max: usize::MAX,
        }
    }
}

/// A connection and the bytes received on it.
#[derive(Debug)]
pub(crate) struct TestConn {
    stream: UnixStream,
    received: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct TestAccepted {
    stream: UnixStream,
    pub(crate) destination: Destination<u8>,
}

/// An established connection, and the peer that the handshake names.
#[derive(Debug)]
pub(crate) struct TestConnection {
    pub(crate) stream: UnixStream,
    pub(crate) world_rank: usize,
}

#[derive(Debug)]
pub(crate) struct TestChannel {
    pub(crate) group: Group,
    pub(crate) peers: Vec<(ConnId, TestConnection)>,
    pub(crate) on_demand: Vec<ConnId>,
    pub(crate) registration: Option<Registration<TestProtocol>>,
}

impl AsFd for TestConn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl PendingConn for TestConn {
    fn has_greeted(&self) -> bool {
        self.received.first() == Some(&GREETING)
    }
}

impl Accept for TestProtocol {
    type Listener = UnixListener;
    type Conn = TestConn;
    type Accepted = TestAccepted;

    const NAME: &'static str = "test";

    fn limits(&self) -> Limits {
        self.limits
    }

    fn accept(&self, listener: &UnixListener) -> io::Result<Option<HandshakeState<TestConn, TestAccepted>>> {
        if self.is_exhausted.load(Ordering::Relaxed) {
            return Err(io::Error::other("no descriptor left"));
        }
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                Ok(Some(HandshakeState::Pending(TestConn { stream, received: Vec::new() })))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn handshake(&self, mut conn: TestConn, has_capacity: bool) -> HandshakeState<TestConn, TestAccepted> {
        let mut buffer = [0; HELLO_BYTES];
        match conn.stream.read(&mut buffer[conn.received.len()..]) {
            Ok(0) => return HandshakeState::Broken(ErrorKind::UnexpectedEof.into()),
            Ok(read) => conn.received.extend_from_slice(&buffer[conn.received.len()..][..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return HandshakeState::Pending(conn),
            Err(error) => return HandshakeState::Broken(error),
        }
        match conn.received[..] {
            [GREETING, key, rank, index] if has_capacity => {
                let destination = Destination { key, world_rank: usize::from(rank), index };
                HandshakeState::Accepted(TestAccepted { stream: conn.stream, destination })
            }
            [GREETING, _, _, _] => HandshakeState::Rejected("there are too many connections".into()),
            [GREETING, ..] => HandshakeState::Pending(conn),
            _ => HandshakeState::Rejected("it speaks another protocol".into()),
        }
    }
}

impl Protocol for TestProtocol {
    type Key = u8;
    type Connection = TestConnection;
    type Connect = TestConnect;
    type Ask = TestAsk;
    type Probe = TestProbe;
    type Channel = TestChannel;

    fn key(&self, channel: ChannelId, _members: &[usize]) -> u8 {
        channel.kind as u8
    }

    fn connections_max(&self) -> usize {
        self.addresses.len()
    }

    fn full_mesh_max(&self) -> usize {
        self.full_mesh_max
    }

    fn connect(&self, key: u8, to: ConnId, _peers: usize) -> TestConnect {
        let hello = [GREETING, key, u8::try_from(self.rank).unwrap(), 0];
        TestConnect { to, hello, address: self.addresses[to.world_rank].clone(), stream: None }
    }

    fn ask(&self, key: u8, to: ConnId) -> TestAsk {
        let mut connect = self.connect(key, to, 1);
        connect.hello[3] = ASK_INDEX;
        TestAsk(connect)
    }

    fn probe(&self, _now: Instant, _awaited: &[ConnId]) -> TestProbe {
        TestProbe { exited: self.exited }
    }

    fn destination(&self, accepted: &TestAccepted) -> Destination<u8> {
        accepted.destination
    }

    fn establish(&self, key: u8, accepted: TestAccepted) -> io::Result<TestConnection> {
        let TestAccepted { mut stream, destination } = accepted;
        assert_eq!(key, destination.key);
        stream.write_all(&[ANSWER])?;
        Ok(TestConnection { stream, world_rank: destination.world_rank })
    }

    fn channel(&self, connected: ConnectedChannel<Self>) -> Result<TestChannel> {
        let ConnectedChannel { group, peers, on_demand, registration, .. } = connected;
        Ok(TestChannel { group, peers, on_demand, registration })
    }
}

#[derive(Debug)]
pub(crate) struct TestConnect {
    to: ConnId,
    hello: [u8; HELLO_BYTES],
    address: SocketAddr,
    stream: Option<UnixStream>,
}

impl TestConnect {
    fn step(&mut self) -> io::Result<Option<TestConnection>> {
        let Some(mut stream) = self.stream.take() else {
            let mut stream = UnixStream::connect_addr(&self.address)?;
            stream.set_nonblocking(true)?;
            stream.write_all(&self.hello)?;
            self.stream = Some(stream);
            return Ok(None);
        };
        match stream.read(&mut [0]) {
            Ok(1) => {
                let ConnId { world_rank, .. } = self.to;
                return Ok(Some(TestConnection { stream, world_rank }));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.stream = Some(stream),
            // The peer has closed the connection: the next step connects again.
            _ => {}
        }
        Ok(None)
    }
}

impl Connect for TestConnect {
    type Connection = TestConnection;

    fn advance(&mut self, _now: Instant) -> Result<Option<TestConnection>> {
        self.step().map_err(|error| lost(self.to.rank, error))
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.stream.as_ref().map(|stream| PollFd::new(stream, PollFlags::IN))
    }

    fn next_attempt(&self) -> Option<Instant> {
        self.stream.is_none().then(simulation::now)
    }
}

/// Connects, and connects again whenever the peer closes the connection. The peer never answers.
#[derive(Debug)]
pub(crate) struct TestAsk(TestConnect);

impl Connect for TestAsk {
    type Connection = Infallible;

    fn advance(&mut self, now: Instant) -> Result<Option<Infallible>> {
        self.0.advance(now).map(|_| None)
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.0.poll_fd()
    }

    fn next_attempt(&self) -> Option<Instant> {
        self.0.next_attempt()
    }
}

#[derive(Debug)]
pub(crate) struct TestProbe {
    exited: Option<usize>,
}

impl LivenessProbe for TestProbe {
    fn check(&mut self, _now: Instant, expected: &[ConnId]) -> Result<()> {
        let exited = expected.iter().find(|id| Some(id.world_rank) == self.exited);
        exited.map_or(Ok(()), |id| Err(lost(id.rank, ErrorKind::ConnectionRefused.into())))
    }

    fn poll_fds(&self) -> Vec<PollFd<'_>> {
        Vec::new()
    }

    fn next_attempt(&self) -> Option<Instant> {
        None
    }
}

pub(crate) fn lost(peer: usize, error: io::Error) -> Error {
    Error::PeerLost { peer, during: During::Connect, loss: Loss::Io(Arc::new(error)) }
}
