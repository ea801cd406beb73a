//! A small key-value store through which ranks find each other.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::{Error, Result};

/// A key-value store shared by all ranks of a job: c10d's `Store`.
///
/// Every method may be called from any thread and takes effect exactly once: operations on one key
/// are linearizable. Keys are UTF-8, values are bytes. Each `timeout` limits how long the caller
/// waits.
///
/// # Errors
/// [`Error::Timeout`](crate::Error::Timeout) with the key if the timeout expires,
/// [`Error::Io`](crate::Error::Io) or [`Error::Handshake`](crate::Error::Handshake) if the store
/// cannot be reached.
pub trait Store: Send + Sync {
    /// Sets a key.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Waits until the key exists, and returns its value.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>>;

    /// Adds to a decimal number, which starts at zero, and returns the sum. Fails with
    /// [`Error::Invalid`](crate::Error::Invalid) if the value is not a number.
    fn add(&self, key: &str, amount: i64) -> Result<i64>;

    /// Sets a key to `desired` if it holds `expected`; a missing key equals an empty `expected`.
    /// Returns the value after the operation, which is empty if the key is still missing.
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>>;

    /// Waits until all keys exist.
    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()>;

    /// Removes a key and returns whether it existed.
    fn delete(&self, key: &str) -> Result<bool>;

    /// Returns whether all keys exist now, without waiting.
    fn check(&self, keys: &[&str]) -> Result<bool> {
        match self.wait(keys, Duration::ZERO) {
            Ok(()) => Ok(true),
            Err(Error::Timeout { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of keys. A store that cannot count them returns an
    /// [`Error::Io`](crate::Error::Io) of kind [`Unsupported`](std::io::ErrorKind::Unsupported),
    /// which is the default.
    fn num_keys(&self) -> Result<u64> {
        Err(Error::io("count the keys of a store", std::io::ErrorKind::Unsupported.into()))
    }

    /// Registers a last will, which the store executes when this client's process ends, and watches
    /// a key, for as long as the returned value lives. Returns `None` if the store cannot detect
    /// that a client has ended; that is the default.
    fn register_last_will(
        &self,
        will: &LastWill<'_>,
        watch: &str,
        timeout: Duration,
    ) -> Result<Option<Box<dyn Presence>>> {
        let _ = (will, watch, timeout);
        Ok(None)
    }
}

/// The keys that a store sets for a client whose connection has ended. MQTT calls this a last will.
///
/// Nothing changes unless `condition` holds. If the first of `keys` is missing, it is set to
/// `value`; each of the other keys that is missing is set to the value of the first.
#[derive(Debug, Clone, Copy)]
pub struct LastWill<'a> {
    /// A key and the value that it must have.
    pub condition: (&'a str, &'a [u8]),
    /// The keys to set.
    pub keys: &'a [&'a str],
    /// The value for the first key.
    pub value: &'a [u8],
}

/// A connection to a store whose end executes a last will. Dropping this value closes it.
pub trait Presence: std::fmt::Debug + Send + Sync {
    /// Returns a descriptor that becomes readable when the watched key exists, the timeout expires
    /// or the store ends.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns the value of the watched key if it exists, without waiting.
    ///
    /// # Errors
    /// The errors of [`Store`].
    fn poll(&self) -> Result<Option<Vec<u8>>>;
}
