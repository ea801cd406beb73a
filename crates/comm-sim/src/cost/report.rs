//! What a simulated program costs.

use crate::verify::Traffic;

/// What a simulated program costs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// When the last rank ends, in seconds after all ranks started at once.
    pub time: f64,
    /// What each rank does.
    pub ranks: Vec<RankReport>,
}

/// What one rank of a simulated program does.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct RankReport {
    /// Its steps, messages and blocks.
    pub traffic: Traffic,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// When its last step ends, in seconds.
    pub end: f64,
}

impl RankReport {
    /// The messages that it sends or receives, whichever are more.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.traffic.messages_sent.max(self.traffic.messages_received)
    }

    /// The blocks that it sends or receives, whichever are more.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.traffic.blocks_sent.max(self.traffic.blocks_received)
    }

    /// The bytes that it sends or receives, whichever are more.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_sent.max(self.bytes_received)
    }
}

impl Report {
    /// Steps of all ranks.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.traffic.steps as u64).sum()
    }

    /// Messages of all ranks, each counted once.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.traffic.messages_sent as u64).sum()
    }

    /// Bytes of all messages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.bytes_sent).sum()
    }

    /// The most steps of any rank.
    #[must_use]
    pub fn steps_max(&self) -> usize {
        self.ranks.iter().map(|rank| rank.traffic.steps).max().unwrap_or(0)
    }

    /// The most messages that any rank sends or receives, whichever is more.
    #[must_use]
    pub fn messages_max(&self) -> usize {
        self.ranks.iter().map(RankReport::messages).max().unwrap_or(0)
    }

    /// The most blocks that any rank sends or receives, whichever is more.
    #[must_use]
    pub fn blocks_max(&self) -> usize {
        self.ranks.iter().map(RankReport::blocks).max().unwrap_or(0)
    }

    /// The most bytes that any rank sends or receives, whichever is more.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.ranks.iter().map(RankReport::bytes).max().unwrap_or(0)
    }
}
