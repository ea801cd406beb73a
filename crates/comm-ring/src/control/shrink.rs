//! The messages by which the remaining ranks of a group agree on a smaller one.

use std::collections::BTreeSet;

use comm_core::wire::{self, Reader, WireError, Writer};

use super::rank_set::{RankSet, SET_BYTES_MAX};

const PROPOSE: u8 = 1;
const CONNECTED: u8 = 2;
const DONE: u8 = 3;
const FORMED: u8 = 4;
const COMMITTED: u8 = 5;

/// A message about a smaller group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShrinkFrame {
    /// The sender wants to create this group.
    Propose(Proposal),
    /// The sender is connected to every member of the group of this attempt.
    Connected { attempt: u32 },
    /// The sender takes part in no attempt but this one: every member that was alive is connected.
    Done { attempt: u32 },
    /// The sender is connected to every member of the group on whose control channel this is sent.
    Formed,
    /// The sender takes part in no other attempt than the one of the group on whose control channel
    /// this is sent.
    Committed,
}

/// A group of the ranks that remain. Among two proposals of one rank, the later one has a higher
/// attempt or excludes more ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Proposal {
    /// The number of the attempt to connect the members.
    pub(crate) attempt: u32,
    /// The number of the last call that the sender completed.
    pub(crate) completed: u64,
    /// The ranks that are not members.
    pub(crate) excluded: BTreeSet<usize>,
}

impl Proposal {
    /// The largest group in which proposals can be sent.
    pub(crate) const GROUP_SIZE_MAX: usize = SET_BYTES_MAX * 8;

    /// Returns a number that is larger for a later proposal of the same rank.
    pub(crate) fn age(&self) -> (u32, usize) {
        (self.attempt, self.excluded.len())
    }

    /// Returns whether both name the same attempt and members.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        self.attempt == other.attempt && self.excluded == other.excluded
    }
}

/// The messages of a rank about a smaller group.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShrinkState {
    /// The number of its messages.
    pub(crate) frames: u64,
    /// Its last proposal.
    pub(crate) proposal: Option<Proposal>,
    /// The last attempt in which it was connected.
    pub(crate) connected: Option<u32>,
    /// The attempt whose group it uses.
    pub(crate) done: Option<u32>,
    /// Whether it was connected to every member of the present group. The other messages concern a
    /// group that is yet to be created from it.
    pub(crate) has_formed: bool,
    /// Whether it takes part in no other attempt than the one of the present group.
    pub(crate) has_committed: bool,
}

impl ShrinkState {
    pub(crate) fn update(&mut self, frame: ShrinkFrame) {
        self.frames += 1;
        match frame {
            // In a large group, an earlier message may arrive after a later one.
            ShrinkFrame::Propose(proposal) => {
                if self.proposal.as_ref().is_none_or(|last| last.age() <= proposal.age()) {
                    self.proposal = Some(proposal);
                }
            }
            ShrinkFrame::Connected { attempt } => self.connected = self.connected.max(Some(attempt)),
            ShrinkFrame::Done { attempt } => self.done = Some(attempt),
            ShrinkFrame::Formed => self.has_formed = true,
            ShrinkFrame::Committed => self.has_committed = true,
        }
    }

    /// Returns whether the rank was connected to every member in this attempt.
    pub(crate) fn is_connected_in(&self, attempt: u32) -> bool {
        self.connected == Some(attempt) || self.done == Some(attempt)
    }
}

impl ShrinkFrame {
    pub(super) fn encode(&self, to: &mut Writer) {
        match self {
            Self::Propose(Proposal { attempt, completed, excluded }) => to
                .put(PROPOSE)
                .put(*attempt)
                .put(*completed)
                .bytes::<u16>(excluded.iter().copied().collect::<RankSet>().to_bytes()),
            Self::Connected { attempt } => to.put(CONNECTED).put(*attempt),
            Self::Done { attempt } => to.put(DONE).put(*attempt),
            Self::Formed => to.put(FORMED),
            Self::Committed => to.put(COMMITTED),
        };
    }

    pub(super) fn read(r: &mut Reader<'_>) -> wire::Result<Self> {
        Ok(match r.get()? {
            PROPOSE => Self::Propose(Proposal {
                attempt: r.get()?,
                completed: r.get()?,
                excluded: RankSet::from_bytes(r.bytes::<u16>(SET_BYTES_MAX)?)?.iter().collect(),
            }),
            CONNECTED => Self::Connected { attempt: r.get()? },
            DONE => Self::Done { attempt: r.get()? },
            FORMED => Self::Formed,
            COMMITTED => Self::Committed,
            kind => return Err(WireError::Unknown { what: "kind of shrink frame", value: kind.into() }),
        })
    }
}
