//! Connects to a listener without blocking, with retries, from the first attempt to the end of the
//! handshake.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{During, Error, Loss, Refusal, Result, simulation};
use comm_mesh::{Backoff, wait, wait_for};
use rustix::event::{PollFd, PollFlags};
use socket2::Socket;

use crate::handshake::{Handshake, Progress};
use crate::hello::Hello;
use crate::protection::{Established, ProtectionConfig};
use crate::socket::{self, Options};

const BACKOFF_MIN: Duration = Duration::from_millis(2);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// A process that was reached before, or has published its address, listens until it exits. This
/// many refusals in a row, which take about half a second, rule out that a packet filter was only
/// being set up.
const REFUSALS_MAX: u32 = 8;

/// Connects to one address, with retries, until a handshake succeeds or is refused.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) address: SocketAddr,
    /// The hello of the handshake, or `None` if there is no handshake.
    hello: Option<Hello>,
    protection: ProtectionConfig,
    options: Options,
    state: ConnectState,
    backoff: Backoff,
    pub(crate) attempts: u32,
    /// The number of attempts in a row that found the port closed.
    pub(crate) refusals: u32,
    last_error: Option<io::Error>,
    /// Whether a process is known to have listened here, so that refusals mean that it has exited.
    was_reached: bool,
}

#[derive(Debug)]
enum ConnectState {
    /// The next attempt is made at this time, the first one immediately.
    Waiting(Option<Instant>),
    Connecting(Socket),
    Handshaking(Socket, Box<Handshake>),
}

/// The outcome of an attempt to make progress.
#[derive(Debug)]
pub(crate) enum Connected {
    /// There is no connection yet. Advance again when the descriptor is ready or the next attempt
    /// is due.
    Pending,
    /// Connected; the handshake is complete.
    Open(Established),
    /// The other side rejected us, and would do so again.
    Refused(Refusal),
}

impl Connector {
    pub(crate) fn new(
        address: SocketAddr,
        hello: Hello,
        protection: ProtectionConfig,
        options: Options,
    ) -> Self {
        Self { hello: Some(hello), protection, ..Self::bare(address, options) }
    }

    /// Connects to a server of another protocol, without a handshake.
    pub(crate) const fn bare(address: SocketAddr, options: Options) -> Self {
        Self {
            address,
            hello: None,
            protection: ProtectionConfig::NONE,
            options,
            state: ConnectState::Waiting(None),
            backoff: Backoff::new(BACKOFF_MIN, BACKOFF_MAX),
            attempts: 0,
            refusals: 0,
            last_error: None,
            was_reached: false,
        }
    }

    /// Makes the connector give up if the port is closed, because the process that listened there
    /// has exited.
    pub(crate) const fn reached_before(mut self) -> Self {
        self.was_reached = true;
        self
    }

    /// Whether the process that listened has exited.
    pub(crate) const fn has_given_up(&self) -> bool {
        self.was_reached && self.refusals >= REFUSALS_MAX
    }

    /// Makes a connection again after the last one has ended.
    pub(crate) fn try_again(&mut self, now: Instant) {
        self.state = ConnectState::Waiting(Some(now + self.backoff.next_delay()));
    }

    /// Begins the first attempt, without the handshake, so that there is a socket to watch.
    pub(crate) fn begin(&mut self, now: Instant) -> io::Result<()> {
        self.step(now).map(drop)
    }

    /// Makes progress without blocking. Once it has ended, must not be called again before
    /// [`Connector::try_again`].
    pub(crate) fn advance(&mut self, now: Instant) -> Connected {
        loop {
            match self.step(now) {
                Ok(Some(connected)) => return connected,
                Ok(None) => {}
                Err(error) => {
                    let refused = error.kind() == io::ErrorKind::ConnectionRefused;
                    self.refusals = if refused { self.refusals.saturating_add(1) } else { 0 };
                    self.last_error = Some(error);
                    self.state = ConnectState::Waiting(Some(now + self.backoff.next_delay()));
                    return Connected::Pending;
                }
            }
        }
    }

