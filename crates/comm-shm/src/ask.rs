//! Asks a rank to connect to this one, for a channel whose connections are made when they are first
//! used: the higher rank of a pair connects to the lower one.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use comm_core::{Error, Refusal, Result};
use comm_mesh::{Backoff, Connect};
use rustix::event::{PollFd, PollFlags};

use crate::connect::{BACKOFF_MAX, BACKOFF_MIN, failed};
use crate::credentials;
use crate::hello::Hello;
use crate::socket;

/// A connection by which this rank asks another one to connect, made again whenever it ends.
#[derive(Debug)]
pub(crate) struct Asker {
    /// The rank on the channel.
    rank: usize,
    listener: u128,
    hello: Hello,
    /// The connection on which the hello was sent.
    asked: Option<OwnedFd>,
    next: Option<Instant>,
    backoff: Backoff,
}

impl Asker {
    pub(crate) const fn new(rank: usize, listener: u128, hello: Hello) -> Self {
        let backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        Self { rank, listener, hello, asked: None, next: None, backoff }
    }

    fn retry(&mut self, now: Instant) {
        self.asked = None;
        self.next = Some(now + self.backoff.next_delay());
    }

    fn ask(&mut self, now: Instant) -> Result<()> {
        let rank = self.rank;
        let socket = match socket::connect(self.listener) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.retry(now);
                return Ok(());
            }
            Err(error) => return Err(failed(rank, error)),
        };
        // Once the listener is closed, another user may listen under its name.
        if credentials::user(&socket).map_err(|error| failed(rank, error))? != credentials::own_user() {
            return Err(Error::Handshake { with: format!("rank {rank}"), refusal: Refusal::NotAPeer });
        }
        match socket::send(&socket, &self.hello.encode(), None) {
            Ok(()) => self.asked = Some(socket),
            Err(_) => self.retry(now),
        }
        Ok(())
    }
}

impl Connect for Asker {
    type Connection = Infallible;

    fn advance(&mut self, now: Instant) -> Result<Option<Infallible>> {
        match &self.asked {
            Some(asked) if matches!(socket::recv(asked, &mut [0; 8]), Ok(None)) => {}
            // The rank has closed the connection, for example in favour of others.
            Some(_) => self.retry(now),
            None if self.next.is_some_and(|next| next > now) => {}
            None => self.ask(now)?,
        }
        Ok(None)
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.asked.as_ref().map(|asked| PollFd::new(asked, PollFlags::IN))
    }

    fn next_attempt(&self) -> Option<Instant> {
        if self.asked.is_some() { None } else { self.next }
    }
}
