//! Opens one channel: connects to the members with lower world ranks, accepts connections from
//! those with higher ones, and waits for both in one loop.
//!
//! World ranks decide which side connects, because they identify processes. Errors name members by
//! their ranks on the channel.

use std::sync::Arc;
use std::time::Instant;

use comm_core::{During, Error, Group, Result, Until, simulation};
use comm_rendezvous::{Watch, WatchGuard};
use rustix::event::{PollFd, PollFlags};

use crate::accept_queue::Registration;
use crate::connect::{ConnId, Connect, LivenessProbe};
use crate::dialer::DialerThread;
use crate::mesh::{ConnectedChannel, Protocol};
use crate::poll::wait;

/// A channel that is being opened. Dropping it abandons the attempt.
pub trait Opening {
    /// The channel, once it is open.
    type Channel;

    /// Makes progress without blocking. Returns whether all members are connected; it may be called
    /// again after that, and then accepts connections for other channels.
    ///
    /// # Errors
    /// [`Error::PeerLost`] for a member that has exited, [`Error::Handshake`] if one rejects this
    /// rank, [`Error::Io`] if the system has no memory or descriptor left.
    fn advance(&mut self) -> Result<bool>;

    /// The descriptors that become ready when [`Opening::advance`] can make progress.
    fn poll_fds(&self) -> Vec<PollFd<'_>>;

    /// The time at which [`Opening::advance`] is due even if no descriptor becomes ready.
    fn next_attempt(&self) -> Option<Instant>;

    /// The error to return once the deadline has passed: [`Error::Timeout`] with the missing ranks
    /// on the channel, or the error that explains why there is no connection.
    fn timeout(&self) -> Error;

    /// The channel, once all members are connected.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no descriptor left.
    fn finish(self) -> Result<Self::Channel>;
}

/// Opens two channels concurrently: neither waits for the other, and a failure of one ends both.
impl<A: Opening, B: Opening> Opening for (A, B) {
    type Channel = (A::Channel, B::Channel);

    fn advance(&mut self) -> Result<bool> {
        let connected = [self.0.advance()?, self.1.advance()?];
        Ok(connected == [true; 2])
    }

    fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let mut descriptors = self.0.poll_fds();
        descriptors.extend(self.1.poll_fds());
        descriptors
    }

    fn next_attempt(&self) -> Option<Instant> {
        self.0.next_attempt().into_iter().chain(self.1.next_attempt()).min()
    }

    fn timeout(&self) -> Error {
        merge(self.0.timeout(), self.1.timeout())
    }

    fn finish(self) -> Result<Self::Channel> {
        Ok((self.0.finish()?, self.1.finish()?))
    }
}

/// Opens several channels between the same ranks concurrently, so that this takes as many round
/// trips as to open one of them.
impl<O: Opening> Opening for Vec<O> {
    type Channel = Vec<O::Channel>;

    fn advance(&mut self) -> Result<bool> {
        let mut all_connected = true;
        for opening in self {
            all_connected &= opening.advance()?;
        }
        Ok(all_connected)
    }

    fn poll_fds(&self) -> Vec<PollFd<'_>> {
        self.iter().flat_map(O::poll_fds).collect()
    }

    fn next_attempt(&self) -> Option<Instant> {
        self.iter().filter_map(O::next_attempt).min()
    }

    fn timeout(&self) -> Error {
        let errors = self.iter().map(O::timeout).reduce(merge);
        errors.unwrap_or_else(|| Error::Internal("there is no channel to wait for".into()))
    }

    fn finish(self) -> Result<Self::Channel> {
        self.into_iter().map(O::finish).collect()
    }
}

/// Returns the error for two channels that are not open at the deadline.
fn merge(first: Error, second: Error) -> Error {
    match (first, second) {
        (Error::Timeout { waiting_for: a, .. }, Error::Timeout { waiting_for: b, after, during }) => {
            let mut waiting_for = [a, b].concat();
            waiting_for.sort_unstable();
            waiting_for.dedup();
            Error::Timeout { waiting_for, after, during }
        }
        // The reason why a rank could not be reached is more specific than a timeout.
        (Error::Timeout { .. }, error) | (error, _) => error,
    }
}

/// Waits until a channel is open, `until` ends the wait, or the rendezvous fails.
///
/// # Errors
/// As [`Opening::advance`], [`Opening::timeout`], [`Until::check_expired`] and
/// [`WatchGuard::check`].
pub fn complete<O: Opening>(mut opening: O, until: Until<'_>, watch: Option<&Watch>) -> Result<O::Channel> {
    let watch = watch.map(Watch::hold);
    while !opening.advance()? {
        let now = simulation::now();
        if until.check_expired(now)? {
            return Err(opening.timeout());
        }
        match watch.as_ref().map_or(Ok(()), WatchGuard::check) {
            // The others have reached their deadlines, as this rank is about to.
            Err(Error::Timeout { .. }) => return Err(opening.timeout()),
            outcome => outcome?,
        }
        let check = until.next_check(now);
        let mut descriptors = opening.poll_fds();
        let watched = watch.as_ref().and_then(WatchGuard::descriptor);
        descriptors.extend(watched.map(|watched| PollFd::from_borrowed_fd(watched, PollFlags::IN)));
        let until = opening.next_attempt().map_or(check, |due| due.min(check));
        wait(&mut descriptors, Some(until)).map_err(|error| Error::io("wait for connections", error))?;
    }
    opening.finish()
}

