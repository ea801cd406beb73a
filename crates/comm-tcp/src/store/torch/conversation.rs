//! Requests to PyTorch's store and their responses, on one connection.
//!
//! Every function reads the whole response or fails; after a failure the connection is closed, so
//! that no later request reads a late response.

use std::time::{Duration, Instant};

use comm_core::wire::{self, Reader};
use comm_mesh::Backoff;
use comm_rendezvous::random_bytes;
use rustix::event::PollFlags;
use socket2::Socket;

use super::protocol::{NOT_READY, Query, READY, STOP_WAITING, WAIT_CANCELED};
use crate::protection::ByteStream;
use crate::store::errors::{await_socket, malformed_response};
use crate::store::frame::{FrameError, FrameWriter, GROWTH_BYTES, cut};

/// The time to wait for the server to report that a key exists before asking again: some versions
/// of the server do not wake waiters for keys that a compare-and-set created.
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_millis(500);

/// A connection and the deadline of the current operation.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) socket: Socket,
    pub(super) deadline: Instant,
    /// The longest value that is accepted.
    pub(super) bytes_max: usize,
}

type TorchResult<T> = Result<T, FrameError>;

impl Conversation {
    /// Greets the server, and returns whether it is PyTorch's store.
    pub(super) fn greet(&self) -> TorchResult<bool> {
        let number = random_bytes().map_err(FrameError::Io)?;
        self.ask(Query::default().validate().ping(number))?;
        Ok(self.fixed::<4>()? == number)
    }

    /// Sets a key. The response to a second request confirms it.
    pub(super) fn set(&self, key: &str, value: &[u8]) -> TorchResult<()> {
        self.ask(Query::default().set(key, value).check(&[key]))?;
        self.is_ready().map(drop)
    }

    pub(super) fn add(&self, key: &str, amount: i64) -> TorchResult<i64> {
        self.ask(Query::default().add(key, amount))?;
        self.number()
    }

