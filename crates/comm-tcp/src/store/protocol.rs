//! Requests and responses of the store, to the byte. `docs/wire-tcp.md` says the same in words.
//!
//! A frame is its length as a `u32`, not counting itself, a code, and fields in order. A field of variable length is
//! its length as a `u32` and its bytes. All numbers are little-endian.

use std::time::Duration;

/// The length of a frame's length.
pub(super) const PREFIX_BYTES: usize = 4;

/// The most keys of one request.
pub(super) const KEYS_MAX: usize = 65_536;

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request<'a> {
    Set {
        key: &'a str,
        value: &'a [u8],
    },
    Get {
        key: &'a str,
        timeout: Duration,
    },
    Add {
        key: &'a str,
        amount: i64,
    },
    CompareSet {
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    },
    Wait {
        keys: Vec<&'a str>,
        timeout: Duration,
    },
    Delete {
        key: &'a str,
    },
    NumKeys,
    /// Asks which server this is.
    Identify,
    Check {
        keys: Vec<&'a str>,
    },
    /// Replaces the will of the connection.
    LeaveWill {
        condition: (&'a str, &'a [u8]),
        value: &'a [u8],
        keys: Vec<&'a str>,
    },
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Response<'a> {
    /// It is done. Holds the value, if the operation has one.
    Done(&'a [u8]),
    /// The time is over. Holds the keys that are missing.
    TimedOut(&'a [u8]),
    /// An addition to a value that is no number, or beyond what a number holds. Holds the value.
    NotANumber(&'a [u8]),
    /// The server holds as many bytes as it may.
    Full,
    /// The server is closing, and what is waited for will not come.
    Closing,
}

const SET: u8 = 1;
const GET: u8 = 2;
const ADD: u8 = 3;
const COMPARE_SET: u8 = 4;
const WAIT: u8 = 5;
const DELETE: u8 = 6;
const NUM_KEYS: u8 = 7;
const CHECK: u8 = 8;
const LEAVE_WILL: u8 = 9;
const IDENTIFY: u8 = 10;

const DONE: u8 = 0;
const TIMED_OUT: u8 = 1;
const NOT_A_NUMBER: u8 = 2;
const FULL: u8 = 3;
const CLOSING: u8 = 4;

impl<'a> Request<'a> {
    /// The whole frame. `None` if it is longer than a length can say.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let mut frame = Frame::new();
        match self {
            Self::Set { key, value } => frame.code(SET).field(key.as_bytes()).field(value),
            Self::Get { key, timeout } => frame.code(GET).field(key.as_bytes()).duration(*timeout),
            Self::Add { key, amount } => frame.code(ADD).field(key.as_bytes()).fixed(&amount.to_le_bytes()),
            Self::CompareSet { key, expected, desired } => {
                frame.code(COMPARE_SET).field(key.as_bytes()).field(expected).field(desired)
            }
            Self::Wait { keys, timeout } => {
                let frame = frame.code(WAIT).duration(*timeout);
                keys.iter().fold(frame, |frame, key| frame.field(key.as_bytes()))
            }
            Self::Delete { key } => frame.code(DELETE).field(key.as_bytes()),
            Self::NumKeys => frame.code(NUM_KEYS),
            Self::Identify => frame.code(IDENTIFY),
            Self::Check { keys } => {
                let frame = frame.code(CHECK);
                keys.iter().fold(frame, |frame, key| frame.field(key.as_bytes()))
            }
            Self::LeaveWill { condition: (key, holds), value, keys } => {
                let frame = frame.code(LEAVE_WILL).field(key.as_bytes()).field(holds).field(value);
                keys.iter().fold(frame, |frame, key| frame.field(key.as_bytes()))
            }
        };
        frame.finish()
    }

    /// Reads what follows a frame's length. `None` if it is no request.
    pub(super) fn decode(frame: &'a [u8]) -> Option<Self> {
        let (&code, rest) = frame.split_first()?;
        let mut fields = Fields(rest);
        let request = match code {
            SET => Self::Set { key: fields.text()?, value: fields.field()? },
            GET => Self::Get { key: fields.text()?, timeout: fields.duration()? },
            ADD => Self::Add { key: fields.text()?, amount: i64::from_le_bytes(fields.fixed()?) },
            COMPARE_SET => {
                Self::CompareSet { key: fields.text()?, expected: fields.field()?, desired: fields.field()? }
            }
            WAIT => Self::Wait { timeout: fields.duration()?, keys: fields.texts()? },
            DELETE => Self::Delete { key: fields.text()? },
            NUM_KEYS => Self::NumKeys,
            IDENTIFY => Self::Identify,
            CHECK => Self::Check { keys: fields.texts()? },
            LEAVE_WILL => Self::LeaveWill {
                condition: (fields.text()?, fields.field()?),
                value: fields.field()?,
                keys: fields.texts()?,
            },
            _ => return None,
        };
        fields.0.is_empty().then_some(request)
    }
}

impl<'a> Response<'a> {
    /// The whole frame. `None` if it is longer than a length can say.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let mut frame = Frame::new();
        match self {
            Self::Done(value) => frame.code(DONE).fixed(value),
            Self::TimedOut(keys) => frame.code(TIMED_OUT).fixed(keys),
            Self::NotANumber(value) => frame.code(NOT_A_NUMBER).fixed(value),
            Self::Full => frame.code(FULL),
            Self::Closing => frame.code(CLOSING),
        };
        frame.finish()
    }

    /// The frame of [`Response::Done`] up to its value of `len` bytes. `None` if it is longer than a length can say.
    pub(super) fn head_of_done(len: usize) -> Option<Vec<u8>> {
        let len = u32::try_from(len.checked_add(1)?).ok()?;
        Some([&len.to_le_bytes()[..], &[DONE]].concat())
    }

    /// Reads what follows a frame's length. `None` if it is no response.
    pub(super) fn decode(frame: &'a [u8]) -> Option<Self> {
        let (&code, rest) = frame.split_first()?;
        match code {
            DONE => Some(Self::Done(rest)),
            TIMED_OUT => Some(Self::TimedOut(rest)),
            NOT_A_NUMBER => Some(Self::NotANumber(rest)),
            FULL if rest.is_empty() => Some(Self::Full),
            CLOSING if rest.is_empty() => Some(Self::Closing),
            _ => None,
        }
    }
}

