//! The header before every message of a collective.

use comm_core::wire;

/// The header of a message: the call that it belongs to, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The sequence number of the call on its communicator, from 1.
    pub(crate) sequence: u64,
    /// The length of the payload in bytes.
    pub(crate) length: u64,
    /// The fingerprint of the call.
    pub(crate) fingerprint: u64,
    /// A hint about the sender: [`Header::WINDOW`], or zero.
    pub(crate) hints: u64,
}

impl Header {
    /// Creates the header of a message that belongs to a call.
    #[inline]
    pub(crate) const fn new(sequence: u64, length: u64, fingerprint: u64) -> Self {
        Self { sequence, length, fingerprint, hints: 0 }
    }

    /// The ranks of the sender's host can write results into its buffer.
    pub(crate) const WINDOW: u64 = 1;

    /// The last word is mostly padding. With a header of 32 bytes, a payload whose length and
    /// address are multiples of 16 is never copied between user memory and socket buffers at page
    /// offsets that differ by 1 to 15 bytes. At such offsets `rep movsb`, which Linux uses for
    /// copies, is slow on some processors. A header of 24 bytes would cause them for large
    /// payloads, because large allocations begin 16 bytes after a page boundary, and socket buffers
    /// at a page boundary.
    pub(crate) const BYTES: usize = 32;

    #[inline]
    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        wire::words([self.sequence, self.length, self.fingerprint, self.hints])
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let [sequence, length, fingerprint, hints] = wire::read_words(bytes);
        Self { sequence, length, fingerprint, hints }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_matches_the_specification() {
        let header = Header::new(1, 0x0203, 0x0405_0607_0809_0a0b);
        let bytes = header.encode();
        assert_eq!(bytes[..10], [1, 0, 0, 0, 0, 0, 0, 0, 3, 2]);
        assert_eq!(bytes[16..24], [0xb, 0xa, 9, 8, 7, 6, 5, 4]);
        assert_eq!(bytes[24..], [0; 8]);
        assert_eq!(Header::decode(&bytes), header);
    }

    comm_sim::hostile_bytes!(a_header_is_read_as_it_was_written: [Header::new(1, 2, u64::MAX)],
        |header| header.encode().to_vec(), |bytes| Some(Header::decode(bytes.try_into().ok()?)));
}
