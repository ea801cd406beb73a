//! One peer on a lane: the two rings that are shared with it, and how it ended.

use std::hint::black_box;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use comm_core::{During, Error, Lent, Loss, Result};

use crate::positions::{Control, Impossible, Reader, Writer};
use crate::route::{Route, Router};
use crate::segment::{Direction, Segment};
use crate::socket;

/// The largest element in bytes: with that many bytes there is a whole one, whatever the type.
const ELEMENT_BYTES_MAX: usize = 8;
/// The most bytes that are moved before the other side hears of it, so that both sides copy at the same time.
const STRIDE_BYTES_MAX: usize = 16 * 1024;
/// Into how many such strides a ring is cut at least.
const STRIDES_MIN: usize = 4;

/// What two ranks share on a lane.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Says that the other side is alive, and wakes it when it sleeps.
    pub(crate) socket: OwnedFd,
    pub(crate) segment: Segment,
    /// The ring into which this side writes.
    pub(crate) outgoing: Direction,
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
    /// How many bytes are fewer than one element may have, were lent, and were left: lending them again helps nobody
    /// until more arrive.
    left: usize,
    /// How it ended. A peer that is gone may have left bytes behind, which are delivered first.
    end: Option<Error>,
    /// Whether there is nothing to deliver behind the end.
    garbled: bool,
}

impl Peer {
    pub(crate) fn new(rank: usize, connection: Connection) -> Self {
        let capacity = connection.segment.capacity();
        Self {
            rank,
            connection,
            writer: Writer::new(capacity),
            reader: Reader::new(capacity),
            stride: (capacity / STRIDES_MIN).min(STRIDE_BYTES_MAX),
            router: Router::new(),
            left: 0,
            end: None,
            garbled: false,
        }
    }

    const fn incoming(&self) -> Direction {
        match self.connection.outgoing {
            Direction::Out => Direction::Back,
            Direction::Back => Direction::Out,
        }
    }

    fn control_out(&self) -> &Control {
        self.connection.segment.control(self.connection.outgoing)
    }

    fn control_in(&self) -> &Control {
        self.connection.segment.control(self.incoming())
    }

    /// The position up to which bytes were accepted.
    pub(crate) const fn accepted(&self) -> u64 {
        self.writer.position()
    }

    /// Copies as many bytes as there is room for. Small pieces are shown to the other side together.
    pub(crate) fn try_send(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        let offered = pieces.iter().fold(0_usize, |sum, piece| sum.saturating_add(piece.len()));
        if self.writer.room() < offered {
            self.look_for_room()?;
        }
        let mut room = self.writer.room();
        let mut sent = 0;
        for piece in pieces {
            let (mut rest, _) = piece.split_at(piece.len().min(room));
            room -= rest.len();
            sent += rest.len();
            while !rest.is_empty() {
                let (stride, behind) = rest.split_at(rest.len().min(self.stride));
                self.write(stride);
                rest = behind;
            }
        }
        self.publish();
        Ok(sent)
    }

    fn write(&mut self, bytes: &[u8]) {
        let Connection { segment, outgoing, .. } = &self.connection;
        let position = self.writer.position();
        match self.router.route(bytes.len()) {
            Route::Through => segment.copy_in(*outgoing, position, bytes),
            Route::Around => segment.stream_in(*outgoing, position, bytes),
            Route::Measured => {
                warm(bytes);
                let begin = Instant::now();
                segment.copy_in(*outgoing, position, bytes);
                self.router.took(bytes.len(), begin.elapsed());
            }
        }
        self.writer.wrote(bytes.len());
        if self.writer.unpublished() >= self.stride as u64 {
            self.publish();
        }
    }

    fn publish(&mut self) {
        let Connection { socket, segment, outgoing } = &self.connection;
        if self.writer.publish(segment.control(*outgoing)) {
            socket::ring(socket);
        }
    }

    pub(crate) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize> {
        if self.reader.available() < into.len() {
            self.look_for_bytes()?;
        }
        let taken = self.reader.available().min(into.len());
        for stride in into[..taken].chunks_mut(self.stride) {
            self.connection.segment.copy_out(self.incoming(), self.reader.position(), stride);
            self.release(stride.len());
        }
        if taken == 0 && !into.is_empty() {
            self.check_end(0)?;
        }
        Ok(taken)
    }