/// A frame that is being written.
struct Frame {
    bytes: Vec<u8>,
    too_long: bool,
}

impl Frame {
    fn new() -> Self {
        Self { bytes: vec![0; PREFIX_BYTES], too_long: false }
    }

    fn code(&mut self, code: u8) -> &mut Self {
        self.fixed(&[code])
    }

    fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn field(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u32::try_from(bytes.len());
        self.too_long |= len.is_err();
        self.fixed(&len.unwrap_or(0).to_le_bytes()).fixed(bytes)
    }

    /// In microseconds; what does not fit is 584,942 years.
    fn duration(&mut self, duration: Duration) -> &mut Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.fixed(&micros.to_le_bytes())
    }

    fn finish(mut self) -> Option<Vec<u8>> {
        let len = u32::try_from(self.bytes.len() - PREFIX_BYTES).ok().filter(|_| !self.too_long)?;
        self.bytes[..PREFIX_BYTES].copy_from_slice(&len.to_le_bytes());
        Some(self.bytes)
    }
}

/// What of a frame is still to be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (fixed, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*fixed)
    }

    fn field(&mut self) -> Option<&'a [u8]> {
        let len = u32::from_le_bytes(self.fixed()?);
        let (field, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(field)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.field()?).ok()
    }

    /// As many texts as are left, `None` if they are too many.
    fn texts(&mut self) -> Option<Vec<&'a str>> {
        let mut texts = Vec::new();
        while !self.0.is_empty() {
            if texts.len() == KEYS_MAX {
                return None;
            }
            texts.push(self.text()?);
        }
        Some(texts)
    }

    fn duration(&mut self) -> Option<Duration> {
        Some(Duration::from_micros(u64::from_le_bytes(self.fixed()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Request<'static>> {
        vec![
            Request::Set { key: "a", value: b"value" },
            Request::Set { key: "", value: b"" },
            Request::Get { key: "ключ", timeout: Duration::from_micros(1_500_001) },
            Request::Add { key: "n", amount: i64::MIN },
            Request::CompareSet { key: "c", expected: b"", desired: b"new" },
            Request::Wait { keys: vec!["a", "", "b"], timeout: Duration::ZERO },
            Request::Wait { keys: vec![], timeout: Duration::ZERO },
            Request::Delete { key: "d" },
            Request::NumKeys,
            Request::Identify,
            Request::Check { keys: vec!["a", "", "b"] },
            Request::Check { keys: vec![] },
            Request::LeaveWill { condition: ("c", b"1"), value: b"v", keys: vec!["a", ""] },
        ]
    }

    #[test]
    fn requests_survive_the_wire_and_cut_ones_are_refused() {
        for request in requests() {
            let frame = request.encode().unwrap();
            let (len, body) = frame.split_first_chunk().unwrap();
            assert_eq!(u32::from_le_bytes(*len) as usize, body.len());
            assert_eq!(Request::decode(body).as_ref(), Some(&request));
            for end in 0..body.len() {
                // A shorter list of keys to wait for is a request too.
                assert_ne!(Request::decode(&body[..end]).as_ref(), Some(&request));
            }
            let longer = [body, &[0]].concat();
            assert_eq!(Request::decode(&longer), None, "{request:?}");
        }
    }

    /// What `docs/wire-tcp.md` says. A change here is a change of the version.
    #[test]
    fn frames_are_pinned_to_the_byte() {
        let request = Request::Wait { keys: vec!["a", "bc"], timeout: Duration::from_millis(1) };
        let frame = b"\x14\0\0\0\x05\xe8\x03\0\0\0\0\0\0\x01\0\0\0a\x02\0\0\0bc";
        assert_eq!(request.encode().as_deref(), Some(&frame[..]));
        let request = Request::CompareSet { key: "k", expected: b"", desired: b"v" };
        let frame = b"\x0f\0\0\0\x04\x01\0\0\0k\0\0\0\0\x01\0\0\0v";
        assert_eq!(request.encode().as_deref(), Some(&frame[..]));
        let request = Request::Check { keys: vec!["a", "bc"] };
        assert_eq!(request.encode().as_deref(), Some(&b"\x0c\0\0\0\x08\x01\0\0\0a\x02\0\0\0bc"[..]));
        assert_eq!(Request::NumKeys.encode().as_deref(), Some(&b"\x01\0\0\0\x07"[..]));
        let request = Request::LeaveWill { condition: ("c", b"1"), value: b"v", keys: vec!["a", "b"] };
        let frame = b"\x1a\0\0\0\x09\x01\0\0\0c\x01\0\0\x001\x01\0\0\0v\x01\0\0\0a\x01\0\0\0b";
        assert_eq!(request.encode().as_deref(), Some(&frame[..]));
        let response = Response::TimedOut(b"a, bc").encode();
        assert_eq!(response.as_deref(), Some(&b"\x06\0\0\0\x01a, bc"[..]));
    }

    #[test]
    fn responses_survive_the_wire() {
        let responses = [
            Response::Done(b""),
            Response::Done(b"value"),
            Response::TimedOut(b"a, b"),
            Response::NotANumber(b"seven"),
            Response::Full,
            Response::Closing,
        ];
        for response in responses {
            let frame = response.encode().unwrap();
            assert_eq!(Response::decode(&frame[PREFIX_BYTES..]), Some(response));
        }
        let head = Response::head_of_done(5).unwrap();
        assert_eq!(Some([&head[..], b"value"].concat()), Response::Done(b"value").encode());
        assert_eq!(Response::head_of_done(u32::MAX as usize), None);
        assert_eq!(Response::decode(b""), None);
        assert_eq!(Response::decode(&[9]), None);
    }

    #[test]
    fn hostile_requests_are_refused() {
        assert_eq!(Request::decode(b""), None);
        assert_eq!(Request::decode(&[SET, 255, 255, 255, 255, 1]), None);
        assert_eq!(Request::decode(&[DELETE, 1, 0, 0, 0, 0xff]), None, "no UTF-8");
        assert_eq!(Request::decode(&[77, 0, 0, 0, 0]), None);
    }

    #[test]
    fn requests_of_too_many_keys_are_refused() {
        let wait =
            |keys: usize| Request::Wait { keys: vec![""; keys], timeout: Duration::ZERO }.encode().unwrap();
        assert!(Request::decode(&wait(KEYS_MAX)[PREFIX_BYTES..]).is_some());
        assert_eq!(Request::decode(&wait(KEYS_MAX + 1)[PREFIX_BYTES..]), None);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read_but_never_trusted() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..random() % 40).map(|_| random() as u8 % 12).collect();
            if let Some(request) = Request::decode(&bytes) {
                assert_eq!(request.encode().unwrap()[PREFIX_BYTES..], bytes);
            }
            if let Some(code) = bytes.first_mut() {
                *code %= 5;
            }
            if let Some(response) = Response::decode(&bytes) {
                assert_eq!(response.encode().unwrap()[PREFIX_BYTES..], bytes);
            }
        }
    }

    #[test]
    fn a_timeout_beyond_counting_is_the_longest() {
        let forever = Request::Get { key: "k", timeout: Duration::MAX };
        let frame = forever.encode().unwrap();
        let longest = Request::Get { key: "k", timeout: Duration::from_micros(u64::MAX) };
        assert_eq!(Request::decode(&frame[PREFIX_BYTES..]), Some(longest));
    }
}
