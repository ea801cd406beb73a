//! One peer's socket on a lane: its bytes in both directions, what is known of its readiness, and how it ended.

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::sync::Arc;

use comm_core::{During, Error, Lent, Loss, Result};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::Socket;

use crate::read_ahead::ReadAhead;

/// The largest element in bytes: with that many bytes there is a whole one, whatever the type.
const ELEMENT_BYTES_MAX: usize = 8;
/// A read of this size or more goes straight to the caller, followed by no more than a header and a little.
const DIRECT_BYTES_MIN: usize = 16 * 1024;
/// How much to read behind a large read.
const BEHIND_DIRECT_BYTES: usize = 4 * 1024;
/// The most pieces and bytes of one write, and the most bytes of one direct read. A peer that drains as fast as we fill
/// could keep a write in the kernel for as long as there are bytes, while others wait to be received from; and the
/// kernel cuts what exceeds 2 GiB, which would look like a full socket.
const PIECES_MAX: usize = 16;
const BYTES_MAX: usize = 4 << 20;
/// The most bytes that are read from a peer only to be thrown away.
const DISCARDED_BYTES_MAX: usize = 16 << 20;

/// One peer's socket on a lane.
#[derive(Debug)]
pub(crate) struct Peer {
    rank: usize,
    socket: Socket,
    ahead: ReadAhead,
    /// How many bytes read ahead are fewer than one element may have, were lent, and were left: lending them again
    /// helps nobody until more arrive.
    left: usize,
    accepted: u64,
    /// Whether a read or a write may move something. Set by epoll, cleared when one moved less than it could.
    readable: bool,
    writable: bool,
    /// The last read or write moved less than it could. Whoever asks in a loop until nothing moves asks once more at
    /// once, and is answered without a system call.
    just_read_all: bool,
    just_filled: bool,
    /// The stream from the peer has ended or broken: there will be no further event, so it stays readable.
    hung_up: bool,
    recv_end: Option<Error>,
    send_end: Option<Error>,
}

impl Peer {
    pub(crate) fn new(rank: usize, socket: Socket, read_ahead: usize) -> Self {
        Self {
            rank,
            socket,
            ahead: ReadAhead::new(read_ahead),
            left: 0,
            accepted: 0,
            readable: false,
            writable: false,
            just_read_all: false,
            just_filled: false,
            hung_up: false,
            recv_end: None,
            send_end: None,
        }
    }

    pub(crate) const fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Takes note of what epoll saw. Tells whether it is news that the stream has ended or broken.
    pub(crate) fn note(&mut self, events: EventFlags) -> bool {
        let broken = events.intersects(EventFlags::HUP | EventFlags::ERR);
        let ended = broken || events.contains(EventFlags::RDHUP);
        let news = ended && !self.hung_up;
        self.hung_up |= ended;
        self.readable |= self.hung_up || events.contains(EventFlags::IN);
        self.writable |= broken || events.contains(EventFlags::OUT);
        self.just_read_all &= !self.readable;
        self.just_filled &= !self.writable;
        news
    }

    /// Whether a receive would move bytes or fail, as far as is known.
    pub(crate) const fn can_recv(&self) -> bool {
        self.readable || self.recv_end.is_some() || self.ahead.len() > self.left
    }

    /// Whether a send would move bytes or fail, as far as is known.
    pub(crate) const fn can_send(&self) -> bool {
        self.writable || self.send_end.is_some()
    }

