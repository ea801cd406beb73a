//! The decisions of a hostile peer, drawn from bytes.

use std::collections::VecDeque;

/// The most messages that [`Input::stream`] returns for each valid one.
const COPIES_MAX: usize = 4;

/// Bytes from which a test draws the decisions of a hostile peer. So a run of the test can be kept
/// as a file, and fewer or smaller bytes are a simpler run: once all bytes are drawn, every draw is
/// zero, which means that nothing is altered.
#[derive(Debug, Clone)]
pub struct Input {
    rest: VecDeque<u8>,
}

impl Input {
    /// Draws decisions from these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self { rest: bytes.iter().copied().collect() }
    }

    /// Whether all bytes are drawn.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Draws a byte.
    pub fn byte(&mut self) -> u8 {
        self.rest.pop_front().unwrap_or(0)
    }

    /// Draws a number below `end`; zero if `end` is zero.
    pub fn below(&mut self, end: usize) -> usize {
        let drawn = match end {
            0..=1 => return 0,
            2..=256 => usize::from(self.byte()),
            _ => (usize::from(self.byte()) << 8) | usize::from(self.byte()),
        };
        drawn % end
    }

    /// Draws whether something happens that happens once in `of` draws on average.
    pub fn one_in(&mut self, of: usize) -> bool {
        of > 0 && self.below(of) == of - 1
    }

    /// Draws a number of any size: often zero, small, close to a power of two, or the largest.
    pub fn number(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::from(self.byte()),
            2 => u64::MAX - u64::from(self.byte() % 4),
            3 => (1_u64 << self.below(64)).wrapping_add(u64::from(self.byte() % 3)).wrapping_sub(1),
            4 => self.below(1 << 16) as u64,
            _ => (0..8).fold(0, |number, _| (number << 8) | u64::from(self.byte())),
        }
    }

    /// Draws one of several values.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }

    /// Returns the bytes with at least one change: bytes that are flipped, removed or added, and
    /// lengths of several bytes that are set to an extreme value.
    pub fn alter(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            let any = self.byte();
            let value = *self.pick(&[any, 0, 1, 0x7f, 0x80, 0xff, any, any]);
            match self.below(8) {
                0 => bytes.insert(at, value),
                1 => bytes.truncate(at),
                2 => bytes.resize(bytes.len() + self.below(64), value),
                3 => {
                    // A length or a count of several bytes.
                    let end = bytes.len().min(at + self.pick(&[2, 4, 8]));
                    bytes[at..end].fill(value);
                }
                4 => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = value;
                    }
                }
            }
        }
        bytes
    }

    /// Returns messages as a hostile peer sends them: most as they are, some altered, left out,
    /// repeated, in another order, or joined from two.
    pub fn stream(&mut self, valid: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut sent: Vec<Vec<u8>> = Vec::new();
        for message in valid {
            for _ in 0..COPIES_MAX {
                let action = self.below(16);
                match action {
                    12 => sent.push(self.alter(message)),
                    13 => sent.push(self.pick(valid).clone()),
                    14 => {
                        let (other, cut) = (self.pick(valid), self.below(message.len() + 1));
                        let from = self.below(other.len() + 1);
                        sent.push([&message[..cut], &other[from..]].concat());
                    }
                    15 => break,
                    _ => sent.push(message.clone()),
                }
                // All but the unaltered message may be followed by another one in its place.
                if action < 12 || !self.one_in(2) {
                    break;
                }
            }
        }
        sent
    }

    /// Cuts bytes into pieces of any length, without empty ones.
    pub fn cut<'b>(&mut self, mut bytes: &'b [u8]) -> Vec<&'b [u8]> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let len = match self.below(8) {
                0..=3 => bytes.len(),
                4 => 1,
                _ => 1 + self.below(bytes.len()),
            };
            let (piece, rest) = bytes.split_at(len);
            pieces.push(piece);
            bytes = rest;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_bytes_nothing_is_altered() {
        let mut input = Input::new(&[]);
        let messages = [b"one".to_vec(), b"two".to_vec()];
        assert_eq!(input.stream(&messages), messages);
        assert_eq!(input.cut(b"onetwo"), [b"onetwo"]);
        assert!(!input.one_in(2) && input.below(9) == 0 && input.number() == 0);
    }

    #[test]
    fn pieces_are_the_bytes() {
        for seed in 0..=u8::MAX {
            let bytes: Vec<u8> =
                (0..64).map(|at: u8| seed.wrapping_mul(31).wrapping_add(at.wrapping_mul(7))).collect();
            let mut input = Input::new(&bytes);
            assert_eq!(input.cut(b"the pieces of a message").concat(), b"the pieces of a message");
        }
    }
}
