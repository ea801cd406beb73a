//! What a schedule costs, in closed form: without walking its steps.

use comm_core::{Link, LinkModel};

use super::Params;

/// How much a schedule moves. Exact, and checked against the steps themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cost {
    /// The most messages that wait for each other in a chain, with one segment: how often latency is paid.
    pub rounds: usize,
    /// The most messages that any rank sends or receives, whichever is more.
    pub messages: usize,
    /// The most blocks that any rank sends or receives, whichever is more.
    pub blocks: usize,
}

/// How long messages of one block take on a link, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Pace {
    /// The time on the way.
    pub latency: f64,
    /// The time that a message takes of the rank that sends it, and again of the one that receives it.
    pub overhead: f64,
    /// The time that a block takes of a port.
    pub block: f64,
    /// The time that it takes to combine two blocks.
    pub reduce: f64,
    /// The time that a block takes of who reads it where it is staged; `None` if it is copied like any other.
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

    /// The pace of messages of so many blocks, each as if it were one.
    pub(super) fn of(&self, blocks: usize) -> Self {
        let blocks = blocks as f64;
        let staged = self.staged.map(|block| block * blocks);
        Self { block: self.block * blocks, reduce: self.reduce * blocks, staged, ..*self }
    }

    /// The pace of blocks that are read where they are staged, if any are.
    pub(super) fn reading(&self) -> Option<Self> {
        self.staged.map(|block| Self { block, ..*self })
    }

    /// A message of so many blocks, from the start of its sending to the end of its receiving.
    pub(super) fn hop(&self, blocks: usize) -> f64 {
        2.0 * self.overhead + self.latency + blocks as f64 * self.block
    }

    /// A message of so many blocks that is combined with what the receiver has.
    pub(super) fn hop_reduce(&self, blocks: usize) -> f64 {
        self.hop(blocks) + blocks as f64 * self.reduce
    }

    /// Rounds that each wait for the one before, in which a rank sends and receives a block in each of so many
    /// segments. A segment waits for the same segment of the round before, for the ports, and for the rank itself,
    /// which sends the later segments while the first is on its way.
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

    /// So many messages of one block to, and as many from, different ranks, which do not wait for each other.
    pub(super) fn exchange(&self, messages: usize) -> f64 {
        self.pipeline(1, messages, false)
    }

    /// So many messages of one block to or from one rank, which do not wait for each other.
    pub(super) fn fan(&self, messages: usize, reduces: bool) -> f64 {
        if messages == 0 {
            return 0.0;
        }
        let reduce = if reduces { self.reduce } else { 0.0 };
        self.hop(1) + reduce + (messages - 1) as f64 * self.block.max(self.overhead + reduce)
    }
}

/// How long messages of one block take between the ranks of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Pacing {
    /// Between ranks of one host.
    pub within: Pace,
    /// Between ranks of different hosts.
    pub between: Pace,
}

impl Pacing {
    /// The pacing of blocks of this size.
    #[must_use]
    pub fn new(links: &LinkModel, block_bytes: f64) -> Self {
        let is_staged = links.reads_in_place(1, block_bytes);
        // Bytes are copied once instead of twice.
        let staged = is_staged.then_some(links.within.per_byte * block_bytes / 2.0);
        Self {
            within: Pace { staged, ..Pace::new(&links.within, links.reduce, block_bytes) },
            between: Pace::new(&links.between, links.reduce, block_bytes),
        }
    }

    /// The pace of the slowest link of the group: what counts where every rank waits for every other.
    pub(super) const fn slowest(&self, params: &Params) -> &Pace {
        if params.ranks <= params.ranks_per_host { &self.within } else { &self.between }
    }
}
