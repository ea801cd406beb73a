//! One peer on a channel: a stream of bytes in each direction, over one or more sockets, and the
//! end of each stream.
//!
//! The end of the socket with which the channel was opened shows the end of both streams; bytes on
//! added sockets up to their ends still belong to them. If a socket breaks, for example because a
//! packet filter drops it, this side ends its own direction on all sockets. A peer that is alive
//! then ends its direction too, so that neither side waits for bytes that cannot arrive.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use comm_core::{During, Error, Loss, RecvBuf, Result};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::connection::{Connection, StateChange};
use crate::growth::LOOK_BYTES;
use crate::keepalive::Keepalive;
use crate::outgoing::{NewSocket, OutgoingSockets};
use crate::protection::{PIECES_MAX, cut};
use crate::read_ahead::ReadAhead;
use crate::stripes::{Fault, StripeReader};

/// The size of the largest element: this many bytes contain a whole element of any type.
const ELEMENT_BYTES_MAX: usize = 8;
/// The maximum number of bytes that are sent in a row before one send accepts none, so that the
/// caller checks for received bytes. Otherwise a peer that drains as fast as this side fills could
/// keep it from receiving. Besides, the more bytes are in flight in both directions, the more of
/// them have left the caches before they are read. It is a little more than a power of two, so that
/// a message of that size is sent with its header.
pub(crate) const TURN_BYTES: usize = (1 << 20) + 4096;
/// The number of receives that find nothing until events are polled for added sockets.
const EMPTY_READS_MAX: u32 = 16;
/// The maximum number of bytes of one direct read. The kernel truncates reads above 2 GiB, which
/// would look as if the socket were empty.
const DIRECT_BYTES_MAX: usize = 4 << 20;

/// One peer on a channel.
#[derive(Debug)]
pub(crate) struct Peer {
    rank: usize,
    /// The socket with which the channel was opened.
    connection: Connection,
    /// The sockets that this side has added to its stream.
    outgoing: OutgoingSockets,
    /// The sockets that the peer has added to its stream.
    reader: StripeReader<Connection>,
    /// Whether the stream has ended on the socket with which the channel was opened, and whether
    /// the caller has looked for added sockets since.
    end: End,
    ahead: ReadAhead,
    /// The number of bytes read ahead that were returned but not consumed, if they may be part of
    /// an element. They do not keep the caller awake until more bytes arrive.
    unconsumed: usize,
    /// The number of bytes that were sent in this turn.
    turn: usize,
    /// The number of bytes that the sockets have accepted.
    accepted: u64,
    /// Whether the last write over added sockets has accepted all that was offered.
    accepted_all: bool,
    /// The number of bytes before the frame whose rest waits to be sent, if there is one. Nothing
    /// else is sent in the meantime.
    before_held: Option<u64>,
    /// The number of bytes that were read from the sockets.
    received: u64,
    /// The number of receives that found nothing since events were last polled for added sockets.
    empty_reads: u32,
    recv_end: Option<Error>,
    send_end: Option<Error>,
    /// When the host of the peer is lost, if that is detected.
    keepalive: Option<Keepalive>,
    /// Whether the host has not answered for too long.
    has_lost_host: bool,
}

/// The end of the stream on the socket with which the channel was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NotYet,
    /// The peer may have added a socket that was accepted, but not given to this peer.
    Unconfirmed,
    Confirmed,
}

/// One socket of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The one with which the channel was opened.
    First,
    /// One that this side has added, by its index.
    Outgoing(usize),
    /// One that the peer has added, by its number.
    Incoming(u8),
}

