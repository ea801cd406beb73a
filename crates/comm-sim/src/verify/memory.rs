//! The arrays of one rank, which hold symbols.

use comm_core::{Blocks, Place, Step};

use super::tree::{finished, leaf, node};
use super::{Contributors, Fault, InitialContent, Program, StepLocation};

/// The value of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Value {
    /// The block.
    pub block: usize,
    /// The ranks whose contributions are in it.
    pub contributors: Contributors,
    /// Whether its reduction is finished.
    pub finished: bool,
    /// A hash of the tree of combinations that produced it. It does not depend on the order of two
    /// operands, because every operator commutes bit for bit.
    pub tree: u64,
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let finished = if self.finished { ", finished" } else { "" };
        write!(f, "block {} of {}{finished}", self.block, self.contributors)
    }
}

/// The memory of one block.
#[derive(Debug)]
struct Cell {
    content: Content,
    /// In scratch, the range in which the value was written.
    packed: Packed,
    /// The length of the chain of messages before the last write.
    written: u32,
    /// The length of the chain of messages before the latest read.
    read: u32,
}

#[derive(Debug)]
enum Content {
    Absent,
    Empty,
    Value(Value),
}

/// A range of blocks as it was written to scratch. Its blocks are contiguous, so all but the first
/// start somewhere within slots, and can be found only relative to the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Packed {
    first_cell: usize,
    first_block: usize,
    count: usize,
}

/// Input, output and scratch of one rank.
#[derive(Debug)]
pub(super) struct Memory {
    cells: Vec<Cell>,
    blocks: usize,
    slots: usize,
    /// Whether a contribution must not be counted twice.
    counts: bool,
    /// Whether ranges in scratch are packed, instead of stored slot by slot.
    packs: bool,
}

impl Memory {
    pub(super) fn new(program: &Program<'_>, rank: usize) -> Self {
        let spec = &program.spec;
        let own = Contributors::one(rank, spec.ranks);
        let cell = |place: Place, block: usize| {
            let content = match spec.initial(rank, place, block) {
                InitialContent::Absent => Content::Absent,
                InitialContent::Empty => Content::Empty,
                InitialContent::Contribution => Content::Value(Value {
                    block,
                    contributors: own.clone(),
                    finished: false,
                    tree: leaf(block, rank),
                }),
            };
            Cell { content, packed: Packed::default(), written: 0, read: 0 }
        };
        let input = (0..spec.blocks).map(|block| cell(Place::Input, block));
        let output = (0..spec.blocks).map(|block| cell(Place::Output, block));
        let scratch = (0..program.scratch_slots).map(|slot| cell(Place::Scratch { slot }, 0));
        let cells = input.chain(output).chain(scratch).collect();
        let (counts, packs) = (spec.counts(), !spec.equal);
        Self { cells, blocks: spec.blocks, slots: program.scratch_slots, counts, packs }
    }

    /// Returns whether the blocks exist in `place`.
    pub(super) fn in_range(&self, place: Place, blocks: Blocks) -> bool {
        let end = |first: usize| first.checked_add(blocks.count);
        let fits = |first, len| end(first).is_some_and(|end| end <= len);
        fits(blocks.first, self.blocks)
            && match place {
                Place::Input | Place::Output => true,
                Place::Scratch { slot } => fits(slot, self.slots),
            }
    }

    fn cell(&self, place: Place, blocks: Blocks, at: usize) -> usize {
        at + match place {
            Place::Input => blocks.first,
            Place::Output => self.blocks + blocks.first,
            Place::Scratch { slot } => 2 * self.blocks + slot,
        }
    }

    const fn is_packed(&self, place: Place) -> bool {
        self.packs && matches!(place, Place::Scratch { .. })
    }

    /// Appends the values of a step's blocks at `place` to `into`.
    pub(super) fn read(&self, at: StepLocation, place: Place, into: &mut Vec<Value>) -> Result<(), Fault> {
        let blocks = at.step.blocks;
        self.check_packed(at, place)?;
        for (offset, block) in (blocks.first..blocks.end()).enumerate() {
            into.push(self.value(at, self.cell(place, blocks, offset), block)?.clone());
        }
        Ok(())
    }

    /// Checks that the step's blocks at `place` are read as they were written, if they are in
    /// scratch.
    fn check_packed(&self, at: StepLocation, place: Place) -> Result<(), Fault> {
        let blocks = at.step.blocks;
        let first = self.cell(place, blocks, 0);
        let here = |packed: Packed| packed.first_cell == first && packed.first_block == blocks.first;
        let cells = if self.is_packed(place) { self.range(place, blocks) } else { &[] };
        let astray = cells.iter().zip(blocks.first..).position(|(cell, block)| {
            matches!(&cell.content, Content::Value(value) if value.block == block) && !here(cell.packed)
        });
        astray.map_or(Ok(()), |offset| Err(Fault::Packing { at, block: blocks.first + offset }))
    }

