//! The encoding of requests and responses of the store, which `docs/wire-tcp.md` specifies.
//!
//! A frame consists of its length as a `u32`, which does not count itself, a code, and fields in
//! order. A field of variable length consists of its length as a `u32` and its bytes. All numbers
//! are little-endian.

use std::time::Duration;

use comm_core::wire::{self, Reader, WireError, Writer};

/// The size in bytes of the length of a frame.
pub(super) const PREFIX_BYTES: usize = 4;

/// The maximum number of keys of one request.
pub(super) const KEYS_MAX: usize = 65_536;

/// A request of a client.
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
    /// Asks for the id of the server.
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

/// A response of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Response<'a> {
    /// Success, with the value if the operation has one.
    Done(&'a [u8]),
    /// The timeout has passed. Holds the missing keys.
    TimedOut(&'a [u8]),
    /// An addition to a value that is not a number, or whose sum overflows. Holds the value.
    NotANumber(&'a [u8]),
    /// The server has reached its limit of bytes.
    Full,
    /// The server is closing, so the awaited keys will not be set.
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
    /// Encodes the whole frame, unless it is too long for its length field.
    pub(super) fn encode(&self) -> wire::Result<Vec<u8>> {
        wire::frame(|to| match self {
            Self::Set { key, value } => _ = put_key(to.put(SET), key).bytes::<u32>(value),
            Self::Get { key, timeout } => put_duration(put_key(to.put(GET), key), *timeout),
            Self::Add { key, amount } => _ = put_key(to.put(ADD), key).put(*amount),
            Self::CompareSet { key, expected, desired } => {
                put_key(to.put(COMPARE_SET), key).bytes::<u32>(expected).bytes::<u32>(desired);
            }
            Self::Wait { keys, timeout } => {
                put_duration(to.put(WAIT), *timeout);
                put_keys(to, keys);
            }
            Self::Delete { key } => _ = put_key(to.put(DELETE), key),
            Self::NumKeys => _ = to.put(NUM_KEYS),
            Self::Identify => _ = to.put(IDENTIFY),
            Self::Check { keys } => put_keys(to.put(CHECK), keys),
            Self::LeaveWill { condition: (key, holds), value, keys } => {
                let to = put_key(to.put(LEAVE_WILL), key);
                put_keys(to.bytes::<u32>(holds).bytes::<u32>(value), keys);
            }
        })
    }

    /// Decodes the part of a frame that follows its length.
    pub(super) fn decode(frame: &'a [u8]) -> wire::Result<Self> {
        wire::decode(frame, |r| {
            Ok(match r.get()? {
                SET => Self::Set { key: key(r)?, value: field(r)? },
                GET => Self::Get { key: key(r)?, timeout: duration(r)? },
                ADD => Self::Add { key: key(r)?, amount: r.get()? },
                COMPARE_SET => Self::CompareSet { key: key(r)?, expected: field(r)?, desired: field(r)? },
                WAIT => Self::Wait { timeout: duration(r)?, keys: r.list_to_end(KEYS_MAX, key)? },
                DELETE => Self::Delete { key: key(r)? },
                NUM_KEYS => Self::NumKeys,
                IDENTIFY => Self::Identify,
                CHECK => Self::Check { keys: r.list_to_end(KEYS_MAX, key)? },
                LEAVE_WILL => Self::LeaveWill {
                    condition: (key(r)?, field(r)?),
                    value: field(r)?,
                    keys: r.list_to_end(KEYS_MAX, key)?,
                },
                code => return Err(WireError::Unknown { what: "request", value: code.into() }),
            })
        })
    }
}

impl<'a> Response<'a> {
    /// Encodes the whole frame, unless it is too long for its length field.
    pub(super) fn encode(&self) -> wire::Result<Vec<u8>> {
        wire::frame(|to| match self {
            Self::Done(value) => _ = to.put(DONE).raw(value),
            Self::TimedOut(keys) => _ = to.put(TIMED_OUT).raw(keys),
            Self::NotANumber(value) => _ = to.put(NOT_A_NUMBER).raw(value),
            Self::Full => _ = to.put(FULL),
            Self::Closing => _ = to.put(CLOSING),
        })
    }

    /// Encodes the frame of [`Response::Done`] up to its value of `len` bytes, unless that is
    /// too long for its length field.
    pub(super) fn head_of_done(len: usize) -> wire::Result<Vec<u8>> {
        let too_long = WireError::TooLong { length: len, max: u32::MAX as usize - 1 };
        let body = len.checked_add(1).and_then(|body| u32::try_from(body).ok()).ok_or(too_long)?;
        Ok(wire::encode(|to| _ = to.put(body).put(DONE)))
    }

    /// Decodes the part of a frame that follows its length.
    pub(super) fn decode(frame: &'a [u8]) -> wire::Result<Self> {
        wire::decode(frame, |r| {
            Ok(match r.get()? {
                DONE => Self::Done(r.rest()),
                TIMED_OUT => Self::TimedOut(r.rest()),
                NOT_A_NUMBER => Self::NotANumber(r.rest()),
                FULL => Self::Full,
                CLOSING => Self::Closing,
                code => return Err(WireError::Unknown { what: "response", value: code.into() }),
            })
        })
    }
}

fn put_key<'w>(to: &'w mut Writer, key: &str) -> &'w mut Writer {
    to.bytes::<u32>(key.as_bytes())
}