    /// Makes bytes ready to be lent, and returns how many: no more than a stride, so that the other side gets room back
    /// in time.
    pub(crate) fn prepare(&mut self, at_most: usize) -> Result<usize> {
        let at_most = at_most.min(self.stride);
        if self.reader.available() < at_most {
            self.look_for_bytes()?;
        }
        self.check_end(self.left)?;
        let available = self.reader.available();
        self.left = if available < ELEMENT_BYTES_MAX { available } else { 0 };
        Ok(available.min(at_most))
    }

    /// Lends bytes that were made ready.
    pub(crate) fn lend(&self, len: usize) -> Lent<'_> {
        let len = len.min(self.reader.available());
        self.connection.segment.lend(self.incoming(), self.reader.position(), len)
    }

    pub(crate) fn consume(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.reader.available() {
            let (rank, lent) = (self.rank, self.reader.available());
            return Err(Error::Internal(format!("{bytes} bytes consumed of {lent} lent from rank {rank}")));
        }
        self.release(bytes);
        Ok(())
    }

    fn release(&mut self, bytes: usize) {
        let incoming = self.incoming();
        let Connection { socket, segment, .. } = &self.connection;
        if self.reader.release(bytes, segment.control(incoming)) {
            socket::ring(socket);
        }
        self.left = 0;
    }

    /// Fails if the peer is gone and no more than `left` bytes are there, which are of no use.
    fn check_end(&mut self, left: usize) -> Result<()> {
        let Some(end) = self.end.clone() else { return Ok(()) };
        self.look_for_bytes()?;
        if self.reader.available() > left { Ok(()) } else { Err(end) }
    }

    /// Looks how much room there is by now.
    fn look_for_room(&mut self) -> Result<()> {
        let control = self.connection.segment.control(self.connection.outgoing);
        self.writer.look(control).map_err(|impossible| self.garble("sending", impossible))
    }

    /// Looks how many bytes are there by now.
    fn look_for_bytes(&mut self) -> Result<()> {
        if let Some(end) = self.end.as_ref().filter(|_| self.garbled) {
            return Err(end.clone());
        }
        let control = self.connection.segment.control(self.incoming());
        self.reader.look(control).map_err(|impossible| self.garble("receiving", impossible))
    }

    /// A peer that breaks the rules is not talked to any more.
    fn garble(&mut self, doing: &'static str, impossible: Impossible) -> Error {
        let loss = Loss::Garbage(impossible.to_string());
        let end = Error::PeerLost { peer: self.rank, during: During::Other(doing), loss };
        self.end = Some(end.clone());
        self.garbled = true;
        end
    }

    /// Takes note that the other side has closed its end of the socket. It has written all that it ever will.
    pub(crate) fn hang_up(&mut self) {
        if self.end.is_none() {
            let during = During::Other("communicating");
            self.end = Some(Error::PeerLost { peer: self.rank, during, loss: Loss::Closed });
        }
    }

    /// Takes note that the other side rang.
    pub(crate) fn silence(&self) {
        socket::silence(&self.connection.socket);
    }

    /// Whether a receive would move bytes or fail.
    pub(crate) fn can_recv(&mut self) -> bool {
        self.end.is_some() || self.look_for_bytes().is_err() || self.reader.available() > self.left
    }

    /// Whether a send would move bytes or fail.
    pub(crate) fn can_send(&mut self) -> bool {
        self.end.is_some() || self.look_for_room().is_err() || self.writer.room() > 0
    }

    /// Says that this side is about to sleep until there are bytes.
    pub(crate) fn lie_down_to_recv(&self) {
        self.control_in().reader().lie_down();
    }

    /// Says that this side is about to sleep until there is room.
    pub(crate) fn lie_down_to_send(&self) {
        self.control_out().writer().lie_down();
    }

    /// Says that this side no longer waits for bytes or room.
    pub(crate) fn get_up(&self) {
        self.control_in().reader().get_up();
        self.control_out().writer().get_up();
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.socket.as_fd()
    }
}

/// Brings bytes into the cache, so that it does not count how long they take to come from memory.
fn warm(bytes: &[u8]) {
    let lines = bytes.iter().step_by(64);
    black_box(lines.fold(0_u8, |sum, byte| sum ^ *byte));
}
