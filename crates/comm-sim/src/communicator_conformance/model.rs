//! A model of the collectives: the buffers of each rank before and after a call, in whole numbers.

use std::ops::Range;

use comm_core::{Collective, ReduceOp};

use crate::exact;

/// A number that no contribution contains: the contents of a buffer before it is written.
pub(super) const UNWRITTEN: i64 = 121;

/// A call of all ranks.
pub(super) struct Scenario<'a> {
    pub(super) collective: Collective,
    pub(super) ranks: usize,
    pub(super) root: usize,
    pub(super) op: ReduceOp,
    /// The length of each rank's block.
    pub(super) counts: &'a [usize],
}

/// The buffers of one rank before and after a call.
pub(super) struct Model {
    /// The contribution, if the rank has one.
    pub(super) send: Vec<i64>,
    /// The length of a separate receive buffer.
    pub(super) recv_len: usize,
    /// The result, if the rank gets one.
    pub(super) recv: Option<Vec<i64>>,
    /// The buffer of a call in place.
    pub(super) in_place: InPlace,
}

pub(super) struct InPlace {
    pub(super) before: Vec<i64>,
    /// The part of the buffer whose contents the call specifies.
    pub(super) part: Range<usize>,
    /// The contents of that part after the call.
    pub(super) after: Vec<i64>,
}

impl InPlace {
    fn whole(before: Vec<i64>, after: Vec<i64>) -> Self {
        Self { part: 0..before.len(), before, after }
    }
}

impl Scenario<'_> {
    /// Returns the number of elements that one rank sends to another in an all-to-all. In place, it
    /// equals the number that the other sends back.
    pub(super) fn between(&self, from: usize, to: usize, in_place: bool) -> usize {
        let mixed = if in_place { from + to } else { from * 2 + to * 3 };
        self.counts[mixed % self.ranks]
    }

    fn contribution(&self, rank: usize, len: usize) -> Vec<i64> {
        (0..len).map(|index| exact::contribution(self.op, self.ranks, rank, index)).collect()
    }

    /// Returns the reduction of the contributions of the ranks below `end`.
    fn reduced(&self, end: usize, range: Range<usize>) -> Vec<i64> {
        range.map(|index| exact::reduced_below(self.op, self.ranks, end, index)).collect()
    }

    fn block(from: usize, to: usize, len: usize) -> Vec<i64> {
        (0..len).map(|index| exact::block_number(from, to, index)).collect()
    }

    /// Returns the buffers of a rank; `None` for a collective without buffers.
    pub(super) fn model(&self, rank: usize) -> Option<Model> {
        let Self { root, counts, ranks, .. } = *self;
        let own = counts[rank];
        let total: usize = counts.iter().sum();
        let start: usize = counts[..rank].iter().sum();
        let is_root = rank == root;
        let joined = |of: &dyn Fn(usize) -> Vec<i64>| (0..ranks).flat_map(of).collect::<Vec<_>>();
        // A buffer with one block per rank, of which only this rank's block is filled.
        let with_own_block = |block: &[i64]| {
            let mut all = vec![UNWRITTEN; total];
            all[start..start + own].copy_from_slice(block);
            all
        };
        Some(match self.collective.base() {
            Collective::AllReduce | Collective::Reduce | Collective::Scan | Collective::Exscan => {
                let send = self.contribution(rank, own);
                let recv = match self.collective {
                    Collective::AllReduce => Some(self.reduced(ranks, 0..own)),
                    Collective::Reduce => is_root.then(|| self.reduced(ranks, 0..own)),
                    Collective::Scan => Some(self.reduced(rank + 1, 0..own)),
                    _ => (rank > 0).then(|| self.reduced(rank, 0..own)),
                };
                let after = recv.clone().unwrap_or_else(|| send.clone());
                Model { in_place: InPlace::whole(send.clone(), after), send, recv_len: own, recv }
            }
            Collective::ReduceScatter => {
                let (send, block) = (self.contribution(rank, total), start..start + own);
                let recv = self.reduced(ranks, block.clone());
                let in_place = InPlace { before: send.clone(), part: block, after: recv.clone() };
                Model { send, recv_len: own, recv: Some(recv), in_place }
            }
            Collective::Broadcast => {
                let (send, recv) = (Self::block(rank, 0, own), Self::block(root, 0, own));
                let in_place = InPlace::whole(send.clone(), recv.clone());
                Model { send, recv_len: own, recv: Some(recv), in_place }
            }
            Collective::AllGather => {
                let send = Self::block(rank, 0, own);
                let recv = joined(&|from| Self::block(from, 0, counts[from]));
                let in_place = InPlace::whole(with_own_block(&send), recv.clone());
                Model { send, recv_len: total, recv: Some(recv), in_place }
            }
            Collective::Gather => {
                let send = Self::block(rank, root, own);
                let recv = is_root.then(|| joined(&|from| Self::block(from, root, counts[from])));
                let in_place = match &recv {
                    Some(recv) => InPlace::whole(with_own_block(&send), recv.clone()),
                    None => InPlace::whole(send.clone(), send.clone()),
                };
                // Ranks other than the root may pass a receive buffer of any length.
                Model { send, recv_len: if is_root { total } else { 3 }, recv, in_place }
            }
            Collective::Scatter => {
                let recv = Self::block(root, rank, own);
                let send = if is_root { joined(&|to| Self::block(root, to, counts[to])) } else { Vec::new() };
                let in_place = if is_root {
                    InPlace::whole(send.clone(), send.clone())
                } else {
                    InPlace::whole(vec![UNWRITTEN; own], recv.clone())
                };
                Model { send, recv_len: own, recv: Some(recv), in_place }
            }
            Collective::AllToAll => {
                let sent = |in_place| joined(&|to| Self::block(rank, to, self.between(rank, to, in_place)));
                let received =
                    |in_place| joined(&|from| Self::block(from, rank, self.between(from, rank, in_place)));
                let recv = received(false);
                let in_place = InPlace::whole(sent(true), received(true));
                Model { send: sent(false), recv_len: recv.len(), recv: Some(recv), in_place }
            }
            _ => return None,
        })
    }
}
