//! A connection of a client to the server, as a state machine.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use comm_core::Corruption;
use rustix::event::epoll::EventFlags;

use super::budget::{Reservation, Value};
use super::frame::{Frame, FrameError, FrameReader, FrameWriter};
use super::protocol::Response;
use crate::protection::Established;

/// The memory of each connection that does not count towards the common limit.
const FREE_BYTES: usize = 16 * 1024;
/// Values up to this length are sent as a copy, with one system call.
const COPIED_BYTES: usize = 16 * 1024;

/// A connection of a client to the server.
#[derive(Debug)]
pub(super) struct StoreConnection {
    pub(super) established: Established,
    pub(super) address: SocketAddr,
    pub(super) phase: Phase,
    /// The time at which to close it, or to respond that the timeout has passed.
    pub(super) deadline: Option<Instant>,
    /// The interest that the reactor has registered.
    pub(super) registration: Registration,
    /// The memory that it holds.
    reservation: Reservation,
    /// The keys to set when it ends.
    pub(super) will: Option<Box<Will>>,
}

/// The keys to set when a client has exited: see [`LastWill`](comm_core::LastWill).
#[derive(Debug)]
pub(super) struct Will {
    pub(super) condition: (String, Vec<u8>),
    pub(super) value: Vec<u8>,
    pub(super) keys: Vec<String>,
}

/// The events and deadline that the reactor has registered for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) events: EventFlags,
    pub(super) deadline: Option<Instant>,
}

/// The state of a connection.
#[derive(Debug)]
pub(super) enum Phase {
    /// A request is being received.
    Receiving(FrameReader),
    /// A request waits for keys.
    Parked(Parked),
    /// The response is being sent.
    Sending(FrameWriter),
}

/// A request that waits for keys.
#[derive(Debug)]
pub(super) struct Parked {
    /// The keys that must exist.
    pub(super) keys: Vec<String>,
    /// The index of the key that it waits for.
    pub(super) missing: usize,
    /// Whether the response is the value of the only key.
    pub(super) wants_value: bool,
}

/// The reason why a connection is closed.
#[derive(Debug)]
pub(super) enum CloseReason {
    /// The client closed it.
    Closed,
    /// It broke.
    Broken(io::Error),
    /// It sent a frame that is too long.
    TooLong(usize),
    /// It sent a malformed request.
    Malformed,
    /// Its request did not arrive as it sent it.
    Corrupted(Corruption),
    /// Its request or response took too long.
    TimedOut,
}

impl Parked {
    pub(super) fn missing_key(&self) -> Option<&str> {
        self.keys.get(self.missing).map(String::as_str)
    }

    /// Finds a key that does not exist, starting with those not checked yet, so that many keys that
    /// are set one by one cost one check each.
    pub(super) fn find_missing(&mut self, exists: impl Fn(&str) -> bool) -> Option<&str> {
        let (seen, unseen) = self.keys.split_at(self.missing.min(self.keys.len()));
        let missing = unseen
            .iter()
            .position(|key| !exists(key))
            .map(|at| seen.len() + at)
            .or_else(|| seen.iter().position(|key| !exists(key)));
        self.missing = missing.unwrap_or(self.keys.len());
        self.missing_key()
    }
}

impl From<io::Error> for CloseReason {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Broken(error),
        }
    }
}

impl From<FrameError> for CloseReason {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Closed => Self::Closed,
            FrameError::TooLong(bytes) => Self::TooLong(bytes),
            FrameError::TimedOut => Self::TimedOut,
            FrameError::Corrupted(corruption) => Self::Corrupted(corruption),
            FrameError::Io(error) => Self::Broken(error),
        }
    }
}

impl StoreConnection {
    pub(super) fn new(established: Established, address: SocketAddr, reservation: Reservation) -> Self {
        Self {
            established,
            address,
            phase: Phase::Receiving(FrameReader::default()),
            deadline: None,
            registration: Registration { events: EventFlags::empty(), deadline: None },
            reservation,
            will: None,
        }
    }

    /// The events to wait for. While a request is parked, only the end of the connection matters.
    pub(super) fn events(&self) -> EventFlags {
        match &self.phase {
            // The socket may have nothing more, but it is writable between two requests.
            Phase::Receiving(_) if self.established.has_received() => EventFlags::IN | EventFlags::OUT,
            Phase::Receiving(_) => EventFlags::IN,
            Phase::Parked(_) => EventFlags::RDHUP,
            Phase::Sending(_) => EventFlags::OUT,
        }
    }

    /// Counts the memory of the current request. Returns false if that exceeds the limit.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        self.reservation.set(bytes.saturating_sub(FREE_BYTES))
    }

    /// Sends a value as [`StoreConnection::respond`] does.
    pub(super) fn respond_value(
        &mut self,
        value: &Value,
        deadline: Option<Instant>,
    ) -> Result<(), CloseReason> {
        if value.len() <= COPIED_BYTES {
            return self.respond(&Response::Done(value), deadline);
        }
        let head = Response::head_of_done(value.len()).map_err(|_| CloseReason::TooLong(value.len()))?;
        let writer = FrameWriter::with_value(head, value.clone(), self.established.sending());
        self.send(writer, deadline)
    }

    /// Begins to send a response, which must be sent by the deadline.
    pub(super) fn respond(
        &mut self,
        response: &Response<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), CloseReason> {
        let frame = response.encode().map_err(|_| CloseReason::TooLong(usize::MAX))?;
        let writer = FrameWriter::new(frame, self.established.sending());
        self.send(writer, deadline)
    }

    fn send(&mut self, writer: FrameWriter, deadline: Option<Instant>) -> Result<(), CloseReason> {
        self.phase = Phase::Sending(writer);
        self.deadline = deadline;
        self.hold(0);
        self.flush()
    }

    /// Sends more of a response, and expects the next request after it.
    pub(super) fn flush(&mut self) -> Result<(), CloseReason> {
        if let Phase::Sending(writer) = &mut self.phase
            && writer.flush(self.established.stream())?
        {
            self.expect_request();
        }
        Ok(())
    }

    fn expect_request(&mut self) {
        self.phase = Phase::Receiving(FrameReader::default());
        self.deadline = None;
    }

    /// Reads more of a request, and returns it once it is complete. Once it has begun, it must be
    /// complete by the deadline.
    pub(super) fn receive(
        &mut self,
        bytes_max: usize,
        deadline: Option<Instant>,
    ) -> Result<Option<Frame>, CloseReason> {
        let Phase::Receiving(reader) = &mut self.phase else { return Ok(None) };
        let reservation = &mut self.reservation;
        let may_hold = |bytes: usize| reservation.set(bytes.saturating_sub(FREE_BYTES));
        let (stream, check) = self.established.receiving();
        let frame = reader.fill(stream, check, bytes_max, may_hold)?;
        if frame.is_none() && reader.has_begun() && self.deadline.is_none() {
            self.deadline = deadline;
        }
        if frame.is_some() {
            self.hold(0);
        }
        Ok(frame)
    }
}
