//! The report of a simulation.

use crate::verify::Traffic;

/// The predicted cost of a program.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The time when the last rank ends, in seconds after all ranks started at once.
    pub time: f64,
    /// The report of each rank.
    pub ranks: Vec<RankReport>,
}

/// The predicted cost of a program on one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct RankReport {
    /// Its steps, messages and blocks.
    pub traffic: Traffic,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// The time when its last step ends, in seconds.
    pub end: f64,
}

impl RankReport {
    /// Returns the messages that it sends or receives, whichever are more.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.traffic.messages_sent.max(self.traffic.messages_received)
    }

    /// Returns the blocks that it sends or receives, whichever are more.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.traffic.blocks_sent.max(self.traffic.blocks_received)
    }

    /// Returns the bytes that it sends or receives, whichever are more.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_sent.max(self.bytes_received)
    }
}

impl Report {
    /// Returns the number of steps of all ranks.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.traffic.steps as u64).sum()
    }

    /// Returns the number of messages of all ranks, each counted once.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.traffic.messages_sent as u64).sum()
    }

    /// Returns the bytes of all messages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.bytes_sent).sum()
    }

    /// Returns the most steps of any rank.
    #[must_use]
    pub fn steps_max(&self) -> usize {
        self.ranks.iter().map(|rank| rank.traffic.steps).max().unwrap_or(0)
    }

    /// Returns the most messages that any rank sends or receives, whichever is more.
    #[must_use]
    pub fn messages_max(&self) -> usize {
        self.ranks.iter().map(RankReport::messages).max().unwrap_or(0)
    }

    /// Returns the most blocks that any rank sends or receives, whichever is more.
    #[must_use]
    pub fn blocks_max(&self) -> usize {
        self.ranks.iter().map(RankReport::blocks).max().unwrap_or(0)
    }

    /// Returns the most bytes that any rank sends or receives, whichever is more.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.ranks.iter().map(RankReport::bytes).max().unwrap_or(0)
    }
}
