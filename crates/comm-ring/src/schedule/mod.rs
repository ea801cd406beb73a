//! The algorithms of all collectives: one file and one row of [`TABLE`] per algorithm.
//!
//! A schedule is a lazy iterator of steps, and a pure function of [`Params`]. It never sees data, a
//! transport or a clock. Other code (the communicator, the verifier, the simulator) knows
//! algorithms only through the table.

mod all_gather_all_to_all;
mod binomial_broadcast;
mod binomial_gather;
mod binomial_reduce;
mod binomial_scatter;
mod bruck_all_gather;
mod chain_broadcast;
mod chain_exscan;
mod chain_scan;
mod circulant_all_reduce;
mod circulant_broadcast;
mod circulant_reduce_scatter;
mod cost;
mod direct_all_gather;
mod direct_all_reduce;
mod direct_reduce_scatter;
mod halving_doubling;
mod linear_all_reduce;
mod linear_barrier;
mod linear_gather;
mod linear_reduce;
mod linear_reduce_scatter;
mod linear_scatter;
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
mod staged_reduce_scatter;
mod tree;
mod two_level_all_reduce;

use std::ops::Range;

use comm_core::{Blocks, Collective, LinkModel, Place, Step};

pub use cost::{Cost, Pace, Pacing};
pub use tree::combinations;

/// The steps of one rank.
pub type Steps = Box<dyn Iterator<Item = Step> + Send>;

/// The parameters of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Params {
    /// The number of ranks, at least 1.
    pub ranks: usize,
    /// The rank that runs the steps.
    pub rank: usize,
    /// The root of a rooted collective, otherwise 0.
    pub root: usize,
    /// The number of segments of each chunk, at least 1.
    pub segments: usize,
    /// The most segments that use scratch at once, at least 1. Bounds the memory, not the data.
    pub pass: usize,
    /// Whether the output holds this rank's contribution at the start. Otherwise the input does.
    pub in_place: bool,
    /// The number of consecutive ranks on each host, at least 1; the last host may hold fewer. Only
    /// hierarchical algorithms use it.
    pub ranks_per_host: usize,
    /// Whether other ranks read this rank's input and output in place, so that a staged algorithm
    /// stages nothing. It may differ between ranks, because it changes no message.
    pub exposed: bool,
}

/// Setters, as in `Params::new(8).rank(3).segments(4)`.
impl Params {
    /// Returns the parameters of rank 0 of a group of `ranks`, each on a host of its own: in place,
    /// in one segment, with root 0.
    #[must_use]
    pub const fn new(ranks: usize) -> Self {
        Self {
            ranks,
            rank: 0,
            root: 0,
            segments: 1,
            pass: 1,
            in_place: true,
            ranks_per_host: 1,
            exposed: false,
        }
    }

    comm_core::setters!(rank: usize, root: usize, segments: usize, pass: usize, in_place: bool, ranks_per_host: usize, exposed: bool);
}

impl Params {
    /// Returns the place of this rank's contribution.
    const fn own(&self) -> Place {
        if self.in_place { Place::Output } else { Place::Input }
    }

    /// Returns the place from which other ranks read the data at `place`, and the step that copies
    /// the data there, if that is a slot and there are other ranks.
    fn stage(&self, slot: Place, place: Place, block: Blocks) -> (Place, Option<Step>) {
        if self.exposed {
            return (place, None);
        }
        (slot, (self.ranks > 1).then_some(Step::copy(slot, place, block)))
    }

    /// Returns the block of a segment of a chunk.
    pub(crate) const fn block(&self, chunk: usize, segment: usize) -> Blocks {
        Blocks::one(chunk * self.segments + segment)
    }

    /// Returns the rank, or the chunk, `distance` places before this rank on the ring.
    const fn behind(&self, distance: usize) -> usize {
        let distance = self.wrap(distance);
        if self.rank < distance { self.rank + self.ranks - distance } else { self.rank - distance }
    }

    /// Returns the rank `distance` places after this rank on the ring.
    const fn ahead(&self, distance: usize) -> usize {
        self.wrap(self.rank + self.wrap(distance))
    }

