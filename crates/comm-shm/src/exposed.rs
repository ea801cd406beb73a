//! Which memory of this process its peers may read where it lies, though it is not shared with them.

use crate::remote;

/// How many pieces are known at once: as many as a call has buffers, and temporary memory.
const PIECES_MAX: usize = 3;

/// The memory that was exposed last.
#[derive(Debug, Default)]
pub(crate) struct Exposed([Piece; PIECES_MAX]);

/// Addresses from the first to the one behind the last.
#[derive(Debug, Default)]
struct Piece {
    start: usize,
    end: usize,
    /// Whether the kernel can read it for others, once somebody asked.
    readable: Option<bool>,
}

impl Exposed {
    /// Forgets what was exposed before. What is more than can be known is not exposed.
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

    /// Whether others may read these bytes, and can.
    pub(crate) fn holds(&mut self, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr().addr();
        let piece = self.0.iter_mut().find(|piece| piece.start <= start && start + bytes.len() <= piece.end);
        // All of a piece is of one kind, as it was allocated at once.
        piece.is_some_and(|piece| *piece.readable.get_or_insert_with(|| remote::is_readable(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_what_was_exposed_last_is_held() {
        let (first, second) = (vec![0; 100], vec![0; 100]);
        let mut exposed = Exposed::default();
        assert!(!exposed.holds(&first));
        exposed.set(&[&first[10..], &second]);
        assert!(exposed.holds(&first[10..]) && exposed.holds(&first[50..60]) && exposed.holds(&second));
        assert!(!exposed.holds(&first) && !exposed.holds(&first[9..11]));
        exposed.set(&[&second]);
        assert!(!exposed.holds(&first[10..]) && exposed.holds(&second[99..]));
        exposed.set(&[]);
        assert!(!exposed.holds(&second));
    }

    #[test]
    fn what_the_kernel_cannot_read_is_not_held() {
        let Some(secret) = remote::secret() else { return };
        let mut exposed = Exposed::default();
        exposed.set(&[secret]);
        assert!(!exposed.holds(secret));
    }
}
