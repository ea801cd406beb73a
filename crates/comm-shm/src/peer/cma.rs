//! Receives bytes by cross-memory attach: the kernel copies them from the memory of the peer.

use std::io;

use comm_core::{During, Loss, RecvBuf, Result};

use super::Peer;
use super::receiving::ELEMENT_BYTES_MAX;
use crate::descriptors::{CMA_BYTES_MAX, Descriptor};

const DURING: During = During::Receiving;
/// The maximum number of bytes that are copied before they are reduced, so that they are still in
/// the cache.
const AHEAD_BYTES: usize = 64 << 10;

/// Bytes of the stream that were copied but not released yet.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    bytes: Box<[u8]>,
    /// The position of the first byte.
    start: u64,
    len: usize,
}

impl Fetched {
    /// Returns at most `len` bytes from a position on, or none if they were not copied.
    pub(super) fn from(&self, position: u64, len: usize) -> RecvBuf<'_> {
        let available = self.available(position);
        let at = self.len - available;
        RecvBuf::from_slice(&self.bytes[at..at + available.min(len)])
    }

    /// The number of copied bytes from a position on.
    fn available(&self, position: u64) -> usize {
        let consumed = position.checked_sub(self.start).and_then(|bytes| usize::try_from(bytes).ok());
        consumed.map_or(0, |consumed| self.len.saturating_sub(consumed))
    }
}

impl Peer {
    /// Copies the next bytes of the stream from an address in the peer's process, and releases
    /// them.
    pub(super) fn fetch(&mut self, address: u64, into: &mut [u8]) -> Result<()> {
        let mut at = address;
        for part in into.chunks_mut(CMA_BYTES_MAX) {
            self.read(at, part)?;
            at = at.saturating_add(part.len() as u64);
            self.release(part.len())?;
        }
        Ok(())
    }

    /// Copies the next bytes of the stream, unless enough of them have been copied already. Returns
    /// the number of bytes that are available.
    pub(super) fn fetch_ahead(&mut self, descriptor: Descriptor, at_most: usize) -> Result<usize> {
        let available = self.fetched.available(descriptor.start).min(at_most);
        if available >= at_most.min(ELEMENT_BYTES_MAX) {
            return Ok(available);
        }
        let mut bytes = std::mem::take(&mut self.fetched.bytes);
        if bytes.is_empty() {
            bytes = vec![0; AHEAD_BYTES].into_boxed_slice();
        }
        let len = at_most.min(AHEAD_BYTES);
        let read = self.read(descriptor.offset, &mut bytes[..len]);
        self.fetched = Fetched { bytes, start: descriptor.start, len: if read.is_ok() { len } else { 0 } };
        read.map(|()| len)
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<()> {
        let Some(cma) = &self.cma else {
            return Err(self.protocol_error(
                DURING,
                "it sent a descriptor for cross-memory attach, which this rank did not announce",
            ));
        };
        cma.read(address, into).map_err(|error| self.read_error(error))
    }

    /// The error for memory of the peer that could not be read.
    fn read_error(&mut self, error: io::Error) -> comm_core::Error {
        if let Err(revoked) = self.check_revoked() {
            return revoked;
        }
        match error.kind() {
            io::ErrorKind::NotFound => self.fail(DURING, Loss::Closed),
            _ => self.protocol_error(DURING, error),
        }
    }
}