    /// Returns the distance modulo the number of ranks. Avoids the division, which is rarely needed
    /// and takes longer than the rest of a step.
    const fn wrap(&self, distance: usize) -> usize {
        if distance < self.ranks { distance } else { distance % self.ranks }
    }

    /// Returns the next rank on the ring.
    const fn next(&self) -> usize {
        self.ahead(1)
    }

    /// Returns the previous rank on the ring.
    const fn prev(&self) -> usize {
        self.behind(1)
    }

    /// Returns the segments in passes: the segments of one pass use scratch at the same time.
    fn passes(&self) -> impl Iterator<Item = Range<usize>> + Send + use<> {
        let (all, pass) = (self.segments, self.pass.max(1));
        (0..all).step_by(pass).map(move |first| first..all.min(first + pass))
    }

    /// Returns these parameters with shorter passes, for a schedule with this many sets of slots:
    /// together they use as much memory as one set otherwise, so that they stay in the cache. Each
    /// has at least one segment.
    fn in_passes_of(&self, sets: usize) -> Self {
        self.pass((self.pass / sets).max(1))
    }

    /// Returns the number of slots of a schedule that needs `per_segment` slots for each segment of
    /// a pass.
    fn slots(&self, per_segment: usize) -> usize {
        per_segment * self.pass.min(self.segments)
    }

    /// Returns the slot of a segment in a set of slots.
    fn slot(&self, set: usize, segment: usize) -> Place {
        let pass = self.pass.min(self.segments);
        Place::Scratch { slot: set * pass + segment % pass }
    }
}

/// Returns `count` chunks, one per rank, that start at `first` and wrap around the end of the data,
/// as one or two runs of blocks.
fn around(ranks: usize, first: usize, count: usize) -> [Option<Blocks>; 2] {
    let until_end = count.min(ranks - first);
    let around_end = Blocks { first: 0, count: count - until_end };
    [Some(Blocks { first, count: until_end }), (around_end.count > 0).then_some(around_end)]
}

/// Returns the number of ranks, and then half of it, rounded up, and so on until 1.
fn halvings(ranks: usize) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
    let count = ranks.next_power_of_two().ilog2() as usize + 1;
    // Halving and rounding up k times is dividing by 2^k and rounding up.
    (0..count).map(move |halvings| ranks.div_ceil(1 << halvings))
}

/// Returns the distances 1, 2, 4 and so on below the number of ranks, one for each round of
/// doubling.
fn distances(ranks: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |distance| Some(2 * distance))
        .take_while(move |&distance| distance < ranks)
}

/// Returns the length of the longest chain of messages that wait for each other if ranks pass on
/// all their data over these distances. If the last message carries less than twice as much as the
/// one before, it waits only for the messages that carry this part.
fn doubling_rounds(ranks: usize) -> usize {
    let doublings = ranks.ilog2() as usize;
    let rest = ranks - (1 << doublings);
    let last = if rest == 0 { 0 } else { 1 + rest.next_power_of_two().ilog2() as usize };
    doublings.max(last)
}

/// The division of a collective's data into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Chunks {
    /// One chunk per rank.
    PerRank,
    /// The number of chunks is the largest power of two that does not exceed the number of ranks.
    PowerOfTwo,
    /// One chunk per pair of ranks: `from * ranks + to`.
    PerPair,
    /// The data as a whole.
    Whole,
}

impl Chunks {
    /// Returns the number of chunks in a group of `ranks`, at least 1.
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
    /// The name, by which users select it and errors refer to it.
    pub name: &'static str,
    /// The collective that it implements.
    pub collective: Collective,
    /// The division of the data into chunks.
    pub chunks: Chunks,
    /// The requirements and guarantees.
    pub traits: Traits,
    /// The number of slots of scratch that a rank needs.
    pub slots: fn(&Params) -> usize,
    /// The steps of a rank.
    pub steps: fn(&Params) -> Steps,
    /// The amount of communication.
    pub cost: fn(&Params) -> Cost,
    /// The predicted time in seconds, if all ranks start at the same time.
    pub time: fn(&Params, &Pacing) -> f64,
}

