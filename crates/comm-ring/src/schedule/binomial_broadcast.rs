//! Binomial tree broadcast, segment by segment.
//!
//! ceil(log2 n) rounds for one segment. The root sends each segment to ceil(log2 n) ranks, every
//! other rank to at most one less than that; every rank receives each segment once. A rank forwards
//! a segment while later ones are still arriving.

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps, around};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

/// A rank's position in the tree: the root is 0, and a rank's parent is its own number without its
/// lowest set bit.
pub(super) struct Position {
    number: usize,
    ranks: usize,
    root: usize,
}

impl Position {
    pub(super) const fn new(p: &Params) -> Self {
        Self { number: (p.rank + p.ranks - p.root) % p.ranks, ranks: p.ranks, root: p.root }
    }

    const fn rank(&self, number: usize) -> usize {
        (number + self.root) % self.ranks
    }

    /// Returns the parent's rank; `None` for the root.
    pub(super) fn parent(&self) -> Option<usize> {
        (self.number != 0).then(|| self.rank(self.number & (self.number - 1)))
    }

    /// Returns the distance of this rank from the root, counting past the last rank to rank 0.
    pub(super) const fn number(&self) -> usize {
        self.number
    }

    /// Returns the numbers in the subtree of a number: a run that starts with it.
    pub(super) const fn subtree(&self, number: usize) -> Blocks {
        let rest = self.ranks - number;
        let most = if number == 0 { rest } else { 1 << number.trailing_zeros() };
        Blocks { first: number, count: if most < rest { most } else { rest } }
    }

    /// Returns the chunks of a run of numbers as one run of chunks, or as two if it wraps around
    /// the end of the data. Each comes with the number of its first chunk.
    pub(super) fn runs(&self, numbers: Blocks) -> impl Iterator<Item = (usize, Blocks)> + use<> {
        let [run, rest] = around(self.ranks, self.rank(numbers.first), numbers.count);
        let rest = rest.map(|rest| (numbers.end() - rest.count, rest));
        run.map(|run| (numbers.first, run)).into_iter().chain(rest)
    }

    /// Returns the children's ranks, the one with the smallest subtree first.
    pub(super) fn children(&self) -> Vec<usize> {
        self.branches().map(|(child, _)| child).collect()
    }

    /// Returns the children's ranks and the numbers in their subtrees, the smallest first.
    pub(super) fn branches(&self) -> impl DoubleEndedIterator<Item = (usize, Blocks)> {
        let levels = self.subtree(self.number).count.next_power_of_two().ilog2();
        let numbers = (0..levels).map(|level| self.number + (1 << level));
        numbers.map(|number| (self.rank(number), self.subtree(number)))
    }
}

pub(super) fn cost(p: &Params) -> Cost {
    // The depth of the tree is the largest number of set bits in a number below n.
    let depth = p.ranks.ilog2() as usize;
    let children = p.ranks.next_power_of_two().ilog2() as usize;
    Cost { rounds: depth, messages: children * p.segments, blocks: children * p.segments }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    let depth = p.ranks.ilog2() as usize;
    let levels = p.ranks.next_power_of_two().ilog2() as usize;
    // The root sends a segment once for every level; the last segment then goes down the tree,
    // which has one level less if it is not full.
    let further = p.segments * levels - depth;
    depth as f64 * pace.hop(1) + further as f64 * pace.block.max(pace.overhead)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let position = Position::new(&p);
    let (parent, children) = (position.parent(), position.children());
    Box::new((0..p.segments).flat_map(move |segment| {
        let block = p.block(0, segment);
        let receive = parent.map(|from| Step::recv(from, Place::Output, block));
        // The largest subtree has the longest path, so it is served first.
        let sends = children.clone().into_iter().rev().map(move |to| Step::send(to, Place::Output, block));
        receive.into_iter().chain(sends)
    }))
}
