//! What is measured, decided before anything is started: the same on every rank.

use comm::ring::choose::{CallShape, Selection, choose};
use comm::ring::{RingConfig, Tuning};
use comm::{DType, ReduceOp};

use super::args::{Call, Sizes};
use super::error::{PerfError, Result};
use super::label::Label;
use super::operation::{Operation, Place};

/// The defaults of the sizes of one kind of measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) factor: usize,
}

impl Range {
    pub(crate) const TABLE: Self = Self { min: 4, max: 256 << 20, factor: 4 };
    pub(crate) const GRID: Self = Self { min: 4, max: 16 << 20, factor: 8 };

    /// What the command line says, and this where it says nothing.
    pub(crate) fn or(self, sizes: &Sizes) -> Result<Self> {
        let given = Self {
            min: sizes.min.unwrap_or(self.min.min(sizes.max.unwrap_or(self.min))),
            max: sizes.max.unwrap_or(self.max.max(sizes.min.unwrap_or(self.max))),
            factor: sizes.factor.map_or(self.factor, |factor| factor as usize),
        };
        if given.min > given.max {
            return Err(PerfError::usage(format!("--min {} is larger than --max {}", given.min, given.max)));
        }
        Ok(given)
    }

    pub(crate) fn sizes(self) -> impl Iterator<Item = usize> {
        let next = move |size: &usize| size.checked_mul(self.factor).filter(|next| *next <= self.max);
        std::iter::successors(Some(self.min), next)
    }
}

/// The calls that are measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) operation: Operation,
    pub(crate) ranks: usize,
    pub(crate) dtype: DType,
    /// Nothing unless the operation reduces.
    pub(crate) op: Option<ReduceOp>,
    /// 0 unless the operation is rooted.
    pub(crate) root: usize,
    pub(crate) place: Place,
    pub(crate) algorithm: Option<String>,
    /// Whether the communicator allocates the buffers.
    pub(crate) alloc: bool,
    /// In bytes, each larger than the one before.
    pub(crate) sizes: Vec<usize>,
}

impl Plan {
    /// The plan of a command line.
    pub(crate) fn new(operation: Operation, ranks: usize, call: &Call, range: Range) -> Result<Self> {
        let facts = operation.facts();
        let unused =
            |flag: &str, why: &str| Err(PerfError::usage(format!("{flag}: {} {why}", operation.name())));
        if call.op.is_some() && !facts.reduces {
            return unused("--op", "reduces nothing");
        }
        if call.root.is_some() && !facts.rooted {
            return unused("--root", "has no root");
        }
        if call.check && !operation.has_data() {
            return unused("--check", "moves no data");
        }
        let root = call.root.unwrap_or(0);
        if root >= ranks {
            return Err(PerfError::usage(format!("--root {root}: there are {ranks} ranks, from 0 on")));
        }
        let op = facts.reduces.then(|| call.op.unwrap_or(ReduceOp::Sum));
        if let Some(op) = op {
            op.check(call.dtype).map_err(comm::Error::from)?;
            if operation.is_prefix() && op == ReduceOp::Avg {
                return unused("--op avg", "has no average");
            }
        }
        let mut plan = Self {
            operation,
            ranks,
            dtype: call.dtype,
            op,
            root,
            place: operation.place(call.place())?,
            algorithm: call.algorithm.clone(),
            alloc: call.alloc,
            sizes: Vec::new(),
        };
        plan.sizes = range.sizes().map(|size| plan.whole(size)).collect();
        plan.sizes.dedup();
        // An algorithm that does not exist is found out here, whatever the links.
        let nothing = comm::Link { latency: 0.0, overhead: 0.0, per_byte: 0.0 };
        plan.choice(0, &RingConfig::default().tuning(comm::LinkModel::uniform(nothing, 0.0)))?;
        Ok(plan)
    }

    /// A size rounded down to whole elements, the same for every rank where each has a block; but
    /// one at least.
    fn whole(&self, size: usize) -> usize {
        if !self.operation.has_data() {
            return 0;
        }
        let blocks = if self.operation.facts().divided { self.ranks } else { 1 };
        let unit = blocks * self.dtype.size();
        (size / unit).max(1) * unit
    }

    /// What is said of it.
    pub(crate) fn label(&self) -> Label {
        let facts = self.operation.facts();
        Label {
            name: self.operation.name(),
            ranks: self.ranks,
            dtype: self.operation.has_data().then_some(self.dtype),
            op: self.op,
            root: facts.rooted.then_some(self.root),
            alloc: self.alloc,
            place: match self.place {
                _ if !self.operation.has_data() => "",
                Place::In => ", in place",
                Place::Out => ", out of place",
            },
            bus_factor: self.operation.bus_factor(self.ranks),
        }
    }

    /// How many elements a size has.
    pub(crate) const fn count(&self, bytes: usize) -> usize {
        bytes / self.dtype.size()
    }

    /// What the algorithm is chosen by.
    pub(crate) const fn question(&self, bytes: usize) -> CallShape {
        let collective = self.operation.facts().collective;
        CallShape::new(collective).ranks(self.ranks).bytes(bytes)
    }

    /// How a call of this size is carried out.
    pub(crate) fn choice(&self, bytes: usize, tuning: &Tuning) -> Result<Selection> {
        Ok(choose(&self.question(bytes), self.algorithm.as_deref(), tuning)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    use super::super::args::{Perf, Subject};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        perf: Perf,
    }

    fn plan(line: &str, ranks: usize) -> Result<Plan> {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        let perf = Line::try_parse_from(words).unwrap().perf;
        let Some(Subject::Collective(operation)) = perf.operation else { panic!("{line}") };
        Plan::new(operation, ranks, &perf.call, Range::TABLE.or(&perf.sizes)?)
    }

    #[test]
    fn sizes_grow_by_the_factor_up_to_the_largest() {
        assert_eq!(plan("all_reduce --max 256", 4).unwrap().sizes, [4, 16, 64, 256]);
        assert_eq!(plan("all_reduce --min 8 --max 100 --factor 2", 4).unwrap().sizes, [8, 16, 32, 64]);
        assert_eq!(plan("all_reduce", 4).unwrap().sizes.last(), Some(&(256 << 20)));
        assert_eq!(plan("all_reduce --min 512M", 4).unwrap().sizes, [512 << 20]);
        assert_eq!(plan("all_reduce --max 2", 4).unwrap().sizes, [4]);
    }

    #[test]
    fn sizes_hold_whole_elements_in_whole_blocks() {
        assert_eq!(plan("all_gather --max 256", 3).unwrap().sizes, [12, 60, 252]);
        assert_eq!(plan("all_reduce --max 64 --dtype f64", 3).unwrap().sizes, [8, 16, 64]);
        assert_eq!(plan("barrier", 3).unwrap().sizes, [0]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |line: &str, reason: &str| {
            let error = plan(line, 3).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(error.exit_code(), 2);
        };
        refused("all_reduce --min 8 --max 4", "--min 8");
        refused("broadcast --root 3", "--root 3");
        refused("all_reduce --root 1", "no root");
        refused("broadcast --op sum", "reduces nothing");
        refused("barrier --check", "moves no data");
        refused("all_reduce --op band", "f32");
        refused("all_reduce --algorithm magic", "recursive_doubling");
        refused("scan --op avg", "has no average");
        refused("gather --in-place", "--in-place");
    }
}