    pub(crate) fn try_send(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize> {
        if let Some(end) = &self.send_end {
            return Err(end.clone());
        }
        let mut bounded = [IoSlice::new(&[]); PIECES_MAX];
        let offered = bound(pieces, &mut bounded);
        if offered == 0 || std::mem::take(&mut self.just_filled) {
            return Ok(0);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let pieces = &bounded[..pieces.len().min(PIECES_MAX)];
        match rustix::net::sendmsg(&self.socket, pieces, &mut SendAncillaryBuffer::default(), flags) {
            Ok(sent) => {
                self.writable = sent == offered;
                self.just_filled = !self.writable;
                self.accepted += sent as u64;
                Ok(sent)
            }
            Err(Errno::AGAIN) => {
                self.writable = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(self.end_sending(errno)),
        }
    }

    /// What has arrived before a send failed can still be received.
    fn end_sending(&mut self, errno: Errno) -> Error {
        let loss = Loss::Io(Arc::new(errno.into()));
        let end = self.lost("sending", loss);
        self.send_end = Some(end.clone());
        self.hung_up = true;
        self.readable = true;
        end
    }

    pub(crate) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize> {
        let taken = self.ahead.take(into);
        if taken > 0 {
            self.left = 0;
        }
        let rest = &mut into[taken..];
        if rest.is_empty() {
            return Ok(taken);
        }
        match self.read(rest) {
            Ok(read) => Ok(taken + read),
            // The error is remembered and comes next time.
            Err(_) if taken > 0 => Ok(taken),
            Err(end) => Err(end),
        }
    }

    pub(crate) fn lend(&mut self, at_most: usize) -> Result<Lent<'_>> {
        if self.ahead.len() < at_most.min(ELEMENT_BYTES_MAX) {
            let end = self.read(&mut []).err();
            let nothing_new = self.ahead.len() == self.left;
            if let Some(end) = end.filter(|_| nothing_new) {
                return Err(end);
            }
        }
        self.left = if self.ahead.len() < ELEMENT_BYTES_MAX { self.ahead.len() } else { 0 };
        Ok(Lent::from_slice(self.ahead.bytes()).first(at_most))
    }

    pub(crate) fn consume(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.ahead.len() {
            let (rank, lent) = (self.rank, self.ahead.len());
            return Err(Error::Internal(format!("{bytes} bytes consumed of {lent} lent from rank {rank}")));
        }
        self.ahead.skip(bytes);
        self.left = 0;
        Ok(())
    }

    /// Reads into the caller's memory and, behind it, ahead. Returns how many bytes went to the caller.
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if let Some(end) = &self.recv_end {
            return Err(end.clone());
        }
        if std::mem::take(&mut self.just_read_all) {
            return Ok(0);
        }
        let direct = into.len().min(BYTES_MAX);
        let into = &mut into[..direct];
        let room = self.ahead.room();
        let behind = if direct < DIRECT_BYTES_MIN { room.len() } else { room.len().min(BEHIND_DIRECT_BYTES) };
        let room = &mut room[..behind];
        let capacity = direct + room.len();
        match read_vectored(&self.socket, into, room) {
            Ok(0) => Err(self.end_receiving(Loss::Closed)),
            Ok(read) => {
                self.ahead.filled(read.saturating_sub(direct));
                self.readable = read == capacity || self.hung_up;
                self.just_read_all = !self.readable;
                Ok(read.min(direct))
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(self.end_receiving(Loss::Io(Arc::new(errno.into())))),
        }
    }

    /// A peer that no longer sends has gone, so sending to it fails too.
    fn end_receiving(&mut self, loss: Loss) -> Error {
        let end = self.send_end.clone().unwrap_or_else(|| self.lost("receiving", loss));
        self.send_end = Some(end.clone());
        self.recv_end = Some(end.clone());
        end
    }

    const fn lost(&self, doing: &'static str, loss: Loss) -> Error {
        Error::PeerLost { peer: self.rank, during: During::Other(doing), loss }
    }

    /// Says that nothing more will be sent, and throws away what has arrived: closing a socket with unread bytes
    /// resets the connection, and a reset can overtake bytes that are still on their way to the peer.
    pub(crate) fn close(&mut self) {
        if self.socket.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let mut discarded = 0;
        self.ahead.skip(usize::MAX);
        while discarded < DISCARDED_BYTES_MAX {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            match rustix::net::recv(&self.socket, self.ahead.room(), flags) {
                Ok((_, more @ 1..)) => discarded += more,
                _ => return,
            }
        }
    }
}

/// Fills `bounded` with the first of the pieces, as far as one write may take them. Returns how many bytes that is.
fn bound<'a>(pieces: &'a [IoSlice<'a>], bounded: &mut [IoSlice<'a>; PIECES_MAX]) -> usize {
    let mut offered = 0;
    for (piece, bounded) in pieces.iter().zip(bounded) {
        let taken = piece.len().min(BYTES_MAX - offered);
        *bounded = IoSlice::new(&piece[..taken]);
        offered += taken;
    }
    offered
}

/// One read into two pieces of memory, the first of which may be empty.
fn read_vectored(socket: &Socket, first: &mut [u8], second: &mut [u8]) -> rustix::io::Result<usize> {
    if first.is_empty() {
        return rustix::io::read(socket, second);
    }
    rustix::io::readv(socket, &mut [IoSliceMut::new(first), IoSliceMut::new(second)])
}