fn put_keys(to: &mut Writer, keys: &[&str]) {
    keys.iter().for_each(|key| _ = put_key(to, key));
}

/// Encodes a duration in microseconds, at most `u64::MAX`, which is 584,942 years.
fn put_duration(to: &mut Writer, duration: Duration) {
    to.put(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
}

fn key<'a>(r: &mut Reader<'a>) -> wire::Result<&'a str> {
    r.text::<u32>(usize::MAX)
}

fn field<'a>(r: &mut Reader<'a>) -> wire::Result<&'a [u8]> {
    r.bytes::<u32>(usize::MAX)
}

fn duration(r: &mut Reader<'_>) -> wire::Result<Duration> {
    r.get().map(Duration::from_micros)
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

    /// Removes the length from a frame.
    fn body(frame: wire::Result<Vec<u8>>) -> Vec<u8> {
        frame.unwrap().split_off(PREFIX_BYTES)
    }

    comm_sim::hostile_bytes!(requests_are_read_as_they_were_written: requests(),
        |request| body(request.encode()), |bytes| Request::decode(bytes.to_vec().leak()).ok());

    /// `docs/wire-tcp.md` documents these bytes. A change here needs a new version.
    #[test]
    fn frames_are_pinned_to_the_byte() {
        let request = Request::Wait { keys: vec!["a", "bc"], timeout: Duration::from_millis(1) };
        let frame = b"\x14\0\0\0\x05\xe8\x03\0\0\0\0\0\0\x01\0\0\0a\x02\0\0\0bc";
        assert_eq!(request.encode().as_deref(), Ok(&frame[..]));
        let request = Request::CompareSet { key: "k", expected: b"", desired: b"v" };
        let frame = b"\x0f\0\0\0\x04\x01\0\0\0k\0\0\0\0\x01\0\0\0v";
        assert_eq!(request.encode().as_deref(), Ok(&frame[..]));
        let request = Request::Check { keys: vec!["a", "bc"] };
        assert_eq!(request.encode().as_deref(), Ok(&b"\x0c\0\0\0\x08\x01\0\0\0a\x02\0\0\0bc"[..]));
        assert_eq!(Request::NumKeys.encode().as_deref(), Ok(&b"\x01\0\0\0\x07"[..]));
        let request = Request::LeaveWill { condition: ("c", b"1"), value: b"v", keys: vec!["a", "b"] };
        let frame = b"\x1a\0\0\0\x09\x01\0\0\0c\x01\0\0\x001\x01\0\0\0v\x01\0\0\0a\x01\0\0\0b";
        assert_eq!(request.encode().as_deref(), Ok(&frame[..]));
        let response = Response::TimedOut(b"a, bc").encode();
        assert_eq!(response.as_deref(), Ok(&b"\x06\0\0\0\x01a, bc"[..]));
    }

    const RESPONSES: [Response<'_>; 6] = [
        Response::Done(b""),
        Response::Done(b"value"),
        Response::TimedOut(b"a, b"),
        Response::NotANumber(b"seven"),
        Response::Full,
        Response::Closing,
    ];

    comm_sim::hostile_bytes!(responses_are_read_as_they_were_written: RESPONSES,
        |response| body(response.encode()), |bytes| Response::decode(bytes.to_vec().leak()).ok());

    #[test]
    fn the_head_of_a_value_is_the_start_of_its_frame() {
        let head = Response::head_of_done(5).unwrap();
        assert_eq!([&head[..], b"value"].concat(), Response::Done(b"value").encode().unwrap());
        assert!(Response::head_of_done(u32::MAX as usize).is_err());
    }

    #[test]
    fn requests_of_too_many_keys_are_refused() {
        let wait = |keys| body(Request::Wait { keys: vec![""; keys], timeout: Duration::ZERO }.encode());
        assert!(Request::decode(&wait(KEYS_MAX)).is_ok());
        let error = WireError::TooLong { length: KEYS_MAX + 1, max: KEYS_MAX };
        assert_eq!(Request::decode(&wait(KEYS_MAX + 1)), Err(error));
    }

    #[test]
    fn a_timeout_beyond_counting_is_the_longest() {
        let forever = Request::Get { key: "k", timeout: Duration::MAX };
        let longest = Request::Get { key: "k", timeout: Duration::from_micros(u64::MAX) };
        assert_eq!(Request::decode(&body(forever.encode())), Ok(longest));
    }
}
