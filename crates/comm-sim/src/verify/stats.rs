//! What a schedule costs, counted while it is verified.

/// What a verified program does.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// What each rank does.
    pub ranks: Vec<Traffic>,
    /// The most messages that wait for each other in a chain: how often the latency of a link is
    /// paid, if every rank could talk to all others at once and had a window without end.
    pub rounds: u32,
}

/// What one rank does.
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
    /// The most blocks that any rank sends or receives, whichever is more.
    #[must_use]
    pub fn blocks_max(&self) -> usize {
        self.ranks.iter().map(|rank| rank.blocks_sent.max(rank.blocks_received)).max().unwrap_or(0)
    }

    /// The most messages that any rank sends or receives, whichever is more.
    #[must_use]
    pub fn messages_max(&self) -> usize {
        self.ranks.iter().map(|rank| rank.messages_sent.max(rank.messages_received)).max().unwrap_or(0)
    }
}
