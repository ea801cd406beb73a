//! One peer on a channel: a stream of bytes in each direction, striped over one or more sockets,
//! and the end of each stream.
//!
//! With several sockets, the stream ends where the socket of the next stripe ends. Later bytes on
//! the other sockets are lost. If a socket breaks out of turn, for example because a packet filter
//! drops it, this side ends its own direction on all sockets. A peer that is alive then ends its
//! direction too, so that neither side waits for bytes that cannot arrive.

use std::io::IoSlice;
use std::sync::Arc;

use comm_core::{Corruption, During, Error, Loss, RecvBuf, Result};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::connection::{Connection, StateChange};
use crate::keepalive::Keepalive;
use crate::protection::{PIECES_MAX, RecvError};
use crate::read_ahead::ReadAhead;
use crate::stripes::Stripes;

/// The size of the largest element: this many bytes contain a whole element of any type.
const ELEMENT_BYTES_MAX: usize = 8;
/// A read of at least this size goes directly to the caller; little more than a header is read
/// ahead.
const DIRECT_BYTES_MIN: usize = 16 * 1024;
/// The maximum number of bytes to read ahead in a large read.
const AHEAD_OF_DIRECT_BYTES: usize = 4 * 1024;
/// The maximum number of bytes to read ahead in a small read, which may be for the header of a long
/// message. A short message is thus read whole, and the rest of a long one directly to its
/// destination. Copying this much costs about as much as a system call.
const AHEAD_OF_SMALL_BYTES: usize = 16 * 1024;
/// The maximum number of bytes that are sent in a row before one send accepts none, so that the
/// caller checks what has arrived. Otherwise a peer that drains as fast as this side fills could
/// keep it from receiving. Besides, the more bytes are in flight in both directions, the more of
/// them have left the caches before they are read. It is a little more than a power of two, so that
/// a message of that size is sent with its header.
pub(crate) const TURN_BYTES: usize = (1 << 20) + 4096;
/// The maximum number of bytes of one direct read. The kernel truncates reads above 2 GiB, which
/// would look as if the socket were empty.
const DIRECT_BYTES_MAX: usize = 4 << 20;

/// One peer on a channel.
#[derive(Debug)]
pub(crate) struct Peer {
    rank: usize,
    /// One connection per socket of `stripes`, in order.
    connections: Box<[Connection]>,
    stripes: Stripes,
    ahead: ReadAhead,
    /// The number of bytes read ahead that were returned but not consumed, if they may be part of
    /// an element. They do not keep the caller awake until more bytes arrive.
    unconsumed: usize,
    /// The number of bytes that were sent in this turn.
    turn: usize,
    /// The number of bytes that the sockets have accepted.
    accepted: u64,
    /// The number of bytes before the frame of which a part waits to be sent, if there is one.
    /// Nothing else is sent in the meantime.
    before_held: Option<u64>,
    /// The number of bytes that were read from the sockets.
    received: u64,
    recv_end: Option<Error>,
    send_end: Option<Error>,
    /// When the host of the peer is lost, if that is detected.
    keepalive: Option<Keepalive>,
    /// Whether the host has not answered for too long.
    has_lost_host: bool,
}

impl Peer {
    /// `connections` has one connection per socket of `stripes`.
    pub(crate) fn new(
        rank: usize,
        connections: Box<[Connection]>,
        stripes: Stripes,
        read_ahead: usize,
    ) -> Self {
        Self {
            rank,
            connections,
            stripes,
            ahead: ReadAhead::new(read_ahead),
            unconsumed: 0,
            turn: 0,
            accepted: 0,
            before_held: None,
            received: 0,
            recv_end: None,
            send_end: None,
            keepalive: None,
            has_lost_host: false,
        }
    }

    #[cfg(test)]
    pub(crate) const fn has_read_ahead(&self) -> bool {
        self.ahead.is_allocated()
    }

    /// Whether the peer is reached through a network.
    pub(crate) fn is_on_another_host(&self) -> bool {
        !self.connections.iter().all(Connection::stays_on_this_machine)
    }

    pub(crate) const fn detect_lost_host(&mut self, keepalive: Keepalive) {
        self.keepalive = Some(keepalive);
    }

    /// Checks whether the host of the peer answers. Returns whether it was found to be lost now.
    pub(crate) fn check_host(&mut self) -> bool {
        let Some(keepalive) = self.keepalive.filter(|_| !self.has_lost_host) else { return false };
        let is_lost = self.connections.iter().any(|connection| connection.has_lost_host(keepalive));
        if is_lost {
            self.lose_host();
        }
        is_lost
    }

    fn lose_host(&mut self) {
        self.has_lost_host = true;
        self.connections.iter_mut().for_each(Connection::give_up);
    }

