//! An element that arrives in pieces.

use comm_core::{RecvBuf, Reduction, Result, Transport};

/// The first bytes of an element whose rest has not arrived.
///
/// They are removed from the transport, so that a transport that holds bytes always has bytes to
/// process.
#[derive(Debug, Default)]
pub(super) struct PartialElement {
    /// Holds elements of the built-in types. Streams may split these anywhere, and calls must not
    /// allocate for that.
    small: [u8; 8],
    /// Holds larger elements. As long as the largest so far.
    large: Vec<u8>,
    len: usize,
}

impl PartialElement {
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    /// Receives more of the element and, once it is complete, combines it into the first element of
    /// `dst`. Returns the size of the element, or zero if it is incomplete.
    pub(super) fn recv_reduce(
        &mut self,
        transport: &mut dyn Transport,
        from: usize,
        dst: &mut [u8],
        addend: Option<&[u8]>,
        reduction: &Reduction,
    ) -> Result<usize> {
        let size = reduction.dtype().size();
        if size > self.small.len() && self.large.len() < size {
            self.large.resize(size, 0);
        }
        let bytes = if size > self.small.len() { &mut self.large[..size] } else { &mut self.small[..size] };
        self.len += transport.try_recv(from, &mut bytes[self.len..])?;
        if self.len < size {
            return Ok(0);
        }
        self.len = 0;
        Ok(reduction.combine(dst, addend, RecvBuf::from_slice(bytes)))
    }
}
