//! The wire format of the point-to-point channel.
//!
//! A frame is a head of 32 bytes and, for some kinds, a body. All integers are little-endian; bytes
//! that a kind does not use are zero.

use comm_core::{DType, RecvBuf, wire};

/// The credit that a message uses beyond its payload, so that empty messages are bounded too.
pub(crate) const MESSAGE_OVERHEAD: u64 = 64;
/// The initial credit of every sender: the number of bytes that it may send before the receiver
/// receives any.
pub(crate) const CREDIT: u64 = 1 << 20;
/// The most announced messages of one sender that may wait to be received.
pub(crate) const RTS_MAX: usize = 1 << 20;
/// The longest text, in bytes. Longer texts are truncated.
pub(crate) const TEXT_MAX: usize = 512;

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// An eager message, whose payload follows. It uses credit.
    Eager { tag: u64, dtype: DType, length: u64 },
    /// Request to send: announces a message that is sent once the receiver asks for it.
    Rts { tag: u64, dtype: DType, length: u64, id: u64 },
    /// Clear to send: the receiver asks for an announced message.
    Cts { id: u64 },
    /// The next part of a message that the receiver asked for. Its bytes follow.
    Data { length: u64, id: u64 },
    /// The receiver returns credit.
    Credit { amount: u64 },
    /// The sender leaves normally. Nothing follows.
    Goodbye,
    /// A rank aborted all messages of the group; the reason follows. This is the last frame.
    Abort { length: u64, by: u64 },
    /// The sender has detected the death of another rank; the description follows.
    Lost { length: u64, rank: u64 },
}

const EAGER: u8 = 1;
const RTS: u8 = 2;
const CTS: u8 = 3;
const DATA: u8 = 4;
const CREDIT_BACK: u8 = 5;
const GOODBYE: u8 = 6;
const ABORT: u8 = 7;
const LOST: u8 = 8;

impl Frame {
    pub(crate) const BYTES: usize = 32;

    #[inline]
    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let (kind, dtype, [tag, length, id]) = match self {
            Self::Eager { tag, dtype, length } => (EAGER, Some(dtype), [tag, length, 0]),
            Self::Rts { tag, dtype, length, id } => (RTS, Some(dtype), [tag, length, id]),
            Self::Cts { id } => (CTS, None, [0, 0, id]),
            Self::Data { length, id } => (DATA, None, [0, length, id]),
            Self::Credit { amount } => (CREDIT_BACK, None, [0, amount, 0]),
            Self::Goodbye => (GOODBYE, None, [0; 3]),
            Self::Abort { length, by } => (ABORT, None, [0, length, by]),
            Self::Lost { length, rank } => (LOST, None, [0, length, rank]),
        };
        wire::words([first_word(kind, dtype), tag, length, id])
    }

    /// Returns the frame that begins with these bytes; `None` if its head is incomplete or invalid.
    #[inline]
    pub(crate) fn read(bytes: RecvBuf<'_>) -> Option<Self> {
        bytes.read().and_then(|head| Self::decode(&head))
    }

    /// Returns the tag and the length of an eager message with elements of this type; `None` if
    /// these bytes do not begin one, or a part of its head is missing.
    #[inline]
    pub(crate) fn read_eager(bytes: RecvBuf<'_>, dtype: DType) -> Option<(u64, u64)> {
        let [first, tag, length, id] = wire::read_words(&bytes.read::<{ Self::BYTES }>()?);
        let is_eager = first == first_word(EAGER, Some(dtype)) && id == 0;
        (is_eager && Self::Eager { tag, dtype, length }.is_sound()).then_some((tag, length))
    }

    /// Decodes a head. Returns `None` for one that no correct peer sends in any state.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let [head, tag, length, id] = wire::read_words(bytes);
        let (code, size) = ((head >> 8) as u8, (head >> 16) as u32);
        let dtype = || DType::from_wire(code, size);
        let is_typeless = code == 0 && size == 0;
        // Every byte that the kind does not use must be zero, and so must the padding.
        let frame = match head as u8 {
            EAGER if id == 0 => Self::Eager { tag, dtype: dtype()?, length },
            RTS => Self::Rts { tag, dtype: dtype()?, length, id },
            _ if !is_typeless || tag != 0 => return None,
            CTS if length == 0 => Self::Cts { id },
            DATA => Self::Data { length, id },
            CREDIT_BACK if id == 0 => Self::Credit { amount: length },
            GOODBYE if length | id == 0 => Self::Goodbye,
            ABORT => Self::Abort { length, by: id },
            LOST => Self::Lost { length, rank: id },
            _ => return None,
        };
        (head >> 48 == 0 && frame.is_sound()).then_some(frame)
    }

    /// Returns whether the lengths are valid.
    #[inline]
    fn is_sound(self) -> bool {
        let whole = |dtype: DType, length: u64| length.is_multiple_of(dtype.size() as u64);
        match self {
            Self::Eager { dtype, length, .. } => whole(dtype, length) && length <= CREDIT - MESSAGE_OVERHEAD,
            Self::Rts { dtype, length, .. } => whole(dtype, length) && usize::try_from(length).is_ok(),
            Self::Data { length, .. } => length > 0,
            Self::Abort { length, .. } | Self::Lost { length, .. } => length <= TEXT_MAX as u64,
            Self::Credit { amount } => (1..=CREDIT).contains(&amount),
            Self::Cts { .. } | Self::Goodbye => true,
        }
    }
}

