//! The communication of a schedule, counted while it is verified.

/// The communication of a verified program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The communication of each rank.
    pub ranks: Vec<Traffic>,
    /// The length of the longest chain of dependent messages: the number of latencies in the total
    /// time if every rank could communicate with all others at the same time and had an unlimited
    /// window.
    pub rounds: u32,
}

/// The communication of one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Steps of any kind.
    pub steps: usize,
    /// Messages sent.
    pub messages_sent: usize,
    /// Messages received.
    pub messages_received: usize,
    /// Blocks sent.
    pub blocks_sent: usize,
    /// Blocks received.
    pub blocks_received: usize,
}

impl Stats {
    /// Returns the largest number of blocks that any rank sends or receives.
    #[must_use]
    pub fn blocks_max(&self) -> usize {
        self.ranks.iter().map(|rank| rank.blocks_sent.max(rank.blocks_received)).max().unwrap_or(0)
    }

    /// Returns the largest number of messages that any rank sends or receives.
    #[must_use]
    pub fn messages_max(&self) -> usize {
        self.ranks.iter().map(|rank| rank.messages_sent.max(rank.messages_received)).max().unwrap_or(0)
    }
}
