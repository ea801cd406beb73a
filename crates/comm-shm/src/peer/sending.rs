//! Sends bytes to a peer: copied into a box or the ring, or as descriptors of memory that the peer
//! reads.

use std::io::IoSlice;

use comm_core::{During, Error, Result};

use super::{Connection, Peer, revocation};
use crate::descriptors::{CMA_BYTES_MAX, CMA_REGION};
use crate::exporter::RegionExporter;
use crate::fast_boxes::BoxSize;
use crate::prefetch::Intent;
use crate::registered::RegisteredMemory;
use crate::segment::Access;
use crate::socket;

/// The least number of bytes that is worth a publication, which costs both processors the transfer
/// of a line.
const STRIDE_BYTES_MIN: usize = 16 << 10;
/// The number of publications of a piece for which neither limit of their length applies.
const STRIDES: usize = 2;
/// The same where both sides share a cache, through which a line takes less time.
const STRIDES_IN_CACHE: usize = 8;

/// The resource that an attempt to send lacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortage {
    /// Nothing: all bytes were sent.
    None,
    /// Space in the ring.
    Space,
    /// Descriptors.
    Descriptors,
    /// Descriptors for cross-memory attach.
    CmaDescriptors,
}

impl Peer {
    /// The position up to which bytes were accepted.
    pub(crate) const fn accepted(&self) -> u64 {
        self.writer.position()
    }

    /// The position below which the peer no longer reads anything. A peer that has ended reads
    /// nothing.
    #[inline]
    pub(crate) fn released(&self) -> u64 {
        if self.end.is_some() || self.revoked.is_some() {
            return self.accepted();
        }
        self.writer.released(self.control_out())
    }

