//! One peer on a channel: the two rings that are shared with it, and the end of its streams.

mod cma;
mod putting;
mod receiving;
mod sending;

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use comm_core::{During, Error, Loss};

use crate::cma::CmaPeer;
use crate::copy_path::{PathSelector, PieceClass};
use crate::exporter::{ExportConfig, REGION_MESSAGE_BYTES, RegionExporter, RegionMessage};
use crate::positions::{Control, Reader, Writer};
use crate::region_cache::RegionCache;
use crate::segment::{Direction, Segment};
use crate::socket;
use cma::Fetched;
use putting::OpenWindow;
use receiving::PartialElement;
use sending::Shortage;

/// The maximum number of bytes that are moved before the position is published, so that both sides
/// copy at the same time.
const STRIDE_BYTES_MAX: usize = 64 * 1024;
/// The minimum number of strides in a ring.
const STRIDES_MIN: usize = 4;
/// The maximum number of packets that are read from a socket at a time.
const PACKETS_PER_TURN: usize = 64;

/// The shared state of two ranks on a channel.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Shows that the other side is alive, wakes it when it sleeps, and carries the file
    /// descriptors of regions.
    pub(crate) socket: OwnedFd,
    /// Readable once the process of the other side has exited, if the kernel has pidfds.
    pub(crate) process: Option<Arc<OwnedFd>>,
    pub(crate) segment: Segment,
    /// The ring into which this side writes.
    pub(crate) outgoing: Direction,
}

impl Connection {
    /// Opens the process of the other side for cross-memory attach, if that is possible, and
    /// announces this to the other side.
    fn open_cma(&self) -> Option<CmaPeer> {
        let control = self.segment.control(self.outgoing.opposite());
        let cma = CmaPeer::open(&self.socket, control.proof());
        let log = |error: &_| tracing::debug!(%error, "cannot read the memory of another rank, which will copy into the ring instead");
        let cma = cma.inspect_err(log).ok()?;
        control.set_reads_by_cma();
        Some(cma)
    }
}

/// Whether small messages go in one direction. Then the lines that the reader polls are fetched
/// early, too; otherwise they would be taken from the side that is about to use them.
#[derive(Debug, Default)]
struct Flow {
    sent: bool,
    received: bool,
}

impl Flow {
    /// Notes that a message was sent, and returns whether the last one was sent, too.
    #[inline]
    const fn sends(&mut self) -> bool {
        self.received = false;
        std::mem::replace(&mut self.sent, true)
    }

    /// Notes that a message has arrived, and returns whether the last one had arrived, too.
    #[inline]
    const fn receives(&mut self) -> bool {
        self.sent = false;
        std::mem::replace(&mut self.received, true)
    }
}

/// One peer on a channel.
#[derive(Debug)]
pub(crate) struct Peer {
    rank: usize,
    connection: Connection,
    writer: Writer,
    reader: Reader,
    stride: usize,
    /// For messages in boxes.
    short_path: PathSelector,
    long_path: PathSelector,
    /// `None` if everything is copied.
    exporter: Option<RegionExporter>,
    /// Pieces of up to this many bytes are copied, wherever they lie.
    copied_max: usize,
    region_cache: RegionCache,
    /// The window into which the peer puts results of the current call.
    window: Option<OpenWindow>,
    /// Reads memory of the peer that is not mapped, if that is possible.
    cma: Option<CmaPeer>,
    fetched: Fetched,
    /// The reason the last attempt to send stopped.
    shortage: Shortage,
    /// The released position that was last reported, if bytes were outstanding at that time.
    last_released: Option<u64>,
    /// The error of further sends after memory that the peer had not read yet was revoked.
    /// Receiving continues.
    revoked: Option<Error>,
    partial: PartialElement,
    flow: Flow,
    /// The number of available bytes that were returned but not consumed, if they may be part of an
    /// element. They do not keep the caller awake until more bytes arrive.
    unconsumed: u64,
    /// The end of the streams. Bytes that a peer had sent before it exited are delivered first.
    end: Option<Error>,
    /// Whether the streams failed, so that nothing more is delivered.
    has_failed: bool,
}

impl Peer {
    pub(crate) fn new(rank: usize, connection: Connection, export: Option<ExportConfig>) -> Self {
        let capacity = connection.segment.capacity();
        let cma = export.as_ref().filter(|export| export.uses_cma()).and_then(|_| connection.open_cma());
        let copied_max = export.as_ref().map_or(usize::MAX, ExportConfig::copied_max);
        Self {
            rank,
            connection,
            writer: Writer::new(capacity),
            reader: Reader::new(capacity),
            stride: (capacity / STRIDES_MIN).min(STRIDE_BYTES_MAX),
            short_path: PathSelector::new(PieceClass::SHORT),
            long_path: PathSelector::new(PieceClass::LONG),
            exporter: export.map(RegionExporter::new),
            copied_max,
            region_cache: RegionCache::default(),
            window: None,
            cma,
            fetched: Fetched::default(),
            shortage: Shortage::None,
            last_released: None,
            revoked: None,
            partial: PartialElement::default(),
            flow: Flow::default(),
            unconsumed: 0,
            end: None,
            has_failed: false,
        }
    }

