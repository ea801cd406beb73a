//! The client of the store.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use comm_core::wire::{self, Reader};
use comm_core::{Error, LastWill, Presence, Refusal, Result, Store};
use comm_mesh::deadline_after;
use rustix::event::PollFlags;

use super::StoreConfig;
use super::errors::{
    RECONNECT_MAX, await_socket, failed, malformed_response, not_a_number, printable, timed_out, unreachable,
    using, with_grace,
};
use super::frame::{Frame, FrameError, FrameReader, FrameWriter};
use super::pool::ConnectionPool;
use super::presence::{PresenceConfig, TcpPresence};
use super::protocol::{KEYS_MAX, PREFIX_BYTES, Request, Response};
use crate::connect::{Connected, Connector, run_first};
use crate::hello::Hello;
use crate::protection::Established;
use crate::socket::Options;

/// A client of a [`TcpStoreServer`](super::TcpStoreServer).
///
/// Any number of threads may use it: each operation has its own connection while it runs, so a
/// thread that waits for a key does not delay others. Connections are reused.
///
/// It is bound to the server to which it first connected. An operation that would reach another
/// server at the same address, which has other keys, fails with [`Refusal::StoreClosing`].
#[derive(Debug)]
pub struct TcpStore {
    address: SocketAddr,
    config: StoreConfig,
    pool: ConnectionPool,
    /// The id of the server, which distinguishes it from another one at the same address.
    server: u64,
}

impl TcpStore {
    /// Connects, with retries until a server answers or the timeout has passed.
    ///
    /// # Errors
    /// [`Error::Handshake`] if the server belongs to another job, has another version or secret, or
    /// is not a store. [`Error::Io`] if no server answers in time, with the address, the number of
    /// attempts and the last reason.
    pub fn connect(address: SocketAddr, config: StoreConfig, timeout: Duration) -> Result<Self> {
        Self::connect_first(&[address], config, timeout)
    }

    /// Connects as [`TcpStore::connect`] does, to whichever of several addresses of one server
    /// answers first. All are tried at the same time.
    ///
    /// # Errors
    /// As [`TcpStore::connect`]; an address that refuses this client ends the search.
    /// [`Error::Invalid`] if there are no addresses.
    pub fn connect_first(addresses: &[SocketAddr], config: StoreConfig, timeout: Duration) -> Result<Self> {
        config.protection().check()?;
        let connectors = addresses.iter().map(|address| connector_to(*address, &config)).collect();
        let (address, mut connection) = connect_first(connectors, timeout, deadline_after(timeout))?;
        let server = identify(&mut connection, address, &config)?;
        let store = Self { address, config, pool: ConnectionPool::default(), server };
        store.pool.put(connection);
        Ok(store)
    }

    /// The address of the server.
    #[must_use]
    pub const fn server_addr(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request and reads its response, which the server sends when `timeout` has passed at
    /// the latest.
    fn call<T>(
        &self,
        key: &str,
        timeout: Option<Duration>,
        request: &Request<'_>,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T> {
        let frame = request.encode().ok().filter(|f| f.len() - PREFIX_BYTES <= self.config.frame_bytes_max);
        let frame = frame.ok_or_else(|| {
            let max = self.config.frame_bytes_max;
            Error::setting(key, "", format!("key and value together exceed {max} bytes"))
        })?;
        let max_wait = timeout.map_or(self.config.operation_timeout, with_grace);
        let deadline = deadline_after(max_wait);
        let mut connection = self.connection(max_wait)?;
        let response = exchange(&mut connection, frame, self.config.frame_bytes_max, deadline)
            .map_err(|e| failed(self.address, key, timeout.unwrap_or(max_wait), e))?;
        self.pool.put(connection);
        let value = read_response(self.address, key, timeout.unwrap_or(max_wait), &response)?;
        read(value).ok_or_else(|| using(self.address, key, malformed_response()))
    }

    fn connection(&self, max_wait: Duration) -> Result<Established> {
        match self.pool.take() {
            Some(connection) => Ok(connection),
            None => {
                let connector = connector_to(self.address, &self.config).reached_before();
                let timeout = max_wait.min(RECONNECT_MAX);
                let (address, mut connection) =
                    connect_first(vec![connector], timeout, deadline_after(timeout))?;
                if identify(&mut connection, address, &self.config)? == self.server {
                    Ok(connection)
                } else {
                    Err(closing(address))
                }
            }
        }
    }
}

/// Returns the value in the response to a request for `key`.
pub(super) fn read_response<'r>(
    address: SocketAddr,
    key: &str,
    after: Duration,
    response: &'r [u8],
) -> Result<&'r [u8]> {
    match Response::decode(response) {
        Ok(Response::Done(value)) => Ok(value),
        Ok(Response::TimedOut(keys)) => Err(timed_out(&printable(keys), after)),
        Ok(Response::NotANumber(value)) => Err(not_a_number(key, value)),
        Ok(Response::Full) => {
            let full = io::Error::new(io::ErrorKind::QuotaExceeded, "the store is full");
            Err(using(address, key, full))
        }
        Ok(Response::Closing) => Err(closing(address)),
        Err(_) => Err(using(address, key, malformed_response())),
    }
}

