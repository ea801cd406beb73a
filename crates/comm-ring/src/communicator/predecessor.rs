//! The group from which a group was shrunk.

use comm_core::Transport;

use crate::control::{Control, Proposal};

/// The control channel of a group that was shrunk.
///
/// It stays open, because a rank that was stopped in the middle of the agreement may learn only
/// here that the others have continued without it.
#[derive(Debug)]
pub(super) struct Predecessor<T> {
    control: Control<T>,
    /// The rank of this process in that group.
    own_rank: usize,
    /// The ranks in that group of the members of this one.
    ranks: Vec<usize>,
    /// The attempt in which this group was connected.
    attempt: u32,
}

impl<T: Transport> Predecessor<T> {
    pub(super) const fn new(control: Control<T>, own_rank: usize, ranks: Vec<usize>, attempt: u32) -> Self {
        Self { control, own_rank, ranks, attempt }
    }

    /// Returns a member of this group, by its rank in it, that has continued without this rank.
    pub(super) fn deserter(&mut self) -> Option<usize> {
        self.control.poll(&mut Vec::new());
        let has_deserted = |rank: &usize| {
            let state = self.control.shrink_state(*rank);
            let excludes_us = |proposal: &Proposal| proposal.excluded.contains(&self.own_rank);
            state.proposal.as_ref().is_some_and(excludes_us)
                || state.done.is_some_and(|attempt| attempt != self.attempt)
        };
        let others = self.ranks.iter().enumerate().filter(|(_, rank)| **rank != self.own_rank);
        others.filter(|(_, rank)| has_deserted(rank)).map(|(position, _)| position).next()
    }
}
