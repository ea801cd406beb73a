//! Broadcast through two binary trees; each carries half of the segments.
//!
//! Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan", Parallel Computing 35 (2009). The inner ranks of one tree are leaves of the other. Every
//! rank therefore receives each segment once and sends at most as many as it receives (one more if
//! their number is odd), whereas in a single binary tree inner ranks send everything twice.
//! ceil(log2 n) rounds for one segment and at least two ranks.
//!
//! The root is outside of both trees and sends to their tops. All ranks process the segments in the
//! same order, so no two ranks wait for each other.

use comm_core::{Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

/// The in-order binary tree over the places 1 to `last`: the odd ones are its leaves. Place 0
/// stands above its top.
#[derive(Clone, Copy)]
struct InOrderTree {
    last: usize,
    /// Whether the numbers 1 to `last` are at different places, so that the odd numbers are inner.
    second: bool,
}

impl InOrderTree {
    /// Returns the place of a number. 0 stays 0.
    const fn place(&self, number: usize) -> usize {
        match number {
            0 => 0,
            _ if !self.second => number,
            // The mirror image makes even places odd if `last` is even; otherwise a shift by one
            // does.
            _ if self.last.is_multiple_of(2) => self.last + 1 - number,
            _ => number % self.last + 1,
        }
    }

    /// Returns the number at a place.
    const fn number(&self, place: usize) -> usize {
        match place {
            0 => 0,
            _ if !self.second => place,
            _ if self.last.is_multiple_of(2) => self.last + 1 - place,
            1 => self.last,
            _ => place - 1,
        }
    }

    fn parent(&self, number: usize) -> Option<usize> {
        let place = self.place(number);
        let bit = place & place.wrapping_neg();
        let up = (place ^ bit) | (bit << 1);
        (place != 0).then(|| self.number(if up <= self.last { up } else { place ^ bit }))
    }

    fn children(&self, number: usize) -> [Option<usize>; 2] {
        let place = self.place(number);
        if place == 0 {
            return [self.last.checked_ilog2().map(|levels| self.number(1 << levels)), None];
        }
        let half = (place & place.wrapping_neg()) / 2;
        let left = (half > 0).then(|| place - half);
        // The right subtree may be lower.
        let right = (0..half.checked_ilog2().map_or(0, |bits| bits + 1)).rev().map(|bit| place + (1 << bit));
        let right = right.into_iter().find(|&right| right <= self.last);
        [left.map(|place| self.number(place)), right.map(|place| self.number(place))]
    }
}

pub(super) fn cost(p: &Params) -> Cost {
    let messages = match p.ranks {
        1 => 0,
        2 | 3 => p.segments,
        // An inner rank has two children in the tree that carries half of the segments or one more.
        _ => 2 * p.segments.div_ceil(2),
    };
    Cost { rounds: depth(p), messages, blocks: messages }
}

/// Returns the number of rounds that a segment takes to reach the lowest leaf.
fn depth(p: &Params) -> usize {
    p.ranks.next_power_of_two().ilog2() as usize
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    if p.ranks == 1 {
        return 0.0;
    }
    // Below the top, the second of two children waits for the first at every level.
    let second = (depth(p) - 1) as f64 * pace.block.max(pace.overhead);
    let further = (p.segments - 1) as f64 * pace.block.max(2.0 * pace.overhead);
    depth(p) as f64 * pace.hop(1) + second + further
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let number = p.behind(p.root);
    let rank = move |number: usize| (number + p.root) % p.ranks;
    let links = [false, true].map(|second| {
        let tree = InOrderTree { last: p.ranks - 1, second };
        (tree.parent(number).map(rank), tree.children(number).map(|child| child.map(rank)))
    });
    Box::new((0..p.segments).flat_map(move |segment| {
        let block = p.block(0, segment);
        let (parent, children) = links[segment % 2];
        let receive = parent.map(|from| Step::recv(from, Place::Output, block));
        let sends = children.into_iter().flatten().map(move |to| Step::send(to, Place::Output, block));
        receive.into_iter().chain(sends)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree_and_no_rank_is_inner_twice() {
        for last in 1..200 {
            let trees = [false, true].map(|second| InOrderTree { last, second });
            for tree in trees {
                for number in 1..=last {
                    assert_eq!(tree.number(tree.place(number)), number);
                    let parent = tree.parent(number).unwrap();
                    assert!(tree.children(parent).contains(&Some(number)), "{number} of {last}");
                }
                let children = (0..=last).flat_map(|number| tree.children(number)).flatten().count();
                assert_eq!(children, last);
            }
            for number in 1..=last {
                let inner = trees.map(|tree| tree.children(number).iter().flatten().count() > 0);
                assert!(inner != [true, true], "{number} of {last}");
            }
        }
    }
}
