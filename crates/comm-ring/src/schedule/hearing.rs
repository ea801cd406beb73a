//! How one rank hears from all others and combines what they send in the order of the tree.
//!
//! It hears from the numbers of the tree in the order in which it walks the tree from its own number on: its own
//! pair's other rank, then number x ^ 1, x ^ 2, x ^ 3 and so on. What it has come to of a part of the tree waits in
//! scratch until the rest of that part is there: a slot for each level, not for each rank. If all ranks do this
//! at once, then they meet in pairs, in the same order everywhere, so that nobody is sent to by all at the same time.

use comm_core::{Blocks, Place, Step};

use super::tree::Tree;
use super::{Cost, Params};

/// A rank that is heard from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pub(super) rank: usize,
    /// The position of its number in the walk: the exclusive or with the number of the rank that walks.
    position: usize,
    /// Whether it is the first, and the last, of its number.
    first: bool,
    last: bool,
}

/// The other ranks, in the order in which this one hears from them.
pub(super) fn peers(p: &Params) -> impl Iterator<Item = Peer> + use<> {
    let (tree, rank) = (Tree::new(p.ranks), p.rank);
    let number = tree.number(rank);
    // Two pairs meet even with even and odd with odd first, and crosswise then.
    let odd_first = tree.partner(rank).is_some() && !rank.is_multiple_of(2);
    let all = (0..tree.core()).flat_map(move |position| {
        let ranks = tree.ranks(number ^ position);
        let count = ranks.len();
        (0..count).map(move |at| {
            let offset = if odd_first { count - 1 - at } else { at };
            Peer { rank: ranks.start + offset, position, first: at == 0, last: at + 1 == count }
        })
    });
    all.filter(move |peer| peer.rank != rank)
}

/// How many slots this takes for each segment under way.
pub(super) const fn slots(ranks: usize) -> usize {
    let tree = Tree::new(ranks);
    // Without pairs nothing has to wait at the lowest level.
    if tree.folds() { tree.rounds() } else { tree.rounds().saturating_sub(1) }
}

/// The cost of hearing from all others, for the rank that pays the most.
pub(super) const fn cost(p: &Params) -> Cost {
    let messages = (p.ranks - 1) * p.segments;
    // The lowest level has one slot, through which every other number goes.
    Cost { rounds: if p.ranks == 1 { 0 } else { p.ranks.div_ceil(2) }, messages, blocks: messages }
}

/// Where one rank combines one block of all ranks. The result, and at the start its own contribution, is in the output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hearing {
    p: Params,
    tree: Tree,
    block: Blocks,
    segment: usize,
}

impl Hearing {
    pub(super) const fn new(p: &Params, chunk: usize, segment: usize) -> Self {
        Self { p: *p, tree: Tree::new(p.ranks), block: p.block(chunk, segment), segment }
    }

    /// Where the sum of a part of the tree is kept, by the part's first position.
    fn place(&self, position: usize) -> Place {
        if position == 0 { Place::Output } else { self.level(position.trailing_zeros()) }
    }

    fn level(&self, level: u32) -> Place {
        let unused = usize::from(!self.tree.folds());
        self.p.slot(level as usize - unused, self.segment)
    }

    /// Receives what a peer contributes, and combines the parts of the tree that are complete with it.
    pub(super) fn hear(self, peer: Peer) -> impl Iterator<Item = Step> + use<> {
        let Peer { rank, position, first, last } = peer;
        // The second number of two goes straight to the first, if it is a rank alone.
        let straight = !position.is_multiple_of(2) && !self.tree.folds();
        let receive = if position == 0 {
            Step::recv_reduce(rank, Place::Output, self.block)
        } else if straight {
            Step::recv_reduce(rank, self.place(position - 1), self.block)
        } else if first {
            Step::recv(rank, self.place(position), self.block)
        } else {
            Step::recv_reduce(rank, self.place(position), self.block)
        };
        let complete = if last { position.trailing_ones() } else { 0 };
        let combine = (u32::from(straight)..complete).map(move |level| {
            let first = self.place(position + 1 - (2 << level));
            Step::reduce(first, self.level(level), self.block)
        });
        std::iter::once(receive).chain(combine)
    }

    /// Hears from everybody, and ends the reduction.
    pub(super) fn hear_all(self) -> impl Iterator<Item = Step> + use<> {
        let finish = Step::finish(Place::Output, self.block);
        peers(&self.p).flat_map(move |peer| self.hear(peer)).chain([finish])
    }
}