fn closing(address: SocketAddr) -> Error {
    Error::Handshake { with: format!("the store at {address}"), refusal: Refusal::StoreClosing }
}

/// Returns the id of the server.
fn identify(connection: &mut Established, address: SocketAddr, config: &StoreConfig) -> Result<u64> {
    let (key, max_wait) = ("", config.operation_timeout);
    let request = Request::Identify.encode().map_err(|_| using(address, key, malformed_response()))?;
    let response = exchange(connection, request, config.frame_bytes_max, deadline_after(max_wait))
        .map_err(|error| failed(address, key, max_wait, error))?;
    let number = read_response(address, key, max_wait, &response)?;
    wire::decode(number, Reader::get).map_err(|_| using(address, key, malformed_response()))
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(key, None, &Request::Set { key, value }, |_| Some(()))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.call(key, Some(timeout), &Request::Get { key, timeout }, |value| Some(value.to_vec()))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.call(key, None, &Request::Add { key, amount }, |sum| wire::decode(sum, Reader::get).ok())
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let request = Request::CompareSet { key, expected, desired };
        self.call(key, None, &request, |value| Some(value.to_vec()))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        check_count(keys)?;
        let request = Request::Wait { keys: keys.to_vec(), timeout };
        self.call(&keys.join(", "), Some(timeout), &request, |_| Some(()))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.call(key, None, &Request::Delete { key }, |existed| Some(existed == [1]))
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        check_count(keys)?;
        let request = Request::Check { keys: keys.to_vec() };
        self.call(&keys.join(", "), None, &request, |exist| Some(exist == [1]))
    }

    fn num_keys(&self) -> Result<u64> {
        self.call("", None, &Request::NumKeys, |count| wire::decode(count, Reader::get).ok())
    }

    fn register_last_will(
        &self,
        will: &LastWill<'_>,
        watch: &str,
        timeout: Duration,
    ) -> Result<Option<Box<dyn Presence>>> {
        let LastWill { condition, keys, value } = *will;
        let will = Request::LeaveWill { condition, value, keys: keys.to_vec() }.encode();
        let will = will.map_err(|_| Error::setting(watch, "", "the will is too long"))?;
        let max_wait = with_grace(timeout).min(self.config.operation_timeout);
        let config = PresenceConfig {
            address: self.address,
            bytes_max: self.config.frame_bytes_max,
            deadline: deadline_after(max_wait),
            will,
            key: watch,
            timeout,
        };
        Ok(Some(Box::new(TcpPresence::new(self.connection(max_wait)?, config)?)))
    }
}

fn check_count(keys: &[&str]) -> Result<()> {
    if keys.len() <= KEYS_MAX {
        return Ok(());
    }
    let reason = format!("one call asks for at most {KEYS_MAX} keys");
    Err(Error::setting("keys", keys.len().to_string(), reason))
}

fn connector_to(address: SocketAddr, config: &StoreConfig) -> Connector {
    let options = Options::store_client(config.keepalive_timeout);
    Connector::new(address, Hello::store(config.job), config.protection(), options)
}

/// Connects to the first address that answers by the deadline, which is `timeout` after the first
/// attempt. Also returns that address.
pub(super) fn connect_first(
    mut connectors: Vec<Connector>,
    timeout: Duration,
    deadline: Instant,
) -> Result<(SocketAddr, Established)> {
    if connectors.is_empty() {
        return Err(Error::setting("addresses", "", "a client of a store needs an address to connect to"));
    }
    match run_first(&mut connectors, deadline) {
        Ok((at, Connected::Open(connection))) => Ok((connectors[at].address, connection)),
        Ok((at, Connected::Refused(refusal))) => {
            Err(Error::Handshake { with: format!("the store at {}", connectors[at].address), refusal })
        }
        Ok((_, Connected::Pending)) => Err(unreachable(&connectors, timeout)),
        Err(e) => Err(Error::io("wait for a connection", e)),
    }
}

/// Sends a frame, which must be sent by the deadline.
pub(super) fn send(
    connection: &mut Established,
    mut writer: FrameWriter,
    deadline: Instant,
) -> Result<(), FrameError> {
    while !writer.flush(connection.stream()).map_err(FrameError::Io)? {
        await_socket(&connection.socket, PollFlags::OUT, deadline)?;
    }
    Ok(())
}

/// Sends a frame, and waits for another one until the deadline.
pub(super) fn exchange(
    connection: &mut Established,
    frame: Vec<u8>,
    bytes_max: usize,
    deadline: Instant,
) -> Result<Vec<u8>, FrameError> {
    let writer = FrameWriter::new(frame, connection.sending());
    send(connection, writer, deadline)?;
    let mut reader = FrameReader::default();
    loop {
        let (stream, check) = connection.receiving();
        match reader.fill(stream, check, bytes_max, |_| true)? {
            Some(Frame::Whole(response)) => return Ok(response),
            Some(Frame::Skipped) | None => {}
        }
        if !connection.has_received() {
            await_socket(&connection.socket, PollFlags::IN, deadline)?;
        }
    }
}

#[cfg(test)]
mod tests;
