//! The reason why a connection was refused.

use crate::error;

/// The reason why a connection was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The other side does not speak this protocol, or is not the expected process.
    #[error(
        "it does not speak the protocol of comm, or is not the expected process; check the address and the port"
    )]
    NotAPeer,
    /// The other side speaks another version of it.
    #[error(
        "it speaks protocol version {theirs}, but this process speaks {ours}; use one version of comm on all ranks"
    )]
    Version {
        /// This side's version.
        ours: u16,
        /// The other side's version.
        theirs: u16,
    },
    /// The other side belongs to another job.
    #[error("it belongs to another job; the job id (COMM_JOB_ID) must be equal on all ranks")]
    Job,
    /// The ranks disagree on the size of the world.
    #[error("its world size is {theirs}, but this process has {ours}; it must be equal on all ranks")]
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
    #[error("rank {rank} is already taken by another process; each process needs a rank of its own")]
    DuplicateRank {
        /// The rank.
        rank: usize,
    },
    /// The rank that serves the store is closing it because the rendezvous has ended, or has closed
    /// it and another store is now served at its address. A later rendezvous uses a new store.
    #[error("the store is closing")]
    StoreClosing,
    /// The group that this process waited to join has ended.
    #[error("the group has ended")]
    GroupEnded,
    /// The rank that serves the store cannot do so, because the system cannot start a thread or a
    /// system call failed.
    #[error("the store cannot be served: {}", std::io::Error::from_raw_os_error(*.errno))]
    StoreUnavailable {
        /// The `errno` of the failure on that rank.
        errno: i32,
    },
    /// The shared secrets differ, or one side has none.
    #[error("authentication failed; the secret (COMM_SECRET) must be equal on all ranks")]
    Authentication,
    /// One side requires TLS, and the other one does not use it.
    #[error("{}; set COMM_TLS to 1 on all ranks, or on none", tls_required(*.here))]
    TlsRequired {
        /// Whether this side requires TLS.
        here: bool,
    },
    /// The TLS handshake failed on one of the two sides, for example because of a certificate.
    #[error(
        "the TLS handshake failed: {reason}; COMM_TLS_CA and COMM_TLS_CERT must be set on all ranks, or on none"
    )]
    TlsFailed {
        /// The error of TLS.
        reason: String,
    },
    /// A message of the handshake was altered on the way, which sides that use checksums detect.
    #[error("a message of the handshake was altered on the way: its checksum is wrong")]
    Corrupted,
    /// Ranks that were configured to share memory cannot: they are on different hosts, in different
    /// containers, or run as different users.
    #[error("{} cannot share memory with this rank: different host, container or user; use TCP between them \
         (COMM_TRANSPORT=auto or tcp)", error::ranks(.ranks))]
    OtherHost {
        /// The ranks with which this rank cannot share memory.
        ranks: Vec<usize>,
    },
}

const fn tls_required(here: bool) -> &'static str {
    if here {
        "it does not use TLS, which this process requires"
    } else {
        "it requires TLS, which this process does not use"
    }
}
