//! One peer on a lane: the stream of bytes in each direction, dealt out to one or several sockets, and how it ended.
//!
//! With several sockets, the stream ends where the bytes of that socket end whose turn it is. What the others hold
//! behind that place was sent later, and is lost with it. A socket that breaks out of turn, as when a packet filter
//! forgets it, makes this side end its own direction on all: a peer that lives then ends its direction too, so that
//! nobody waits for bytes that cannot come.

use std::io::IoSlice;
use std::sync::Arc;

use comm_core::{During, Error, Lent, Loss, Result};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::connection::{Connection, News};
use crate::read_ahead::ReadAhead;
use crate::stripes::Stripes;

/// The largest element in bytes: with that many bytes there is a whole one, whatever the type.
const ELEMENT_BYTES_MAX: usize = 8;
/// A read of this size or more goes straight to the caller, followed by no more than a header and a little.
const DIRECT_BYTES_MIN: usize = 16 * 1024;
/// How much to read behind a large read.
const BEHIND_DIRECT_BYTES: usize = 4 * 1024;
/// How much to read behind a small read, which may be the head of a long message: a short message comes whole, and of a
/// long one the rest is read to where it is wanted. Copying this much costs about what a system call does.
const BEHIND_SMALL_BYTES: usize = 16 * 1024;
/// The most pieces of one write.
const PIECES_MAX: usize = 16;
/// How many bytes are sent in a row before this peer takes no more for once, and its rank has a look at what has
/// arrived. A peer that drains as fast as we fill could take bytes for as long as there are any, while others wait
/// to be received from; and the more is under way at once in both directions, the more of it has left the caches before it
/// is read. A little more than a round number, so that a message of that many bytes goes with its header.
pub(crate) const TURN_BYTES: usize = (1 << 20) + 4096;
/// The most bytes of one direct read: the kernel cuts what exceeds 2 GiB, which would look like an empty socket.
const DIRECT_BYTES_MAX: usize = 4 << 20;

/// One peer on a lane.
#[derive(Debug)]
pub(crate) struct Peer {
    rank: usize,
    /// As many as there are stripes side by side, in their order.
    connections: Box<[Connection]>,
    stripes: Stripes,
    ahead: ReadAhead,
    /// How many bytes read ahead are fewer than one element may have, were lent, and were left: lending them again
    /// helps nobody until more arrive.
    left: usize,
    /// How many bytes the sockets took in this turn.
    turn: usize,
    /// How many bytes the sockets took, and gave.
    accepted: u64,
    received: u64,
    recv_end: Option<Error>,
    send_end: Option<Error>,
}

