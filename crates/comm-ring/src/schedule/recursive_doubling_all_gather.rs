//! Recursive doubling all-gather, for any number of ranks.
//!
//! Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
//! Int. J. High Perform. Comput. Appl. 19 (2005). Partners exchange all the chunks that they hold,
//! which is one run of chunks: log2 n messages if n is a power of two, in which a rank sends n-1
//! chunks, the minimum.
//!
//! For any other n, the first ranks form pairs so that a power of two remains. The even rank of a
//! pair sends its chunk to the odd one, which leads the pair and sends all chunks back at the end:
//! two more rounds, and a rank sends up to 3(n-1) chunks.

use std::ops::Range;

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

/// The ranks that remain, a power of two, numbered in the order of their ranks.
#[derive(Clone, Copy)]
struct Core {
    size: usize,
    /// The count of numbers that stand for two ranks. These come first.
    pairs: usize,
}

impl Core {
    const fn new(ranks: usize) -> Self {
        let size = 1 << ranks.ilog2();
        Self { size, pairs: ranks - size }
    }

    /// Returns the first chunk that a number stands for.
    fn first(&self, number: usize) -> usize {
        number + number.min(self.pairs)
    }

    fn rank(&self, number: usize) -> usize {
        self.first(number + 1) - 1
    }

    /// Returns the chunks of the aligned group of `size` numbers that contains a number.
    fn group(&self, number: usize, size: usize) -> Blocks {
        let start = number / size * size;
        run(self.first(start)..self.first(start + size))
    }

    /// Returns the size of the groups in each round.
    fn rounds(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.size.ilog2()).map(|round| 1 << round)
    }

    /// Returns the number of chunks that number 0 sends in all rounds: the most of all, as the
    /// first numbers stand for two ranks.
    fn sent(&self) -> usize {
        self.rounds().map(|size| self.group(0, size).count).sum()
    }

    /// Returns the number of messages in which a leader sends its partner the chunks before and
    /// after the partner's own.
    fn returns(&self) -> usize {
        self.pairs.min(2)
    }
}

fn run(chunks: Range<usize>) -> Blocks {
    Blocks { first: chunks.start, count: chunks.len() }
}

pub(super) fn cost(p: &Params) -> Cost {
    let core = Core::new(p.ranks);
    let doublings = core.size.ilog2() as usize;
    // The start of the longest chain is a pair in the second half of the core, if there is one.
    let rounds = doublings + usize::from(core.pairs > 0) + usize::from(core.pairs > core.size / 2);
    let returned = if core.pairs > 0 { p.ranks - 1 } else { 0 };
    Cost { rounds, messages: doublings + core.returns(), blocks: core.sent() + returned }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, core) = (pacing.slowest(p), Core::new(p.ranks));
    let Cost { rounds, blocks, .. } = cost(p);
    let split = core.returns().saturating_sub(1) as f64 * 2.0 * pace.overhead;
    // The leader of a pair has received the chunk of the other rank beforehand.
    let folded = core.returns().min(1);
    rounds as f64 * pace.hop(0) + split + (blocks + folded) as f64 * pace.block
}

pub(super) fn steps(params: &Params) -> Steps {
    let (p, core) = (*params, Core::new(params.ranks));
    let own = Blocks::one(p.rank);
    let copy = (!p.in_place).then_some(Step::copy(Place::Output, Place::Input, own));
    let paired = p.rank < 2 * core.pairs;
    if paired && p.rank.is_multiple_of(2) {
        let (partner, others) = (p.rank + 1, others(&p, p.rank));
        let give = Step::send(partner, Place::Output, own);
        let takes = others.map(move |chunks| Step::recv(partner, Place::Output, chunks));
        return Box::new(copy.into_iter().chain([give]).chain(takes));
    }
    let fold_in = paired.then(|| Step::recv(p.rank - 1, Place::Output, Blocks::one(p.rank - 1)));
    let number = if paired { p.rank / 2 } else { p.rank - core.pairs };
    let rounds = core.rounds().flat_map(move |size| {
        let partner = number ^ size;
        let to = core.rank(partner);
        [
            Step::send(to, Place::Output, core.group(number, size)),
            Step::recv(to, Place::Output, core.group(partner, size)),
        ]
    });
    let fold_out = paired.then(|| {
        let partner = p.rank - 1;
        others(&p, partner).map(move |chunks| Step::send(partner, Place::Output, chunks))
    });
    Box::new(copy.into_iter().chain(fold_in).chain(rounds).chain(fold_out.into_iter().flatten()))
}

/// Returns all chunks but one.
fn others(p: &Params, chunk: usize) -> impl Iterator<Item = Blocks> + use<> {
    [run(0..chunk), run(chunk + 1..p.ranks)].into_iter().filter(|chunks| chunks.count > 0)
}
