//! Encoding and decoding of messages between processes.
//!
//! A message is a sequence of fields; numbers are little-endian. A [`Writer`] appends fields, and a
//! [`Reader`] reads them in the same order. A reader never panics, whatever the bytes are, and
//! allocates no more than their number justifies. [`words`] and [`read_words`] are for the headers
//! that precede every message.
//!
//! ```
//! use comm_core::wire::{self, WireError, Writer};
//!
//! let mut message = Writer::new();
//! message.put(7_u16).size::<u32>(3).text::<u8>("ring", 40);
//! let bytes = message.into_vec();
//! assert_eq!(bytes, *b"\x07\0\x03\0\0\0\x04ring");
//!
//! let decode = |bytes| wire::decode(bytes, |r| Ok((r.get::<u16>()?, r.size::<u32>()?, r.text::<u8>(40)?)));
//! assert_eq!(decode(&bytes), Ok((7, 3, "ring")));
//! assert_eq!(decode(&bytes[..9]), Err(WireError::Short { missing: 2 }));
//! ```

/// The reason why bytes are not the expected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end within a field.
    #[error("{missing} bytes are missing")]
    Short {
        /// The number of bytes that the field needs beyond the end.
        missing: usize,
    },
    /// A text, a list or a frame is longer than allowed.
    #[error("a length of {length}, at most {max} is allowed")]
    TooLong {
        /// The length that was found.
        length: usize,
        /// The largest length that is allowed.
        max: usize,
    },
    /// Bytes follow the last field.
    #[error("{count} bytes follow the last field")]
    Trailing {
        /// The number of these bytes.
        count: usize,
    },
    /// A field holds a value that has no meaning.
    #[error("{value} is no {what}")]
    Unknown {
        /// The name of the field.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    NotUtf8,
}

/// The outcome of reading a field.
pub type Result<T, E = WireError> = std::result::Result<T, E>;

/// A value of fixed size: a little-endian number, or an array of bytes.
pub trait Fixed: sealed::Bytes {}

/// An unsigned integer that holds a length, a count or a rank.
pub trait Length: Fixed + TryFrom<usize> + TryInto<usize> {
    /// The largest number.
    const MAX: Self;
}

mod sealed {
    pub trait Bytes: Copy {
        fn append_to(self, bytes: &mut Vec<u8>);
        /// Returns the value and the bytes after it.
        fn split_from(bytes: &[u8]) -> Option<(Self, &[u8])>;
        const BYTES: usize;
    }
}

macro_rules! fixed {
    ($($number:ty),*) => {$(
        impl sealed::Bytes for $number {
            const BYTES: usize = size_of::<Self>();

            #[inline]
            fn append_to(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn split_from(bytes: &[u8]) -> Option<(Self, &[u8])> {
                bytes.split_first_chunk().map(|(first, rest)| (Self::from_le_bytes(*first), rest))
            }
        }

        impl Fixed for $number {}
    )*};
}

macro_rules! length {
    ($($number:ty),*) => {$(impl Length for $number { const MAX: Self = <$number>::MAX; })*};
}

fixed!(u8, u16, u32, u64, u128, i32, i64, f64);
length!(u8, u16, u32, u64);

impl<const N: usize> sealed::Bytes for [u8; N] {
    const BYTES: usize = N;

    #[inline]
    fn append_to(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self);
    }

    #[inline]
    fn split_from(bytes: &[u8]) -> Option<(Self, &[u8])> {
        bytes.split_first_chunk().map(|(first, rest)| (*first, rest))
    }
}

impl<const N: usize> Fixed for [u8; N] {}

/// Encodes a message.
#[must_use]
pub fn encode(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new();
    write(&mut writer);
    writer.into_vec()
}

/// Decodes a whole message.
///
/// # Errors
/// The errors of `read`, and [`WireError::Trailing`] if it does not read all bytes.
pub fn decode<'a, T>(bytes: &'a [u8], read: impl FnOnce(&mut Reader<'a>) -> Result<T>) -> Result<T> {
    let mut reader = Reader::new(bytes);
    let message = read(&mut reader)?;
    match reader.bytes.len() {
        0 => Ok(message),
        count => Err(WireError::Trailing { count }),
    }
}

/// The remaining fields of a message.
///
/// # Errors
/// A method returns [`WireError::Short`], and reads nothing, if the bytes end within its field.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

#[expect(clippy::missing_errors_doc, reason = "documented once, for all methods")]
impl<'a> Reader<'a> {
    /// Creates a reader at the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns whether everything has been read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reads all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// Reads `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(count)
            .ok_or_else(|| WireError::Short { missing: count - self.bytes.len() })?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Reads a value of fixed size.
    #[inline]
    pub fn get<T: Fixed>(&mut self) -> Result<T> {
        let short = || WireError::Short { missing: T::BYTES - self.bytes.len() };
        let (value, rest) = T::split_from(self.bytes).ok_or_else(short)?;
        self.bytes = rest;
        Ok(value)
    }