    /// Takes one step. Returns `None` if the next one can be taken immediately.
    fn step(&mut self, now: Instant) -> io::Result<Option<Connected>> {
        match std::mem::replace(&mut self.state, ConnectState::Waiting(None)) {
            ConnectState::Waiting(until) if until.is_some_and(|until| until > now) => {
                self.state = ConnectState::Waiting(until);
                Ok(Some(Connected::Pending))
            }
            ConnectState::Waiting(_) => {
                self.attempts = self.attempts.saturating_add(1);
                self.state = ConnectState::Connecting(socket::start_connect(self.address, &self.options)?);
                Ok(None)
            }
            ConnectState::Connecting(socket) => self.finish_connect(socket, now),
            ConnectState::Handshaking(socket, mut handshake) => match handshake.advance(&socket)? {
                Progress::Done => Ok(Some(Connected::Open(handshake.into_established(socket)))),
                Progress::Refused(refusal) => Ok(Some(Connected::Refused(refusal))),
                Progress::Pending | Progress::Authorize(_) => {
                    self.state = ConnectState::Handshaking(socket, handshake);
                    Ok(Some(Connected::Pending))
                }
            },
        }
    }

    fn finish_connect(&mut self, socket: Socket, now: Instant) -> io::Result<Option<Connected>> {
        if let Some(error) = socket::take_error(&socket)? {
            return Err(error);
        }
        if !wait_for(&socket, PollFlags::OUT, now)? {
            self.state = ConnectState::Connecting(socket);
            return Ok(Some(Connected::Pending));
        }
        // The error may have occurred between the two checks.
        if let Some(error) = socket::take_error(&socket)? {
            return Err(error);
        }
        if socket::is_connected_to_itself(&socket) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        self.options.apply(&socket)?;
        let Some(hello) = self.hello else { return Ok(Some(Connected::Open(socket.into()))) };
        let handshake = Handshake::connect(self.protection.clone(), hello)?;
        self.state = ConnectState::Handshaking(socket, Box::new(handshake));
        Ok(None)
    }

    /// The descriptor to wait for, unless the connector waits for [`Connector::next_attempt`].
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let (socket, flags) = match &self.state {
            ConnectState::Waiting(_) => return None,
            ConnectState::Connecting(socket) => (socket, PollFlags::OUT),
            ConnectState::Handshaking(socket, handshake) if handshake.wants_write() => {
                (socket, PollFlags::OUT)
            }
            ConnectState::Handshaking(socket, _) => (socket, PollFlags::IN),
        };
        Some(PollFd::from_borrowed_fd(socket.as_fd(), flags))
    }

    /// The socket of the attempt that is being made.
    pub(crate) const fn socket(&self) -> Option<&Socket> {
        match &self.state {
            ConnectState::Waiting(_) => None,
            ConnectState::Connecting(socket) | ConnectState::Handshaking(socket, _) => Some(socket),
        }
    }

    /// The time of the next attempt, if the connector waits for one.
    pub(crate) const fn next_attempt(&self) -> Option<Instant> {
        match &self.state {
            ConnectState::Waiting(until) => *until,
            ConnectState::Connecting(_) | ConnectState::Handshaking(..) => None,
        }
    }

    /// Whether the host has not answered the current attempt: it is down, or packets are dropped.
    const fn is_unanswered(&self) -> bool {
        matches!(self.state, ConnectState::Connecting(_))
    }

    /// Whether the host has not answered the current attempt until now, even if the connector has
    /// not been advanced for a while.
    pub(crate) fn is_still_unanswered(&self) -> bool {
        let ConnectState::Connecting(socket) = &self.state else { return false };
        matches!(wait_for(socket, PollFlags::OUT, simulation::now()), Ok(false))
    }

    /// Returns the reason why there is no connection yet.
    pub(crate) fn reason(&self) -> io::Error {
        match (&self.last_error, &self.state) {
            (Some(last), _) => io::Error::new(last.kind(), last.to_string()),
            (None, ConnectState::Handshaking(..)) => timed_out("connected, but the handshake got no answer"),
            (None, _) => timed_out("no answer"),
        }
    }
}