/// The peers of a channel that is being opened, in ascending order of rank.
#[derive(Debug)]
pub(crate) struct Peers<P: Protocol> {
    /// The peers that are connected at once.
    pub(crate) now: Vec<ConnId>,
    /// The peers that are connected on demand.
    pub(crate) on_demand: Vec<ConnId>,
    /// Connects the latter, if there are any.
    pub(crate) dialer: Option<Arc<DialerThread<P>>>,
}

/// A channel of one mesh that is being opened.
#[derive(Debug)]
pub(crate) struct MeshOpening<P: Protocol> {
    protocol: Arc<P>,
    key: P::Key,
    group: Group,
    began: Instant,
    connecting: Vec<(ConnId, P::Connect)>,
    /// The connections that members with higher world ranks will make.
    expected: Vec<ConnId>,
    probe: P::Probe,
    /// `None` if this rank has no listener.
    queue: Option<Registration<P>>,
    open: Vec<(ConnId, P::Connection)>,
    on_demand: Vec<ConnId>,
    dialer: Option<Arc<DialerThread<P>>>,
}

impl<P: Protocol> MeshOpening<P> {
    /// Begins to open a channel to `peers`. `own_rank` is the local rank in the world.
    pub(crate) fn new(
        (protocol, queue): (Arc<P>, Option<Registration<P>>),
        key: P::Key,
        (group, own_rank): (Group, usize),
        peers: Peers<P>,
    ) -> Self {
        let Peers { now, on_demand, dialer } = peers;
        let count = now.len() + on_demand.len();
        let (below, expected): (Vec<ConnId>, Vec<ConnId>) =
            now.into_iter().partition(|id| id.world_rank < own_rank);
        let connect = |id: ConnId| (id, protocol.connect(key, id, count));
        let began = simulation::now();
        Self {
            key,
            group,
            began,
            connecting: below.into_iter().map(connect).collect(),
            probe: protocol.probe(began, &expected),
            protocol,
            expected,
            queue,
            open: Vec::new(),
            on_demand,
            dialer,
        }
    }

    fn connect(&mut self, now: Instant) -> Result<()> {
        let mut at = 0;
        while let Some((id, connect)) = self.connecting.get_mut(at) {
            match connect.advance(now)? {
                Some(connection) => {
                    self.open.push((*id, connection));
                    self.connecting.swap_remove(at);
                }
                None => at += 1,
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        let Some(queue) = &self.queue else { return Ok(()) };
        for (id, accepted) in queue.accept(&self.expected)? {
            match self.protocol.establish(self.key, accepted) {
                Ok(connection) => {
                    self.expected.retain(|other| *other != id);
                    self.open.push((id, connection));
                }
                // The peer has given up or will try again.
                Err(error) => tracing::debug!(rank = id.rank, %error, "cannot use an accepted connection"),
            }
        }
        Ok(())
    }
}

impl<P: Protocol> Opening for MeshOpening<P> {
    type Channel = P::Channel;

    fn advance(&mut self) -> Result<bool> {
        let now = simulation::now();
        self.connect(now)?;
        self.accept()?;
        self.probe.check(now, &self.expected)?;
        Ok(self.connecting.is_empty() && self.expected.is_empty())
    }

    fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let connecting = self.connecting.iter().filter_map(|(_, connect)| connect.poll_fd());
        let queue = self.queue.iter().flat_map(Registration::descriptors);
        let queue = queue.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        connecting.chain(queue).chain(self.probe.poll_fds()).collect()
    }

    fn next_attempt(&self) -> Option<Instant> {
        let connecting = self.connecting.iter().filter_map(|(_, connect)| connect.next_attempt());
        let probe = self.probe.next_attempt().filter(|_| !self.expected.is_empty());
        connecting.chain(self.queue.as_ref().and_then(Registration::next_deadline)).chain(probe).min()
    }

    fn timeout(&self) -> Error {
        let errors: Vec<Error> =
            self.connecting.iter().filter_map(|(_, connect)| connect.timeout()).collect();
        let accept_error = self.queue.as_ref().filter(|_| !self.expected.is_empty());
        if let Some(error) = errors.into_iter().next().or_else(|| accept_error?.accept_error()) {
            return error;
        }
        let connecting = self.connecting.iter().map(|(id, _)| id.rank);
        let mut waiting_for: Vec<usize> = connecting.chain(self.expected.iter().map(|id| id.rank)).collect();
        waiting_for.sort_unstable();
        Error::Timeout {
            waiting_for,
            after: simulation::now().saturating_duration_since(self.began),
            during: During::Connect,
        }
    }

    fn finish(mut self) -> Result<P::Channel> {
        self.open.sort_unstable_by_key(|(id, _)| *id);
        let Self { protocol, key, group, open: peers, queue: mut registration, on_demand, dialer, .. } = self;
        if let (Some(registration), Some(dialer)) = (&mut registration, dialer) {
            registration.connect_on_demand(&on_demand, peers.len(), dialer);
        }
        protocol.channel(ConnectedChannel { key, group, peers, on_demand, registration })
    }
}

#[cfg(test)]
mod tests;
