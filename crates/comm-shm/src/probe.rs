//! Detects that ranks whose connections are expected have exited.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use comm_core::Result;
use comm_mesh::{ConnId, LivenessProbe};
use rustix::event::{PollFd, PollFlags};

use crate::connect::failed;
use crate::socket;

/// A silent connection to each of the expected ranks, which ends when the rank does.
#[derive(Debug)]
pub(crate) struct Probe(Vec<PeerProbe>);

#[derive(Debug)]
struct PeerProbe {
    id: ConnId,
    listener: u128,
    socket: Option<OwnedFd>,
}

impl Probe {
    /// A probe of peers and the names on which they listen.
    pub(crate) fn new(peers: impl Iterator<Item = (ConnId, u128)>) -> Self {
        Self(peers.map(|(id, listener)| PeerProbe { id, listener, socket: None }).collect())
    }
}

impl LivenessProbe for Probe {
    fn check(&mut self, _now: Instant, expected: &[ConnId]) -> Result<()> {
        self.0.retain(|peer| expected.binary_search(&peer.id).is_ok());
        self.0.iter_mut().try_for_each(|peer| peer.check().map_err(|error| failed(peer.id.rank, error)))
    }

    fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let sockets = self.0.iter().filter_map(|peer| peer.socket.as_ref());
        sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect()
    }

    fn next_attempt(&self) -> Option<Instant> {
        None
    }
}

impl PeerProbe {
    /// Returns an error of kind [`io::ErrorKind::ConnectionRefused`] if the peer has exited.
    fn check(&mut self) -> io::Result<()> {
        let is_open = |socket: &OwnedFd| matches!(socket::recv(socket, &mut [0; 8]), Ok(None));
        if self.socket.as_ref().is_some_and(is_open) {
            return Ok(());
        }
        // The peer may also have closed this connection in favour of others.
        self.socket = None;
        match socket::connect(self.listener) {
            Ok(socket) => self.socket = Some(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
