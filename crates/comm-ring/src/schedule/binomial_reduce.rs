//! Binomial tree reduce, segment by segment.
//!
//! ceil(log2 n) rounds for one segment; every rank but the root sends each segment once. Leaves
//! send straight from the caller's input; inner ranks accumulate in a few scratch slots, because
//! they may not write to the input.
//!
//! The ranks combine in the order of the tree of all reductions, for any root: of two numbers that
//! differ in bit k, the one that differs from the root's number in that bit sends to the other in
//! round k.

use comm_core::{Place, Step};

use super::tree::Tree;
use super::{Cost, Pacing, Params, Steps};

/// The neighbours of a rank in the tree.
struct Neighbors {
    /// The children's ranks, in the order in which they are combined.
    children: Vec<usize>,
    /// The parent's rank; `None` for the root.
    parent: Option<usize>,
}

impl Neighbors {
    fn new(p: &Params) -> Self {
        let (tree, root) = (Tree::new(p.ranks), p.root);
        let (own, origin) = (tree.number(p.rank), tree.number(root));
        // The root is the leader of its pair.
        let leader = |number: usize| if number == origin { root } else { tree.leader(number) };
        if leader(own) != p.rank {
            return Self { children: Vec::new(), parent: Some(leader(own)) };
        }
        let distance = own ^ origin;
        let sends_in = if distance == 0 { tree.rounds() } else { distance.trailing_zeros() as usize };
        let children = (0..sends_in).map(|round| leader(own ^ 1 << round));
        Self {
            children: tree.partner(p.rank).into_iter().chain(children).collect(),
            parent: (distance != 0).then(|| leader(own ^ 1 << sends_in)),
        }
    }
}

pub(super) fn slots(params: &Params) -> usize {
    let position = Neighbors::new(params);
    let inner = position.parent.is_some() && !position.children.is_empty();
    if inner { params.slots(1) } else { 0 }
}

pub(super) fn cost(p: &Params) -> Cost {
    let levels = p.ranks.next_power_of_two().ilog2() as usize;
    Cost { rounds: levels, messages: levels * p.segments, blocks: levels * p.segments }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    let depth = p.ranks.ilog2() as usize;
    let levels = p.ranks.next_power_of_two().ilog2() as usize;
    // The root receives each segment once for every level. The longest chain has one level less if
    // the tree is not full.
    let further = p.segments * levels - depth;
    depth as f64 * pace.hop_reduce(1) + further as f64 * pace.block.max(pace.overhead + pace.reduce)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let Neighbors { children, parent } = Neighbors::new(&p);
    Box::new((0..p.segments).flat_map(move |segment| {
        let block = p.block(0, segment);
        let sum = match (parent, children.is_empty()) {
            (None, _) => Place::Output,
            (Some(_), true) => Place::Input,
            (Some(_), false) => p.slot(0, segment),
        };
        // The contribution of the first child is added to this rank's own, those of the others to
        // the sum.
        let own = if sum == Place::Output { p.own() } else { Place::Input };
        let copy = (own != sum && children.is_empty()).then_some(Step::copy(sum, own, block));
        let receives = children
            .clone()
            .into_iter()
            .enumerate()
            .map(move |(at, from)| Step::recv_reduce(from, sum, if at == 0 { own } else { sum }, block));
        let end = match parent {
            Some(to) => Step::send(to, sum, block),
            None => Step::finish(sum, block),
        };
        copy.into_iter().chain(receives).chain([end])
    }))
}
