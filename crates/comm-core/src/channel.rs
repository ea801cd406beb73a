//! Independent flows between the members of a group.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Allocation, Group, GroupId, LinkModel, Result, Scheduler, Transport};

/// The kind of traffic on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum ChannelKind {
    /// Announcements, aborts and goodbye messages.
    Control = 0,
    /// The data of collectives.
    Collective = 1,
    /// Messages between two ranks.
    PointToPoint = 2,
}

impl ChannelKind {
    /// Returns the kind whose number on the wire is `code`: `kind as u8`.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Control),
            1 => Some(Self::Collective),
            2 => Some(Self::PointToPoint),
            _ => None,
        }
    }
}

/// The name of a channel, the same on every member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId {
    /// The group that the channel connects.
    pub group: GroupId,
    /// The kind of its traffic.
    pub kind: ChannelKind,
}

/// The limit of a wait for other ranks to open a channel: a deadline, and a check that may end the
/// wait earlier.
#[derive(Clone, Copy)]
pub struct Until<'a> {
    deadline: Instant,
    check: Option<&'a dyn Fn() -> Result<()>>,
}

/// The interval at which the check of [`Until`] is called.
const CHECK_EVERY: Duration = Duration::from_millis(20);

impl<'a> Until<'a> {
    /// Also ends the wait when `check` fails. The waiting thread calls it every few milliseconds;
    /// it must not block.
    #[must_use]
    pub const fn while_ok(self, check: &'a dyn Fn() -> Result<()>) -> Self {
        Self { check: Some(check), ..self }
    }

    /// Calls the check, and returns whether the deadline has passed.
    ///
    /// # Errors
    /// The error of the check.
    pub fn check_expired(&self, now: Instant) -> Result<bool> {
        self.check.map_or(Ok(()), |check| check())?;
        Ok(now >= self.deadline)
    }

    /// Returns the time at which the waiting thread must call [`Until::check_expired`] again.
    #[must_use]
    pub fn next_check(&self, now: Instant) -> Instant {
        let check = self.check.and_then(|_| now.checked_add(CHECK_EVERY));
        check.map_or(self.deadline, |check| check.min(self.deadline))
    }
}

impl From<Instant> for Until<'_> {
    fn from(deadline: Instant) -> Self {
        Self { deadline, check: None }
    }
}

impl std::fmt::Debug for Until<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Until").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// Opens channels between the ranks of a rendezvous.
///
/// Flows that must not wait for each other never share a stream: each has its own channel.
pub trait Fabric: Send + Sync {
    /// The transport that moves the bytes of a channel.
    type Channel: Transport + 'static;

    /// Returns the group of all ranks of the rendezvous.
    fn group(&self) -> Group;

    /// Returns the current time of the channels' clock.
    fn now(&self) -> Instant;

    /// Returns an estimate of the cost of messages over these channels, without measuring it.
    fn links(&self) -> LinkModel;

    /// Opens a channel between some of the ranks, which become ranks 0, 1, ... of the channel in
    /// the order of `members`. This rank is one of them. Each member, and no other rank, calls this
    /// with the same `channel` and the same list, and waits for the others as long as `until`
    /// allows. If streams are connected when they are first used ([`Transport::is_open`]), it need
    /// not wait for all of them. Different channels may be opened in any order and from any thread.
    ///
    /// Each channel is opened once. If members pass different lists for it, not all of them get a
    /// channel; the others wait until the deadline.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid), before anything is sent, for an invalid list of
    /// members; see [`Group::subgroup`]. [`Error::Timeout`](crate::Error::Timeout) naming the ranks
    /// that did not arrive, [`Error::PeerLost`](crate::Error::PeerLost) for one that died or left;
    /// both name ranks within the channel. The error of the check of `until`, unchanged.
    fn open_among(&self, channel: ChannelId, members: &[usize], until: Until<'_>) -> Result<Self::Channel>;

    /// Opens several channels between the same ranks, as [`Fabric::open_among`] opens each of them.
    /// The default opens one after the other; transports that need round trips open all at the same
    /// time.
    ///
    /// # Errors
    /// As [`Fabric::open_among`].
    fn open_all(
        &self,
        channels: &[ChannelId],
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Vec<Self::Channel>> {
        channels.iter().map(|channel| self.open_among(*channel, members, until)).collect()
    }

    /// Allocates zeroed memory for a buffer: memory that the ranks on this host can read in place
    /// if these channels support that, otherwise on the heap, which is the default. It may outlive
    /// the channels.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if there is not enough memory.
    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        Allocation::on_heap(bytes)
    }

    /// Allocates memory for data that several ranks of this host read in place, so that it is
    /// written once instead of once per rank. Messages of at least [`LinkModel::staged_from`] bytes
    /// are read in place. Returns `None` if these channels do not support that or if there is not
    /// enough memory: the caller then uses ordinary memory, which is copied.
    fn shared_buffer(&self, bytes: usize) -> Option<Allocation>;

    /// Returns the scheduler of the threads of this rank, in a simulation.
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        None
    }

    /// Opens a channel between all ranks, in rank order.
    ///
    /// # Errors
    /// Same as [`Fabric::open_among`].
    fn open(&self, channel: ChannelId, deadline: Instant) -> Result<Self::Channel> {
        let all: Vec<usize> = (0..self.group().size()).collect();
        self.open_among(channel, &all, deadline.into())
    }
}

/// A fabric shared by several owners.
impl<L: Fabric + ?Sized> Fabric for Arc<L> {
    type Channel = L::Channel;

    fn group(&self) -> Group {
        (**self).group()
    }

    fn now(&self) -> Instant {
        (**self).now()
    }

    fn links(&self) -> LinkModel {
        (**self).links()
    }

    fn open_among(&self, channel: ChannelId, members: &[usize], until: Until<'_>) -> Result<Self::Channel> {
        (**self).open_among(channel, members, until)
    }

    fn open_all(
        &self,
        channels: &[ChannelId],
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Vec<Self::Channel>> {
        (**self).open_all(channels, members, until)
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        (**self).allocate(bytes)
    }

    fn shared_buffer(&self, bytes: usize) -> Option<Allocation> {
        (**self).shared_buffer(bytes)
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        (**self).scheduler()
    }
}
