//! The report of a simulation.

use crate::verify::Traffic;

/// The predicted cost of a program.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The time at which the last rank ends, in seconds after the common start of all ranks.
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
    /// The time at which its last step ends, in seconds.
    pub end: f64,
}

impl RankReport {
    /// Returns the number of messages that it sends or receives, whichever is larger.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.traffic.messages_sent.max(self.traffic.messages_received)
    }

    /// Returns the number of blocks that it sends or receives, whichever is larger.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.traffic.blocks_sent.max(self.traffic.blocks_received)
    }

    /// Returns the number of bytes that it sends or receives, whichever is larger.
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

    /// Returns the number of bytes of all messages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.bytes_sent).sum()
    }

    /// Returns the largest number of steps of any rank.
    #[must_use]
    pub fn steps_max(&self) -> usize {
        self.ranks.iter().map(|rank| rank.traffic.steps).max().unwrap_or(0)
    }

    /// Returns the largest number of messages that any rank sends or receives.
    #[must_use]
    pub fn messages_max(&self) -> usize {
        self.ranks.iter().map(RankReport::messages).max().unwrap_or(0)
    }

    /// Returns the largest number of blocks that any rank sends or receives.
    #[must_use]
    pub fn blocks_max(&self) -> usize {
        self.ranks.iter().map(RankReport::blocks).max().unwrap_or(0)
    }

    /// Returns the largest number of bytes that any rank sends or receives.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.ranks.iter().map(RankReport::bytes).max().unwrap_or(0)
    }
}
