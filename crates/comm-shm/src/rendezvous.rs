//! The configuration of the rendezvous of ranks that share memory.

use comm_core::Membership;
use comm_rendezvous::Member;

use crate::config::SharedMemoryConfig;

/// The identity of this rank, and its settings of shared memory.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RendezvousConfig {
    /// The rank, and the ranks with which it forms a world.
    pub member: Member,
    /// Names a part of this host: ranks with another name or none are treated as being on another
    /// host. Use it for containers that must not share memory, or to try several hosts on one
    /// machine.
    pub host_id: Option<String>,
    /// The configuration of the rings of channels. For each pair, the configuration of the higher
    /// rank applies.
    pub shm: SharedMemoryConfig,
}

impl RendezvousConfig {
    /// Returns the configuration of one rank of a world on one machine, with the default timeout of
    /// five minutes.
    #[must_use]
    pub fn new(membership: Membership) -> Self {
        Self::from(Member::new(membership))
    }
}

impl From<Member> for RendezvousConfig {
    fn from(member: Member) -> Self {
        Self { member, host_id: None, shm: SharedMemoryConfig::default() }
    }
}