/// Returns the first word of a head: the kind, and the type of the elements.
#[inline]
fn first_word(kind: u8, dtype: Option<DType>) -> u64 {
    let (code, size) = dtype.map_or((0, 0), |dtype| (dtype.code(), dtype.plain_size()));
    u64::from(kind) | u64::from(code) << 8 | u64::from(size) << 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::{Pod, Zeroable};
    use comm_core::{Element, Plain};

    #[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
    #[repr(C)]
    struct Pixel([u8; 3]);

    impl Plain for Pixel {}

    const ALL: [Frame; 8] = [
        Frame::Eager { tag: 0x0102, dtype: DType::F32, length: 0x0304 },
        Frame::Rts { tag: u64::MAX, dtype: DType::U8, length: 1 << 40, id: 0x0506 },
        Frame::Cts { id: 7 },
        Frame::Data { length: 9, id: 8 },
        Frame::Credit { amount: 0x1000 },
        Frame::Goodbye,
        Frame::Abort { length: 3, by: 2 },
        Frame::Lost { length: 5, rank: 4 },
    ];

    /// Whatever one byte of a head is.
    #[test]
    fn an_eager_head_is_read_exactly_if_it_is_valid_and_has_the_type() {
        for frame in ALL.iter().chain(&[Frame::Eager { tag: 1, dtype: Pixel::DTYPE, length: 6 }]) {
            for (at, byte) in (0..Frame::BYTES).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
                let mut head = frame.encode();
                head[at] = byte;
                for wanted in [DType::F32, DType::U8, Pixel::DTYPE] {
                    let expected = match Frame::decode(&head) {
                        Some(Frame::Eager { tag, dtype, length }) if dtype == wanted => Some((tag, length)),
                        _ => None,
                    };
                    assert_eq!(Frame::read_eager(RecvBuf::from_slice(&head), wanted), expected);
                    assert_eq!(Frame::read_eager(RecvBuf::from_slice(&head[1..]), wanted), None);
                }
            }
        }
    }

    #[test]
    fn the_encoding_matches_the_specification() {
        let eager = ALL[0].encode();
        assert_eq!(eager[..8], [1, 11, 0, 0, 0, 0, 0, 0]);
        assert_eq!(eager[8..16], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(eager[16..24], [4, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(eager[24..], [0; 8]);
        let announce = ALL[1].encode();
        assert_eq!(announce[..2], [2, 2]);
        assert_eq!(announce[8..16], [0xff; 8]);
        assert_eq!(announce[16..24], [0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(announce[24..26], [6, 5]);
        let kinds: Vec<u8> = ALL.iter().map(|frame| frame.encode()[0]).collect();
        assert_eq!(kinds, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ALL[2].encode()[24], 7);
        assert_eq!((ALL[3].encode()[16], ALL[3].encode()[24]), (9, 8));
        assert_eq!(ALL[4].encode()[16..18], [0, 0x10]);
        assert_eq!((ALL[6].encode()[16], ALL[6].encode()[24]), (3, 2));
        assert_eq!((ALL[7].encode()[16], ALL[7].encode()[24]), (5, 4));
    }

    comm_sim::hostile_bytes!(heads_are_read_as_they_were_written: ALL, |frame| frame.encode().to_vec(),
        |bytes| Frame::decode(bytes.try_into().ok()?));

    #[test]
    fn invalid_heads_are_refused() {
        for frame in ALL {
            for at in (2..8).chain([if matches!(frame, Frame::Eager { .. }) { 24 } else { 2 }]) {
                let mut bytes = frame.encode();
                bytes[at] = 1;
                assert_eq!(Frame::decode(&bytes), None, "{frame:?} at {at}");
            }
        }
        let unsound = [
            Frame::Eager { tag: 0, dtype: DType::F32, length: 6 },
            Frame::Eager { tag: 0, dtype: DType::U8, length: CREDIT },
            Frame::Rts { tag: 0, dtype: DType::F64, length: u64::MAX, id: 0 },
            Frame::Data { length: 0, id: 1 },
            Frame::Credit { amount: 0 },
            Frame::Credit { amount: u64::MAX },
            Frame::Abort { length: u64::MAX, by: 0 },
            Frame::Lost { length: TEXT_MAX as u64 + 1, rank: 0 },
        ];
        for frame in unsound {
            assert_eq!(Frame::decode(&frame.encode()), None, "{frame:?}");
        }
        for kind in [0, 9, 255] {
            let mut bytes = [0; Frame::BYTES];
            bytes[0] = kind;
            assert_eq!(Frame::decode(&bytes), None);
        }
        let plain = Frame::Eager { tag: 1, dtype: Pixel::DTYPE, length: 6 };
        assert_eq!(plain.encode()[..8], [1, 15, 3, 0, 0, 0, 0, 0]);
        assert_eq!(Frame::decode(&plain.encode()), Some(plain));
        for size in [0, 4] {
            let mut hostile = plain.encode();
            hostile[2] = size;
            assert_eq!(Frame::decode(&hostile), None, "6 bytes in structs of {size}");
        }
        let mut typeless = ALL[0].encode();
        typeless[1] = 0;
        assert_eq!(Frame::decode(&typeless), None);
    }
}
