//! Registered memory of this process, which its peers may read by cross-memory attach.

use crate::cma;

/// The maximum number of pieces: the buffers of a call and temporary memory.
const PIECES_MAX: usize = 3;

/// The memory of the last registration.
#[derive(Debug, Default)]
pub(crate) struct RegisteredMemory([Piece; PIECES_MAX]);

/// A range of addresses.
#[derive(Debug, Default)]
struct Piece {
    start: usize,
    end: usize,
    /// Whether the kernel can read it for other processes, once that has been checked.
    readable: Option<bool>,
}

impl RegisteredMemory {
    /// Replaces the last registration. Pieces beyond the maximum are not registered.
    #[inline]
    pub(crate) fn set(&mut self, memory: &[&[u8]]) {
        for (at, piece) in self.0.iter_mut().enumerate() {
            let (start, len) = memory.get(at).map_or((0, 0), |bytes| (bytes.as_ptr().addr(), bytes.len()));
            let end = start + len;
            // Calls are often repeated with the same memory, which need not be checked again.
            if (piece.start, piece.end) != (start, end) {
                *piece = Piece { start, end, readable: None };
            }
        }
    }

    /// Whether these bytes are registered and other processes can read them.
    pub(crate) fn contains(&mut self, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr().addr();
        let piece = self.0.iter_mut().find(|piece| piece.start <= start && start + bytes.len() <= piece.end);
        // A piece is one allocation, so all of it is of one kind.
        piece.is_some_and(|piece| *piece.readable.get_or_insert_with(|| cma::is_readable(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_that_was_registered_last_is_contained() {
        let (first, second) = (vec![0; 100], vec![0; 100]);
        let mut registered = RegisteredMemory::default();
        assert!(!registered.contains(&first));
        registered.set(&[&first[10..], &second]);
        assert!(
            registered.contains(&first[10..])
                && registered.contains(&first[50..60])
                && registered.contains(&second)
        );
        assert!(!registered.contains(&first) && !registered.contains(&first[9..11]));
        registered.set(&[&second]);
        assert!(!registered.contains(&first[10..]) && registered.contains(&second[99..]));
        registered.set(&[]);
        assert!(!registered.contains(&second));
    }

    #[test]
    fn memory_that_the_kernel_cannot_read_is_not_contained() {
        let Some(secret) = cma::secret() else { return };
        let mut registered = RegisteredMemory::default();
        registered.set(&[secret]);
        assert!(!registered.contains(secret));
    }
}