impl Peer {
    pub(crate) fn new(rank: usize, connection: Connection, stripe_bytes: usize, read_ahead: usize) -> Self {
        Self {
            rank,
            connection,
            outgoing: OutgoingSockets::new(stripe_bytes),
            reader: StripeReader::new(),
            end: End::NotYet,
            ahead: ReadAhead::new(read_ahead),
            unconsumed: 0,
            turn: 0,
            accepted: 0,
            accepted_all: false,
            before_held: None,
            received: 0,
            empty_reads: 0,
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
        !self.connection.stays_on_this_machine()
    }

    pub(crate) const fn detect_lost_host(&mut self, keepalive: Keepalive) {
        self.keepalive = Some(keepalive);
    }

    /// Checks whether the host of the peer answers. Returns whether it was found to be lost now.
    pub(crate) fn check_host(&mut self) -> bool {
        let Some(keepalive) = self.keepalive.filter(|_| !self.has_lost_host) else { return false };
        let is_lost = self.connections().any(|connection| connection.has_lost_host(keepalive));
        if is_lost {
            self.lose_host();
        }
        is_lost
    }

    fn lose_host(&mut self) {
        self.has_lost_host = true;
        self.connections_mut().for_each(Connection::give_up);
    }

    /// All sockets.
    fn connections(&self) -> impl Iterator<Item = &Connection> {
        [&self.connection].into_iter().chain(self.outgoing.writer.flows()).chain(self.reader.flows())
    }

    fn connections_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        [&mut self.connection]
            .into_iter()
            .chain(self.outgoing.writer.flows_mut())
            .chain(self.reader.flows_mut())
    }

    fn connection_mut(&mut self, slot: Slot) -> Option<&mut Connection> {
        match slot {
            Slot::First => Some(&mut self.connection),
            Slot::Outgoing(index) => self.outgoing.writer.flows_mut().nth(index),
            Slot::Incoming(number) => self.reader.flow_mut(number),
        }
    }

    /// The sockets that this side adds to its stream.
    pub(crate) const fn outgoing(&mut self) -> &mut OutgoingSockets {
        &mut self.outgoing
    }

    /// Whether a look at the number of sockets is due.
    pub(crate) const fn may_grow(&self) -> bool {
        self.outgoing.is_due(self.accepted)
    }

    /// Decides on the number of sockets that carry the stream to the peer. Returns those to add.
    pub(crate) fn grow(&mut self, now: Instant) -> Vec<NewSocket> {
        self.outgoing.grow(&self.connection, self.accepted, now)
    }

    /// Adds a socket to the stream from the peer. Returns `false` if there is one with this number.
    pub(crate) fn add_incoming(&mut self, number: u8, connection: Connection) -> bool {
        self.reader.add(number, connection).is_ok()
    }

    /// Whether the caller is to look for added sockets before the stream ends. Returns `true` once.
    pub(crate) fn take_unconfirmed_end(&mut self) -> bool {
        let is_unconfirmed = self.end == End::Unconfirmed;
        if is_unconfirmed {
            self.end = End::Confirmed;
        }
        is_unconfirmed
    }

    /// Whether a send that accepted nothing needs the events of epoll to accept more: a caller may
    /// try again many times before it arms.
    pub(crate) fn sends_by_events(&self) -> bool {
        self.send_end.is_none() && (self.outgoing.writer.used() > 0 || self.outgoing.is_connecting())
    }

    /// Whether a receive that found nothing needs the events of epoll to find more, or a peer on
    /// another host may have added a socket by now.
    pub(crate) fn receives_by_events(&mut self) -> bool {
        if !self.reader.is_empty() {
            return true;
        }
        let may_be_added = self.outgoing.expects_added() && self.received >= LOOK_BYTES;
        self.empty_reads = if may_be_added { (self.empty_reads + 1) % EMPTY_READS_MAX } else { 0 };
        may_be_added && self.empty_reads == 0
    }

    /// Whether bytes of stripes wait to be sent.
    pub(crate) fn holds_stripes(&self) -> bool {
        self.outgoing.writer.held_from().is_some()
    }

    /// The number of bytes that need no further calls to be sent.
    pub(crate) fn released(&self) -> u64 {
        let held = [self.before_held, self.outgoing.writer.held_from()].into_iter().flatten().min();
        held.unwrap_or(self.accepted)
    }

    /// Sends bytes that were accepted but not sent, if the sockets may accept them.
    pub(crate) fn flush(&mut self) {
        if let Err(errno) = self.outgoing.writer.flush() {
            // The next send returns the error.
            self.end_sending(errno);
        }
        if self.before_held.is_none() {
            return;
        }
        if let Err(errno) = self.connection.flush() {
            self.end_sending(errno);
        }
        if !self.connection.holds_bytes() {
            self.before_held = None;
        }
    }

