//! One peer on a lane: the two rings that are shared with it, and how it ended.

mod fetching;
mod receiving;
mod sending;

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use comm_core::{During, Error, Loss};

use crate::borrower::Borrower;
use crate::echo::{ECHO_BYTES, Heard};
use crate::lender::{Lender, Lending, PACKET_BYTES, Packet};
use crate::positions::{Control, Reader, Writer};
use crate::remote::Remote;
use crate::route::Router;
use crate::segment::{Direction, Segment};
use crate::socket;
use fetching::Fetched;
use receiving::Carry;
use sending::Short;

/// The most bytes that are moved before the other side hears of it, so that both sides copy at the same time.
const STRIDE_BYTES_MAX: usize = 16 * 1024;
/// Into how many such strides a ring is cut at least.
const STRIDES_MIN: usize = 4;
/// How many packets are read from a socket at once.
const PACKETS_AT_ONCE: usize = 64;

/// What two ranks share on a lane.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Says that the other side is alive, wakes it when it sleeps, and carries the descriptors of what is lent.
    pub(crate) socket: OwnedFd,
    /// Readable once the process of the other side has ended, if that can be watched.
    pub(crate) process: Option<Arc<OwnedFd>>,
    pub(crate) segment: Segment,
    /// The ring into which this side writes.
    pub(crate) outgoing: Direction,
}

impl Connection {
    /// The process of the other side, if this one can read its memory, and does so quickly. The other side is told.
    fn reach(&self) -> Option<Remote> {
        let control = self.segment.control(self.outgoing.opposite());
        let remote = Remote::find(&self.socket, control.proof());
        let obstacle = |error: &_| tracing::debug!(%error, "memory of another rank is copied by that rank");
        let remote = remote.inspect_err(obstacle).ok()?;
        control.fetch();
        Some(remote)
    }
}

/// One peer on a lane.
#[derive(Debug)]
pub(crate) struct Peer {
    rank: usize,
    connection: Connection,
    writer: Writer,
    reader: Reader,
    stride: usize,
    router: Router,
    /// `None` where everything is copied.
    lender: Option<Lender>,
    /// The longest message that is copied to where the positions are, too.
    small_max: usize,
    borrower: Borrower,
    /// How memory of the peer's is read that is not mapped, if it can be.
    remote: Option<Remote>,
    fetched: Fetched,
    /// What the last attempt to send had too little of.
    short_of: Short,
    /// The position of release that a sender knows, if something was lent and not released then.
    released_told: Option<u64>,
    /// Why nothing can be sent any more, though receiving goes on: memory that the peer should have read was taken back.
    revoked: Option<Error>,
    carry: Carry,
    /// The last small message that came with its position.
    heard: Heard,
    /// How many bytes are fewer than one element may have, were lent, and were left: lending them again helps nobody
    /// until more arrive.
    left: u64,
    /// How it ended. A peer that is gone may have left bytes behind, which are delivered first.
    end: Option<Error>,
    /// Whether there is nothing to deliver behind the end.
    garbled: bool,
}

impl Peer {
    pub(crate) fn new(rank: usize, connection: Connection, lending: Option<Lending>) -> Self {
        let capacity = connection.segment.capacity();
        let remote = lending.as_ref().and_then(|_| connection.reach());
        let copied_max = lending.as_ref().map_or(usize::MAX, Lending::copied_max);
        Self {
            rank,
            connection,
            writer: Writer::new(capacity),
            reader: Reader::new(capacity),
            stride: (capacity / STRIDES_MIN).min(STRIDE_BYTES_MAX),
            router: Router::new(),
            lender: lending.map(Lender::new),
            small_max: copied_max.min(ECHO_BYTES),
            borrower: Borrower::default(),
            remote,
            fetched: Fetched::default(),
            short_of: Short::Nothing,
            released_told: None,
            revoked: None,
            carry: Carry::default(),
            heard: Heard::nothing(),
            left: 0,
            end: None,
            garbled: false,
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

    /// A peer that breaks the rules is not talked to any more.
    fn garble(&mut self, during: During, what: impl Display) -> Error {
        self.give_up(during, Loss::Garbage(what.to_string()))
    }

    /// Ends both streams at once.
    fn give_up(&mut self, during: During, loss: Loss) -> Error {
        let end = Error::PeerLost { peer: self.rank, during, loss };
        self.end = Some(end.clone());
        self.garbled = true;
        end
    }

    /// Takes note that the other side has closed its end of the socket, or that its process has ended. It has written all
    /// that it ever will, and sent all descriptors.
    pub(crate) fn hang_up(&mut self) {
        while self.hear_packet() {}
        if self.end.is_none() {
            self.end =
                Some(Error::PeerLost { peer: self.rank, during: During::Receiving, loss: Loss::Closed });
        }
    }

    /// What becomes readable when the process of the other side has ended, if that can be watched.
    pub(crate) fn process(&self) -> Option<&OwnedFd> {
        self.connection.process.as_deref()
    }

    /// Takes note that the other side rang, or sent the descriptor of memory that it lends.
    pub(crate) fn hear(&mut self) {
        for _ in 0..PACKETS_AT_ONCE {
            if !self.hear_packet() {
                return;
            }
        }
    }

    /// Takes one packet from the socket. False if there was none.
    fn hear_packet(&mut self) -> bool {
        let mut bytes = [0; PACKET_BYTES];
        let packet = match socket::recv(&self.connection.socket, &mut bytes) {
            Ok(Some(packet)) if packet.len > 0 => packet,
            _ => return false,
        };
        if packet.len == PACKET_BYTES
            && let Some(region) = Packet::decode(&bytes)
        {
            self.take_region(region, packet.descriptor);
        }
        true
    }

    /// Maps memory that the other side lends.
    fn take_region(&mut self, packet: Packet, file: Option<OwnedFd>) {
        // The system keeps a descriptor for which this process has no number left.
        let missing = || io::Error::other("no descriptor came with it");
        self.tidy_up();
        match file.ok_or_else(missing).and_then(|file| self.borrower.take(packet, &file)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                drop(self.garble(During::Receiving, error))
            }
            Err(error) => drop(self.give_up(During::Receiving, Loss::Io(Arc::new(error)))),
        }
    }

    /// Says that this side is about to sleep until there are bytes.
    pub(crate) fn lie_down_to_recv(&self) {
        self.control_in().reader().lie_down();
    }

    /// Says that this side is about to sleep until there is room, or something is released.
    pub(crate) fn lie_down_to_send(&self) {
        self.control_out().writer().lie_down();
    }

    /// Says that this side no longer waits for bytes or room.
    pub(crate) fn get_up(&self) {
        self.control_in().reader().get_up();
        self.control_out().writer().get_up();
    }

    /// Gives back memory of the peer's for which that has no more use.
    pub(crate) fn tidy_up(&mut self) {
        let control = self.connection.segment.control(self.incoming());
        self.borrower.tidy_up(|region| self.reader.awaits(control, region));
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.socket.as_fd()
    }
}

/// How a stream ends from which bytes were taken back.
fn revocation() -> Loss {
    let reason = io::Error::new(io::ErrorKind::ConnectionAborted, "the sender took its memory back");
    Loss::Io(Arc::new(reason))
}
