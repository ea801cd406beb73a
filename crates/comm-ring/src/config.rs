//! Everything about the communicator that can be set.

use std::time::Duration;

/// The parameters of a communicator. All of them must be equal on every rank, except the times.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingConfig {
    /// How many steps of a schedule may be under way at once, at least 2.
    pub window: usize,
    /// The size of a segment in bytes: the piece in which large data is pipelined.
    pub segment_bytes: usize,
    /// How many segments may be in temporary memory at once.
    pub segments_per_pass: usize,
    /// All-reduces up to this many bytes use recursive doubling, larger ones the ring.
    pub doubling_bytes_max: usize,
    /// A call that has been blocked for this long tells the other ranks what it waits for.
    pub announce_after: Duration,
    /// How long a rank that found a failure listens for its cause before it reports.
    pub diagnosis: Duration,
    /// How long a blocked call yields the processor at most before it sleeps.
    pub yield_max: Duration,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            window: 32,
            segment_bytes: 256 << 10,
            segments_per_pass: 16,
            doubling_bytes_max: 32 << 10,
            announce_after: Duration::from_millis(100),
            diagnosis: Duration::from_millis(200),
            yield_max: Duration::from_micros(200),
        }
    }
}