    /// Handles an event of epoll on a socket. Returns whether the stream has ended or broken since
    /// the last one.
    pub(crate) fn handle_event(&mut self, slot: Slot, events: EventFlags) -> bool {
        let connection = self.connection_mut(slot);
        let change = connection.map_or(StateChange::default(), |connection| connection.handle_event(events));
        let is_unused = matches!(slot, Slot::Incoming(number) if !self.reader.is_used(number));
        if change.broke && !is_unused {
            // The other sockets would otherwise fail with errors that do not show the cause, or not
            // at all. A host that is alive has answered the last probe.
            let silence =
                self.keepalive.map(|Keepalive { interval, probes, .. }| interval * probes + interval / 2);
            let broken = self.connection_mut(slot);
            if broken.zip(silence).is_some_and(|(broken, silence)| broken.broke_after_silence(silence)) {
                self.lose_host();
            } else {
                self.end_others();
            }
        }
        change.ended
    }

    /// Ends the streams on all sockets but the broken ones, so that the peer learns of these.
    fn end_others(&mut self) {
        self.connections_mut().filter(|connection| !connection.is_broken()).for_each(Connection::end_sending);
    }

    /// Whether a receive would move bytes or fail, as far as is known.
    pub(crate) fn can_recv(&self) -> bool {
        self.recv_end.is_some()
            || self.ahead.len() > self.unconsumed
            || self.has_lost_host
            || self.reader.can_read(self.received)
            || match self.end {
                End::NotYet => self.reader.is_between_stripes() && self.connection.is_readable(),
                End::Unconfirmed => true,
                End::Confirmed => self.reader.is_exhausted(),
            }
    }

    /// Whether a send would move bytes or fail, as far as is known.
    pub(crate) fn can_send(&self) -> bool {
        let is_writable = match self.outgoing.writer.used() {
            0 => self.connection.is_writable(),
            // A caller whose bytes were all accepted waits until they are released.
            _ if self.accepted_all && self.holds_stripes() => false,
            _ => self.before_held.is_none() && self.outgoing.writer.can_write(),
        };
        self.send_end.is_some() || is_writable
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
        let (sent, is_full) = match self.write(pieces, rest) {
            Ok(written) => written,
            Err(errno) => return Err(self.end_sending(errno)),
        };
        self.accepted += sent as u64;
        // A full socket ends the turn too.
        self.turn = if is_full { 0 } else { TURN_BYTES - rest + sent };
        Ok(sent)
    }

