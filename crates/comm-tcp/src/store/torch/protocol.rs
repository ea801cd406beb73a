//! The encoding of the queries of PyTorch's store.
//!
//! A query consists of a code of one byte and fields in order. A field of variable length consists
//! of its length as a `u64` and its bytes. All numbers are little-endian. Each query has a response
//! of a fixed kind: none, one byte, a number, or a field. PyTorch's clients put `/` before every
//! key, and so does this one, so that both see the same keys.

use comm_core::wire::Writer;

/// Answers to [`Query::check`].
pub(super) const READY: u8 = 0;
pub(super) const NOT_READY: u8 = 1;

/// Answers to [`Query::wait`] and [`Query::cancel_wait`].
pub(super) const STOP_WAITING: u8 = 0;
pub(super) const WAIT_CANCELED: u8 = 1;

/// The longest key that PyTorch's server accepts; it closes the connection on a longer one.
pub(super) const KEY_BYTES_MAX: usize = 8 * 1024 - KEY_PREFIX.len();
pub(super) const VALUE_BYTES_MAX: usize = 8 * 1024 * 1024;
pub(super) const KEYS_MAX: usize = 128 * 1024;

const KEY_PREFIX: &str = "/";

/// The number with which a client announces the protocol.
const MAGIC: u32 = 0x3C85_F7CE;

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const COMPARE_SET: u8 = 2;
const ADD: u8 = 4;
const CHECK: u8 = 5;
const WAIT: u8 = 6;
const GET_NUM_KEYS: u8 = 7;
const DELETE_KEY: u8 = 8;
const CANCEL_WAIT: u8 = 12;
const PING: u8 = 13;

/// One query, or several that are sent together.
#[derive(Debug, Default)]
pub(super) struct Query(Writer);

impl Query {
    /// The first query on a connection, once. It is not answered.
    pub(super) fn validate(self) -> Self {
        self.query(VALIDATE, |to| _ = to.put(MAGIC))
    }

    /// Answered with the same number.
    pub(super) fn ping(self, number: [u8; 4]) -> Self {
        self.query(PING, |to| _ = to.put(number))
    }

    /// Not answered.
    pub(super) fn set(self, key: &str, value: &[u8]) -> Self {
        self.query(SET, |to| _ = put_key(to, key).bytes::<u64>(value))
    }

    /// Answered with a field: the value afterwards, or `expected` if the key is missing and
    /// `expected` is not empty.
    pub(super) fn compare_set(self, key: &str, expected: &[u8], desired: &[u8]) -> Self {
        self.query(COMPARE_SET, |to| _ = put_key(to, key).bytes::<u64>(expected).bytes::<u64>(desired))
    }

    /// Answered with the sum, an `i64`.
    pub(super) fn add(self, key: &str, amount: i64) -> Self {
        self.query(ADD, |to| _ = put_key(to, key).put(amount))
    }

    /// Answered with [`READY`] if all keys exist, else with [`NOT_READY`].
    pub(super) fn check(self, keys: &[&str]) -> Self {
        self.query(CHECK, |to| put_keys(to, keys))
    }

    /// Answered with [`STOP_WAITING`] once, when the keys are thought to exist.
    pub(super) fn wait(self, keys: &[&str]) -> Self {
        self.query(WAIT, |to| put_keys(to, keys))
    }

    /// Answered with [`WAIT_CANCELED`]. The answer to the wait may have been sent before.
    pub(super) fn cancel_wait(self) -> Self {
        self.query(CANCEL_WAIT, |_| ())
    }

    /// Answered with the number of keys that were deleted, an `i64`.
    pub(super) fn delete(self, key: &str) -> Self {
        self.query(DELETE_KEY, |to| _ = put_key(to, key))
    }

    /// Answered with the number of keys, an `i64`.
    pub(super) fn num_keys(self) -> Self {
        self.query(GET_NUM_KEYS, |_| ())
    }

    /// Returns all queries as bytes.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0.into_vec()
    }

    fn query(mut self, code: u8, fields: impl FnOnce(&mut Writer)) -> Self {
        fields(self.0.put(code));
        self
    }
}

fn put_keys(to: &mut Writer, keys: &[&str]) {
    to.list::<u64, _>(keys, |to, key| _ = put_key(to, key));
}

fn put_key<'w>(to: &'w mut Writer, key: &str) -> &'w mut Writer {
    to.size::<u64>(KEY_PREFIX.len() + key.len()).raw(KEY_PREFIX.as_bytes()).raw(key.as_bytes())
}