    /// Sends pieces: copies as many bytes as there is space for, or sends descriptors of pieces
    /// that are in regions or registered. Small pieces are published together.
    #[inline]
    pub(crate) fn try_send(
        &mut self,
        pieces: &[IoSlice<'_>],
        registered: &mut RegisteredMemory,
    ) -> Result<usize> {
        if let Some(end) = self.end.as_ref().or(self.revoked.as_ref()) {
            return Err(end.clone());
        }
        let offered = pieces.iter().fold(0_usize, |sum, piece| sum.saturating_add(piece.len()));
        if self.writer.space() < offered {
            self.refresh_head()?;
        }
        self.shortage = Shortage::None;
        if self.try_send_boxed(pieces, offered)? {
            return Ok(offered);
        }
        let mut sent = 0;
        for piece in pieces {
            let accepted = self.send_piece(piece, registered)?;
            sent += accepted;
            if accepted < piece.len() {
                break;
            }
        }
        self.publish();
        Ok(sent)
    }

    /// Copies a message of `len` bytes into a box, if there is a free one of its size.
    #[inline]
    fn try_send_boxed(&mut self, pieces: &[IoSlice<'_>], len: usize) -> Result<bool> {
        if len > self.writer.space() || len == 0 {
            return Ok(false);
        }
        let Some(size) = BoxSize::of(len) else { return Ok(false) };
        if len > self.copied_max && !self.is_boxed(pieces) {
            return Ok(false);
        }
        if !self.writer.has_free_box(size) {
            self.refresh_head()?;
            if !self.writer.has_free_box(size) {
                return Ok(false);
            }
        }
        if !self.writer.has_boxes() {
            self.open_boxes()?;
        }
        if self.post(pieces, size, len) {
            socket::notify(&self.connection.socket);
        }
        let is_flow = self.flow.sends();
        if self.short_path.is_cached(len) {
            self.prefetch_box(size, len, is_flow);
        }
        Ok(true)
    }

    /// Whether a message goes into a box although it is longer than pieces that are always copied.
    /// Of a stream in one direction, the ring holds more than the two boxes for that length.
    fn is_boxed(&self, pieces: &[IoSlice<'_>]) -> bool {
        let copies = |exporter: &RegionExporter| {
            let is_copied = |piece: &IoSlice<'_>| {
                piece.len() < exporter.cma_bytes_min() && exporter.find(piece).is_none()
            };
            pieces.iter().all(is_copied)
        };
        !self.flow.sent && self.exporter.as_ref().is_none_or(copies)
    }

    /// Takes the lines of a box for a later message from the reader, which has read an earlier one
    /// there.
    #[inline]
    fn prefetch_box(&self, size: BoxSize, len: usize, is_flow: bool) {
        let (boxes, outbox) = (self.connection.segment.boxes(self.connection.outgoing), self.writer.outbox());
        if is_flow {
            // The reader polls the next box.
            boxes.prefetch(outbox.later(size), len, Intent::Write);
        } else {
            boxes.prefetch_unpolled(outbox.place(size), len, Intent::Write);
        }
    }

    #[cold]
    fn open_boxes(&mut self) -> Result<()> {
        let Connection { segment, outgoing, .. } = &self.connection;
        segment.allocate_boxes(*outgoing).map_err(|error| self.no_memory(error))?;
        self.writer.open_boxes(segment.control(*outgoing));
        Ok(())
    }

    /// Copies a message into the next box of this size, and publishes it. Returns whether the
    /// reader must be notified.
    #[inline]
    fn post(&mut self, pieces: &[IoSlice<'_>], size: BoxSize, len: usize) -> bool {
        let Connection { segment, outgoing, .. } = &self.connection;
        let (boxes, place) = (segment.boxes(*outgoing), self.writer.outbox().place(size));
        segment.copy_into_box(*outgoing, place, pieces, &mut self.short_path);
        let head = self.reader.position();
        self.writer.post(segment.control(*outgoing), boxes, size, len, head)
    }

    /// Allocates the memory of the next bytes of the ring, if they are used for the first time.
    #[inline]
    fn prepare_ring(&mut self, len: usize) -> Result<()> {
        let Connection { segment, outgoing, .. } = &mut self.connection;
        segment
            .prepare(*outgoing, self.writer.ring_position(), len, Access::Write)
            .map_err(|error| self.no_memory(error))
    }

    /// Returns the number of bytes that were sent.
    #[inline]
    fn send_piece(&mut self, piece: &[u8], registered: &mut RegisteredMemory) -> Result<usize> {
        if let Some(sent) = self.try_send_descriptor(piece)? {
            return Ok(sent);
        }
        if let Some(sent) = self.try_send_by_cma(piece, registered)? {
            return Ok(sent);
        }
        let (mut rest, _) = piece.split_at(piece.len().min(self.writer.space()));
        let sent = rest.len();
        if sent < piece.len() {
            self.shortage = Shortage::Space;
        }
        self.prepare_ring(sent)?;
        let strides = if self.long_path.is_quick() { STRIDES_IN_CACHE } else { STRIDES };
        let stride_bytes = stride(piece.len(), strides, self.stride);
        while !rest.is_empty() {
            let (stride, tail) = rest.split_at(rest.len().min(stride_bytes));
            self.write(stride, stride_bytes);
            rest = tail;
        }
        Ok(sent)
    }

    /// Sends the descriptor of a piece in a region. Returns its length, zero if there is no free
    /// descriptor now, or `None` if the piece is to be copied.
    #[inline]
    fn try_send_descriptor(&mut self, piece: &[u8]) -> Result<Option<usize>> {
        let Some((region, offset)) = self.exporter.as_ref().and_then(|exporter| exporter.find(piece)) else {
            return Ok(None);
        };
        if !self.writer.has_free_descriptor() {
            self.refresh_head()?;
        }
        if !self.writer.has_free_descriptor() {
            self.shortage = Shortage::Descriptors;
            return Ok(Some(0));
        }
        let Connection { socket, segment, outgoing, .. } = &self.connection;
        let is_out = |region| self.writer.outstanding().any(|descriptor| descriptor.region == region);
        if !self.exporter.as_mut().is_some_and(|exporter| exporter.export(&region, socket, is_out)) {
            return Ok(None);
        }
        self.last_released.get_or_insert(self.writer.position());
        self.writer.push_descriptor(segment.control(*outgoing), piece.len(), region.id(), offset);
        Ok(Some(piece.len()))
    }

    /// Sends a descriptor of the start of a piece that the peer reads by cross-memory attach.
    /// Returns `None` if the piece is to be copied.
    fn try_send_by_cma(&mut self, piece: &[u8], registered: &mut RegisteredMemory) -> Result<Option<usize>> {
        let cma_bytes_min = self.exporter.as_ref().map_or(usize::MAX, RegionExporter::cma_bytes_min);
        if piece.len() < cma_bytes_min || !self.control_out().reads_by_cma() || !registered.contains(piece) {
            return Ok(None);
        }
        if !self.writer.has_free_cma_descriptor() {
            self.refresh_head()?;
        }
        if !self.writer.has_free_cma_descriptor() {
            self.shortage = Shortage::CmaDescriptors;
            return Ok(Some(0));
        }
        let (len, address) = (piece.len().min(CMA_BYTES_MAX), piece.as_ptr().addr() as u64);
        self.last_released.get_or_insert(self.writer.position());
        let control = self.connection.segment.control(self.connection.outgoing);
        self.writer.push_descriptor(control, len, CMA_REGION, address);
        Ok(Some(len))
    }

    #[inline]
    fn write(&mut self, bytes: &[u8], stride_bytes: usize) {
        let Connection { segment, outgoing, .. } = &self.connection;
        let position = self.writer.ring_position();
        self.long_path.copy(bytes, |path| segment.copy_in(path, *outgoing, position, bytes));
        self.writer.advance(bytes.len());
        if self.writer.unpublished() >= stride_bytes as u64 {
            self.publish();
        }
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        let Connection { socket, segment, outgoing, .. } = &self.connection;
        let control = segment.control(*outgoing);
        if self.writer.publish(control) {
            socket::notify(socket);
        }
    }

    /// Reads the position to which the peer has read.
    pub(super) fn refresh_head(&mut self) -> Result<()> {
        let control = self.connection.segment.control(self.connection.outgoing);
        self.writer.refresh(control).map_err(|error| self.protocol_error(During::Sending, error))
    }

    /// Whether a send would move bytes or fail, or bytes were released since the last call. A
    /// caller that has sent all bytes waits for their release, not for space.
    pub(crate) fn can_send(&mut self) -> bool {
        if self.end.is_some() || self.revoked.is_some() || self.refresh_head().is_err() {
            return true;
        }
        let released = self.released();
        let unreleased = (released < self.accepted()).then_some(released);
        if std::mem::replace(&mut self.last_released, unreleased).is_some_and(|last| last < released) {
            return true;
        }
        match self.shortage {
            Shortage::Descriptors => self.writer.has_free_descriptor(),
            Shortage::CmaDescriptors => self.writer.has_free_cma_descriptor(),
            Shortage::None if unreleased.is_some() => false,
            Shortage::None | Shortage::Space => self.writer.space() > 0,
        }
    }

    /// Revokes memory that the peer has not read yet.
    pub(crate) fn revoke(&mut self) {
        if self.released() == self.accepted() {
            return;
        }
        self.control_out().revoke();
        let during = During::Sending;
        self.revoked = Some(Error::PeerLost { peer: self.rank, during, loss: revocation() });
    }
}

/// Returns the number of bytes of a piece that are published together, if it is published in this
/// many strides: so few that the peer soon begins to read, but no fewer than a publication is
/// worth.
fn stride(piece_bytes: usize, strides: usize, max: usize) -> usize {
    (piece_bytes / strides).max(STRIDE_BYTES_MIN).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_pieces_are_published_in_longer_strides() {
        let max = 64 << 10;
        let pieces = [1, 32 << 10, 64 << 10, 128 << 10, 256 << 10, usize::MAX];
        let strides = |strides| pieces.map(|bytes| stride(bytes, strides, max) >> 10);
        assert_eq!(strides(STRIDES), [16, 16, 32, 64, 64, 64]);
        assert_eq!(strides(STRIDES_IN_CACHE), [16, 16, 16, 16, 32, 64]);
        assert_eq!(stride(1 << 20, STRIDES, 1024), 1024, "a short ring");
    }
}
