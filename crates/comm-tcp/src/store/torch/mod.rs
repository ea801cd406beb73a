//! A client of PyTorch's store, in PyTorch's own protocol.

mod conversation;
mod protocol;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use comm_core::{Error, Refusal, Result, Store};
use comm_mesh::deadline_after;

use self::conversation::Conversation;
use self::protocol::{KEY_BYTES_MAX, KEYS_MAX, VALUE_BYTES_MAX};
use super::StoreConfig;
use super::client::connect_first;
use super::errors::{RECONNECT_MAX, failed, not_a_number, timed_out, with_grace};
use super::frame::FrameError;
use super::pool::ConnectionPool;
use crate::connect::Connector;
use crate::protection::Established;
use crate::socket::Options;

/// A client of a `torch.distributed.TCPStore`, such as the store of torchrun's agent. It is tested
/// with PyTorch 2.15. PyTorch's clients see the same keys and values.
///
/// Any number of threads may use it: each operation has its own connection while it runs, so a
/// thread that waits for a key does not delay others. Connections are reused.
///
/// PyTorch's server differs in three ways from [`TcpStoreServer`](super::TcpStoreServer):
/// - it has no jobs and no secrets: every process that reaches it can read and write;
/// - a key has at most 8 KiB and a value 8 MiB; longer ones are not sent and return
///   [`Error::Invalid`];
/// - `add` to a text that begins with a number adds to that number, and a sum beyond 64 bits wraps
///   in the store before it is reported as [`Error::Invalid`].
#[derive(Debug)]
pub struct TorchStore {
    address: SocketAddr,
    config: StoreConfig,
    pool: ConnectionPool,
}

/// The delay between attempts to be greeted.
const GREET_BACKOFF: Duration = Duration::from_millis(50);
/// The maximum number of connections that may break before the greeting, because the system of a
/// busy server drops some.
const GREET_ATTEMPTS: u32 = 5;

impl TorchStore {
    /// Connects, with retries until a server answers or the timeout has passed. Of `config`, only
    /// `frame_bytes_max` and `operation_timeout` are used.
    ///
    /// # Errors
    /// [`Error::Handshake`] if the server is not a store of PyTorch. [`Error::Io`] if no server
    /// answers in time, with the address, the number of attempts and the last reason.
    pub fn connect(address: SocketAddr, config: StoreConfig, timeout: Duration) -> Result<Self> {
        Self::connect_first(&[address], config, timeout)
    }

    /// Connects as [`TorchStore::connect`] does, to whichever of several addresses of one server
    /// accepts a connection first. All are tried at the same time.
    ///
    /// # Errors
    /// As [`TorchStore::connect`]. [`Error::Invalid`] if there are no addresses.
    pub fn connect_first(addresses: &[SocketAddr], config: StoreConfig, timeout: Duration) -> Result<Self> {
        let begun = Instant::now();
        let address = match addresses {
            [address] => *address,
            several => {
                let options = Options::store_client(config.keepalive_timeout);
                let bare = |address: &SocketAddr| Connector::bare(*address, options.clone());
                connect_first(several.iter().map(bare).collect(), timeout, deadline_after(timeout))?.0
            }
        };
        let timeout = timeout.saturating_sub(begun.elapsed());
        let store = Self { address, config, pool: ConnectionPool::default() };
        let conversation = store.open(timeout, deadline_after(timeout))?;
        store.pool.put(conversation.socket.into());
        Ok(store)
    }

    /// The address of the server.
    #[must_use]
    pub const fn server_addr(&self) -> SocketAddr {
        self.address
    }

    fn open(&self, timeout: Duration, deadline: Instant) -> Result<Conversation> {
        let not_a_peer = || Error::Handshake {
            with: format!("PyTorch's store at {}", self.address),
            refusal: Refusal::NotAPeer,
        };
        let connect_by = deadline.min(deadline_after(timeout));
        for _ in 0..GREET_ATTEMPTS {
            let options = Options::store_client(self.config.keepalive_timeout);
            let connector = Connector::bare(self.address, options);
            let (_, Established { socket, .. }) = connect_first(vec![connector], timeout, connect_by)?;
            let bytes_max = self.config.frame_bytes_max;
            let conversation = Conversation { socket, deadline: connect_by, bytes_max };
            match conversation.greet() {
                Ok(true) => return Ok(Conversation { deadline, ..conversation }),
                Ok(false) => return Err(not_a_peer()),
                Err(FrameError::TimedOut) => {
                    let e = std::io::ErrorKind::TimedOut.into();
                    let doing =
                        format!("be greeted by PyTorch's store at {} within {timeout:?}", self.address);
                    return Err(Error::io(doing, e));
                }
                Err(_) => std::thread::sleep(GREET_BACKOFF),
            }
        }
        Err(not_a_peer())
    }