    /// The number of bytes that need no further calls to be sent.
    pub(crate) fn released(&self) -> u64 {
        self.before_held.unwrap_or(self.accepted)
    }

    /// Sends the rest of a frame if the socket may accept it.
    pub(crate) fn flush(&mut self) {
        let Some(before_held) = self.before_held else { return };
        let (socket, _) = self.stripes.at(before_held);
        if let Err(errno) = self.connections[socket].flush() {
            // The next send returns the error.
            self.end_sending(socket, errno);
        }
        if !self.connections[socket].holds_bytes() {
            self.before_held = None;
        }
    }

    /// Handles an event of epoll on a socket. Returns whether the stream has ended or broken since
    /// the last one.
    pub(crate) fn handle_event(&mut self, socket: usize, events: EventFlags) -> bool {
        let connection = self.connections.get_mut(socket);
        let change = connection.map_or(StateChange::default(), |connection| connection.handle_event(events));
        if change.broke {
            // The other sockets would otherwise fail with errors that do not show the cause, or not
            // at all. A host that is alive has answered the last probe.
            let is_silent = |Keepalive { interval, probes, .. }: Keepalive| {
                let broken = self.connections.get(socket);
                broken.is_some_and(|broken| broken.broke_after_silence(interval * probes + interval / 2))
            };
            if self.keepalive.is_some_and(is_silent) {
                self.lose_host();
            } else {
                self.end_others(socket);
            }
        }
        change.ended
    }

    /// Ends the streams on the other sockets, so that the peer learns that one is broken.
    fn end_others(&mut self, broken: usize) {
        for (socket, connection) in self.connections.iter_mut().enumerate() {
            if socket != broken {
                connection.end_sending();
            }
        }
    }

    /// Whether a receive would move bytes or fail, as far as is known.
    pub(crate) fn can_recv(&self) -> bool {
        let (socket, _) = self.stripes.at(self.received);
        self.recv_end.is_some()
            || self.ahead.len() > self.unconsumed
            || self.connections.get(socket).is_some_and(Connection::is_readable)
    }

    /// Whether a send would move bytes or fail, as far as is known.
    pub(crate) fn can_send(&self) -> bool {
        let (socket, _) = self.stripes.at(self.before_held.unwrap_or(self.accepted));
        self.send_end.is_some() || self.connections.get(socket).is_some_and(Connection::is_writable)
    }

    pub(crate) fn try_send(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize> {
        if let Some(end) = &self.send_end {
            return Err(end.clone());
        }
        let rest = TURN_BYTES - std::mem::take(&mut self.turn);
        self.flush();
        if rest == 0 || self.before_held.is_some() {
            return Ok(0);
        }
        let (socket, stripe) = self.stripes.at(self.accepted);
        let mut bounded = [IoSlice::new(&[]); PIECES_MAX];
        let offered = bound(pieces, stripe.min(rest), &mut bounded);
        if offered == 0 {
            return Ok(0);
        }
        let pieces = &bounded[..pieces.len().min(PIECES_MAX)];
        let connection = &mut self.connections[socket];
        match connection.write(pieces, offered) {
            Ok(sent) => {
                self.before_held = connection.holds_bytes().then_some(self.accepted);
                self.accepted += sent as u64;
                // A full socket ends the turn too.
                self.turn = if sent == offered { TURN_BYTES - rest + sent } else { 0 };
                Ok(sent)
            }
            Err(errno) => Err(self.end_sending(socket, errno)),
        }
    }

    /// Handles a failed send. Bytes that have arrived can still be received.
    fn end_sending(&mut self, socket: usize, errno: Errno) -> Error {
        let end = self.lost(During::Sending, self.loss(errno));
        self.send_end = Some(end.clone());
        self.end_others(socket);
        end
    }

    pub(crate) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize> {
        let taken = self.ahead.take(into);
        if taken > 0 {
            self.unconsumed = 0;
        }
        let rest = &mut into[taken..];
        if rest.is_empty() {
            return Ok(taken);
        }
        match self.read(rest) {
            Ok(read) => Ok(taken + read),
            // The next call returns the error.
            Err(_) if taken > 0 => Ok(taken),
            Err(end) => Err(end),
        }
    }

    pub(crate) fn fill_buf(&mut self, at_most: usize) -> Result<RecvBuf<'_>> {
        if self.ahead.len() < at_most.min(ELEMENT_BYTES_MAX) {
            let end = self.read_element().err();
            let nothing_new = self.ahead.len() == self.unconsumed;
            if let Some(end) = end.filter(|_| nothing_new) {
                return Err(end);
            }
        }
        self.unconsumed = if self.ahead.len() < ELEMENT_BYTES_MAX { self.ahead.len() } else { 0 };
        Ok(RecvBuf::from_slice(self.ahead.bytes()).first(at_most))
    }

