//! The cost of a schedule in closed form, computed without iterating over its steps.

use comm_core::{Link, LinkModel};

use super::Params;

/// The amount of communication of a schedule. It is exact; tests compare it with the steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cost {
    /// The longest chain of messages that wait for each other, with one segment: the number of
    /// latencies paid.
    pub rounds: usize,
    /// The most messages that any rank sends or receives, whichever is more.
    pub messages: usize,
    /// The most blocks that any rank sends or receives, whichever is more.
    pub blocks: usize,
}

/// The times of messages of one block on a link, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Pace {
    /// The latency of the link.
    pub latency: f64,
    /// The time for which a message occupies its sender, and again its receiver.
    pub overhead: f64,
    /// The time for which a block occupies a port.
    pub block: f64,
    /// The time to combine two blocks.
    pub reduce: f64,
    /// The time to read a staged block in place; `None` if staged blocks are copied like any other.
    pub staged: Option<f64>,
}

impl Pace {
    fn new(link: &Link, reduce: f64, block_bytes: f64) -> Self {
        Self {
            latency: link.latency,
            overhead: link.overhead,
            block: link.per_byte * block_bytes,
            reduce: reduce * block_bytes,
            staged: None,
        }
    }

    /// Returns the times of messages of this many blocks.
    pub(super) fn of(&self, blocks: usize) -> Self {
        let blocks = blocks as f64;
        let staged = self.staged.map(|block| block * blocks);
        Self { block: self.block * blocks, reduce: self.reduce * blocks, staged, ..*self }
    }

    /// Returns the time to stage a block and the times of staged blocks, if they are read in place.
    pub(super) fn staging(&self) -> Option<(f64, Self)> {
        // A message takes as long as both, because it is copied to a channel and from there.
        self.staged.map(|block| (self.block - block, Self { block, ..*self }))
    }

    /// Returns the time of a message of this many blocks, from the start of the send to the end of
    /// the receive.
    pub(super) fn hop(&self, blocks: usize) -> f64 {
        2.0 * self.overhead + self.latency + blocks as f64 * self.block
    }

    /// Returns the time of a message of this many blocks that the receiver combines with its own.
    pub(super) fn hop_reduce(&self, blocks: usize) -> f64 {
        self.hop(blocks) + blocks as f64 * self.reduce
    }

    /// Returns the time of rounds that each wait for the one before, in which a rank sends and
    /// receives a block of each segment. A segment waits for the same segment of the previous
    /// round, for the ports, and for the rank itself, which sends the later segments while the
    /// first is in flight.
    pub(super) fn pipeline(&self, rounds: usize, segments: usize, reduces: bool) -> f64 {
        let messages = (rounds * segments) as f64;
        if messages == 0.0 {
            return 0.0;
        }
        let (rounds, segments) = (rounds as f64, segments as f64);
        let reduce = if reduces { self.reduce } else { 0.0 };
        let first = self.hop(1) + reduce;
        let waits = rounds * first + (segments - 1.0) * self.block.max(self.overhead + reduce);
        let ports = (messages - 1.0) * self.block + first;
        let rank = messages * (2.0 * self.overhead + reduce);
        waits.max(ports).max(rank)
    }

    /// Returns the time of independent messages of one block to different ranks, and of as many
    /// from different ranks.
    pub(super) fn exchange(&self, messages: usize) -> f64 {
        self.pipeline(1, messages, false)
    }

    /// Returns the time of independent messages of one block to, or from, one rank.
    pub(super) fn fan(&self, messages: usize, reduces: bool) -> f64 {
        if messages == 0 {
            return 0.0;
        }
        let reduce = if reduces { self.reduce } else { 0.0 };
        self.hop(1) + reduce + (messages - 1) as f64 * self.block.max(self.overhead + reduce)
    }
}

/// The times of messages of one block between the ranks of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Pacing {
    /// Between ranks of one host.
    pub within: Pace,
    /// Between ranks of different hosts.
    pub between: Pace,
}

impl Pacing {
    /// Computes the times for blocks of this size.
    #[must_use]
    pub fn new(links: &LinkModel, block_bytes: f64) -> Self {
        let is_staged = links.reads_in_place(1, block_bytes);
        let staged = is_staged.then_some(links.within.per_byte * block_bytes * LinkModel::READ_IN_PLACE);
        Self {
            within: Pace { staged, ..Pace::new(&links.within, links.reduce, block_bytes) },
            between: Pace::new(&links.between, links.reduce, block_bytes),
        }
    }

    /// Returns the times on the slowest link of the group, which determine algorithms in which
    /// every rank waits for every other.
    pub(super) const fn slowest(&self, params: &Params) -> &Pace {
        if params.ranks <= params.ranks_per_host { &self.within } else { &self.between }
    }
}
