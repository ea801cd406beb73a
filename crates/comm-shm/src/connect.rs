//! Connects to a rank without blocking, from the first attempt until the rank has accepted our
//! memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{During, Error, Loss, Refusal, Result};
use comm_mesh::{Backoff, Connect};
use rustix::event::{PollFd, PollFlags};

use crate::credentials;
use crate::hello::{Hello, WELCOME};
use crate::peer::Connection;
use crate::process::Processes;
use crate::segment::{Direction, Segment};
use crate::socket;

pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(1);
pub(crate) const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// Connects to one rank and offers it memory to share, until it accepts.
#[derive(Debug)]
pub(crate) struct Connector {
    rank: usize,
    listener: u128,
    hello: Hello,
    processes: Arc<Processes>,
    state: ConnectState,
    backoff: Backoff,
}

#[derive(Debug)]
enum ConnectState {
    /// The next attempt is made at this time, the first one immediately.
    Waiting(Option<Instant>),
    /// The peer has not answered yet.
    Offered(OwnedFd, Segment),
}

impl Connector {
    pub(crate) const fn new(rank: usize, listener: u128, hello: Hello, processes: Arc<Processes>) -> Self {
        let backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        Self { rank, listener, hello, processes, state: ConnectState::Waiting(None), backoff }
    }

    fn offer(&mut self, now: Instant) -> Result<()> {
        let rank = self.rank;
        let failed = |error| failed(rank, error);
        let socket = match socket::connect(self.listener) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.retry(now);
                return Ok(());
            }
            Err(error) => return Err(failed(error)),
        };
        // Once the listener is closed, another user may listen under its name.
        if credentials::user(&socket).map_err(failed)? != credentials::own_user() {
            return Err(Error::Handshake { with: format!("rank {rank}"), refusal: Refusal::NotAPeer });
        }
        let capacity = usize::try_from(self.hello.capacity).unwrap_or(usize::MAX);
        let (segment, file) = Segment::create(capacity).map_err(failed)?;
        match socket::send(&socket, &self.hello.encode(), Some(file.as_fd())) {
            Ok(()) => self.state = ConnectState::Offered(socket, segment),
            Err(_) => self.retry(now),
        }
        Ok(())
    }

    fn retry(&mut self, now: Instant) {
        self.state = ConnectState::Waiting(Some(now + self.backoff.next_delay()));
    }
}

impl Connect for Connector {
    type Connection = Connection;

    fn advance(&mut self, now: Instant) -> Result<Option<Connection>> {
        match std::mem::replace(&mut self.state, ConnectState::Waiting(None)) {
            ConnectState::Waiting(Some(until)) if until > now => {
                self.state = ConnectState::Waiting(Some(until))
            }
            ConnectState::Waiting(_) => self.offer(now)?,
            ConnectState::Offered(socket, segment) => {
                let mut answer = WELCOME.map(|byte| !byte);
                match socket::recv(&socket, &mut answer) {
                    Ok(None) => self.state = ConnectState::Offered(socket, segment),
                    Ok(Some(packet)) if packet.len == WELCOME.len() && answer == WELCOME => {
                        let watched = self.processes.watch(&socket);
                        let process = watched.map_err(|error| failed(self.rank, error))?;
                        return Ok(Some(Connection { socket, process, segment, outgoing: Direction::Out }));
                    }
                    // The peer may have started to open the channel and then given up.
                    Ok(Some(_)) | Err(_) => self.retry(now),
                }
            }
        }
        Ok(None)
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        match &self.state {
            ConnectState::Waiting(_) => None,
            ConnectState::Offered(socket, _) => Some(PollFd::new(socket, PollFlags::IN)),
        }
    }

    fn next_attempt(&self) -> Option<Instant> {
        match &self.state {
            ConnectState::Waiting(until) => *until,
            ConnectState::Offered(..) => None,
        }
    }
}

/// Returns the error for a failed connection to a rank: the rank is lost if its listener is closed;
/// anything else is an error of this rank.
pub(crate) fn failed(rank: usize, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        let reason = "it is no longer listening: its process has exited, or runs on another machine that was restored \
                     from the same image";
        let loss = Loss::Io(Arc::new(io::Error::new(error.kind(), reason)));
        return Error::PeerLost { peer: rank, during: During::Connect, loss };
    }
    Error::io(format!("share memory with rank {rank}"), error)
}
