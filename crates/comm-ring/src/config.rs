//! Everything about the communicator that can be set.

use std::time::Duration;

use comm_core::LinkModel;

/// The parameters of a communicator. What is not a time is rank 0's, whatever the other ranks give.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RingConfig {
    /// How many steps of a schedule may be under way at once, from 2 to 64.
    pub window: usize,
    /// The size of a segment in bytes, at least 1: the piece in which large data is pipelined.
    pub segment_bytes: usize,
    /// How many segments may be in temporary memory at once, at least 1.
    pub segments_per_pass: usize,
    /// What messages cost, by which algorithms are chosen. Without it, what the transport says of itself.
    pub links: Option<LinkModel>,
    /// A call that has been blocked for this long tells the other ranks what it waits for.
    pub announce_after: Duration,
    /// How long a rank that found a failure listens for its cause before it reports. A blocked call asks the other ranks
    /// where they are this long before its deadline, but not before half of its timeout is over.
    pub diagnosis: Duration,
    /// Messages between two ranks of up to this size in bytes are sent before the receiver asks for them. What other
    /// ranks set does not matter.
    pub eager_bytes: usize,
    /// Larger messages go out in parts of this size in bytes, between which others may go.
    pub part_bytes: usize,
    /// How long a blocked call yields the processor at most before it sleeps.
    pub yield_max: Duration,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            window: 32,
            segment_bytes: 256 << 10,
            segments_per_pass: 16,
            links: None,
            announce_after: Duration::from_millis(100),
            diagnosis: Duration::from_millis(200),
            eager_bytes: 64 << 10,
            part_bytes: 256 << 10,
            yield_max: Duration::from_micros(200),
        }
    }
}

impl RingConfig {
    /// What every rank must use the same of, over channels with these links.
    #[must_use]
    pub fn tuning(&self, links: LinkModel) -> Tuning {
        Tuning {
            window: self.window,
            segment_bytes: self.segment_bytes,
            segments_per_pass: self.segments_per_pass,
            links: self.links.unwrap_or(links),
        }
    }
}

/// What schedules and their choice depend on besides the call: the same on every rank of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Tuning {
    /// See [`RingConfig::window`].
    pub window: usize,
    /// See [`RingConfig::segment_bytes`].
    pub segment_bytes: usize,
    /// See [`RingConfig::segments_per_pass`].
    pub segments_per_pass: usize,
    /// See [`RingConfig::links`].
    pub links: LinkModel,
}
