//! The identity of this rank, and the authorization of its peers.

use std::num::NonZero;

use crate::hello::{ChannelKey, Hello};
use crate::record::Address;

/// The identity of this rank and of its peers.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) rank: usize,
    /// A secret of the processes that can read our record in the store.
    pub(crate) token: u128,
    /// The addresses of all ranks; `None` for those on other hosts.
    pub(crate) members: Vec<Option<Address>>,
    /// The number of processors that the ranks of this host may use together, if the system reports
    /// it.
    pub(crate) processors: Option<NonZero<usize>>,
}

impl Identity {
    /// Returns the identity of a rank that shares memory with no other.
    pub(crate) fn alone(rank: usize) -> Self {
        let processors = std::thread::available_parallelism().ok();
        Self { rank, token: 0, members: Vec::new(), processors }
    }

    /// Returns the hello for a connection to a member.
    pub(crate) fn hello(&self, to: Address, key: ChannelKey, capacity: usize) -> Hello {
        Hello {
            key,
            // No group has more ranks than fit into a `u32`.
            rank: u32::try_from(self.rank).unwrap_or(u32::MAX),
            token: self.token,
            to_token: to.token,
            capacity: capacity as u64,
        }
    }

    /// Whether a hello is addressed to this rank and comes from a member: one with a higher rank,
    /// or one with a lower rank that asks for a connection.
    pub(crate) fn authorize(&self, hello: &Hello) -> bool {
        let rank = hello.rank as usize;
        let member = self.members.get(rank).copied().flatten();
        let is_right_side = if hello.capacity == 0 { rank < self.rank } else { rank > self.rank };
        is_right_side
            && hello.to_token == self.token
            && member.is_some_and(|member| member.token == hello.token)
    }
}
