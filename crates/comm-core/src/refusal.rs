//! Why a connection was refused.

use crate::error;

/// Why a connection was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The other side does not speak this protocol.
    #[error("not a comm peer")]
    Stranger,
    /// The other side speaks another version of it.
    #[error("protocol version {theirs}, this side speaks {ours}")]
    Version {
        /// This side's version.
        ours: u16,
        /// The other side's version.
        theirs: u16,
    },
    /// The other side belongs to another job.
    #[error("it belongs to another job")]
    Job,
    /// The ranks disagree on the size of the world.
    #[error("world size {theirs}, this side has {ours}")]
    WorldSize {
        /// This side's world size.
        ours: usize,
        /// The other side's world size.
        theirs: usize,
    },
    /// Two ranks were given different values of a setting that must be equal on all ranks.
    #[error("{name} is {theirs:?} on rank {rank} and {ours:?} on this rank; it must be equal on all ranks")]
    Setting {
        /// The name of the setting.
        name: String,
        /// This rank's value; empty if it has none.
        ours: String,
        /// The other rank's value; empty if it has none.
        theirs: String,
        /// The other rank.
        rank: usize,
    },
    /// Two processes claim the same rank.
    #[error("rank {rank} is taken by another process")]
    DuplicateRank {
        /// The rank.
        rank: usize,
    },
    /// The store is being closed by the rank that serves it, as the ranks that used it have met; or it was, and another one
    /// is served at its address by now. A later meeting has another one.
    #[error("the store is closing")]
    StoreClosing,
    /// The rank that was to serve the store cannot: it has no thread left, or the kernel refuses it a call.
    #[error("the store cannot be served: {}", std::io::Error::from_raw_os_error(*.errno))]
    StoreUnavailable {
        /// The error of the system there, as Linux numbers it.
        errno: i32,
    },
    /// The shared secret is wrong, or one side has none.
    #[error("authentication failed")]
    Authentication,
    /// Ranks that were to share memory do not share a host.
    #[error("{} cannot share memory with this one: another host, container or user", error::ranks(.ranks))]
    OtherHost {
        /// The ranks that are elsewhere.
        ranks: Vec<usize>,
    },
}
