//! The calls to measure. All ranks make the same plan.

use comm::ring::choose::{CallShape, Selection, choose};
use comm::ring::{RingConfig, Tuning};
use comm::{Collective, DType, ReduceOp};

use super::args::{CallArgs, Sizes};
use super::row::BenchmarkInfo;
use crate::collective::{has_data, has_root, is_prefix, reduces};
use crate::error::{CliError, Result};

/// The sizes of one benchmark in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SizeRange {
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) factor: usize,
}

impl SizeRange {
    pub(crate) const TABLE: Self = Self { min: 4, max: 256 << 20, factor: 4 };
    pub(crate) const GRID: Self = Self { min: 4, max: 16 << 20, factor: 8 };

    /// Returns the sizes of the command line, with `self` as the default.
    pub(crate) fn or(self, sizes: &Sizes) -> Result<Self> {
        let given = Self {
            min: sizes.min.unwrap_or(self.min.min(sizes.max.unwrap_or(self.min))),
            max: sizes.max.unwrap_or(self.max.max(sizes.min.unwrap_or(self.max))),
            factor: sizes.factor.map_or(self.factor, |factor| factor as usize),
        };
        if given.min > given.max {
            return Err(CliError::usage(format!("--min {} is larger than --max {}", given.min, given.max)));
        }
        Ok(given)
    }

    pub(crate) fn sizes(self) -> impl Iterator<Item = usize> {
        let next = move |size: &usize| size.checked_mul(self.factor).filter(|next| *next <= self.max);
        std::iter::successors(Some(self.min), next)
    }
}

/// The buffers that hold the contribution and the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One buffer holds both.
    InPlace,
    OutOfPlace,
}

impl Layout {
    /// Returns the layouts that a collective supports, its default first.
    pub(crate) const fn of(collective: Collective) -> &'static [Self] {
        match collective {
            Collective::Broadcast | Collective::Barrier => &[Self::InPlace],
            Collective::Gather | Collective::Scatter => &[Self::OutOfPlace],
            blocks if blocks.has_blocks() => &[Self::OutOfPlace, Self::InPlace],
            _ => &[Self::InPlace, Self::OutOfPlace],
        }
    }

    fn choose(collective: Collective, wanted: Option<Self>) -> Result<Self> {
        let layouts = Self::of(collective);
        match wanted {
            Some(layout) if !layouts.contains(&layout) => {
                let flag = if layout == Self::InPlace { "--in-place" } else { "--out-of-place" };
                Err(CliError::usage(format!("{flag}: there is no such {collective}")))
            }
            wanted => Ok(wanted.unwrap_or(layouts[0])),
        }
    }
}

/// Calls of one collective at several sizes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) collective: Collective,
    pub(crate) ranks: usize,
    pub(crate) dtype: DType,
    /// `None` unless the collective reduces.
    pub(crate) op: Option<ReduceOp>,
    /// 0 unless the collective has a root.
    pub(crate) root: usize,
    pub(crate) layout: Layout,
    pub(crate) algorithm: Option<String>,
    /// Whether the communicator allocates the buffers.
    pub(crate) alloc: bool,
    /// The least size in bytes of all copies of a buffer together; calls use one after the other. 0
    /// if all calls use the same buffers.
    pub(crate) rotated_bytes: usize,
    /// Sizes in bytes, in ascending order.
    pub(crate) sizes: Vec<usize>,
}

impl Plan {
    /// The largest number of copies of a buffer.
    const COPIES_MAX: usize = 1024;

    /// Returns the number of copies of buffers for calls of this size.
    pub(crate) fn copies(&self, bytes: usize) -> usize {
        self.rotated_bytes.div_ceil(bytes.max(1)).clamp(1, Self::COPIES_MAX)
    }

    pub(crate) fn new(
        collective: Collective,
        ranks: usize,
        call: &CallArgs,
        range: SizeRange,
    ) -> Result<Self> {
        let unused = |flag: &str, why: &str| Err(CliError::usage(format!("{flag}: {collective} {why}")));
        if call.op.is_some() && !reduces(collective) {
            return unused("--op", "reduces nothing");
        }
        if call.root.is_some() && !has_root(collective) {
            return unused("--root", "has no root");
        }
        if call.check && !has_data(collective) {
            return unused("--check", "moves no data");
        }
        let root = call.root.unwrap_or(0);
        if root >= ranks {
            return Err(CliError::usage(format!("--root {root}: there are {ranks} ranks, numbered from 0")));
        }
        let op = reduces(collective).then(|| call.op.unwrap_or(ReduceOp::Sum));
        if let Some(op) = op {
            op.check(call.dtype).map_err(comm::Error::from)?;
            if is_prefix(collective) && op == ReduceOp::Avg {
                return unused("--op avg", "has no average");
            }
        }
        let mut plan = Self {
            collective,
            ranks,
            dtype: call.dtype,
            op,
            root,
            layout: Layout::choose(collective, call.layout())?,
            algorithm: call.algorithm.clone(),
            alloc: call.alloc,
            rotated_bytes: call.rotate.unwrap_or(0),
            sizes: Vec::new(),
        };
        plan.sizes = range.sizes().map(|size| plan.round(size)).collect();
        plan.sizes.dedup();
        // This returns an error for an unknown algorithm. The links do not matter.
        let nothing = comm::Link { latency: 0.0, overhead: 0.0, per_byte: 0.0 };
        plan.select(0, &RingConfig::default().tuning(comm::LinkModel::uniform(nothing, 0.0)))?;
        Ok(plan)
    }

    /// Rounds a size down to whole elements per block, but at least one.
    fn round(&self, size: usize) -> usize {
        if !has_data(self.collective) {
            return 0;
        }
        let blocks = if self.collective.has_blocks() { self.ranks } else { 1 };
        let unit = blocks * self.dtype.size();
        (size / unit).max(1) * unit
    }

    pub(crate) fn info(&self) -> BenchmarkInfo {
        let has_data = has_data(self.collective);
        BenchmarkInfo {
            name: self.collective.name(),
            ranks: self.ranks,
            dtype: has_data.then_some(self.dtype),
            op: self.op,
            root: has_root(self.collective).then_some(self.root),
            alloc: self.alloc,
            layout: match self.layout {
                _ if !has_data => "",
                Layout::InPlace => ", in place",
                Layout::OutOfPlace => ", out of place",
            },
            bus_factor: self.collective.bus_factor(self.ranks),
        }
    }

    pub(crate) const fn count(&self, bytes: usize) -> usize {
        bytes / self.dtype.size()
    }

    pub(crate) const fn shape(&self, bytes: usize) -> CallShape {
        let shape = CallShape::new(self.collective).ranks(self.ranks).bytes(bytes);
        // Two ranks learn it from the calls before.
        shape.windows(self.alloc && shape.learns_windows())
    }

    /// Selects the algorithm of a call of this size.
    pub(crate) fn select(&self, bytes: usize, tuning: &Tuning) -> Result<Selection> {
        Ok(choose(&self.shape(bytes), self.algorithm.as_deref(), tuning)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    use super::super::args::{Benchmark, Perf};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        perf: Perf,
    }

    fn plan(line: &str, ranks: usize) -> Result<Plan> {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        let perf = Line::try_parse_from(words).unwrap().perf;
        let Some(Benchmark::Collective(collective)) = perf.benchmark else { panic!("{line}") };
        Plan::new(collective, ranks, &perf.call, SizeRange::TABLE.or(&perf.sizes)?)
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
    fn arguments_that_contradict_the_collective_are_errors() {
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
