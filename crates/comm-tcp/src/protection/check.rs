//! The checks of the frames of one direction of a connection.

use comm_core::wire::{self, Reader};
use comm_core::{Corruption, IntegrityCheck};

use super::gmac::{GmacKey, GmacState, MAC_BYTES, NONCE_BYTES};

/// The bytes of the length of a payload, which begins a frame.
pub(crate) const LENGTH_BYTES: usize = 4;
/// The maximum number of bytes of the length and its check.
pub(crate) const HEAD_BYTES_MAX: usize = LENGTH_BYTES + MAC_BYTES;

/// Computes and compares the checks of consecutive frames.
///
/// A frame is the length of its payload, a check of the length, the payload, and a check of the
/// payload. Both checks include the number of the frame in its direction, so a frame that was lost,
/// repeated or moved fails. The length has a check of its own, so that a receiver never waits for
/// bytes that do not exist.
#[derive(Debug)]
pub(crate) struct FrameCheck {
    algorithm: Algorithm,
    /// The number of the next frame.
    sequence: u64,
}

#[derive(Debug)]
enum Algorithm {
    Crc32c,
    Gmac(Box<GmacKey>),
}

/// The part of a frame that a check covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Part {
    Length = 0,
    Payload = 1,
}

/// The check of a payload whose bytes become known piece by piece.
#[derive(Debug)]
pub(crate) enum PartialCheck {
    Crc32c(u32),
    Gmac(GmacState),
}

/// A few bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameBytes {
    bytes: [u8; HEAD_BYTES_MAX],
    len: usize,
}

impl FrameCheck {
    /// Detects accidents, and no attackers.
    pub(crate) const fn crc32c() -> Self {
        Self { algorithm: Algorithm::Crc32c, sequence: 0 }
    }

    /// Detects every change by attackers that do not know the key. No other frames may have the
    /// same key.
    pub(crate) fn gmac(key: GmacKey) -> Self {
        Self { algorithm: Algorithm::Gmac(Box::new(key)), sequence: 0 }
    }

    /// The length of a check in bytes.
    pub(crate) const fn check_bytes(&self) -> usize {
        match self.algorithm {
            Algorithm::Crc32c => size_of::<u32>(),
            Algorithm::Gmac(_) => MAC_BYTES,
        }
    }

    /// The bytes before the payload.
    pub(crate) const fn head_bytes(&self) -> usize {
        LENGTH_BYTES + self.check_bytes()
    }

    /// Returns the bytes before a payload of this length.
    pub(crate) fn head(&self, length: u32) -> FrameBytes {
        let length = low_bytes(length.into());
        let mut head = FrameBytes::new(&length);
        head.append(self.length_check(length).as_slice());
        head
    }

    /// Returns the length of the payload after this head.
    pub(crate) fn verify_head(&self, head: &[u8]) -> Result<u32, Corruption> {
        let (length, check) = head.split_first_chunk().ok_or_else(|| self.corruption())?;
        self.compare(self.length_check(*length), check)?;
        Reader::new(length).get().map_err(|_| self.corruption())
    }

    fn length_check(&self, length: [u8; LENGTH_BYTES]) -> FrameBytes {
        let mut check = self.begin();
        check.update(&length);
        self.value(check, Part::Length)
    }

    /// Begins the check of a payload.
    pub(crate) fn begin(&self) -> PartialCheck {
        match &self.algorithm {
            Algorithm::Crc32c => PartialCheck::Crc32c(0),
            Algorithm::Gmac(key) => PartialCheck::Gmac(key.begin()),
        }
    }

    /// Returns the check of the payload of the current frame.
    pub(crate) fn finish(&self, payload: PartialCheck) -> FrameBytes {
        self.value(payload, Part::Payload)
    }

    /// Compares the check of the payload of the current frame, and goes on to the next frame.
    pub(crate) fn verify(&mut self, payload: PartialCheck, check: &[u8]) -> Result<(), Corruption> {
        self.compare(self.finish(payload), check)?;
        self.advance();
        Ok(())
    }

    /// Goes on to the next frame. A check of a frame that was not sent may be computed again.
    pub(crate) const fn advance(&mut self) {
        // At one frame per nanosecond it would take 584 years to wrap.
        self.sequence = self.sequence.wrapping_add(1);
    }

    fn value(&self, check: PartialCheck, part: Part) -> FrameBytes {
        let mut nonce = [0; NONCE_BYTES];
        nonce[..4].copy_from_slice(&low_bytes::<4>(part as u64));
        nonce[4..].copy_from_slice(&low_bytes::<8>(self.sequence));
        match (check, &self.algorithm) {
            (PartialCheck::Gmac(state), Algorithm::Gmac(key)) => FrameBytes::new(&key.finish(state, nonce)),
            (PartialCheck::Crc32c(crc), _) => {
                FrameBytes::new(&low_bytes::<4>(crc32c::crc32c_append(crc, &nonce).into()))
            }
            // A check is finished by the one that began it. No frame passes this one.
            (PartialCheck::Gmac(_), Algorithm::Crc32c) => FrameBytes::new(&[]),
        }
    }

    /// Compares in a time that does not depend on the bytes.
    fn compare(&self, expected: FrameBytes, found: &[u8]) -> Result<(), Corruption> {
        let expected = expected.as_slice();
        let differs = expected.iter().zip(found).fold(0, |all, (ours, theirs)| all | (ours ^ theirs));
        if differs == 0 && expected.len() == found.len() && !found.is_empty() {
            return Ok(());
        }
        Err(self.corruption())
    }

    /// Returns the error for the current frame.
    pub(crate) const fn corruption(&self) -> Corruption {
        let check = match self.algorithm {
            Algorithm::Crc32c => IntegrityCheck::Checksum,
            Algorithm::Gmac(_) => IntegrityCheck::AuthenticationCode,
        };
        Corruption::new(check, self.sequence)
    }
}

impl PartialCheck {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32c(crc) => *crc = crc32c::crc32c_append(*crc, bytes),
            Self::Gmac(state) => state.update(bytes),
        }
    }
}

impl FrameBytes {
    fn new(bytes: &[u8]) -> Self {
        let mut all = Self { bytes: [0; HEAD_BYTES_MAX], len: 0 };
        all.append(bytes);
        all
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns the first bytes of a number, from the least significant one.
fn low_bytes<const N: usize>(number: u64) -> [u8; N] {
    let all: [u8; 8] = wire::words([number]);
    std::array::from_fn(|at| all[at])
}
