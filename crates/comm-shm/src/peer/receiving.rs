//! Receives bytes from a peer: from a box, the ring, or memory that a descriptor names.

use comm_core::{During, Error, RecvBuf, Result};

use super::{Peer, revocation};
use crate::descriptors::Descriptor;
use crate::fast_boxes::{Acknowledged, BoxedMessage, FIRST_LINE_BYTES};
use crate::prefetch::{Intent, READ_BYTES_MAX};
use crate::segment::Access;
use crate::socket;

/// The size of the largest element: this many bytes contain a whole element of any type.
pub(super) const ELEMENT_BYTES_MAX: usize = 8;
/// The maximum number of bytes of a descriptor that are read between checks for its revocation.
const DIRECT_STRIDE_BYTES_MAX: usize = 1 << 20;
/// The maximum number of packets that are read in search of a region that must have been sent: more
/// than a socket holds.
const PACKETS_MAX: usize = 4096;

/// Bytes that were taken out of the stream but not received yet: the start of an element whose
/// parts are in different memory.
#[derive(Debug, Default)]
pub(super) struct PartialElement {
    bytes: [u8; ELEMENT_BYTES_MAX],
    len: usize,
}

impl PartialElement {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Removes the first `len` bytes, which must be present.
    fn consume(&mut self, len: usize) {
        self.bytes.copy_within(len..self.len, 0);
        self.len -= len;
    }
}

impl Peer {
    pub(crate) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize> {
        self.check_failed()?;
        let mut taken = self.partial.len.min(into.len());
        into[..taken].copy_from_slice(&self.partial.bytes[..taken]);
        self.partial.consume(taken);
        while taken < into.len() {
            match self.take(&mut into[taken..]) {
                Ok(0) => break,
                Ok(more) => taken += more,
                // The next call returns the error, because the bytes before it were received.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if taken > 0 {
            self.unconsumed = 0;
        } else if !into.is_empty() {
            self.check_end(0)?;
        }
        Ok(taken)
    }

    /// Copies bytes of one contiguous piece.
    fn take(&mut self, into: &mut [u8]) -> Result<usize> {
        if self.reader.available() < into.len() {
            self.refresh_tail()?;
        }
        let taken = self.reader.available().min(into.len());
        if let Some(descriptor) = self.reader.descriptor().filter(Descriptor::is_cma) {
            self.fetch(descriptor.offset, &mut into[..taken])?;
            return Ok(taken);
        }
        if let Some(descriptor) = self.reader.descriptor().filter(Descriptor::is_put) {
            self.take_put(&descriptor, &mut into[..taken])?;
            self.release(taken)?;
            return Ok(taken);
        }
        self.ensure_mapped(taken)?;
        let stride = if self.reader.descriptor().is_some() { DIRECT_STRIDE_BYTES_MAX } else { self.stride };
        for part in into[..taken].chunks_mut(stride) {
            self.view(part.len()).copy_to(part);
            self.release(part.len())?;
        }
        Ok(taken)
    }

    /// Returns bytes that were copied into a box or the ring, at most those that are available.
    #[inline]
    fn view_copied(&self, len: usize) -> RecvBuf<'_> {
        let segment = &self.connection.segment;
        match self.reader.boxed() {
            Some(message) => segment.fill_box(self.incoming(), message, self.reader.position(), len),
            None => segment.fill_buf(self.incoming(), self.reader.ring_position(), len),
        }
    }

