//! Ranks as threads of one process: channels of bounded byte queues, one per ordered pair of ranks.
//!
//! ```
//! use std::io::IoSlice;
//! use std::time::Duration;
//!
//! use comm_core::{GroupId, ChannelId, ChannelKind, Fabric, Transport};
//! use comm_sim::in_process::{self, InProcessConfig};
//!
//! let channel = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };
//! let received = in_process::run(2, &InProcessConfig::default(), |fabric| {
//!     let mut transport = fabric.open(channel, fabric.now() + Duration::from_secs(5))?;
//!     let (rank, peer) = (fabric.group().rank() as u8, 1 - fabric.group().rank());
//!     transport.try_send(peer, &[IoSlice::new(&[rank])])?;
//!     let mut byte = [0];
//!     while transport.try_recv(peer, &mut byte)? == 0 {
//!         std::thread::yield_now();
//!     }
//!     Ok::<_, comm_core::Error>(byte[0])
//! });
//! assert_eq!(received.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), [1, 0]);
//! ```

mod fabric;
mod pipe;
mod transport;

pub use crate::Release;
pub use fabric::InProcessFabric;
pub use transport::InProcessTransport;

/// The behaviour of the queues between ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InProcessConfig {
    /// The capacity of each queue in bytes, at least one.
    pub capacity: usize,
    /// The time at which the sender's bytes count as released.
    pub release: Release,
    /// The seed of a generator by which every call moves a random number of bytes, possibly zero,
    /// as if the rest had not arrived, and by which `Transport::fill_buf_copies` changes its
    /// answer. `None` to move as many bytes as possible.
    pub dribble: Option<u64>,
    /// The size above which received data bypasses the caches.
    pub cached_bytes: usize,
}

impl Default for InProcessConfig {
    /// Returns queues of 64 KiB that move as many bytes as possible.
    fn default() -> Self {
        Self { capacity: 64 << 10, release: Release::OnAccept, dribble: None, cached_bytes: usize::MAX }
    }
}

/// Setters, as in `InProcessConfig::default().capacity(7)`.
impl InProcessConfig {
    comm_core::setters!(capacity: usize, release: Release, cached_bytes: usize);

    /// Returns the configuration with calls that move random numbers of bytes.
    #[must_use]
    pub const fn dribble(mut self, seed: u64) -> Self {
        self.dribble = Some(seed);
        self
    }
}

/// Runs `rank` on a thread per rank, each with its fabric, and returns the results in rank order.
///
/// # Panics
/// If a rank panics; see [`run_each`](crate::run_each).
pub fn run<T, F>(n: usize, config: &InProcessConfig, rank: F) -> Vec<T>
where
    T: Send,
    F: Fn(InProcessFabric) -> T + Sync,
{
    crate::run_each(InProcessFabric::with_config(n, config), rank)
}
