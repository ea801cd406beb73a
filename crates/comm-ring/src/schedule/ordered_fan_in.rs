//! One rank receives from all others and combines the contributions in the order of the tree.
//!
//! It receives from the numbers of the tree in the order of a walk of the tree that starts from its
//! own number x: the other rank of its pair, then the numbers x ^ 1, x ^ 2, x ^ 3 and so on. The
//! sum of a subtree waits in scratch until the sibling subtree is complete, which takes one slot
//! per level instead of one per rank. If all ranks do this at once, they exchange in pairs, in the
//! same order everywhere, so that no rank receives from all others at the same time.

use comm_core::{Blocks, Place, Step};

use super::tree::Tree;
use super::{Cost, Params};

/// A rank that sends its contribution.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contributor {
    pub(super) rank: usize,
    /// The position of its number in the walk: the exclusive OR with the number of the receiving
    /// rank.
    position: usize,
    /// Whether it is the first, or the last, rank of its number.
    first: bool,
    last: bool,
}

/// Returns the other ranks, in the order in which this one receives from them.
pub(super) fn peers(p: &Params) -> impl Iterator<Item = Contributor> + use<> {
    let (tree, rank) = (Tree::new(p.ranks), p.rank);
    let number = tree.number(rank);
    // When two pairs exchange, first even ranks exchange with even and odd with odd, then even with
    // odd.
    let odd_first = tree.partner(rank).is_some() && !rank.is_multiple_of(2);
    let all = (0..tree.core()).flat_map(move |position| {
        let ranks = tree.ranks(number ^ position);
        let count = ranks.len();
        (0..count).map(move |at| {
            let offset = if odd_first { count - 1 - at } else { at };
            Contributor { rank: ranks.start + offset, position, first: at == 0, last: at + 1 == count }
        })
    });
    all.filter(move |peer| peer.rank != rank)
}

/// Returns the number of slots for each segment of a pass.
pub(super) const fn slots(ranks: usize) -> usize {
    let tree = Tree::new(ranks);
    // Without pairs, the lowest level needs no slot.
    if tree.folds() { tree.rounds() } else { tree.rounds().saturating_sub(1) }
}

/// Returns the cost for the rank that receives the most.
pub(super) const fn cost(p: &Params) -> Cost {
    let messages = (p.ranks - 1) * p.segments;
    // The lowest level has one slot, which every second number uses.
    Cost { rounds: if p.ranks == 1 { 0 } else { p.ranks.div_ceil(2) }, messages, blocks: messages }
}

/// The steps by which one rank combines the contributions of all ranks to one block, in the output.
#[derive(Debug, Clone, Copy)]
pub(super) struct FanIn {
    p: Params,
    tree: Tree,
    block: Blocks,
    segment: usize,
    /// The place of the rank's own contribution.
    own: Place,
}

impl FanIn {
    pub(super) const fn new(p: &Params, chunk: usize, segment: usize, own: Place) -> Self {
        Self { p: *p, tree: Tree::new(p.ranks), block: p.block(chunk, segment), segment, own }
    }

    /// Returns whether the output receives the subtree at position 1 first. This is the case if it
    /// is a pair, whose sum is complete before this rank's own contribution is added.
    fn starts_with_sibling(&self) -> bool {
        self.own != Place::Output && self.tree.folds() && self.tree.partner(self.p.rank).is_none()
    }

    /// Returns the place of the sum of a subtree, by its first position.
    fn place(&self, position: usize) -> Place {
        match position {
            0 => Place::Output,
            1 if self.starts_with_sibling() => Place::Output,
            _ => self.level(position.trailing_zeros()),
        }
    }

    fn level(&self, level: u32) -> Place {
        let unused = usize::from(!self.tree.folds());
        self.p.slot(level as usize - unused, self.segment)
    }

    /// Receives the contribution of a peer, and combines the subtrees that are complete with it.
    pub(super) fn recv_from(self, peer: Contributor) -> impl Iterator<Item = Step> + use<> {
        let Contributor { rank, position, first, last } = peer;
        // Without pairs, the second of two numbers is combined into the place of the first.
        let direct = !position.is_multiple_of(2) && !self.tree.folds();
        let place = self.place(if direct { position - 1 } else { position });
        let addend = if position == 0 || direct && position == 1 { self.own } else { place };
        let receive = if first && position > 0 && !direct {
            Step::recv(rank, place, self.block)
        } else {
            Step::recv_reduce(rank, place, addend, self.block)
        };
        let complete = if last { position.trailing_ones() } else { 0 };
        let combine = (u32::from(direct)..complete).map(move |level| {
            let first = self.place(position + 1 - (2 << level));
            let is_sibling = level == 0 && position == 1 && self.starts_with_sibling();
            let with = if is_sibling { self.own } else { self.level(level) };
            Step::reduce(first, with, self.block)
        });
        std::iter::once(receive).chain(combine)
    }

    /// Ends the reduction, after the contributions of all peers.
    pub(super) fn finish(self) -> impl Iterator<Item = Step> + use<> {
        let is_alone = self.p.ranks == 1 && self.own != Place::Output;
        let copy = is_alone.then_some(Step::copy(Place::Output, self.own, self.block));
        copy.into_iter().chain([Step::finish(Place::Output, self.block)])
    }

    /// Receives from all peers, and ends the reduction.
    pub(super) fn recv_all(self) -> impl Iterator<Item = Step> + use<> {
        peers(&self.p).flat_map(move |peer| self.recv_from(peer)).chain(self.finish())
    }
}
