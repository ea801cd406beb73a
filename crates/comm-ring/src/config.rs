//! The configuration of a communicator.

use std::time::Duration;

use comm_core::{CommRegistry, FlightSink, LinkModel};

/// The parameters of a communicator. Rank 0's values apply on all ranks, except for times.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RingConfig {
    /// The largest number of unfinished steps of a schedule, from 2 to 64.
    pub window: usize,
    /// The size in bytes of the segments in which large data is pipelined, at least 1.
    pub segment_bytes: usize,
    /// The largest number of segments in temporary memory at once, at least 1.
    pub segments_per_pass: usize,
    /// The cost model by which algorithms are selected. The default is that of the transport.
    pub links: Option<LinkModel>,
    /// The time after which a blocked call reports to the other ranks for whom it waits.
    pub announce_after: Duration,
    /// The time for which a rank that detected a failure waits for reports of its cause. A blocked
    /// call asks the other ranks for their state this long before its deadline, but not before half
    /// of its timeout has passed.
    pub diagnosis: Duration,
    /// The largest message between two ranks, in bytes, that is sent before the receiver asks for
    /// it; four times as much if no other message is under way. Ranks may set different values.
    pub eager_bytes: usize,
    /// Larger messages are sent in parts of this size in bytes, between which other messages may be
    /// sent.
    pub part_bytes: usize,
    /// The longest time for which a blocked call yields the processor before it sleeps. It is five
    /// times as long while nobody else wants the processor and all peers run on others.
    pub yield_max: Duration,
    /// The number of last calls that each group keeps for
    /// [`flight_record`](comm_core::Communicator::flight_record), rounded up to a
    /// power of two from 64 to 2^20. Ranks may set different values.
    pub recorded_calls: usize,
    /// Whether the times of all calls in the record are read from the exact clock. Otherwise those
    /// of short calls are read from one that advances every few milliseconds, which takes about
    /// 40 ns less. Ranks may set different values.
    pub exact_times: bool,
    /// Whether a rank whose contribution to a reduction has a NaN aborts, with an error that names
    /// it on all ranks. Otherwise the NaN reaches the results of all of them. This reads each
    /// contribution once more. Ranks may set different values.
    pub reject_nan: bool,
    /// Gets the record of each group that fails.
    pub flight_sink: Option<FlightSink>,
    /// Whether the sink also gets the record of each group that is closed without a failure: by
    /// [`Comm::finalize`](comm_core::Comm::finalize), or when its last handle is dropped.
    pub record_on_close: bool,
    /// A list in which each group registers itself, for a thread that observes its calls.
    pub registry: Option<CommRegistry>,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            window: 32,
            segment_bytes: 256 << 10,
            segments_per_pass: 8,
            links: None,
            announce_after: Duration::from_millis(100),
            diagnosis: Duration::from_millis(200),
            eager_bytes: 64 << 10,
            part_bytes: 512 << 10,
            yield_max: Duration::from_micros(200),
            recorded_calls: 512,
            exact_times: false,
            reject_nan: false,
            flight_sink: None,
            record_on_close: false,
            registry: None,
        }
    }
}

impl RingConfig {
    /// Returns the settings that all ranks must share, for channels with these links.
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

/// The settings on which schedules and their selection depend besides the call: the same on every
/// rank of a group.
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