    /// Reads a length, a count or a rank; [`usize::MAX`] if it does not fit.
    pub fn size<L: Length>(&mut self) -> Result<usize> {
        Ok(self.get::<L>()?.try_into().unwrap_or(usize::MAX))
    }

    /// Reads a byte that is 0 or 1.
    pub fn flag(&mut self, what: &'static str) -> Result<bool> {
        self.code(what, |code| (code < 2).then_some(code == 1))
    }

    /// Reads a byte and decodes it with `known`; [`WireError::Unknown`] if that returns `None`.
    pub fn code<T>(&mut self, what: &'static str, known: impl FnOnce(u8) -> Option<T>) -> Result<T> {
        let code = self.get::<u8>()?;
        known(code).ok_or(WireError::Unknown { what, value: code.into() })
    }

    /// Reads a length, and that many bytes. [`WireError::TooLong`] if there are more than `max`.
    pub fn bytes<L: Length>(&mut self, max: usize) -> Result<&'a [u8]> {
        let mut ahead = *self;
        let length = ahead.length::<L>(max)?;
        let bytes = ahead.take(length)?;
        *self = ahead;
        Ok(bytes)
    }

    /// Reads a length in bytes, and a text of that length. [`WireError::TooLong`] if it is more
    /// than `max`.
    pub fn text<L: Length>(&mut self, max: usize) -> Result<&'a str> {
        std::str::from_utf8(self.bytes::<L>(max)?).map_err(|_| WireError::NotUtf8)
    }

    /// Reads a flag, and a value if it is set.
    pub fn option<T>(&mut self, value: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        if self.flag("flag")? { value(self).map(Some) } else { Ok(None) }
    }

    /// Reads a count, and that many items. [`WireError::TooLong`] if there are more than `max`.
    pub fn list<L: Length, T>(
        &mut self,
        max: usize,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        // The vector grows with the items that are present: a count alone allocates nothing.
        (0..self.length::<L>(max)?).map(|_| item(self)).collect()
    }

    /// Reads items until the end. [`WireError::TooLong`] if there are more than `max`.
    pub fn list_to_end<T>(
        &mut self,
        max: usize,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.is_empty() {
            if items.len() == max {
                return Err(WireError::TooLong { length: max.saturating_add(1), max });
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn length<L: Length>(&mut self, max: usize) -> Result<usize> {
        let length = self.size::<L>()?;
        if length > max { Err(WireError::TooLong { length, max }) } else { Ok(length) }
    }
}

/// A message that is being written.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Creates an empty message.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Appends a value of fixed size.
    pub fn put<T: Fixed>(&mut self, value: T) -> &mut Self {
        value.append_to(&mut self.bytes);
        self
    }

    /// Appends a length, a count or a rank; the largest `L` if it does not fit.
    pub fn size<L: Length>(&mut self, size: usize) -> &mut Self {
        self.put(L::try_from(size).unwrap_or(L::MAX))
    }

    /// Appends bytes, without their length.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends the length of `bytes`, and then `bytes`. The length must fit into `L`.
    pub fn bytes<L: Length>(&mut self, bytes: &[u8]) -> &mut Self {
        self.size::<L>(bytes.len()).raw(bytes)
    }

    /// Appends the length of a text in bytes, and then the text. A text that is longer than `max`
    /// is cut between characters.
    pub fn text<L: Length>(&mut self, text: &str, max: usize) -> &mut Self {
        self.bytes::<L>(&text.as_bytes()[..text.floor_char_boundary(max)])
    }

    /// Appends whether there is a value, and then the value with `put`.
    pub fn option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) -> &mut Self {
        self.put(u8::from(value.is_some()));
        if let Some(value) = value {
            put(self, value);
        }
        self
    }

    /// Appends the number of `items`, and then each of them with `item`. The number must fit into
    /// `L`.
    pub fn list<L: Length, T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.size::<L>(items.len());
        items.iter().for_each(|each| item(self, each));
        self
    }

    /// Returns the message.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the message padded with zeros to a fixed size, which must be large enough for it.
    #[must_use]
    pub fn into_array<const N: usize>(self) -> [u8; N] {
        debug_assert!(self.bytes.len() <= N, "a message of {} bytes in {N}", self.bytes.len());
        let mut array = [0; N];
        array.iter_mut().zip(self.bytes).for_each(|(place, byte)| *place = byte);
        array
    }
}

/// Encodes a message preceded by its length as a `u32`.
///
/// # Errors
/// [`WireError::TooLong`] if the length does not fit.
pub fn frame(write: impl FnOnce(&mut Writer)) -> Result<Vec<u8>> {
    let mut writer = Writer { bytes: vec![0; size_of::<u32>()] };
    write(&mut writer);
    let length = writer.bytes.len() - size_of::<u32>();
    let prefix = u32::try_from(length).map_err(|_| WireError::TooLong { length, max: u32::MAX as usize })?;
    writer.bytes[..size_of::<u32>()].copy_from_slice(&prefix.to_le_bytes());
    Ok(writer.bytes)
}

