//! Who this rank is, and who may share memory with it.

use crate::hello::{Hello, LaneKey};
use crate::record::Member;

/// Who we are, to those who connect to us.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) rank: usize,
    /// What only a process knows that can read our record in the store.
    pub(crate) token: u128,
    /// All ranks, of which those on other hosts are `None`.
    pub(crate) members: Vec<Option<Member>>,
}

impl Identity {
    /// The identity of a rank that shares memory with no other.
    pub(crate) const fn nobody(rank: usize) -> Self {
        Self { rank, token: 0, members: Vec::new() }
    }

    /// How we introduce ourselves to a member.
    pub(crate) fn hello(&self, to: Member, key: LaneKey, capacity: usize) -> Hello {
        Hello {
            key,
            // A group never has more members than this can say.
            rank: u32::try_from(self.rank).unwrap_or(u32::MAX),
            token: self.token,
            to_token: to.token,
            capacity: capacity as u64,
        }
    }

    /// Whether a peer is a member above us, and means us.
    pub(crate) fn authorize(&self, hello: &Hello) -> bool {
        let rank = hello.rank as usize;
        let member = self.members.get(rank).copied().flatten();
        rank > self.rank
            && hello.to_token == self.token
            && member.is_some_and(|member| member.token == hello.token)
    }
}
