//! Descriptions of collectives: one file per algorithm, one row per algorithm in [`TABLE`].
//!
//! A schedule is a lazy iterator of steps, and a pure function of [`Params`]. It never sees data, a transport or a
//! clock. The table is all that other code knows of an algorithm: whoever walks it (the communicator, the verifier,
//! a simulator) meets every algorithm there is.

mod all_gather_all_to_all;
mod binomial_broadcast;
mod binomial_gather;
mod binomial_reduce;
mod binomial_scatter;
mod bruck_all_gather;
mod bruck_all_to_all;
mod chain_broadcast;
mod chain_exscan;
mod chain_scan;
mod cost;
mod direct_all_gather;
mod direct_all_reduce;
mod direct_reduce_scatter;
mod double_tree_broadcast;
mod flat_gather;
mod flat_scatter;
mod halving_doubling;
mod one_shot_all_reduce;
mod ordered_fan_in;
mod pairwise_all_to_all;
mod recursive_doubling;
mod recursive_doubling_all_gather;
mod recursive_doubling_exscan;
mod recursive_doubling_scan;
mod ring_all_gather;
mod ring_all_reduce;
mod ring_reduce_scatter;
mod scatter_all_gather_broadcast;
mod staged_all_gather;
mod staged_all_reduce;
mod staged_broadcast;
mod star_all_reduce;
mod star_barrier;
mod star_reduce;
mod star_reduce_scatter;
mod tree;
mod two_level_all_reduce;

use std::ops::Range;

use comm_core::{Blocks, Collective, LinkModel, Place, Step};

pub use cost::{Cost, Pace, Pacing};
pub use tree::combinations;

/// The steps of one rank.
pub type Steps = Box<dyn Iterator<Item = Step> + Send>;

/// What a schedule is a function of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Params {
    /// The number of ranks, at least 1.
    pub ranks: usize,
    /// The rank whose steps are wanted.
    pub rank: usize,
    /// The root of a rooted collective, else 0.
    pub root: usize,
    /// Into how many segments each chunk is cut, at least 1.
    pub segments: usize,
    /// How many segments may be under way in scratch at once, at least 1. Bounds the memory, not the data.
    pub pass: usize,
    /// Whether the output holds this rank's contribution at the start. Otherwise the input does.
    pub in_place: bool,
    /// How many consecutive ranks a host holds, at least 1; the last may hold fewer. Only hierarchical algorithms look
    /// at it.
    pub ranks_per_host: usize,
}

/// Setters, as in `Params::new(8).rank(3).segments(4)`.
impl Params {
    /// The parameters of rank 0 among so many, each on a host of its own: in place, in one segment, with root 0.
    #[must_use]
    pub const fn new(ranks: usize) -> Self {
        Self { ranks, rank: 0, root: 0, segments: 1, pass: 1, in_place: true, ranks_per_host: 1 }
    }

    /// The parameters for this rank.
    #[must_use]
    pub const fn rank(mut self, rank: usize) -> Self {
        self.rank = rank;
        self
    }

    /// The parameters with this root.
    #[must_use]
    pub const fn root(mut self, root: usize) -> Self {
        self.root = root;
        self
    }

    /// The parameters with each chunk cut into so many segments.
    #[must_use]
    pub const fn segments(mut self, segments: usize) -> Self {
        self.segments = segments;
        self
    }

    /// The parameters with so many segments under way in scratch at once.
    #[must_use]
    pub const fn pass(mut self, pass: usize) -> Self {
        self.pass = pass;
        self
    }

    /// The parameters with this rank's contribution in the output, or not.
    #[must_use]
    pub const fn in_place(mut self, in_place: bool) -> Self {
        self.in_place = in_place;
        self
    }

    /// The parameters with so many consecutive ranks on each host.
    #[must_use]
    pub const fn ranks_per_host(mut self, ranks_per_host: usize) -> Self {
        self.ranks_per_host = ranks_per_host;
        self
    }
}