impl Peer {
    /// `connections` are as many as `stripes` says.
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
            left: 0,
            turn: 0,
            accepted: 0,
            received: 0,
            recv_end: None,
            send_end: None,
        }
    }

    pub(crate) const fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Takes note of what epoll saw on a socket. Tells whether it is news that the stream has ended or broken.
    pub(crate) fn note(&mut self, socket: usize, events: EventFlags) -> bool {
        let connection = self.connections.get_mut(socket);
        let news = connection.map_or(News::default(), |connection| connection.note(events));
        if news.broke {
            self.end_others(socket);
        }
        news.ended
    }

    /// Lets the peer know on the other sockets that one is of no use any more.
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
            || self.ahead.len() > self.left
            || self.connections.get(socket).is_some_and(Connection::is_readable)
    }

    /// Whether a send would move bytes or fail, as far as is known.
    pub(crate) fn can_send(&self) -> bool {
        let (socket, _) = self.stripes.at(self.accepted);
        self.send_end.is_some() || self.connections.get(socket).is_some_and(Connection::is_writable)
    }

    pub(crate) fn try_send(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize> {
        if let Some(end) = &self.send_end {
            return Err(end.clone());
        }
        let rest = TURN_BYTES - std::mem::take(&mut self.turn);
        if rest == 0 {
            return Ok(0);
        }
        let (socket, stripe) = self.stripes.at(self.accepted);
        let mut bounded = [IoSlice::new(&[]); PIECES_MAX];
        let offered = bound(pieces, stripe.min(rest), &mut bounded);
        if offered == 0 {
            return Ok(0);
        }
        let pieces = &bounded[..pieces.len().min(PIECES_MAX)];
        match self.connections[socket].write(pieces, offered) {
            Ok(sent) => {
                self.accepted += sent as u64;
                // A full socket ends the turn too.
                self.turn = if sent == offered { TURN_BYTES - rest + sent } else { 0 };
                Ok(sent)
            }
            Err(errno) => Err(self.end_sending(socket, errno)),
        }
    }

    /// What has arrived before a send failed can still be received.
    fn end_sending(&mut self, socket: usize, errno: Errno) -> Error {
        let loss = Loss::Io(Arc::new(errno.into()));
        let end = self.lost(During::Sending, loss);
        self.send_end = Some(end.clone());
        self.end_others(socket);
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
            let end = self.read_element().err();
            let nothing_new = self.ahead.len() == self.left;
            if let Some(end) = end.filter(|_| nothing_new) {
                return Err(end);
            }
        }
        self.left = if self.ahead.len() < ELEMENT_BYTES_MAX { self.ahead.len() } else { 0 };
        Ok(Lent::from_slice(self.ahead.bytes()).first(at_most))
    }

    /// Reads ahead once, and on where stripes are shorter than an element.
    fn read_element(&mut self) -> Result<()> {
        loop {
            let before = self.received;
            self.read(&mut [])?;
            let goes_on = self.received > before && self.stripes.turns_at(self.received);
            if !goes_on || self.ahead.len() >= ELEMENT_BYTES_MAX {
                return Ok(());
            }
        }
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

    /// Reads into the caller's memory and, behind it, ahead: from one socket, no further than the end of its stripe.
    /// Returns how many bytes went to the caller.
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if let Some(end) = &self.recv_end {
            return Err(end.clone());
        }
        let (socket, stripe) = self.stripes.at(self.received);
        let connection = &mut self.connections[socket];
        if connection.takes_read_all() {
            return Ok(0);
        }
        let direct = into.len().min(DIRECT_BYTES_MAX).min(stripe);
        let room = self.ahead.room();
        let behind = match direct {
            0 => room.len(),
            1..DIRECT_BYTES_MIN => room.len().min(BEHIND_SMALL_BYTES),
            _ => room.len().min(BEHIND_DIRECT_BYTES),
        };
        let room = &mut room[..behind.min(stripe - direct)];
        match connection.read(&mut into[..direct], room) {
            Ok(None) => Ok(0),
            Ok(Some(0)) => Err(self.end_receiving(Loss::Closed)),
            Ok(Some(read)) => {
                self.received += read as u64;
                self.ahead.filled(read.saturating_sub(direct));
                Ok(read.min(direct))
            }
            Err(errno) => Err(self.end_receiving(Loss::Io(Arc::new(errno.into())))),
        }
    }

    /// A peer that no longer sends has gone, so sending to it fails too.
    fn end_receiving(&mut self, loss: Loss) -> Error {
        let end = self.send_end.clone().unwrap_or_else(|| self.lost(During::Receiving, loss));
        self.send_end = Some(end.clone());
        self.recv_end = Some(end.clone());
        end
    }

    const fn lost(&self, during: During, loss: Loss) -> Error {
        Error::PeerLost { peer: self.rank, during, loss }
    }

    /// Says that nothing more will be sent, and throws away what has arrived.
    pub(crate) fn close(&mut self) {
        self.ahead.skip(usize::MAX);
        self.connections.iter_mut().for_each(Connection::end_sending);
        for connection in &self.connections {
            connection.discard(self.ahead.room());
        }
    }
}

/// Fills `bounded` with the first of the pieces, as far as one write may take them. Returns how many bytes that is.
fn bound<'a>(pieces: &'a [IoSlice<'a>], bytes_max: usize, bounded: &mut [IoSlice<'a>; PIECES_MAX]) -> usize {
    let mut offered = 0;
    for (piece, bounded) in pieces.iter().zip(bounded) {
        let taken = piece.len().min(bytes_max - offered);
        *bounded = IoSlice::new(&piece[..taken]);
        offered += taken;
    }
    offered
}