/// The requirements and guarantees of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traits {
    /// Whether it can use several segments; otherwise it gets one.
    pub segmented: bool,
    /// Whether all its blocks must have the same size, because it assembles runs of them in
    /// scratch. Then it does not support the variants with counts, in which only the ranks
    /// concerned know a length.
    pub equal: bool,
    /// Whether it distinguishes ranks of the same host from others.
    pub hierarchical: bool,
    /// Whether its scratch should lie in a buffer that the other ranks of the host read in place.
    pub staged: bool,
    /// The largest number of ranks with which everything that it receives or copies into the output
    /// is final, so that no later step uses it; 0 if that is never so.
    pub final_ranks_max: usize,
    /// Whether a rank may write the blocks of its own chunk that it sends into the output of their
    /// receivers, even before they receive them: it has read what they have there before, and they
    /// use the place for nothing else.
    pub puts_results: bool,
    /// Whether an all-reduce takes the contribution of a rank from the input, if it is not in
    /// place. Otherwise the contribution must be copied into the output first.
    pub reads_input: bool,
    /// Whether it combines contributions in the order of [`ReduceOrder::Deterministic`], as
    /// [`combinations`] gives it.
    ///
    /// [`ReduceOrder::Deterministic`]: comm_core::ReduceOrder::Deterministic
    pub keeps_order: bool,
}

impl Traits {
    /// An algorithm that moves whole chunks, of any lengths.
    const PLAIN: Self = Self {
        segmented: false,
        equal: false,
        hierarchical: false,
        staged: false,
        final_ranks_max: 0,
        puts_results: false,
        reads_input: false,
        keeps_order: false,
    };
    const SEGMENTED: Self = Self { segmented: true, ..Self::PLAIN };
    /// An algorithm in which ranks forward received data, if there are more than two.
    const FORWARDING: Self = Self { final_ranks_max: 2, ..Self::SEGMENTED };
    /// An algorithm that moves whole chunks of one length.
    const EQUAL: Self = Self { equal: true, ..Self::PLAIN };
    /// An algorithm that moves whole chunks, in the deterministic order.
    const IN_ORDER: Self = Self { keeps_order: true, ..Self::PLAIN };
    const SEGMENTED_IN_ORDER: Self = Self { segmented: true, ..Self::IN_ORDER };
    /// An algorithm that sends segments from a buffer which several ranks read, and receives
    /// results from such buffers.
    const STAGED: Self = Self { staged: true, final_ranks_max: usize::MAX, ..Self::SEGMENTED };
    /// An algorithm that receives whole chunks from the ranks that have them.
    const DIRECT: Self = Self { final_ranks_max: usize::MAX, ..Self::PLAIN };
}

/// A row with the functions of a module.
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

