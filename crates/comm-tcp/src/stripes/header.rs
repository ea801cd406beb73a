//! The encoding of the header of a stripe, which `docs/wire-tcp.md` specifies.

use comm_core::wire::{self, WireError, Writer};

pub(crate) const HEADER_BYTES: usize = 12;

/// The bytes of a stream that follow on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StripeHeader {
    /// The position of the first byte in the stream.
    pub(crate) position: u64,
    /// The number of bytes, at least one.
    pub(crate) bytes: u32,
}

impl StripeHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut to = Writer::new();
        to.put(self.position).put(self.bytes);
        to.into_array()
    }

    /// Reads a header. Returns an error if the stripe is empty, or ends beyond the last position.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> wire::Result<Self> {
        wire::decode(bytes, |r| {
            let header = Self { position: r.get()?, bytes: r.get()? };
            let is_valid = header.bytes > 0 && header.position.checked_add(header.bytes.into()).is_some();
            let unknown = WireError::Unknown { what: "length of a stripe", value: header.bytes.into() };
            is_valid.then_some(header).ok_or(unknown)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    comm_sim::hostile_bytes!(headers_are_read_as_they_were_written:
        [StripeHeader { position: 0, bytes: 1 }, StripeHeader { position: 1 << 40, bytes: 65536 }],
        |header| header.encode().to_vec(), |bytes| StripeHeader::decode(bytes.try_into().ok()?).ok());

    /// `docs/wire-tcp.md` documents these bytes. A change here needs a new version.
    #[test]
    fn headers_are_pinned_to_the_byte() {
        let header = StripeHeader { position: 0x0102_0304, bytes: 0x0001_0000 };
        assert_eq!(header.encode(), [4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn stripes_that_no_stream_has_are_refused() {
        for header in [StripeHeader { position: 5, bytes: 0 }, StripeHeader { position: u64::MAX, bytes: 1 }]
        {
            assert!(StripeHeader::decode(&header.encode()).is_err(), "{header:?}");
        }
    }
}
