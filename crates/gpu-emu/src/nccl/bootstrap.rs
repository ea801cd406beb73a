//! Connects ranks by abstract Unix socket names derived from the unique id. A name exists as long
//! as its listener, so nothing remains when a rank dies. Ranks may be threads or processes.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

use nccl_sys::{ncclResult_t, ncclUniqueId};

use crate::settings::{self, Setting};

use super::failure::{Failure, Outcome};
use super::mesh::Mesh;

/// The interval at which a rank retries to connect to a rank that is not there yet.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The part of a unique id that identifies a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id([u8; Id::BYTES]);

const MAGIC: &[u8; 8] = b"gpu-emu\0";

impl Id {
    const BYTES: usize = 16;

    pub(super) fn fresh() -> Self {
        let mut random = fastrand::Rng::new();
        let process = u64::from(std::process::id()) << 32;
        let mut id = [0; Self::BYTES];
        id[..8].copy_from_slice(&(random.u64(..) ^ process).to_le_bytes());
        id[8..].copy_from_slice(&random.u64(..).to_le_bytes());
        Self(id)
    }

    pub(super) fn to_nccl(self) -> ncclUniqueId {
        let mut bytes = MAGIC.iter().chain(&self.0).map(|byte| c_char::from_ne_bytes([*byte]));
        ncclUniqueId { internal: std::array::from_fn(|_| bytes.next().unwrap_or(0)) }
    }

    /// Returns `None` if this library has not created the id.
    pub(super) fn from_nccl(id: &ncclUniqueId) -> Option<Self> {
        let bytes: Vec<u8> = id.internal.iter().flat_map(|byte| byte.to_ne_bytes()).collect();
        let rest = bytes.strip_prefix(MAGIC)?;
        rest[..Self::BYTES].try_into().ok().map(Self)
    }

    fn address(self, rank: u32) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("gpu-emu/{:032x}/{rank}", u128::from_be_bytes(self.0)))
    }
}

/// The first message of a rank on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u32,
    pub(super) world: u32,
    /// The device's number on the machine.
    pub(super) device: u32,
    version: u32,
}

const HELLO_BYTES: usize = 16;

impl Hello {
    pub(super) fn new(rank: u32, world: u32, device: u32) -> Self {
        let version = u32::try_from(settings::get(Setting::NcclVersion)).unwrap_or(u32::MAX);
        Self { rank, world, device, version }
    }

    fn encode(self) -> [u8; HELLO_BYTES] {
        let numbers = [self.rank, self.world, self.device, self.version].map(u32::to_le_bytes);
        let mut bytes = numbers.into_iter().flatten();
        std::array::from_fn(|_| bytes.next().unwrap_or(0))
    }

    fn decode(bytes: [u8; HELLO_BYTES]) -> Self {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { rank: number(0), world: number(4), device: number(8), version: number(12) }
    }
}

/// Connects to all other ranks, without a time limit, until `stop` returns a failure.
pub(super) fn connect(id: Id, me: Hello, stop: &dyn Fn() -> Outcome) -> Outcome<Mesh> {
    let listener = UnixListener::bind_addr(&id.address(me.rank)?).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Failure::usage(format!("two processes are rank {}", me.rank)),
        _ => error.into(),
    })?;
    listener.set_nonblocking(true)?;
    let mut streams = BTreeMap::new();
    for rank in 0..me.rank {
        let mut stream = retry(stop, || UnixStream::connect_addr(&id.address(rank)?))?;
        stream.write_all(&me.encode())?;
        accept_peer(me, stream, stop, &mut streams)?;
    }
    while streams.len() + 1 < me.world as usize {
        let (mut stream, _) = retry(stop, || listener.accept())?;
        stream.write_all(&me.encode())?;
        accept_peer(me, stream, stop, &mut streams)?;
    }
    Ok(Mesh::new(me.rank, streams)?)
}

fn accept_peer(
    me: Hello,
    mut stream: UnixStream,
    stop: &dyn Fn() -> Outcome,
    streams: &mut BTreeMap<u32, UnixStream>,
) -> Outcome {
    let peer = Hello::decode(read_hello(&mut stream, stop)?);
    agree(me, peer)?;
    streams.insert(peer.rank, stream);
    Ok(())
}

/// Checks that two ranks agree where they must, and differ where they must.
fn agree(me: Hello, peer: Hello) -> Outcome {
    let (a, b) = (me.rank.min(peer.rank), me.rank.max(peer.rank));
    if me.world != peer.world {
        return Err(Failure::usage(format!("ranks {a} and {b} have different numbers of ranks")));
    }
    if me.version != peer.version {
        let words = format!("Mismatched NCCL version detected: {} and {}", me.version, peer.version);
        return Err(Failure::usage(words));
    }
    if me.device == peer.device && !settings::is_on(Setting::SharedDevices) {
        let words = format!("Duplicate GPU detected : rank {a} and rank {b} both on device {}", me.device);
        return Err(Failure::usage(words));
    }
    Ok(())
}

/// Retries until it succeeds, because the other rank may not be there yet.
fn retry<T>(stop: &dyn Fn() -> Outcome, mut attempt: impl FnMut() -> io::Result<T>) -> Outcome<T> {
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if is_not_yet(&error) => {
                stop()?;
                thread::sleep(POLL_INTERVAL);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_not_yet(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, NotFound, TimedOut, WouldBlock};
    matches!(error.kind(), ConnectionRefused | Interrupted | NotFound | TimedOut | WouldBlock)
}

fn read_hello(stream: &mut UnixStream, stop: &dyn Fn() -> Outcome) -> Outcome<[u8; HELLO_BYTES]> {
    stream.set_nonblocking(true)?;
    let (mut bytes, mut read) = ([0; HELLO_BYTES], 0);
    while read < HELLO_BYTES {
        let count = retry(stop, || stream.read(&mut bytes[read..]))?;
        if count == 0 {
            return Err(Failure::new(ncclResult_t::ncclRemoteError, "a rank left during the bootstrap"));
        }
        read += count;
    }
    stream.set_nonblocking(false)?;
    Ok(bytes)
}