    /// Returns bytes in place, at most those that are available and mapped.
    #[inline]
    fn view(&self, len: usize) -> RecvBuf<'_> {
        match self.reader.descriptor() {
            Some(descriptor) if descriptor.is_cma() => self.fetched.from(descriptor.start, len),
            Some(descriptor) => self.region_cache.fill_buf(&descriptor, len),
            None => self.view_copied(len),
        }
    }

    /// Prepares bytes for [`Peer::fill_buf`], and returns their number. It prepares at most one
    /// stride of a ring, so that the writer gets space back in time.
    #[inline]
    pub(crate) fn prepare(&mut self, at_most: usize) -> Result<usize> {
        // The common case of a rank that polls.
        if self.partial.len == 0 && self.reader.claimed() == 0 && self.end.is_none() {
            let segment = &self.connection.segment;
            let (control, boxes) = (segment.control(self.incoming()), segment.boxes(self.incoming()));
            if self.reader.is_drained(control, boxes) {
                self.publish_head();
                return Ok(0);
            }
            if let Some(acknowledged) = self.reader.take_boxed(boxes) {
                self.start_boxed(acknowledged);
                if self.reader.available() >= ELEMENT_BYTES_MAX {
                    self.unconsumed = 0;
                    return Ok(self.reader.available().min(at_most));
                }
            }
        }
        if self.reader.available() < at_most.min(self.stride) {
            let known = self.reader.available();
            self.refresh_tail()?;
            self.prefetch(known);
        }
        self.check_end(self.unconsumed)?;
        self.assemble_element(at_most)?;
        let available = self.available();
        self.unconsumed = if available < ELEMENT_BYTES_MAX as u64 { available } else { 0 };
        if self.partial.len > 0 {
            return Ok(self.partial.len.min(at_most));
        }
        if let Some(descriptor) = self.reader.descriptor() {
            if descriptor.is_put() {
                // It is received with `try_recv`.
                return Ok(0);
            }
            if descriptor.is_cma() {
                return self.fetch_ahead(descriptor, self.reader.available().min(at_most));
            }
        }
        let stride = if self.reader.descriptor().is_some() { DIRECT_STRIDE_BYTES_MAX } else { self.stride };
        let prepared = self.reader.available().min(at_most).min(stride);
        self.ensure_mapped(prepared)?;
        Ok(prepared)
    }

    /// Lets the processor fetch the bytes of the ring after those that were known, so that it does
    /// not wait for the header of a message before it fetches the payload.
    #[inline]
    fn prefetch(&mut self, known: usize) {
        let until = self.reader.available().min(READ_BYTES_MAX);
        if until > known && self.reader.descriptor().is_none() && self.reader.boxed().is_none() {
            self.flow.receives();
            let first = self.reader.ring_position() + known as u64;
            self.connection.segment.prefetch(self.incoming(), first, until - known);
        }
    }

    /// Copies an element that begins in one piece of the stream and ends in another, so that it is
    /// received whole.
    #[inline]
    fn assemble_element(&mut self, at_most: usize) -> Result<()> {
        let available = self.reader.available();
        let is_cut = available < ELEMENT_BYTES_MAX && (available as u64) < self.reader.claimed();
        if self.partial.len == 0 && !(is_cut && available < at_most && available > 0) {
            return Ok(());
        }
        while self.partial.len < ELEMENT_BYTES_MAX {
            let mut bytes = [0; ELEMENT_BYTES_MAX];
            let missing = ELEMENT_BYTES_MAX - self.partial.len;
            let taken = self.take(&mut bytes[..missing])?;
            if taken == 0 {
                break;
            }
            self.partial.bytes[self.partial.len..self.partial.len + taken].copy_from_slice(&bytes[..taken]);
            self.partial.len += taken;
        }
        Ok(())
    }

    /// Whether the next bytes are in memory of the peer's process, so that [`Peer::prepare`] would
    /// copy them to a buffer, or in the window already.
    pub(crate) fn fill_buf_copies(&mut self) -> bool {
        if self.reader.available() == 0 && self.refresh_tail().is_err() {
            return false;
        }
        self.reader.descriptor().is_some_and(|descriptor| descriptor.is_cma() || descriptor.is_put())
    }

    /// Returns bytes that [`Peer::prepare`] has prepared.
    #[inline]
    pub(crate) fn fill_buf(&self, len: usize) -> RecvBuf<'_> {
        if self.partial.len > 0 {
            return RecvBuf::from_slice(self.partial.bytes()).first(len);
        }
        self.view(len.min(self.reader.available()))
    }

    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize) -> Result<()> {
        let filled = if self.partial.len > 0 { self.partial.len } else { self.reader.available() };
        if bytes > filled {
            return Err(over_consumed(bytes, filled, self.rank));
        }
        if bytes > 0 {
            self.unconsumed = 0;
        }
        if self.partial.len > 0 {
            self.partial.consume(bytes);
            return Ok(());
        }
        self.release(bytes)
    }

    /// Releases bytes that were read.
    ///
    /// # Errors
    /// If their owner has revoked them; what was read is then invalid.
    #[inline]
    pub(super) fn release(&mut self, bytes: usize) -> Result<()> {
        if self.reader.descriptor().is_some() {
            self.check_revoked()?;
        }
        let control = self.connection.segment.control(self.incoming());
        if self.reader.release(bytes, control) {
            socket::notify(&self.connection.socket);
        }
        Ok(())
    }

    /// Maps the region of the next bytes, if they have a descriptor and it is not mapped yet, or
    /// the pages of the ring that hold them.
    #[inline]
    fn ensure_mapped(&mut self, len: usize) -> Result<()> {
        if self.reader.boxed().is_some() {
            return Ok(());
        }
        let Some(descriptor) = self.reader.descriptor() else {
            let (incoming, position) = (self.incoming(), self.reader.ring_position());
            let prepared = self.connection.segment.prepare(incoming, position, len, Access::Read);
            return prepared.map_err(|error| self.no_memory(error));
        };
        if self.region_cache.contains(&descriptor) {
            return Ok(());
        }
        self.check_revoked()?;
        // The region was sent before the descriptor.
        for _ in 0..PACKETS_MAX {
            if !self.recv_packet() || self.region_cache.contains(&descriptor) {
                break;
            }
        }
        match self.end.clone().filter(|_| self.has_failed) {
            Some(end) => Err(end),
            None if self.region_cache.contains(&descriptor) => Ok(()),
            None => Err(self.protocol_error(
                During::Receiving,
                format_args!("it sent {descriptor:?}, but never its region"),
            )),
        }
    }

    /// Fails if the peer has revoked its descriptors.
    pub(super) fn check_revoked(&mut self) -> Result<()> {
        if self.control_in().is_revoked() { Err(self.fail(During::Receiving, revocation())) } else { Ok(()) }
    }

    /// Fails if the streams have ended and at most `unconsumed` bytes are available.
    #[inline]
    fn check_end(&mut self, unconsumed: u64) -> Result<()> {
        if self.end.is_none() {
            return Ok(());
        }
        self.refresh_tail()?;
        let end = self.end.clone().filter(|_| self.available() <= unconsumed);
        end.map_or(Ok(()), Err)
    }

    /// Fails if the streams have failed. Then nothing is delivered, also of what arrived before.
    #[inline]
    fn check_failed(&self) -> Result<()> {
        let end = self.end.as_ref().filter(|_| self.has_failed);
        end.map_or(Ok(()), |end| Err(end.clone()))
    }

    /// The number of bytes that are known to be available.
    #[inline]
    const fn available(&self) -> u64 {
        self.partial.len as u64 + self.reader.claimed()
    }

    /// Reads the position to which the peer has written.
    #[inline]
    fn refresh_tail(&mut self) -> Result<()> {
        self.check_failed()?;
        let segment = &self.connection.segment;
        let (control, boxes) = (segment.control(self.incoming()), segment.boxes(self.incoming()));
        let refreshed = self.reader.refresh(control, boxes);
        let acknowledged = refreshed.map_err(|error| self.protocol_error(During::Receiving, error))?;
        if let Some(acknowledged) = acknowledged {
            self.start_boxed(acknowledged);
        }
        if self.reader.claimed() == 0 {
            self.publish_head();
        }
        Ok(())
    }

    /// Starts to receive a message in a box.
    #[inline]
    fn start_boxed(&mut self, acknowledged: Acknowledged) {
        self.writer.acknowledge(acknowledged);
        let is_flow = self.flow.receives();
        let boxes = self.connection.segment.boxes(self.incoming());
        let Some(BoxedMessage { place, .. }) = self.reader.boxed() else { return };
        let len = self.reader.available().min(READ_BYTES_MAX);
        if len > FIRST_LINE_BYTES {
            boxes.prefetch(*place, len, Intent::Read);
        }
        if is_flow {
            boxes.prefetch(self.reader.inbox().place(place.size), 0, Intent::Read);
        }
    }

    /// Publishes the position to which this side has read.
    #[inline]
    fn publish_head(&mut self) {
        let control = self.connection.segment.control(self.incoming());
        if self.reader.publish(control) {
            socket::notify(&self.connection.socket);
        }
    }

    /// Whether a receive would move bytes or fail.
    pub(crate) fn can_recv(&mut self) -> bool {
        self.end.is_some() || self.refresh_tail().is_err() || self.available() > self.unconsumed
    }
}

#[cold]
fn over_consumed(bytes: usize, filled: usize, rank: usize) -> Error {
    Error::Internal(format!("consumed {bytes} of {filled} bytes from rank {rank}"))
}