/// Encodes a header of words. `B` is 8 times `N`.
#[inline]
#[must_use]
pub fn words<const N: usize, const B: usize>(words: [u64; N]) -> [u8; B] {
    const { assert!(B == 8 * N, "a word has 8 bytes") };
    let mut bytes = [0; B];
    let (places, _) = bytes.as_chunks_mut();
    places.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
    bytes
}

/// Decodes a header of words. `B` is 8 times `N`.
#[inline]
#[must_use]
pub fn read_words<const N: usize, const B: usize>(bytes: &[u8; B]) -> [u64; N] {
    const { assert!(B == 8 * N, "a word has 8 bytes") };
    let mut words = [0; N];
    let (places, _) = bytes.as_chunks();
    words.iter_mut().zip(places).for_each(|(word, place)| *word = u64::from_le_bytes(*place));
    words
}

/// Returns a digest of a list of numbers, which is the same on every machine. Unequal lists have
/// equal digests with a probability of 2^-64.
#[must_use]
pub fn digest(list: impl IntoIterator<Item = u64>) -> u64 {
    let (hash, length) = list.into_iter().fold((0, 0), |(hash, length), word| (mix(hash, word), length + 1));
    mix(hash, length)
}

/// One round of splitmix64 over the sum: every bit of the word changes about half the bits of the
/// hash.
pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash.rotate_left(23) ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let mut message = Writer::new();
        message.put(1_u8).put(0x0203_u16).put(4_u32).put(5_u64).put(6_u128).put(-7_i64).put(0.5_f64);
        message.put([8_u8; 3]).put(1_u8).size::<u16>(70_000).bytes::<u32>(b"ab").text::<u8>("äö", 3);
        message.option(Some(8_u8), |to, value| _ = to.put(value)).option(None::<u8>, |_, _| ());
        message.list::<u8, _>(&[9_u64, 10], |to, item| _ = to.put(*item));
        let bytes = message.into_vec();
        assert_eq!(bytes[..4], [1, 3, 2, 4]);
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.get(), reader.get()), (Ok(1_u8), Ok(0x0203_u16)));
        assert_eq!((reader.get(), reader.get(), reader.get()), (Ok(4_u32), Ok(5_u64), Ok(6_u128)));
        assert_eq!((reader.get(), reader.get(), reader.get()), (Ok(-7_i64), Ok(0.5_f64), Ok([8_u8; 3])));
        assert_eq!((reader.flag("flag"), reader.size::<u16>()), (Ok(true), Ok(usize::from(u16::MAX))));
        assert_eq!((reader.bytes::<u32>(2), reader.text::<u8>(2)), (Ok(&b"ab"[..]), Ok("ä")));
        assert_eq!(reader.option(Reader::get::<u8>), Ok(Some(8)));
        assert_eq!(reader.option(Reader::get::<u8>), Ok(None));
        assert_eq!(reader.list::<u8, _>(2, Reader::get::<u64>), Ok(vec![9, 10]));
        assert!(reader.is_empty());
    }

    #[test]
    fn an_error_says_what_is_wrong() {
        let read = |bytes: &'static [u8]| decode(bytes, |r| r.bytes::<u16>(3));
        assert_eq!(read(b"\x03\0abc"), Ok(&b"abc"[..]));
        assert_eq!(read(b"\x03"), Err(WireError::Short { missing: 1 }));
        assert_eq!(read(b"\x03\0a"), Err(WireError::Short { missing: 2 }));
        assert_eq!(read(b"\x04\0abcd"), Err(WireError::TooLong { length: 4, max: 3 }));
        assert_eq!(read(b"\x03\0abcd"), Err(WireError::Trailing { count: 1 }));
        assert_eq!(decode(&[2], |r| r.flag("answer")), Err(WireError::Unknown { what: "answer", value: 2 }));
        assert_eq!(decode(&[1, 0xff], |r| r.text::<u8>(9).map(str::len)), Err(WireError::NotUtf8));
        assert_eq!(
            decode(&[0; 3], |r| r.list_to_end(2, Reader::get::<u8>)),
            Err(WireError::TooLong { length: 3, max: 2 })
        );
    }

    #[test]
    fn a_count_beyond_the_bytes_is_refused_before_memory_is_taken() {
        let error = decode(&[0xff; 16], |r| r.list::<u64, _>(usize::MAX, Reader::get::<u64>));
        assert_eq!(error, Err(WireError::Short { missing: 8 }));
        let error = decode(&[0xff; 9], |r| r.bytes::<u64>(usize::MAX).map(<[u8]>::len));
        assert_eq!(error, Err(WireError::Short { missing: usize::MAX - 1 }));
    }

    #[test]
    fn headers_and_frames_are_little_endian() {
        let header: [u8; 16] = words([1, 0x0203]);
        assert_eq!(header, [1, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read_words(&header), [1, 0x0203]);
        assert_eq!(frame(|to| _ = to.raw(b"ab")).as_deref(), Ok(&b"\x02\0\0\0ab"[..]));
        assert_eq!(Writer { bytes: vec![1, 2] }.into_array(), [1, 2, 0]);
    }
}
