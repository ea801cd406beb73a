//! The header of a message between two ranks.

use comm_core::wire::{self, Writer};
use comm_core::{DType, Error, Received, Result};

/// The longest body that is sent with its header, in bytes. MPI sends such messages eagerly.
pub(super) const INLINE_MAX: usize = 2000;

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Header {
    pub(super) tag: u64,
    pub(super) dtype: DType,
    /// The number of elements.
    pub(super) len: usize,
    /// The tag of MPI with which the body is sent; 0 if it follows the header.
    pub(super) body: i32,
}

impl Header {
    /// Returns the header, and the body if it is sent with it.
    pub(super) fn encode(&self, inline: &[u8]) -> Vec<u8> {
        wire::encode(|to: &mut Writer| {
            to.put(self.tag).put(self.dtype.code()).put(self.dtype.plain_size());
            to.size::<u64>(self.len).put(self.body).raw(inline);
        })
    }

    /// Reads a message of rank `source`: its header, and the body that follows it.
    pub(super) fn decode(source: usize, message: &[u8]) -> Result<(Self, Vec<u8>)> {
        let read = wire::decode(message, |r| {
            let (tag, code, plain_size) = (r.get()?, r.get::<u8>()?, r.get()?);
            let (len, body) = (r.size::<u64>()?, r.get()?);
            Ok((tag, DType::from_wire(code, plain_size), len, body, r.rest().to_vec()))
        });
        let malformed = |what: String| Error::malformed(format!("a message of rank {source}"), what);
        let (tag, dtype, len, body, inline) = read.map_err(|error| malformed(error.to_string()))?;
        let dtype = dtype.ok_or_else(|| malformed("an unknown type".into()))?;
        let header = Self { tag, dtype, len, body };
        let is_whole = if body == 0 { header.bytes() == Some(inline.len()) } else { inline.is_empty() };
        if is_whole {
            Ok((header, inline))
        } else {
            Err(malformed(format!("{} bytes after {len} x {dtype}", inline.len())))
        }
    }

    /// Returns the size of the body, if it fits in memory.
    pub(super) fn bytes(&self) -> Option<usize> {
        self.len.checked_mul(self.dtype.size()).filter(|bytes| isize::try_from(*bytes).is_ok())
    }

    pub(super) const fn received(&self, source: usize) -> Received {
        Received::new(source, self.tag, self.dtype, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_were_written() {
        let inline = Header { tag: u64::MAX, dtype: DType::F16, len: 2, body: 0 };
        assert_eq!(Header::decode(1, &inline.encode(&[1, 2, 3, 4])).unwrap(), (inline, vec![1, 2, 3, 4]));
        let announced = Header { tag: 0, dtype: DType::F64, len: 1 << 40, body: 77 };
        assert_eq!(Header::decode(1, &announced.encode(&[])).unwrap(), (announced, Vec::new()));
    }

    #[test]
    fn a_body_of_another_length_is_malformed() {
        let header = Header { tag: 7, dtype: DType::I32, len: 2, body: 0 };
        for body in [&[0; 7][..], &[0; 9]] {
            assert!(matches!(Header::decode(3, &header.encode(body)), Err(Error::Malformed { .. })));
        }
        assert!(Header::decode(3, &[1, 2]).is_err());
    }
}
