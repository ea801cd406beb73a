//! How bytes go to a peer: copied into the ring, or lent where they lie.

use std::hint::black_box;
use std::io::IoSlice;
use std::time::Instant;

use comm_core::{During, Error, Result};

use super::{Connection, Peer, revocation};
use crate::echo::ECHO_BYTES;
use crate::exposed::Exposed;
use crate::lender::Lender;
use crate::loans::{ANYWHERE, SHOWN_BYTES_MAX};
use crate::route::{Route, Way};
use crate::socket;

/// What an attempt to send had too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Short {
    /// All went.
    Nothing,
    /// Room in the ring.
    Room,
    /// Places for loans.
    Loans,
    /// Places for loans of memory that is not mapped.
    Shown,
}

impl Peer {
    /// The position up to which bytes were accepted.
    pub(crate) const fn accepted(&self) -> u64 {
        self.writer.position()
    }

    /// The position below which nothing that is lent is read any more. A peer that is gone reads nothing.
    #[inline]
    pub(crate) fn released(&self) -> u64 {
        if self.end.is_some() || self.revoked.is_some() {
            return self.accepted();
        }
        self.writer.released(self.control_out())
    }

    /// Copies as many bytes as there is room for, or lends them; if they are exposed, in memory like any other too. Small
    /// pieces are shown to the other side together.
    #[inline]
    pub(crate) fn try_send(&mut self, pieces: &[IoSlice<'_>], exposed: &mut Exposed) -> Result<usize> {
        if let Some(end) = self.end.as_ref().or(self.revoked.as_ref()) {
            return Err(end.clone());
        }
        let offered = pieces.iter().fold(0_usize, |sum, piece| sum.saturating_add(piece.len()));
        if self.writer.room() < offered {
            self.look_for_room()?;
        }
        self.short_of = Short::Nothing;
        if offered <= self.small_max && offered <= self.writer.room() {
            self.send_small(pieces);
            return Ok(offered);
        }
        let mut sent = 0;
        for piece in pieces {
            let gone = self.send_piece(piece, exposed)?;
            sent += gone;
            if gone < piece.len() {
                break;
            }
        }
        self.publish();
        Ok(sent)
    }

    /// Copies a message for which there is room, and that is so small that it goes along with the position too.
    #[inline]
    fn send_small(&mut self, pieces: &[IoSlice<'_>]) {
        let (mut message, mut len) = ([0; ECHO_BYTES], 0);
        for piece in pieces {
            message[len..len + piece.len()].copy_from_slice(piece);
            len += piece.len();
        }
        let Connection { segment, outgoing, .. } = &self.connection;
        segment.copy_in(*outgoing, self.writer.ring_position(), &message[..len]);
        self.writer.wrote(len);
        if len > 0 {
            segment.control(*outgoing).echo().put(&message, len, self.writer.position());
        }
        self.publish();
    }

    /// Returns how much of the piece went.
    #[inline]
    fn send_piece(&mut self, piece: &[u8], exposed: &mut Exposed) -> Result<usize> {
        if let Some(lent) = self.try_lend(piece)? {
            return Ok(lent);
        }
        if let Some(shown) = self.try_show(piece, exposed)? {
            return Ok(shown);
        }
        let (mut rest, _) = piece.split_at(piece.len().min(self.writer.room()));
        let sent = rest.len();
        if sent < piece.len() {
            self.short_of = Short::Room;
        }
        while !rest.is_empty() {
            let (stride, behind) = rest.split_at(rest.len().min(self.stride));
            self.write(stride);
            rest = behind;
        }
        Ok(sent)
    }

    /// Lends a piece, all of it or nothing for now. `None` if it is to be copied.
    #[inline]
    fn try_lend(&mut self, piece: &[u8]) -> Result<Option<usize>> {
        let Some((region, offset)) = self.lender.as_ref().and_then(|lender| lender.find(piece)) else {
            return Ok(None);
        };
        if !self.writer.can_lend() {
            self.look_for_room()?;
        }
        if !self.writer.can_lend() {
            self.short_of = Short::Loans;
            return Ok(Some(0));
        }
        let Connection { socket, segment, outgoing, .. } = &self.connection;
        let is_out = |region| self.writer.outstanding().any(|loan| loan.region == region);
        if !self.lender.as_mut().is_some_and(|lender| lender.tell(&region, socket, is_out)) {
            return Ok(None);
        }
        self.released_told.get_or_insert(self.writer.position());
        self.writer.lend(segment.control(*outgoing), piece.len(), region.id(), offset);
        Ok(Some(piece.len()))
    }

    /// Lends the start of a piece that lies in memory which the peer cannot map, but read. `None` if it is to be copied.
    fn try_show(&mut self, piece: &[u8], exposed: &mut Exposed) -> Result<Option<usize>> {
        let shown_min = self.lender.as_ref().map_or(usize::MAX, Lender::shown_min);
        if piece.len() < shown_min || !self.control_out().fetches() || !exposed.holds(piece) {
            return Ok(None);
        }
        if !self.writer.can_show() {
            self.look_for_room()?;
        }
        if !self.writer.can_show() {
            self.short_of = Short::Shown;
            return Ok(Some(0));
        }
        let (len, address) = (piece.len().min(SHOWN_BYTES_MAX), piece.as_ptr().addr() as u64);
        self.released_told.get_or_insert(self.writer.position());
        let control = self.connection.segment.control(self.connection.outgoing);
        self.writer.lend(control, len, ANYWHERE, address);
        Ok(Some(len))
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let Connection { segment, outgoing, .. } = &self.connection;
        let position = self.writer.ring_position();
        let go = |way| match way {
            Way::Through => segment.copy_in(*outgoing, position, bytes),
            Way::Around => segment.stream_in(*outgoing, position, bytes),
        };
        match self.router.route(bytes.len()) {
            Route::Plain(way) => go(way),
            Route::Measured(way) => {
                warm(bytes);
                let begin = Instant::now();
                go(way);
                self.router.took(bytes.len(), begin.elapsed());
            }
        }
        self.writer.wrote(bytes.len());
        if self.writer.unpublished() >= self.stride as u64 {
            self.publish();
        }
    }

    #[inline]
    fn publish(&mut self) {
        let Connection { socket, segment, outgoing, .. } = &self.connection;
        let control = segment.control(*outgoing);
        if self.writer.publish(control) {
            socket::ring(socket);
        }
    }

    /// Looks how much room there is by now.
    fn look_for_room(&mut self) -> Result<()> {
        let control = self.connection.segment.control(self.connection.outgoing);
        self.writer.look(control).map_err(|impossible| self.garble(During::Sending, impossible))
    }

    /// Whether a send would move bytes or fail, or something was released since this was last asked. Who was sent all
    /// that it had, and waits for what is lent, has no use for room.
    pub(crate) fn can_send(&mut self) -> bool {
        if self.end.is_some() || self.revoked.is_some() || self.look_for_room().is_err() {
            return true;
        }
        let released = self.released();
        let awaited = (released < self.accepted()).then_some(released);
        if std::mem::replace(&mut self.released_told, awaited).is_some_and(|told| told < released) {
            return true;
        }
        match self.short_of {
            Short::Loans => self.writer.can_lend(),
            Short::Shown => self.writer.can_show(),
            Short::Nothing if awaited.is_some() => false,
            Short::Nothing | Short::Room => self.writer.room() > 0,
        }
    }

    /// Takes back what is lent and not read.
    pub(crate) fn revoke(&mut self) {
        if self.released() == self.accepted() {
            return;
        }
        self.control_out().revoke();
        let during = During::Sending;
        self.revoked = Some(Error::PeerLost { peer: self.rank, during, loss: revocation() });
    }
}

/// Brings bytes into the cache, so that it does not count how long they take to come from memory.
fn warm(bytes: &[u8]) {
    let lines = bytes.iter().step_by(64);
    black_box(lines.fold(0_u8, |sum, byte| sum ^ *byte));
}