    #[inline]
    const fn incoming(&self) -> Direction {
        self.connection.outgoing.opposite()
    }

    #[inline]
    fn control_out(&self) -> &Control {
        self.connection.segment.control(self.connection.outgoing)
    }

    #[inline]
    fn control_in(&self) -> &Control {
        self.connection.segment.control(self.incoming())
    }

    /// Ends both streams: the peer has violated the protocol.
    fn protocol_error(&mut self, during: During, what: impl Display) -> Error {
        self.fail(during, Loss::Protocol(what.to_string()))
    }

    /// Ends both streams immediately.
    fn fail(&mut self, during: During, loss: Loss) -> Error {
        let end = Error::PeerLost { peer: self.rank, during, loss };
        self.end = Some(end.clone());
        self.has_failed = true;
        end
    }

    /// Returns the error if there is no memory for a part of a ring.
    #[cold]
    fn no_memory(&self, error: io::Error) -> Error {
        Error::io(format!("allocate memory that is shared with rank {}", self.rank), error)
    }

    /// Handles the end of the peer, which has closed its end of the socket or whose process has
    /// exited. All bytes and file descriptors that it sent have arrived.
    pub(crate) fn close(&mut self) {
        while self.recv_packet() {}
        if self.end.is_none() {
            self.end =
                Some(Error::PeerLost { peer: self.rank, during: During::Receiving, loss: Loss::Closed });
        }
    }

    /// Returns a file descriptor that becomes readable once the process of the other side has
    /// exited, if the kernel has pidfds.
    pub(crate) fn process(&self) -> Option<&OwnedFd> {
        self.connection.process.as_deref()
    }

    /// Receives notifications and exported regions.
    pub(crate) fn recv_packets(&mut self) {
        for _ in 0..PACKETS_PER_TURN {
            if !self.recv_packet() {
                return;
            }
        }
    }

    /// Receives one packet from the socket. Returns false if there was none.
    fn recv_packet(&mut self) -> bool {
        let mut bytes = [0; REGION_MESSAGE_BYTES];
        let packet = match socket::recv(&self.connection.socket, &mut bytes) {
            Ok(Some(packet)) if packet.len > 0 => packet,
            _ => return false,
        };
        if packet.len == REGION_MESSAGE_BYTES
            && let Some(region) = RegionMessage::decode(&bytes)
        {
            self.import_region(region, packet.fd);
        }
        true
    }

    /// Maps a region that the other side exports.
    fn import_region(&mut self, message: RegionMessage, file: Option<OwnedFd>) {
        // The kernel drops a file descriptor if this process has reached its limit.
        let missing = || io::Error::other("the file descriptor of a buffer is missing: raise `ulimit -n`");
        self.evict_regions();
        match file.ok_or_else(missing).and_then(|file| self.region_cache.insert(message, &file)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                drop(self.protocol_error(During::Receiving, error))
            }
            Err(error) => drop(self.fail(During::Receiving, Loss::Io(Arc::new(error)))),
        }
    }

    /// Announces that this side is about to sleep until bytes arrive.
    pub(crate) fn prepare_sleep_for_recv(&self) {
        self.control_in().reader().prepare_sleep();
    }

    /// Announces that this side is about to sleep until there is space or bytes are released.
    pub(crate) fn prepare_sleep_for_send(&self) {
        self.control_out().writer().prepare_sleep();
    }

    /// Announces that this side is awake.
    pub(crate) fn clear_wakeup(&self) {
        self.control_in().reader().clear();
        self.control_out().writer().clear();
    }

    /// Shows the peer on which processor this thread is.
    pub(crate) fn show_processor(&self, processor: usize) {
        self.control_out().show_processor(processor);
    }

    /// Whether the peer was last seen on this processor, or on none.
    pub(crate) fn may_be_on(&self, processor: usize) -> bool {
        self.control_in().may_be_on(processor)
    }

    /// Unmaps regions that the peer has dropped.
    pub(crate) fn evict_regions(&mut self) {
        let control = self.connection.segment.control(self.incoming());
        self.region_cache.evict(|region| self.reader.has_unread(control, region));
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.socket.as_fd()
    }
}

/// Returns the loss for a stream whose unread memory was revoked.
fn revocation() -> Loss {
    let reason =
        io::Error::new(io::ErrorKind::ConnectionAborted, "the sender revoked memory that was not read yet");
    Loss::Io(Arc::new(reason))
}