impl Params {
    /// The place of this rank's contribution.
    const fn own(&self) -> Place {
        if self.in_place { Place::Output } else { Place::Input }
    }

    /// The block of a segment of a chunk.
    pub(crate) const fn block(&self, chunk: usize, segment: usize) -> Blocks {
        Blocks::one(chunk * self.segments + segment)
    }

    /// The rank, or the chunk, that lies `distance` behind this rank on the ring.
    const fn behind(&self, distance: usize) -> usize {
        let distance = self.once_around(distance);
        if self.rank < distance { self.rank + self.ranks - distance } else { self.rank - distance }
    }

    /// The rank that lies `distance` ahead of this rank on the ring.
    const fn ahead(&self, distance: usize) -> usize {
        self.once_around(self.rank + self.once_around(distance))
    }

    /// The distance without whole turns. A division takes longer than the rest of a step, and is seldom needed.
    const fn once_around(&self, distance: usize) -> usize {
        if distance < self.ranks { distance } else { distance % self.ranks }
    }

    /// The rank that follows on the ring.
    const fn next(&self) -> usize {
        self.ahead(1)
    }

    /// The rank before on the ring.
    const fn prev(&self) -> usize {
        self.behind(1)
    }

    /// The segments in passes: those of one may be under way in scratch at once.
    fn passes(&self) -> impl Iterator<Item = Range<usize>> + Send + use<> {
        let (all, pass) = (self.segments, self.pass.max(1));
        (0..all).step_by(pass).map(move |first| first..all.min(first + pass))
    }

    /// The slots that a schedule with `per_segment` slots for each segment under way needs.
    fn slots(&self, per_segment: usize) -> usize {
        per_segment * self.pass.min(self.segments)
    }

    /// The slot of a segment, in the first or a later set of slots.
    fn slot(&self, set: usize, segment: usize) -> Place {
        let pass = self.pass.min(self.segments);
        Place::Scratch { slot: set * pass + segment % pass }
    }
}

/// So many chunks, one per rank, from the first on and around the end of the data: one run of blocks, or two.
fn around(ranks: usize, first: usize, count: usize) -> [Option<Blocks>; 2] {
    let until_end = count.min(ranks - first);
    let around_end = Blocks { first: 0, count: count - until_end };
    [Some(Blocks { first, count: until_end }), (around_end.count > 0).then_some(around_end)]
}

/// The distances 1, 2, 4 and so on below the number of ranks: how far what is doubled in each round has to go.
fn distances(ranks: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |distance| Some(2 * distance))
        .take_while(move |&distance| distance < ranks)
}

/// How many messages wait for each other where ranks pass on what they have over these distances. The last, if it spans
/// less than the double of the one before, waits only for those that span as much.
fn doubling_rounds(ranks: usize) -> usize {
    let doublings = ranks.ilog2() as usize;
    let rest = ranks - (1 << doublings);
    let last = if rest == 0 { 0 } else { 1 + rest.next_power_of_two().ilog2() as usize };
    doublings.max(last)
}

/// How the data of a collective is cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Chunks {
    /// One chunk per rank.
    PerRank,
    /// As many chunks as the largest power of two that is not above the number of ranks.
    PowerOfTwo,
    /// One chunk per pair of ranks: `from * ranks + to`.
    PerPair,
    /// The data as a whole.
    Whole,
}

impl Chunks {
    /// How many chunks there are among so many ranks, at least 1.
    #[must_use]
    pub const fn count(self, ranks: usize) -> usize {
        match self {
            Self::PerRank => ranks,
            Self::PowerOfTwo => 1 << ranks.ilog2(),
            Self::PerPair => ranks * ranks,
            Self::Whole => 1,
        }
    }
}

