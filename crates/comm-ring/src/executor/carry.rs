//! An element that arrives in pieces.

use comm_core::{Lent, Reduction, Result, Transport};

/// The start of an element whose rest has not arrived. It is taken out of the transport, so that bytes that a
/// transport holds are always a reason to look again.
#[derive(Debug, Default)]
pub(super) struct Carry {
    /// As long as the largest element so far.
    bytes: Vec<u8>,
    len: usize,
}

impl Carry {
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    /// Receives more of the element, and combines it with the first of `into` once it is whole. Returns its size, or
    /// zero if it is not whole yet.
    pub(super) fn reduce(
        &mut self,
        transport: &mut dyn Transport,
        from: usize,
        into: &mut [u8],
        reduction: Reduction,
    ) -> Result<usize> {
        let size = reduction.dtype().size();
        if self.bytes.len() < size {
            self.bytes.resize(size, 0);
        }
        self.len += transport.try_recv(from, &mut self.bytes[self.len..size])?;
        if self.len < size {
            return Ok(0);
        }
        self.len = 0;
        Ok(reduction.combine(&mut into[..size], Lent::from_slice(&self.bytes[..size])))
    }
}
