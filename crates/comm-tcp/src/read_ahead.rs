//! Bytes that were read from a socket ahead of their use.

/// A read of at least this size goes directly to the caller; little more than a header is read
/// ahead.
const DIRECT_BYTES_MIN: usize = 16 * 1024;
/// The maximum number of bytes to read ahead in a large read.
const AHEAD_OF_DIRECT_BYTES: usize = 4 * 1024;
/// The maximum number of bytes to read ahead in a small read, which may be for the header of a long
/// message. A short message is thus read whole, and the rest of a long one directly to its
/// destination. Copying this much costs about as much as a system call.
const AHEAD_OF_SMALL_BYTES: usize = 16 * 1024;
/// Bytes that were read but not received yet. The memory is allocated on first use.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    memory: Box<[u8]>,
    capacity: usize,
    start: usize,
    end: usize,
}

impl ReadAhead {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { memory: Box::default(), capacity, start: 0, end: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// Whether it has been used.
    pub(crate) const fn is_allocated(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Moves as many bytes as fit, and returns their number.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> usize {
        let taken = self.len().min(into.len());
        into[..taken].copy_from_slice(&self.bytes()[..taken]);
        self.skip(taken);
        taken
    }

    /// Removes the first bytes, or all if there are fewer.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.start += bytes.min(self.len());
    }

    /// Returns the spare capacity. This moves the remaining bytes to the front, so there should be
    /// few.
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        if self.memory.is_empty() {
            self.memory = vec![0; self.capacity].into_boxed_slice();
        }
        self.memory.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.memory[self.end..]
    }

    /// Returns the spare capacity to use in a read of this many bytes for the caller.
    pub(crate) fn spare_for(&mut self, direct: usize) -> &mut [u8] {
        let spare = self.spare();
        let max = match direct {
            0 => spare.len(),
            1..DIRECT_BYTES_MIN => AHEAD_OF_SMALL_BYTES,
            _ => AHEAD_OF_DIRECT_BYTES,
        };
        let max = max.min(spare.len());
        &mut spare[..max]
    }

    /// Appends the first bytes of the spare capacity, which the caller has filled.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.memory.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_in_the_order_in_which_they_were_written() {
        let mut ahead = ReadAhead::new(8);
        assert_eq!(ahead.take(&mut [0; 4]), 0);
        let (mut next_in, mut next_out) = (0_u8, 0_u8);
        for round in 0..100 {
            let spare = ahead.spare();
            let advance = spare.len().min(round % 9);
            for byte in &mut spare[..advance] {
                *byte = next_in;
                next_in = next_in.wrapping_add(1);
            }
            ahead.advance(advance);
            let mut out = vec![0; round % 5];
            let taken = ahead.take(&mut out);
            for byte in &out[..taken] {
                assert_eq!(*byte, next_out);
                next_out = next_out.wrapping_add(1);
            }
        }
        assert_eq!(ahead.len(), usize::from(next_in.wrapping_sub(next_out)));
    }
}
