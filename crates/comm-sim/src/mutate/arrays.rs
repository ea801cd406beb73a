//! The arrays of one rank, which hold numbers.

use comm_core::{Blocks, Layout, Partition, Place};

use super::InterpretError;
use crate::random::{Random, mix};
use crate::verify::{InitialContent, Required, Spec, Tree};

/// An element, which is combined with two operators at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    /// Combined with an associative operator, so that the correct result is known.
    sum: u64,
    /// Combined with an operator that commutes but is not associative, like addition of floats, so
    /// that the result depends on the order.
    order: u64,
}

impl Number {
    /// Returns a rank's contribution to an element.
    fn contribution(rank: usize, element: usize, seed: u64) -> Self {
        let mut random = Random::new(seed, (rank as u64) << 32 | element as u64);
        Self { sum: random.next(), order: random.next() }
    }

    fn combine(self, other: Self) -> Self {
        let order = mix(self.order).wrapping_add(mix(other.order));
        Self { sum: self.sum.wrapping_add(other.sum), order }
    }

    /// Returns the number after the end of a reduction: an operation whose result shows if it is
    /// applied twice, or to a partial result.
    fn finish(self) -> Self {
        Self { sum: mix(self.sum.wrapping_add(1)), order: mix(self.order.wrapping_add(1)) }
    }
}

/// The arrays of a rank.
#[derive(Debug)]
pub(super) struct Arrays<'a> {
    spec: &'a Spec,
    layout: &'a Layout,
    rank: usize,
    input: Vec<Number>,
    output: Vec<Number>,
    scratch: Vec<Number>,
}

/// Returns the layout of a program, in which some blocks are larger than others unless the program
/// requires equal ones.
pub(super) fn layout(spec: &Spec) -> Layout {
    let uniform = Layout::uniform(&Partition::even(elements(spec), spec.blocks));
    Layout { gapless: spec.equal, ..uniform }
}

const fn elements(spec: &Spec) -> usize {
    if spec.equal { 2 * spec.blocks } else { spec.blocks + spec.blocks / 2 + 1 }
}

impl<'a> Arrays<'a> {
    pub(super) fn new(spec: &'a Spec, layout: &'a Layout, slots: usize, rank: usize, seed: u64) -> Self {
        // Everything except the rank's contribution is garbage.
        let garbage = |place: u64, count: usize| -> Vec<Number> {
            (0..count)
                .map(|at| Number::contribution(usize::MAX >> 33, at, seed ^ mix(place + rank as u64)))
                .collect()
        };
        let mut arrays = Self {
            spec,
            layout,
            rank,
            input: garbage(1000, elements(spec)),
            output: garbage(2000, elements(spec)),
            scratch: garbage(3000, slots * layout.slot_bytes()),
        };
        for block in 0..spec.blocks {
            let range = layout.output.bytes(Blocks::one(block)).unwrap_or(0..0);
            for (place, array) in [(Place::Input, &mut arrays.input), (Place::Output, &mut arrays.output)] {
                if spec.initial(rank, place, block) == InitialContent::Contribution {
                    for element in range.clone() {
                        array[element] = Number::contribution(rank, element, seed);
                    }
                }
            }
        }
        arrays
    }

    /// Returns the numbers of blocks.
    pub(super) fn read(&self, place: Place, blocks: Blocks) -> Result<Vec<Number>, InterpretError> {
        let array = match place {
            Place::Input => &self.input,
            Place::Output => &self.output,
            Place::Scratch { .. } => &self.scratch,
        };
        let range = self.locate(place, blocks)?;
        array.get(range).map(<[Number]>::to_vec).ok_or(InterpretError::Outside { rank: self.rank })
    }