    /// Reads ahead once, or more often if stripes are shorter than an element.
    fn read_element(&mut self) -> Result<()> {
        loop {
            let before = self.received;
            self.read(&mut [])?;
            let next_stripe = self.received > before && self.stripes.turns_at(self.received);
            if !next_stripe || self.ahead.len() >= ELEMENT_BYTES_MAX {
                return Ok(());
            }
        }
    }

    pub(crate) fn consume(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.ahead.len() {
            let (rank, filled) = (self.rank, self.ahead.len());
            return Err(Error::Internal(format!("consumed {bytes} of {filled} bytes from rank {rank}")));
        }
        self.ahead.skip(bytes);
        self.unconsumed = 0;
        Ok(())
    }

    /// Reads into the caller's memory, and then ahead: from one socket, up to the end of its
    /// stripe. Returns the number of bytes for the caller.
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if let Some(end) = &self.recv_end {
            return Err(end.clone());
        }
        let (socket, stripe) = self.stripes.at(self.received);
        let connection = &mut self.connections[socket];
        if connection.take_just_read_all() {
            return Ok(0);
        }
        // Most ranks of a large group never send anything on most streams.
        if !self.ahead.is_allocated() && connection.is_silent() {
            return Ok(0);
        }
        let direct = into.len().min(DIRECT_BYTES_MAX).min(stripe);
        let spare = self.ahead.spare();
        let ahead_max = match direct {
            0 => spare.len(),
            1..DIRECT_BYTES_MIN => spare.len().min(AHEAD_OF_SMALL_BYTES),
            _ => spare.len().min(AHEAD_OF_DIRECT_BYTES),
        };
        let spare = &mut spare[..ahead_max.min(stripe - direct)];
        match connection.read(&mut into[..direct], spare) {
            Ok(None) if self.has_lost_host => Err(self.end_receiving(self.loss(Errno::TIMEDOUT))),
            Ok(None) => Ok(0),
            Ok(Some(0)) if self.has_lost_host => Err(self.end_receiving(self.loss(Errno::TIMEDOUT))),
            Ok(Some(0)) => Err(self.end_receiving(Loss::Closed)),
            Ok(Some(read)) => {
                self.received += read as u64;
                self.ahead.advance(read.saturating_sub(direct));
                Ok(read.min(direct))
            }
            Err(RecvError::Socket(errno)) => Err(self.end_receiving(self.loss(errno))),
            Err(RecvError::Corrupted(corruption)) => Err(self.end_corrupted(corruption)),
        }
    }

    /// Handles bytes that did not arrive as the peer sent them. The peer is alive, so it learns
    /// from the end of the stream that this side no longer takes part.
    fn end_corrupted(&mut self, corruption: Corruption) -> Error {
        self.connections.iter_mut().for_each(Connection::end_sending);
        self.end_receiving(Loss::Corrupted(corruption))
    }

    /// Returns the loss that an error of a socket shows. The kernel breaks a connection after
    /// unanswered probes with an error that depends on the routes at that time.
    fn loss(&self, errno: Errno) -> Loss {
        match self.keepalive {
            Some(Keepalive { timeout: after, .. }) if self.has_lost_host || is_unreachable(errno) => {
                Loss::HostUnreachable { after }
            }
            _ => Loss::Io(Arc::new(errno.into())),
        }
    }

    /// Handles the end of the stream from the peer, which has exited, so that sending to it also
    /// fails.
    fn end_receiving(&mut self, loss: Loss) -> Error {
        let end = self.send_end.clone().unwrap_or_else(|| self.lost(During::Receiving, loss));
        self.send_end = Some(end.clone());
        self.recv_end = Some(end.clone());
        end
    }

    const fn lost(&self, during: During, loss: Loss) -> Error {
        Error::PeerLost { peer: self.rank, during, loss }
    }

    /// Ends the stream to the peer, and discards the bytes that have arrived.
    pub(crate) fn close(&mut self) {
        self.ahead.skip(usize::MAX);
        self.flush();
        self.connections.iter_mut().for_each(Connection::end_sending);
        for connection in &self.connections {
            connection.discard();
        }
    }
}

/// Whether the error means that the host of the peer does not answer.
const fn is_unreachable(errno: Errno) -> bool {
    matches!(errno, Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN)
}

/// Fills `bounded` with the first pieces, up to the limits of one write. Returns their total length
/// in bytes.
fn bound<'a>(pieces: &'a [IoSlice<'a>], bytes_max: usize, bounded: &mut [IoSlice<'a>; PIECES_MAX]) -> usize {
    let mut offered = 0;
    for (piece, bounded) in pieces.iter().zip(bounded) {
        let taken = piece.len().min(bytes_max - offered);
        *bounded = IoSlice::new(&piece[..taken]);
        offered += taken;
    }
    offered
}
