//! One outgoing connection, from the first attempt until the other side has agreed, without blocking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::credentials;
use crate::hello::{Hello, WELCOME};
use crate::segment::Segment;
use crate::socket;

const BACKOFF_MIN: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// Connects to one member and offers it memory to share, until it takes it.
#[derive(Debug)]
pub(crate) struct Dial {
    door: u128,
    hello: Hello,
    state: State,
    backoff: Duration,
}

#[derive(Debug)]
enum State {
    /// The next attempt comes at this time; the first one at once.
    Waiting(Option<Instant>),
    /// The other side has not answered yet.
    Offered(OwnedFd, Segment),
}

/// What became of a dial.
#[derive(Debug)]
pub(crate) enum Dialed {
    /// To be advanced again when it is ready or its time has come.
    Pending,
    /// The other side has opened the lane too.
    Open(OwnedFd, Segment),
    /// The name that the member had now belongs to another user.
    Stranger,
}

impl Dial {
    pub(crate) const fn new(door: u128, hello: Hello) -> Self {
        Self { door, hello, state: State::Waiting(None), backoff: BACKOFF_MIN }
    }

    /// Goes on as far as possible without blocking. Not to be called again once it has ended.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] if the member is gone: it listened before it told its name to anybody.
    /// Others if there is no memory or no descriptor left.
    pub(crate) fn advance(&mut self, now: Instant) -> io::Result<Dialed> {
        match std::mem::replace(&mut self.state, State::Waiting(None)) {
            State::Waiting(Some(until)) if until > now => self.state = State::Waiting(Some(until)),
            State::Waiting(_) => return self.offer(now),
            State::Offered(socket, segment) => {
                let mut said = WELCOME.map(|byte| !byte);
                match socket::recv(&socket, &mut said) {
                    Ok(None) => self.state = State::Offered(socket, segment),
                    Ok(Some(packet)) if packet.len == WELCOME.len() && said == WELCOME => {
                        return Ok(Dialed::Open(socket, segment));
                    }
                    // It had opened the lane, perhaps, and given up again.
                    Ok(Some(_)) | Err(_) => self.retry(now),
                }
            }
        }
        Ok(Dialed::Pending)
    }

    fn offer(&mut self, now: Instant) -> io::Result<Dialed> {
        let socket = match socket::knock(self.door) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.retry(now);
                return Ok(Dialed::Pending);
            }
            Err(error) => return Err(error),
        };
        if credentials::user(&socket)? != credentials::own_user() {
            return Ok(Dialed::Stranger);
        }
        let capacity = usize::try_from(self.hello.capacity).unwrap_or(usize::MAX);
        let (segment, file) = Segment::create(capacity)?;
        match socket::send(&socket, &self.hello.encode(), Some(file.as_fd())) {
            Ok(()) => self.state = State::Offered(socket, segment),
            Err(_) => self.retry(now),
        }
        Ok(Dialed::Pending)
    }

    fn retry(&mut self, now: Instant) {
        self.state = State::Waiting(Some(now + self.backoff));
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
    }

    /// What becomes readable when it may go on, unless it waits for [`Dial::next_attempt`].
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Waiting(_) => None,
            State::Offered(socket, _) => Some(socket.as_fd()),
        }
    }

    /// When the next attempt is due, if it waits for one.
    pub(crate) const fn next_attempt(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting(until) => *until,
            State::Offered(..) => None,
        }
    }
}

/// A connection on which nothing is said: it ends when the other side does.
#[derive(Debug)]
pub(crate) struct Watch {
    door: u128,
    socket: Option<OwnedFd>,
}

impl Watch {
    pub(crate) const fn new(door: u128) -> Self {
        Self { door, socket: None }
    }

    /// Looks whether the other side is there.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] if it is gone.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        let is_open = |socket: &OwnedFd| matches!(socket::recv(socket, &mut [0; 8]), Ok(None));
        if self.socket.as_ref().is_some_and(is_open) {
            return Ok(());
        }
        // It may also have closed this connection to make place for others.
        self.socket = None;
        match socket::knock(self.door) {
            Ok(socket) => self.socket = Some(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// What becomes readable when the other side ends, if it is known to be there.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }
}