    /// Runs an operation on a connection, which is closed if the operation fails: a late response
    /// may still arrive on it.
    fn run<T>(
        &self,
        max_wait: Duration,
        operation: impl FnOnce(&Conversation) -> Result<T, FrameError>,
    ) -> Result<Result<T, FrameError>> {
        let deadline = deadline_after(max_wait);
        let bytes_max = self.config.frame_bytes_max;
        let conversation = match self.pool.take() {
            Some(Established { socket, .. }) => Conversation { socket, deadline, bytes_max },
            None => self.open(max_wait.min(RECONNECT_MAX), deadline)?,
        };
        let outcome = operation(&conversation);
        if outcome.is_ok() {
            self.pool.put(conversation.socket.into());
        }
        Ok(outcome)
    }

    /// Runs an operation on `key` without a timeout of its own.
    fn call<T>(
        &self,
        key: &str,
        operation: impl FnOnce(&Conversation) -> Result<T, FrameError>,
    ) -> Result<T> {
        check_key(key)?;
        self.run(self.config.operation_timeout, operation)?.map_err(|e| self.failed(key, e))
    }

    /// Runs an operation on one or more keys that waits for at most `timeout`.
    fn call_until<T>(
        &self,
        key: &str,
        timeout: Duration,
        operation: impl FnOnce(&Conversation, Instant) -> Result<T, FrameError>,
    ) -> Result<T> {
        let until = deadline_after(timeout);
        self.run(with_grace(timeout), |conversation| operation(conversation, until))?
            .map_err(|e| failed(self.address, key, timeout, e))
    }

    fn failed(&self, key: &str, error: FrameError) -> Error {
        failed(self.address, key, self.config.operation_timeout, error)
    }

    fn check_value(&self, key: &str, value: &[u8]) -> Result<()> {
        let max = VALUE_BYTES_MAX.min(self.config.frame_bytes_max);
        if value.len() > max {
            return Err(Error::setting(key, "", format!("the value exceeds {max} bytes")));
        }
        Ok(())
    }

    /// Returns the error for an addition on which the server closed the connection: either the key
    /// holds a text, or there is another cause.
    fn refused_sum(&self, key: &str) -> Result<Error> {
        let value = self.call(key, |conversation| conversation.peek(key))?;
        let sums = |value: &Vec<u8>| std::str::from_utf8(value).is_ok_and(|text| text.parse::<i64>().is_ok());
        Ok(match value {
            Some(value) if !sums(&value) => not_a_number(key, &value),
            _ => self.failed(key, FrameError::Closed),
        })
    }
}

fn check_key(key: &str) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::setting(key, "", format!("the key exceeds {KEY_BYTES_MAX} bytes")));
    }
    Ok(())
}

/// Checks a list of keys, and returns it as text.
fn check_keys(keys: &[&str]) -> Result<String> {
    keys.iter().try_for_each(|key| check_key(key))?;
    let names = keys.join(", ");
    if keys.len() > KEYS_MAX {
        return Err(Error::setting(names, "", format!("these are more than {KEYS_MAX} keys")));
    }
    Ok(names)
}

impl Store for TorchStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.check_value(key, value)?;
        self.call(key, |conversation| conversation.set(key, value))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        check_key(key)?;
        let value = self.call_until(key, timeout, |conversation, until| conversation.get(key, until))?;
        value.ok_or_else(|| timed_out(key, timeout))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        check_key(key)?;
        let sum = match self.run(self.config.operation_timeout, |c| c.add(key, amount))? {
            Ok(sum) => sum,
            Err(FrameError::Closed) => return Err(self.refused_sum(key)?),
            Err(e) => return Err(self.failed(key, e)),
        };
        let before = sum.wrapping_sub(amount);
        if before.checked_add(amount).is_none() {
            return Err(not_a_number(key, before.to_string().as_bytes()));
        }
        Ok(sum)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.check_value(key, expected)?;
        self.check_value(key, desired)?;
        let value = self.call(key, |conversation| conversation.compare_set(key, expected, desired))?;
        Ok(value.unwrap_or_default())
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let names = check_keys(keys)?;
        let missing = self.call_until(&names, timeout, |conversation, until| {
            if conversation.await_keys(keys, until)? {
                Ok(None)
            } else {
                conversation.missing(keys).map(Some)
            }
        })?;
        match missing {
            None => Ok(()),
            // They were set between the two queries, and thus too late.
            Some(missing) if missing.is_empty() => Err(timed_out(&names, timeout)),
            Some(missing) => Err(timed_out(&missing.join(", "), timeout)),
        }
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.call(key, |conversation| conversation.delete(key))
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        if keys.is_empty() {
            return Ok(true);
        }
        let names = check_keys(keys)?;
        let checked = self.run(self.config.operation_timeout, |conversation| conversation.check(keys))?;
        checked.map_err(|e| self.failed(&names, e))
    }

    /// Counts one more key than were set if a client of PyTorch created the store, because it keeps
    /// a key of its own there.
    fn num_keys(&self) -> Result<u64> {
        self.call("", Conversation::num_keys)
    }
}
