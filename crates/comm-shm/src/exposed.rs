//! Memory of this process that its peers may read by cross-memory attach.

use crate::cma;

/// The most pieces: the buffers of a call and temporary memory.
const PIECES_MAX: usize = 3;

/// The memory that was exposed last.
#[derive(Debug, Default)]
pub(crate) struct Exposed([Piece; PIECES_MAX]);

/// A range of addresses.
#[derive(Debug, Default)]
struct Piece {
    start: usize,
    end: usize,
    /// Whether the kernel can read it for other processes, once that was checked.
    readable: Option<bool>,
}

impl Exposed {
    /// Replaces what was exposed before. Pieces beyond the maximum are not exposed.
    #[inline]
    pub(crate) fn set(&mut self, memory: &[&[u8]]) {
        for (at, piece) in self.0.iter_mut().enumerate() {
            let (start, len) = memory.get(at).map_or((0, 0), |bytes| (bytes.as_ptr().addr(), bytes.len()));
            let end = start + len;
            // Calls are often made again with the same memory.
            if (piece.start, piece.end) != (start, end) {
                *piece = Piece { start, end, readable: None };
            }
        }
    }

    /// Whether other processes may read these bytes, and can.
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
    fn only_memory_that_was_exposed_last_is_contained() {
        let (first, second) = (vec![0; 100], vec![0; 100]);
        let mut exposed = Exposed::default();
        assert!(!exposed.contains(&first));
        exposed.set(&[&first[10..], &second]);
        assert!(
            exposed.contains(&first[10..]) && exposed.contains(&first[50..60]) && exposed.contains(&second)
        );
        assert!(!exposed.contains(&first) && !exposed.contains(&first[9..11]));
        exposed.set(&[&second]);
        assert!(!exposed.contains(&first[10..]) && exposed.contains(&second[99..]));
        exposed.set(&[]);
        assert!(!exposed.contains(&second));
    }

    #[test]
    fn memory_that_the_kernel_cannot_read_is_not_contained() {
        let Some(secret) = cma::secret() else { return };
        let mut exposed = Exposed::default();
        exposed.set(&[secret]);
        assert!(!exposed.contains(secret));
    }
}
