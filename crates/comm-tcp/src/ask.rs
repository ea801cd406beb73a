//! Asks a rank to connect to this one, for a channel whose connections are made when they are first
//! used: the higher rank of a pair connects to the lower one.

use std::convert::Infallible;
use std::io::{ErrorKind, Read};
use std::time::Instant;

use comm_core::Result;
use comm_mesh::Connect;
use rustix::event::{PollFd, PollFlags};
use socket2::Socket;

use crate::connect::{Connected, Connector, lost, refused};
use crate::protection::Established;

/// A connection by which this rank asks another one to connect, made again whenever it ends.
#[derive(Debug)]
pub(crate) struct Asker {
    /// The rank on the channel.
    rank: usize,
    connector: Connector,
    /// The connection, once the rank has accepted it.
    asked: Option<Established>,
}

impl Asker {
    pub(crate) const fn new(rank: usize, connector: Connector) -> Self {
        Self { rank, connector, asked: None }
    }
}

impl Connect for Asker {
    type Connection = Infallible;

    fn advance(&mut self, now: Instant) -> Result<Option<Infallible>> {
        if let Some(asked) = &self.asked {
            if is_open(&asked.socket) {
                return Ok(None);
            }
            self.asked = None;
            self.connector.try_again(now);
        }
        let Self { rank, connector, asked } = self;
        match connector.advance(now) {
            Connected::Open(established) => *asked = Some(established),
            Connected::Refused(refusal) => return Err(refused(*rank, connector, refusal)),
            Connected::Pending if connector.has_given_up() => return Err(lost(*rank, connector)),
            Connected::Pending => {}
        }
        Ok(None)
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        match &self.asked {
            Some(asked) => Some(PollFd::new(&asked.socket, PollFlags::IN)),
            None => self.connector.poll_fd(),
        }
    }

    fn next_attempt(&self) -> Option<Instant> {
        if self.asked.is_some() { None } else { self.connector.next_attempt() }
    }
}

/// Whether the peer has not closed the connection. It sends nothing; bytes are discarded.
fn is_open(mut socket: &Socket) -> bool {
    match socket.read(&mut [0; 64]) {
        Ok(read) => read > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}