/// A row of the table: an algorithm for a collective.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Algorithm {
    /// Its name, with which a user forces it and errors speak of it.
    pub name: &'static str,
    /// What it computes.
    pub collective: Collective,
    /// How it cuts the data.
    pub chunks: Chunks,
    /// What it needs and what it keeps.
    pub traits: Traits,
    /// How many slots of scratch a rank needs.
    pub slots: fn(&Params) -> usize,
    /// The steps of a rank.
    pub steps: fn(&Params) -> Steps,
    /// How much its steps move.
    pub cost: fn(&Params) -> Cost,
    /// How long it takes when all ranks start at once, in seconds.
    pub time: fn(&Params, &Pacing) -> f64,
}

/// What an algorithm needs and what it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traits {
    /// Whether it makes use of several segments; else it is given one.
    pub segmented: bool,
    /// Whether it can do with lengths that only the ranks concerned know: the variants with counts.
    pub counts: bool,
    /// Whether all its blocks must have the same size, as it puts runs of them together in scratch. Never with counts.
    pub equal: bool,
    /// Whether it knows hosts.
    pub hierarchical: bool,
    /// Whether what it sends from scratch goes to several ranks, and is to lie where those of its host read it in place.
    pub staged: bool,
    /// Whether it combines contributions in the one order of [`ReduceOrder::Deterministic`], that of
    /// [`combinations`].
    ///
    /// [`ReduceOrder::Deterministic`]: comm_core::ReduceOrder::Deterministic
    pub keeps_order: bool,
}

impl Traits {
    /// An algorithm that moves whole chunks, of any lengths.
    const PLAIN: Self = Self {
        segmented: false,
        counts: true,
        equal: false,
        hierarchical: false,
        staged: false,
        keeps_order: false,
    };
    const SEGMENTED: Self = Self { segmented: true, ..Self::PLAIN };
    /// An algorithm that moves whole chunks of one length.
    const EQUAL: Self = Self { counts: false, equal: true, ..Self::PLAIN };
    /// The same, in the one order of combining.
    const IN_ORDER: Self = Self { keeps_order: true, ..Self::PLAIN };
    const SEGMENTED_IN_ORDER: Self = Self { segmented: true, ..Self::IN_ORDER };
    /// An algorithm that sends segments which several ranks read.
    const STAGED: Self = Self { staged: true, ..Self::SEGMENTED };
}

/// A row whose functions are those of a module.
macro_rules! row {
    ($name:literal, $collective:ident, $chunks:ident, $traits:expr, $module:ident) => {
        Algorithm {
            name: $name,
            collective: Collective::$collective,
            chunks: Chunks::$chunks,
            traits: $traits,
            slots: $module::slots,
            steps: $module::steps,
            cost: $module::cost,
            time: $module::time,
        }
    };
}