    pub(super) fn delete(&self, key: &str) -> TorchResult<bool> {
        self.ask(Query::default().delete(key))?;
        match self.number::<i64>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Io(malformed_response())),
        }
    }

    pub(super) fn num_keys(&self) -> TorchResult<u64> {
        self.ask(Query::default().num_keys())?;
        u64::try_from(self.number::<i64>()?).map_err(|_| FrameError::Io(malformed_response()))
    }

    /// Returns the value afterwards, and `None` if the key is still missing.
    pub(super) fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> TorchResult<Option<Vec<u8>>> {
        if expected == desired && !expected.is_empty() {
            return self.read(key);
        }
        self.ask(Query::default().compare_set(key, expected, desired))?;
        let value = self.field()?;
        // For a missing key the server returns the expected value, which it would otherwise have
        // replaced.
        Ok(Some(value).filter(|value| expected.is_empty() || value != expected))
    }

    /// Returns the value of a key, or `None` if it is missing.
    ///
    /// The server's own query for this does not distinguish a missing key from an empty value, or
    /// closes the connection. A compare-and-set of a random value, which no key holds, to itself
    /// changes nothing, and its response distinguishes the two.
    fn read(&self, key: &str) -> TorchResult<Option<Vec<u8>>> {
        let unlikely: [u8; 16] = random_bytes().map_err(FrameError::Io)?;
        self.ask(Query::default().compare_set(key, &unlikely, &unlikely))?;
        Ok(Some(self.field()?).filter(|value| value != &unlikely))
    }

    /// Waits for a key until `until`, and returns its value.
    pub(super) fn get(&self, key: &str, until: Instant) -> TorchResult<Option<Vec<u8>>> {
        while self.await_keys(&[key], until)? {
            let value = self.read(key)?;
            if value.is_some() || Instant::now() >= until {
                return Ok(value);
            }
        }
        Ok(None)
    }

    /// Returns the value of a key, if it exists now.
    pub(super) fn peek(&self, key: &str) -> TorchResult<Option<Vec<u8>>> {
        if self.check(&[key])? { self.read(key) } else { Ok(None) }
    }

    /// Waits until all keys exist at the same time, and returns whether they did before `until`.
    pub(super) fn await_keys(&self, keys: &[&str], until: Instant) -> TorchResult<bool> {
        let mut delays = Backoff::new(POLL_MIN, POLL_MAX);
        loop {
            if self.check(keys)? {
                return Ok(true);
            }
            let now = Instant::now();
            if now >= until {
                return Ok(false);
            }
            self.sleep(keys, until.min(now + delays.next_delay()))?;
        }
    }

    /// Returns the keys that do not exist.
    pub(super) fn missing<'k>(&self, keys: &[&'k str]) -> TorchResult<Vec<&'k str>> {
        let mut missing = Vec::new();
        for key in keys {
            if !self.check(&[key])? {
                missing.push(*key);
            }
        }
        Ok(missing)
    }

    pub(super) fn check(&self, keys: &[&str]) -> TorchResult<bool> {
        self.ask(Query::default().check(keys))?;
        self.is_ready()
    }

    /// Sleeps until the server reports that the keys exist, or until `until`.
    fn sleep(&self, keys: &[&str], until: Instant) -> TorchResult<()> {
        self.ask(Query::default().wait(keys))?;
        let answered = match await_socket(&self.socket, PollFlags::IN, until) {
            Err(FrameError::TimedOut) => false,
            other => other.map(|()| true)?,
        };
        if answered {
            return self.expect(&[STOP_WAITING]).map(drop);
        }
        self.ask(Query::default().cancel_wait())?;
        if self.expect(&[STOP_WAITING, WAIT_CANCELED])? == STOP_WAITING {
            self.expect(&[WAIT_CANCELED])?;
        }
        Ok(())
    }

    fn is_ready(&self) -> TorchResult<bool> {
        Ok(self.expect(&[READY, NOT_READY])? == READY)
    }

    fn expect(&self, known: &[u8]) -> TorchResult<u8> {
        let [byte] = self.fixed()?;
        if known.contains(&byte) { Ok(byte) } else { Err(FrameError::Io(malformed_response())) }
    }

    fn ask(&self, query: Query) -> TorchResult<()> {
        let mut writer = FrameWriter::bare(query.into_bytes());
        while !writer.flush(&self.socket).map_err(FrameError::Io)? {
            await_socket(&self.socket, PollFlags::OUT, self.deadline)?;
        }
        Ok(())
    }

    fn number<T: wire::Fixed>(&self) -> TorchResult<T> {
        let bytes: [u8; 8] = self.fixed()?;
        wire::decode(&bytes, Reader::get).map_err(|_| FrameError::Io(malformed_response()))
    }

    fn fixed<const N: usize>(&self) -> TorchResult<[u8; N]> {
        let mut bytes = [0; N];
        match self.fill(&mut bytes)? {
            0 => Err(FrameError::Closed),
            filled if filled < N => Err(cut()),
            _ => Ok(bytes),
        }
    }

    /// Reads a length, then that many bytes. Memory is allocated only for bytes that have arrived.
    fn field(&self) -> TorchResult<Vec<u8>> {
        let len = usize::try_from(self.number::<u64>()?).unwrap_or(usize::MAX);
        if len > self.bytes_max {
            return Err(FrameError::TooLong(len));
        }
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let filled = bytes.len();
            bytes.resize(len.min(filled + GROWTH_BYTES), 0);
            if self.fill(&mut bytes[filled..])? < bytes.len() - filled {
                return Err(cut());
            }
        }
        Ok(bytes)
    }

    /// Reads until `into` is full or the stream ends, and returns the number of bytes.
    fn fill(&self, into: &mut [u8]) -> TorchResult<usize> {
        let (mut stream, mut filled) = (ByteStream::from(&self.socket), 0);
        while filled < into.len() {
            match stream.recv(&mut into[filled..])? {
                None => await_socket(&self.socket, PollFlags::IN, self.deadline)?,
                Some(0) => break,
                Some(more) => filled += more,
            }
        }
        Ok(filled)
    }
}