    /// Removes the ranges in scratch that a write to these blocks overwrites, and adds the new one.
    fn pack(&mut self, place: Place, blocks: Blocks) {
        let first = self.cell(place, blocks, 0);
        for cell in first..first + blocks.count {
            if matches!(self.cells[cell].content, Content::Value(_)) {
                let Packed { first_cell, count, .. } = self.cells[cell].packed;
                self.cells[first_cell..first_cell + count]
                    .iter_mut()
                    .for_each(|cell| cell.content = Content::Empty);
            }
            self.cells[cell].packed =
                Packed { first_cell: first, first_block: blocks.first, count: blocks.count };
        }
    }

    fn value(&self, at: StepLocation, cell: usize, block: usize) -> Result<&Value, Fault> {
        match &self.cells[cell].content {
            Content::Absent => Err(Fault::Absent { at, block }),
            Content::Empty => Err(Fault::Uninitialised { at, block }),
            Content::Value(value) if value.block != block => {
                Err(Fault::WrongBlock { at, block, found: value.block })
            }
            Content::Value(value) => Ok(value),
        }
    }

    /// Stores values in a step's blocks.
    pub(super) fn write(&mut self, at: StepLocation, values: &mut Vec<Value>) -> Result<(), Fault> {
        let Step { blocks, place, .. } = at.step;
        // Blocks that a step updates in place stay part of their range.
        if self.is_packed(place) && !at.step.is_in_place() {
            self.pack(place, blocks);
        }
        for (offset, value) in values.drain(..).enumerate() {
            let cell = self.cell(place, blocks, offset);
            let content = &mut self.cells[cell].content;
            if matches!(content, Content::Absent) {
                return Err(Fault::Absent { at, block: value.block });
            }
            *content = Content::Value(value);
        }
        Ok(())
    }

    /// Combines values with a step's blocks at `addend`.
    pub(super) fn combine(&self, at: StepLocation, addend: Place, values: &mut [Value]) -> Result<(), Fault> {
        self.check_packed(at, addend)?;
        for (offset, theirs) in values.iter_mut().enumerate() {
            let block = theirs.block;
            let ours = self.value(at, self.cell(addend, at.step.blocks, offset), block)?;
            if ours.finished || theirs.finished {
                return Err(Fault::Finished { at, block });
            }
            if self.counts && !ours.contributors.is_disjoint(&theirs.contributors) {
                let ours = Box::new(ours.contributors.clone());
                let theirs = Box::new(theirs.contributors.clone());
                return Err(Fault::CountedTwice { at, block, ours, theirs });
            }
            theirs.contributors = ours.contributors.union(&theirs.contributors);
            theirs.tree = node(ours.tree, theirs.tree);
        }
        Ok(())
    }

    /// Finishes a step's blocks.
    pub(super) fn finish(&mut self, at: StepLocation) -> Result<(), Fault> {
        let Step { blocks, place, .. } = at.step;
        self.check_packed(at, place)?;
        for (offset, block) in (blocks.first..blocks.end()).enumerate() {
            let cell = self.cell(place, blocks, offset);
            let value = self.value(at, cell, block)?;
            if value.finished {
                return Err(Fault::Finished { at, block });
            }
            let ended = Value { finished: true, tree: finished(value.tree), ..value.clone() };
            self.cells[cell].content = Content::Value(ended);
        }
        Ok(())
    }

    /// Returns the length of the chain of messages that a read of these blocks waits for.
    pub(super) fn depth_to_read(&self, place: Place, blocks: Blocks) -> u32 {
        self.range(place, blocks).iter().map(|cell| cell.written).max().unwrap_or(0)
    }

    /// Returns the length of the chain of messages that a write to these blocks waits for.
    pub(super) fn depth_to_write(&self, place: Place, blocks: Blocks) -> u32 {
        self.range(place, blocks).iter().map(|cell| cell.written.max(cell.read)).max().unwrap_or(0)
    }

    /// Records that the blocks were read, or written, at the end of a chain of `depth` messages.
    pub(super) fn reached(&mut self, place: Place, blocks: Blocks, depth: u32, writes: bool) {
        let first = self.cell(place, blocks, 0);
        for cell in &mut self.cells[first..first + blocks.count] {
            let reached = if writes { &mut cell.written } else { &mut cell.read };
            *reached = depth.max(*reached);
        }
    }

    fn range(&self, place: Place, blocks: Blocks) -> &[Cell] {
        let first = self.cell(place, blocks, 0);
        &self.cells[first..first + blocks.count]
    }

    /// Returns the value of a block of the output.
    pub(super) fn output(&self, block: usize) -> Option<&Value> {
        match &self.cells[self.blocks + block].content {
            Content::Value(value) => Some(value),
            Content::Absent | Content::Empty => None,
        }
    }
}
