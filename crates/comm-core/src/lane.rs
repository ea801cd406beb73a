//! Independent flows between the members of a group.

use std::time::Instant;

use crate::{Group, GroupId, LinkModel, Result, Transport};

/// What flows on a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum LaneKind {
    /// Announcements, aborts and goodbyes.
    Control = 0,
    /// The data of collectives.
    Collective = 1,
    /// Messages between two ranks.
    PointToPoint = 2,
}

/// Names a lane: every member knows it by the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneId {
    /// The group that the lane connects.
    pub group: GroupId,
    /// What flows on it.
    pub kind: LaneKind,
}

/// What rendezvous yields: the ability to open lanes between ranks that know each other's addresses.
///
/// Flows that must not wait for each other never share a stream; each is a lane of its own.
pub trait Lanes: Send + Sync {
    /// What moves the bytes of a lane.
    type Lane: Transport + 'static;

    /// The group of all ranks that met.
    fn group(&self) -> Group;

    /// The time, on the clock of the lanes.
    fn now(&self) -> Instant;

    /// What moving bytes over these lanes costs, as far as is known without measuring.
    fn links(&self) -> LinkModel;

    /// Opens a lane between all ranks. Every rank calls this with the same `lane`, in any order of lanes, and waits
    /// for the others until the deadline.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) naming the ranks that did not come,
    /// [`Error::PeerLost`](crate::Error::PeerLost) for one that went away.
    fn open(&self, lane: LaneId, deadline: Instant) -> Result<Self::Lane>;
}