/// Connects to several addresses at the same time until one attempt ends or the deadline passes.
/// Returns its index and outcome; `Pending` means that the deadline has passed, or that all have
/// given up.
pub(crate) fn run_first(connectors: &mut [Connector], deadline: Instant) -> io::Result<(usize, Connected)> {
    loop {
        let now = simulation::now();
        for (at, connector) in connectors.iter_mut().enumerate() {
            match connector.advance(now) {
                Connected::Pending => {}
                ended => return Ok((at, ended)),
            }
        }
        if now >= deadline || connectors.iter().all(Connector::has_given_up) {
            return Ok((0, Connected::Pending));
        }
        let due = connectors.iter().filter_map(Connector::next_attempt).min();
        let until = due.map_or(deadline, |due| due.min(deadline));
        let mut descriptors: Vec<PollFd<'_>> = connectors.iter().filter_map(Connector::poll_fd).collect();
        wait(&mut descriptors, Some(until))?;
    }
}

/// Connects to a rank for a channel.
#[derive(Debug)]
pub(crate) struct ChannelConnector {
    /// The rank on the channel.
    pub(crate) rank: usize,
    pub(crate) connector: Connector,
}

impl comm_mesh::Connect for ChannelConnector {
    type Connection = Established;

    fn advance(&mut self, now: Instant) -> Result<Option<Established>> {
        let Self { rank, connector } = self;
        match connector.advance(now) {
            Connected::Open(socket) => Ok(Some(socket)),
            Connected::Refused(refusal) => Err(refused(*rank, connector, refusal)),
            Connected::Pending if connector.has_given_up() => Err(lost(*rank, connector)),
            Connected::Pending => Ok(None),
        }
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.connector.poll_fd()
    }

    fn next_attempt(&self) -> Option<Instant> {
        self.connector.next_attempt()
    }

    fn timeout(&self) -> Option<Error> {
        let Self { rank, connector } = self;
        let Connector { address, attempts, .. } = connector;
        tracing::warn!(rank, %address, attempts, reason = %connector.reason(), "cannot connect to a rank");
        // A handshake without an answer may be that of a rank that is stopped, and not lost.
        let is_specific = connector.last_error.is_some() || connector.is_unanswered();
        is_specific.then(|| lost(*rank, connector))
    }
}

/// The error for a rank at whose address a process has refused this one.
pub(crate) fn refused(rank: usize, connector: &Connector, refusal: Refusal) -> Error {
    let address = connector.address;
    // The members of a world have compared these, so it is that of another world, which has got the
    // port of one that has exited.
    if !matches!(refusal, Refusal::Job | Refusal::WorldSize { .. } | Refusal::NotAPeer) {
        return Error::Handshake { with: format!("rank {rank} at {address}"), refusal };
    }
    let message = format!("another process listens at {address}, so its own has exited");
    let loss = Loss::Io(Arc::new(io::Error::new(io::ErrorKind::ConnectionRefused, message)));
    Error::PeerLost { peer: rank, during: During::Connect, loss }
}

/// The error for a rank that cannot be reached.
pub(crate) fn lost(rank: usize, connector: &Connector) -> Error {
    let (reason, Connector { address, attempts, .. }) = (connector.reason(), connector);
    let hint = match connector.is_unanswered() {
        true => ": its host is down, or a firewall or a route drops packets",
        false => "",
    };
    let message = format!("{reason} at {address} (attempts: {attempts}){hint}");
    let loss = Loss::Io(Arc::new(io::Error::new(reason.kind(), message)));
    Error::PeerLost { peer: rank, during: During::Connect, loss }
}

fn timed_out(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, message)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    /// Otherwise the handshake could end before its socket is watched, and nobody would notice.
    #[test]
    fn no_handshake_begins_before_its_socket_can_be_watched() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let options = Options::store_client(None);
        let mut connector = Connector::new(address, Hello::store(0), ProtectionConfig::NONE, options);
        connector.begin(Instant::now()).unwrap();
        assert!(connector.socket().is_some());
        let (mut accepted, _) = listener.accept().unwrap();
        assert!(!connector.is_still_unanswered());
        accepted.set_nonblocking(true).unwrap();
        assert_eq!(accepted.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(matches!(connector.advance(Instant::now()), Connected::Pending));
        accepted.set_nonblocking(false).unwrap();
        assert_eq!(accepted.read(&mut [0]).unwrap(), 1);
    }
}