    /// Writes at most `bytes_max` bytes. Returns their number, and whether the socket accepts no
    /// more.
    fn write(&mut self, pieces: &[IoSlice<'_>], bytes_max: usize) -> rustix::io::Result<(usize, bool)> {
        if self.outgoing.writer.used() > 0 {
            let sent = self.outgoing.writer.write(self.accepted, pieces, bytes_max)?;
            self.accepted_all = sent == pieces.iter().map(|piece| piece.len()).sum::<usize>();
            return Ok((sent, sent == 0));
        }
        let mut parts = [IoSlice::new(&[]); PIECES_MAX];
        let count = cut(pieces, 0, bytes_max, &mut parts);
        let parts = &parts[..count];
        let offered = parts.iter().map(|part| part.len()).sum();
        if offered == 0 {
            return Ok((0, true));
        }
        let sent = self.connection.write(parts, offered)?;
        self.before_held = self.connection.holds_bytes().then_some(self.accepted);
        Ok((sent, sent < offered))
    }

    /// Handles a failed send. Bytes that have arrived can still be received.
    fn end_sending(&mut self, errno: Errno) -> Error {
        let corruption = self.connections().find_map(Connection::corruption);
        let loss = corruption.map_or_else(|| self.loss(errno), Loss::Corrupted);
        let end = self.lost(During::Sending, loss);
        self.send_end = Some(end.clone());
        self.end_others();
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

    /// Reads ahead if there are fewer bytes than an element has. Returns the number of bytes that
    /// were read ahead and not returned before.
    pub(crate) fn fill(&mut self, at_most: usize) -> Result<usize> {
        if self.ahead.len() < at_most.min(ELEMENT_BYTES_MAX) {
            let end = self.read_element().err();
            let nothing_new = self.ahead.len() == self.unconsumed;
            if let Some(end) = end.filter(|_| nothing_new) {
                return Err(end);
            }
        }
        Ok(self.ahead.len() - self.unconsumed)
    }

    /// Returns the bytes that were read ahead.
    pub(crate) fn filled(&mut self, at_most: usize) -> RecvBuf<'_> {
        self.unconsumed = if self.ahead.len() < ELEMENT_BYTES_MAX { self.ahead.len() } else { 0 };
        RecvBuf::from_slice(self.ahead.bytes()).first(at_most)
    }

    /// Reads ahead once, or more often if stripes are shorter than an element.
    fn read_element(&mut self) -> Result<()> {
        loop {
            let before = self.received;
            self.read(&mut [])?;
            let next_stripe = self.received > before && self.is_at_stripe();
            if !next_stripe || self.ahead.len() >= ELEMENT_BYTES_MAX {
                return Ok(());
            }
        }
    }

    /// Whether the next byte is the first one of a stripe.
    fn is_at_stripe(&self) -> bool {
        !self.reader.is_empty() && self.reader.is_between_stripes()
    }

    pub(crate) fn consume(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.ahead.len() {
            let (rank, filled) = (self.rank, self.ahead.len());
            return Err(Error::Internal(format!("consumed {bytes} of {filled} bytes from rank {rank}")));
        }
        self.ahead.skip(bytes);
        if bytes > 0 {
            self.unconsumed = 0;
        }
        Ok(())
    }

    /// Reads into the caller's memory, and then ahead, from one socket. Returns the number of bytes
    /// for the caller.
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if let Some(end) = &self.recv_end {
            return Err(end.clone());
        }
        let direct = into.len().min(DIRECT_BYTES_MAX);
        match self.read_next(&mut into[..direct]) {
            Ok(read) => {
                self.received += read as u64;
                self.ahead.advance(read.saturating_sub(direct));
                Ok(read.min(direct))
            }
            Err(Fault::Ended) if self.has_lost_host => Err(self.end_receiving(self.loss(Errno::TIMEDOUT))),
            Err(Fault::Ended) => Err(self.end_receiving(Loss::Closed)),
            Err(Fault::Socket(errno)) => Err(self.end_receiving(self.loss(errno))),
            Err(Fault::Corrupted(corruption)) => Err(self.reject(Loss::Corrupted(corruption))),
            Err(Fault::Protocol(reason)) => Err(self.reject(Loss::Protocol(reason))),
        }
    }

    /// Reads from the socket that carries the next byte, if it is known. Returns the number of all
    /// bytes.
    fn read_next(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        if !self.reader.is_empty() && self.reader.select(self.received)? {
            let read = self.reader.read(into, self.ahead.spare_for(into.len()))?;
            return if read == 0 && self.has_lost_host { Err(Fault::Ended) } else { Ok(read) };
        }
        if self.end != End::NotYet {
            return if self.reader.is_exhausted() || self.has_lost_host { Err(Fault::Ended) } else { Ok(0) };
        }
        if self.connection.take_just_read_all() {
            return Ok(0);
        }
        // Most ranks of a large group never send anything on most streams.
        if !self.ahead.is_allocated() && self.connection.is_silent().map_err(Fault::Socket)? {
            return Ok(0);
        }
        match self.connection.read(into, self.ahead.spare_for(into.len()))? {
            None if self.has_lost_host => Err(Fault::Ended),
            None => Ok(0),
            Some(0) => {
                self.end = End::Unconfirmed;
                Ok(0)
            }
            Some(read) => Ok(read),
        }
    }

    /// Handles bytes that the peer did not send, or that no correct peer sends. The peer is alive,
    /// so it learns from the end of the stream that this side no longer takes part.
    fn reject(&mut self, loss: Loss) -> Error {
        self.connections_mut().for_each(Connection::end_sending);
        self.end_receiving(loss)
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
        self.connections_mut().for_each(Connection::end_sending);
        self.connections().for_each(Connection::discard);
    }
}

/// Whether the error means that the host of the peer does not answer.
const fn is_unreachable(errno: Errno) -> bool {
    matches!(errno, Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN)
}
