//! Lines of PMI-1: `cmd=NAME` and fields, separated by spaces.

#![allow(unsafe_code)]

use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use comm_core::{Error, Result};
use rustix::fs::FileType;

/// The longest line in bytes. The longest ones contain a key, a text and the name of a space.
const LINE_MAX: usize = 4096;
const PEER: &str = "the process manager";

/// The socket to the process manager. It may be one of TCP, too; it is only read and written.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: UnixStream,
    deadline: Instant,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Given(Reply),
    /// The result code is not 0.
    Refused(Reply),
}

/// A line of the process manager.
#[derive(Debug)]
pub(crate) struct Reply(String);

impl Reply {
    /// Returns the value of a field.
    pub(crate) fn field(&self, name: &str) -> Result<&str> {
        self.find(name).ok_or_else(|| self.malformed(&format!("it has no field {name:?}")))
    }

    fn find(&self, name: &str) -> Option<&str> {
        let fields = self.0.split(' ').filter_map(|field| field.split_once('='));
        fields.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    fn malformed(&self, why: &str) -> Error {
        Error::malformed(format!("an answer of {PEER}: {why}"), format!("{:?}", self.0))
    }
}

impl Wire {
    /// Uses the socket with this descriptor until the timeout has passed.
    pub(crate) fn over(descriptor: RawFd, timeout: Duration) -> Result<Self> {
        let failed = |error: io::Error| Error::io(format!("use the socket to {PEER}, PMI_FD"), error);
        let closed = || failed(io::ErrorKind::NotConnected.into());
        if descriptor < 0 {
            return Err(closed());
        }
        // SAFETY: the descriptor is only used to ask whether it is open, and to duplicate it, both
        // of which fail if it is not. It is not negative. The process inherited it for this use.
        let inherited = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let status = rustix::fs::fstat(inherited).map_err(|error| failed(error.into()))?;
        if FileType::from_raw_mode(status.st_mode) != FileType::Socket {
            return Err(closed());
        }
        let own = rustix::io::fcntl_dupfd_cloexec(inherited, 3).map_err(|error| failed(error.into()))?;
        Ok(Self::connected(own, timeout))
    }

    /// Uses a connection until the timeout has passed.
    pub(crate) fn connected(socket: OwnedFd, timeout: Duration) -> Self {
        Self { socket: socket.into(), deadline: Instant::now() + timeout }
    }

    /// Sends a request, and returns the answer, which must be of this kind, with result code 0 if
    /// it has one.
    pub(crate) fn ask(&mut self, request: &str, kind: &str) -> Result<Reply> {
        match self.request(request, kind)? {
            Answer::Given(reply) => Ok(reply),
            Answer::Refused(reply) => Err(reply.malformed(&format!("it refuses {request:?}"))),
        }
    }

    /// Sends a request, and returns the answer, which must be of this kind.
    pub(crate) fn request(&mut self, request: &str, kind: &str) -> Result<Answer> {
        self.send(&format!("cmd={request}\n"))?;
        let reply = self.receive(kind)?;
        match reply.find("rc") {
            None | Some("0") => Ok(Answer::Given(reply)),
            Some(_) => Ok(Answer::Refused(reply)),
        }
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let timeout = Some(self.left()?);
        let sent =
            self.socket.set_write_timeout(timeout).and_then(|()| self.socket.write_all(line.as_bytes()));
        sent.map_err(|error| Self::failed("send to", error))
    }

    /// Receives a line, which must be of this kind.
    pub(crate) fn receive(&mut self, kind: &str) -> Result<Reply> {
        let reply = Reply(self.receive_line()?);
        if reply.find("cmd") != Some(kind) {
            return Err(reply.malformed(&format!("{kind:?} was expected")));
        }
        Ok(reply)
    }

    /// Receives a line, without its end.
    fn receive_line(&mut self) -> Result<String> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while line.len() <= LINE_MAX {
            let timeout = Some(self.left()?);
            let read = self.socket.set_read_timeout(timeout).and_then(|()| self.socket.read(&mut byte));
            match read {
                Ok(0) => return Err(Self::failed("receive from", io::ErrorKind::UnexpectedEof.into())),
                Ok(_) if byte == *b"\n" => {
                    return String::from_utf8(line)
                        .map_err(|error| Error::malformed(format!("an answer of {PEER}"), error));
                }
                Ok(_) => line.extend(byte),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Self::failed("receive from", error)),
            }
        }
        Err(Error::malformed(format!("an answer of {PEER}"), format!("more than {LINE_MAX} bytes")))
    }

    /// Returns the time to the deadline, which is not zero.
    fn left(&self) -> Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Self::failed("wait for", io::ErrorKind::TimedOut.into()));
        }
        Ok(left)
    }

    fn failed(doing: &str, error: io::Error) -> Error {
        // A socket whose timeout has passed would block.
        let error =
            if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error };
        Error::io(format!("{doing} {PEER}"), error)
    }
}