    /// Changes the numbers of blocks one by one.
    pub(super) fn update(
        &mut self,
        place: Place,
        blocks: Blocks,
        change: impl Fn(Number, usize) -> Number,
    ) -> Result<(), InterpretError> {
        let range = self.locate(place, blocks)?;
        let outside = InterpretError::Outside { rank: self.rank };
        let array = match place {
            Place::Input => return Err(InterpretError::WritesInput { rank: self.rank }),
            Place::Output => &mut self.output,
            Place::Scratch { .. } => &mut self.scratch,
        };
        let numbers = array.get_mut(range).ok_or(outside)?;
        for (at, number) in numbers.iter_mut().enumerate() {
            *number = change(*number, at);
        }
        Ok(())
    }

    /// Stores numbers in blocks, combined with the numbers of the same blocks at `addend` if one is
    /// given.
    pub(super) fn accept(
        &mut self,
        place: Place,
        addend: Option<Place>,
        blocks: Blocks,
        numbers: &[Number],
    ) -> Result<(), InterpretError> {
        if self.layout.output.size(blocks) != Some(numbers.len()) {
            return Err(InterpretError::Length { rank: self.rank });
        }
        let addend = addend.map(|addend| self.read(addend, blocks)).transpose()?;
        self.update(place, blocks, |_, at| match &addend {
            Some(addend) => addend[at].combine(numbers[at]),
            None => numbers[at],
        })
    }

    pub(super) fn finish(&mut self, place: Place, blocks: Blocks) -> Result<(), InterpretError> {
        self.update(place, blocks, |number, _| number.finish())
    }

    /// Returns the range of blocks, if the array holds them.
    fn locate(&self, place: Place, blocks: Blocks) -> Result<std::ops::Range<usize>, InterpretError> {
        let outside = InterpretError::Outside { rank: self.rank };
        let absent = |block| self.spec.initial(self.rank, place, block) == InitialContent::Absent;
        if blocks.end() > self.spec.blocks || (blocks.first..blocks.end()).any(absent) {
            return Err(outside);
        }
        self.layout.bytes(place, blocks).ok_or(outside)
    }

    /// Compares the output with the required values, and returns the part whose values are
    /// specified.
    pub(super) fn check(&self, tree: Option<Tree<'_>>, seed: u64) -> Result<Vec<Number>, InterpretError> {
        let mut results = Vec::new();
        for block in 0..self.spec.blocks {
            let range = self.layout.output.bytes(Blocks::one(block)).unwrap_or(0..0);
            let right = match self.spec.required(self.rank, block) {
                Required::Nothing => continue,
                Required::Of(rank) => {
                    range.clone().all(|at| self.output[at] == Number::contribution(rank, at, seed))
                }
                Required::Reduced => range.clone().all(|at| self.is_reduced(at, tree, seed)),
                Required::First(ranks) => {
                    range.clone().all(|at| Some(self.output[at].sum) == sum_of(ranks, at, seed))
                }
            };
            if !right {
                return Err(InterpretError::Result { rank: self.rank, block });
            }
            results.extend_from_slice(&self.output[range]);
        }
        Ok(results)
    }

    fn is_reduced(&self, at: usize, tree: Option<Tree<'_>>, seed: u64) -> bool {
        let contributions = || (0..self.spec.ranks).map(|rank| Number::contribution(rank, at, seed));
        let reduced = match tree {
            Some(tree) => tree.fold(contributions(), Number::combine),
            None => contributions().reduce(Number::combine),
        };
        let right = |right: Number| {
            let found = self.output[at];
            found.sum == right.sum && (tree.is_none() || found.order == right.order)
        };
        reduced.is_some_and(|reduced| right(reduced.finish()) || self.spec.ranks == 1 && right(reduced))
    }
}

/// Returns the sum of the contributions of the first ranks to an element.
fn sum_of(ranks: usize, at: usize, seed: u64) -> Option<u64> {
    let contributions = (0..ranks).map(|rank| Number::contribution(rank, at, seed));
    contributions.reduce(Number::combine).map(|number| number.sum)
}
