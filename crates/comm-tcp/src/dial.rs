//! One outgoing connection, from the first attempt to the end of its handshake, without blocking.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use comm_core::Refusal;
use rustix::event::{PollFd, PollFlags};
use socket2::Socket;

use crate::handshake::{Handshake, Progress};
use crate::hello::Hello;
use crate::secret::Secret;
use crate::socket::{self, Options};

const BACKOFF_MIN: Duration = Duration::from_millis(2);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// A listener exists before its address is told to anybody, so a rank whose listener is gone is gone. This many
/// refusals in a row, about half a second of them, rule out that a packet filter was only just being set up.
pub(crate) const REFUSALS_MAX: u32 = 8;

/// Connects to one address, again and again, until a handshake succeeds or is refused.
#[derive(Debug)]
pub(crate) struct Dial {
    address: SocketAddr,
    /// What to say in the handshake. Without it there is none, and to be connected is enough.
    hello: Option<Hello>,
    secret: Option<Secret>,
    options: Options,
    state: State,
    backoff: Duration,
    attempts: u32,
    /// How many attempts in a row found nobody listening.
    refusals: u32,
    last_error: Option<io::Error>,
    /// Whether the address was reached before, so that nobody who listens there any more is an answer.
    was_reached: bool,
}

#[derive(Debug)]
enum State {
    /// The next attempt comes at this time; the first one at once.
    Waiting(Option<Instant>),
    Connecting(Socket),
    Shaking(Socket, Box<Handshake>),
}

/// What became of a dial.
#[derive(Debug)]
pub(crate) enum Dialed {
    /// To be advanced again when it is ready or its time has come.
    Pending,
    /// Connected, and agreed.
    Open(Socket),
    /// The other side answered, and trying again would not change its answer.
    Refused(Refusal),
}

impl Dial {
    pub(crate) fn new(address: SocketAddr, hello: Hello, secret: Option<Secret>, options: Options) -> Self {
        Self { hello: Some(hello), secret, ..Self::bare(address, options) }
    }

    /// Connects to a server of another protocol, without a handshake.
    pub(crate) const fn bare(address: SocketAddr, options: Options) -> Self {
        Self {
            address,
            hello: None,
            secret: None,
            options,
            state: State::Waiting(None),
            backoff: BACKOFF_MIN,
            attempts: 0,
            refusals: 0,
            last_error: None,
            was_reached: false,
        }
    }

    /// Gives up when nobody listens any more: a server that was reached before does not come back as it was.
    pub(crate) const fn reached_before(mut self) -> Self {
        self.was_reached = true;
        self
    }

    const fn has_given_up(&self) -> bool {
        self.was_reached && self.refusals >= REFUSALS_MAX
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// How many attempts in a row found nobody listening.
    pub(crate) const fn refusals(&self) -> u32 {
        self.refusals
    }

    /// Goes on as far as possible without blocking. Not to be called again once it has ended.
    pub(crate) fn advance(&mut self, now: Instant) -> Dialed {
        loop {
            match self.step(now) {
                Ok(Some(dialed)) => return dialed,
                Ok(None) => {}
                Err(error) => {
                    let refused = error.kind() == io::ErrorKind::ConnectionRefused;
                    self.refusals = if refused { self.refusals.saturating_add(1) } else { 0 };
                    self.last_error = Some(error);
                    self.state = State::Waiting(Some(now + self.backoff));
                    self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
                    return Dialed::Pending;
                }
            }
        }
    }

    /// `None` if there is more to do at once.
    fn step(&mut self, now: Instant) -> io::Result<Option<Dialed>> {
        match std::mem::replace(&mut self.state, State::Waiting(None)) {
            State::Waiting(until) if until.is_some_and(|until| until > now) => {
                self.state = State::Waiting(until);
                Ok(Some(Dialed::Pending))
            }
            State::Waiting(_) => {
                self.attempts = self.attempts.saturating_add(1);
                self.state = State::Connecting(socket::start_connect(self.address, &self.options)?);
                Ok(None)
            }
            State::Connecting(socket) => self.finish_connect(socket, now),
            State::Shaking(socket, mut handshake) => match handshake.advance(&socket)? {
                Progress::Done => Ok(Some(Dialed::Open(socket))),
                Progress::Refused(refusal) => Ok(Some(Dialed::Refused(refusal))),
                Progress::Pending | Progress::Judge(_) => {
                    self.state = State::Shaking(socket, handshake);
                    Ok(Some(Dialed::Pending))
                }
            },
        }
    }

    fn finish_connect(&mut self, socket: Socket, now: Instant) -> io::Result<Option<Dialed>> {
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        if !socket::wait_for(&socket, PollFlags::OUT, now)? {
            self.state = State::Connecting(socket);
            return Ok(Some(Dialed::Pending));
        }
        // The error may have come between the two questions.
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        if socket::is_connected_to_itself(&socket) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        self.options.apply(&socket)?;
        let Some(hello) = self.hello else { return Ok(Some(Dialed::Open(socket))) };
        let handshake = Handshake::dial(self.secret.clone(), hello)?;
        self.state = State::Shaking(socket, Box::new(handshake));
        Ok(None)
    }

    /// What to wait for, unless it waits for [`Dial::next_attempt`].
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let (socket, flags) = match &self.state {
            State::Waiting(_) => return None,
            State::Connecting(socket) => (socket, PollFlags::OUT),
            State::Shaking(socket, handshake) if handshake.wants_write() => (socket, PollFlags::OUT),
            State::Shaking(socket, _) => (socket, PollFlags::IN),
        };
        Some(PollFd::from_borrowed_fd(socket.as_fd(), flags))
    }

    /// When the next attempt is due, if it waits for one.
    pub(crate) const fn next_attempt(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting(until) => *until,
            State::Connecting(_) | State::Shaking(..) => None,
        }
    }

    /// Why it has not succeeded yet: the last error, or what it is waiting for.
    pub(crate) fn excuse(&self) -> io::Error {
        match (&self.last_error, &self.state) {
            (Some(last), _) => io::Error::new(last.kind(), last.to_string()),
            (None, State::Shaking(..)) => timed_out("connected, but the handshake got no answer"),
            (None, _) => timed_out("no answer"),
        }
    }

    /// The last error, if any attempt failed.
    pub(crate) const fn last_error(&self) -> Option<&io::Error> {
        self.last_error.as_ref()
    }

    /// Dials until it ends or the deadline has passed, sleeping in between. `Pending` means the deadline.
    pub(crate) fn run(&mut self, deadline: Instant) -> io::Result<Dialed> {
        run_first(std::slice::from_mut(self), deadline).map(|(_, dialed)| dialed)
    }
}

/// Dials several addresses at a time until one ends or the deadline has passed. Returns which it was, and what became
/// of it. `Pending` means the deadline, or that all have given up.
pub(crate) fn run_first(dials: &mut [Dial], deadline: Instant) -> io::Result<(usize, Dialed)> {
    loop {
        let now = Instant::now();
        for (at, dial) in dials.iter_mut().enumerate() {
            match dial.advance(now) {
                Dialed::Pending => {}
                ended => return Ok((at, ended)),
            }
        }
        if now >= deadline || dials.iter().all(Dial::has_given_up) {
            return Ok((0, Dialed::Pending));
        }
        let until =
            dials.iter().filter_map(Dial::next_attempt).min().map_or(deadline, |due| due.min(deadline));
        let mut descriptors: Vec<PollFd<'_>> = dials.iter().filter_map(Dial::poll_fd).collect();
        socket::wait(&mut descriptors, Some(until))?;
    }
}

fn timed_out(words: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, words)
}