/// All algorithms.
pub static TABLE: &[Algorithm] = &[
    row!(
        "recursive_doubling",
        AllReduce,
        Whole,
        Traits { reads_input: true, ..Traits::IN_ORDER },
        recursive_doubling
    ),
    row!("ring", AllReduce, PerRank, Traits::FORWARDING, ring_all_reduce),
    row!("halving_doubling", AllReduce, PowerOfTwo, Traits::IN_ORDER, halving_doubling),
    row!("circulant", AllReduce, PerRank, Traits::PLAIN, circulant_all_reduce),
    row!(
        "direct",
        AllReduce,
        PerRank,
        Traits { final_ranks_max: usize::MAX, ..Traits::SEGMENTED_IN_ORDER },
        direct_all_reduce
    ),
    row!("one_shot", AllReduce, Whole, Traits::IN_ORDER, one_shot_all_reduce),
    row!("linear", AllReduce, Whole, Traits::SEGMENTED_IN_ORDER, linear_all_reduce),
    row!(
        "two_level",
        AllReduce,
        PerRank,
        Traits { hierarchical: true, ..Traits::PLAIN },
        two_level_all_reduce
    ),
    row!("staged", AllReduce, PerRank, Traits { puts_results: true, ..Traits::STAGED }, staged_all_reduce),
    // Above the ring, which the model takes to be as fast: there a rank writes partial sums to
    // other memory than that of its data, which takes longer than to add to a sum in the cache.
    row!(
        "staged",
        ReduceScatter,
        PerRank,
        Traits { staged: true, ..Traits::SEGMENTED },
        staged_reduce_scatter
    ),
    row!("ring", ReduceScatter, PerRank, Traits::SEGMENTED, ring_reduce_scatter),
    row!("circulant", ReduceScatter, PerRank, Traits::EQUAL, circulant_reduce_scatter),
    row!("direct", ReduceScatter, PerRank, Traits::SEGMENTED_IN_ORDER, direct_reduce_scatter),
    row!("linear", ReduceScatter, PerRank, Traits::EQUAL, linear_reduce_scatter),
    row!("ring", AllGather, PerRank, Traits::FORWARDING, ring_all_gather),
    row!("bruck", AllGather, PerRank, Traits::PLAIN, bruck_all_gather),
    row!("recursive_doubling", AllGather, PerRank, Traits::PLAIN, recursive_doubling_all_gather),
    row!("direct", AllGather, PerRank, Traits::DIRECT, direct_all_gather),
    row!("staged", AllGather, PerRank, Traits::STAGED, staged_all_gather),
    row!("binomial", Broadcast, Whole, Traits::FORWARDING, binomial_broadcast),
    row!("chain", Broadcast, Whole, Traits::FORWARDING, chain_broadcast),
    row!("circulant", Broadcast, Whole, Traits::FORWARDING, circulant_broadcast),
    row!("scatter_all_gather", Broadcast, PerRank, Traits::PLAIN, scatter_all_gather_broadcast),
    row!("staged", Broadcast, Whole, Traits::STAGED, staged_broadcast),
    row!("binomial", Reduce, Whole, Traits::SEGMENTED_IN_ORDER, binomial_reduce),
    row!("linear", Reduce, Whole, Traits::SEGMENTED_IN_ORDER, linear_reduce),
    row!("linear", Gather, PerRank, Traits::DIRECT, linear_gather),
    row!("binomial", Gather, PerRank, Traits::EQUAL, binomial_gather),
    row!("linear", Scatter, PerRank, Traits::DIRECT, linear_scatter),
    row!("binomial", Scatter, PerRank, Traits::EQUAL, binomial_scatter),
    row!("pairwise", AllToAll, PerPair, Traits::DIRECT, pairwise_all_to_all),
    row!("all_gather", AllToAll, PerPair, Traits::EQUAL, all_gather_all_to_all),
    row!("recursive_doubling", Scan, Whole, Traits::PLAIN, recursive_doubling_scan),
    row!("chain", Scan, Whole, Traits { keeps_order: true, ..Traits::SEGMENTED }, chain_scan),
    row!("recursive_doubling", Exscan, Whole, Traits::PLAIN, recursive_doubling_exscan),
    row!("chain", Exscan, Whole, Traits { keeps_order: true, ..Traits::SEGMENTED }, chain_exscan),
    // A barrier is an all-reduce without data: a rank leaves it once every other rank has sent to
    // it, directly or indirectly.
    row!("recursive_doubling", Barrier, Whole, Traits::IN_ORDER, recursive_doubling),
    row!("one_shot", Barrier, Whole, Traits::IN_ORDER, one_shot_all_reduce),
    row!("linear", Barrier, Whole, Traits::PLAIN, linear_barrier),
];

impl Algorithm {
    /// Returns the number of blocks of the data under these parameters.
    #[must_use]
    pub const fn blocks(&self, params: &Params) -> usize {
        self.chunks.count(params.ranks) * params.segments
    }

    /// Returns the algorithm of this name for a collective, with or without counts.
    #[must_use]
    pub fn find(collective: Collective, name: &str) -> Option<&'static Self> {
        Self::for_collective(collective).find(|row| row.name == name)
    }

    /// Returns every algorithm for a collective, with or without counts.
    pub fn for_collective(collective: Collective) -> impl Iterator<Item = &'static Self> {
        let counts = collective != collective.base();
        TABLE.iter().filter(move |row| row.collective == collective.base() && !(counts && row.traits.equal))
    }

    /// Predicts the time for blocks of this size in seconds, if all ranks start at the same time.
    #[must_use]
    pub fn predict(&self, params: &Params, links: &LinkModel, block_bytes: f64) -> f64 {
        (self.time)(params, &Pacing::new(links, block_bytes))
    }
}