/// Every algorithm there is.
pub static TABLE: &[Algorithm] = &[
    row!("recursive_doubling", AllReduce, Whole, Traits::IN_ORDER, recursive_doubling),
    row!("ring", AllReduce, PerRank, Traits::SEGMENTED, ring_all_reduce),
    row!("halving_doubling", AllReduce, PowerOfTwo, Traits::IN_ORDER, halving_doubling),
    row!("direct", AllReduce, PerRank, Traits::SEGMENTED_IN_ORDER, direct_all_reduce),
    row!("one_shot", AllReduce, Whole, Traits::IN_ORDER, one_shot_all_reduce),
    row!("star", AllReduce, Whole, Traits::SEGMENTED_IN_ORDER, star_all_reduce),
    row!(
        "two_level",
        AllReduce,
        PerRank,
        Traits { hierarchical: true, ..Traits::PLAIN },
        two_level_all_reduce
    ),
    row!("staged", AllReduce, PerRank, Traits::STAGED, staged_all_reduce),
    row!("ring", ReduceScatter, PerRank, Traits::SEGMENTED, ring_reduce_scatter),
    row!("direct", ReduceScatter, PerRank, Traits::SEGMENTED_IN_ORDER, direct_reduce_scatter),
    row!("star", ReduceScatter, PerRank, Traits::EQUAL, star_reduce_scatter),
    row!("ring", AllGather, PerRank, Traits::SEGMENTED, ring_all_gather),
    row!("bruck", AllGather, PerRank, Traits::PLAIN, bruck_all_gather),
    row!("recursive_doubling", AllGather, PerRank, Traits::PLAIN, recursive_doubling_all_gather),
    row!("direct", AllGather, PerRank, Traits::PLAIN, direct_all_gather),
    row!("staged", AllGather, PerRank, Traits::STAGED, staged_all_gather),
    row!("binomial", Broadcast, Whole, Traits::SEGMENTED, binomial_broadcast),
    row!("chain", Broadcast, Whole, Traits::SEGMENTED, chain_broadcast),
    row!("double_tree", Broadcast, Whole, Traits::SEGMENTED, double_tree_broadcast),
    row!("scatter_all_gather", Broadcast, PerRank, Traits::PLAIN, scatter_all_gather_broadcast),
    row!("staged", Broadcast, Whole, Traits::STAGED, staged_broadcast),
    row!("binomial", Reduce, Whole, Traits::SEGMENTED_IN_ORDER, binomial_reduce),
    row!("star", Reduce, Whole, Traits::SEGMENTED_IN_ORDER, star_reduce),
    row!("flat", Gather, PerRank, Traits::PLAIN, flat_gather),
    row!("binomial", Gather, PerRank, Traits::EQUAL, binomial_gather),
    row!("flat", Scatter, PerRank, Traits::PLAIN, flat_scatter),
    row!("binomial", Scatter, PerRank, Traits::EQUAL, binomial_scatter),
    row!("pairwise", AllToAll, PerPair, Traits::PLAIN, pairwise_all_to_all),
    row!("bruck", AllToAll, PerPair, Traits { counts: false, ..Traits::PLAIN }, bruck_all_to_all),
    row!("all_gather", AllToAll, PerPair, Traits::EQUAL, all_gather_all_to_all),
    row!("recursive_doubling", Scan, Whole, Traits::PLAIN, recursive_doubling_scan),
    row!("chain", Scan, Whole, Traits { keeps_order: true, ..Traits::SEGMENTED }, chain_scan),
    row!("recursive_doubling", ExScan, Whole, Traits::PLAIN, recursive_doubling_exscan),
    row!("chain", ExScan, Whole, Traits { keeps_order: true, ..Traits::SEGMENTED }, chain_exscan),
    // A barrier is an all-reduce of nothing: a rank is through when it has heard, directly or not, from every other.
    row!("recursive_doubling", Barrier, Whole, Traits::IN_ORDER, recursive_doubling),
    row!("one_shot", Barrier, Whole, Traits::IN_ORDER, one_shot_all_reduce),
    row!("star", Barrier, Whole, Traits::PLAIN, star_barrier),
];

impl Algorithm {
    /// How many blocks the data of a collective has under these parameters.
    #[must_use]
    pub const fn blocks(&self, params: &Params) -> usize {
        self.chunks.count(params.ranks) * params.segments
    }

    /// The algorithm of this name for a collective, with or without counts.
    #[must_use]
    pub fn find(collective: Collective, name: &str) -> Option<&'static Self> {
        Self::for_collective(collective).find(|row| row.name == name)
    }

    /// Every algorithm for a collective, with or without counts.
    pub fn for_collective(collective: Collective) -> impl Iterator<Item = &'static Self> {
        let counts = collective != collective.base();
        TABLE.iter().filter(move |row| row.collective == collective.base() && (row.traits.counts || !counts))
    }

    /// How long the algorithm takes for blocks of this size when all ranks start at once, in seconds.
    #[must_use]
    pub fn predict(&self, params: &Params, links: &LinkModel, block_bytes: f64) -> f64 {
        (self.time)(params, &Pacing::new(links, block_bytes))
    }
}
