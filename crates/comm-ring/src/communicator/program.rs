//! Compiled schedules, cached for calls with the same signature.

use std::ops::Range;

use comm_core::{Blocks, Collective, Group, Layout, Place, ReduceOp, RegistrationSizes, Result, Signature};

use super::checked_call::CheckedCall;
use super::registration;
use crate::Tuning;
use crate::choose::{self, CallShape, Selection};
use crate::executor::{JobReduction, LoweredStep, lower, mark_only_reduced};
use crate::schedule::{Algorithm, Params};

/// The largest number of cached programs: enough for the buckets of a training step or the sizes of
/// a benchmark.
const KEPT_MAX: usize = 32;
/// The largest number of steps of all cached programs together. Longer schedules are iterated
/// lazily.
const STEPS_MAX: usize = 16 << 10;

/// Everything about a call except its buffers and its number.
#[derive(Debug)]
pub(super) struct Program {
    /// The calls that it serves; `None` if its counts restrict it to one call.
    key: Option<Key>,
    /// The number of the last use.
    last_use: u64,
    algorithm: &'static Algorithm,
    params: Params,
    layout: Layout,
    /// The steps, unless they are too many to cache.
    steps: Option<Box<[LoweredStep]>>,
    pub(super) reduction: Option<JobReduction>,
    pub(super) scratch_bytes: usize,
    /// Whether receivers may read the sent data in place.
    pub(super) registers: bool,
    /// Whether the input is to be copied into the output first.
    pub(super) starts_with_copy: bool,
    pub(super) signature: Signature,
    pub(super) fingerprint: u64,
}

/// The calls that a program serves.
#[derive(Debug, Clone)]
struct Key {
    signature: Signature,
    buffers: Buffers,
}

/// The properties of a call's buffers on which schedules depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Buffers {
    /// Whether the output holds this rank's contribution. Otherwise the input does.
    pub(super) in_place: bool,
    /// Whether other ranks can read the contribution where it is.
    pub(super) exposed: bool,
    /// Whether all ranks know that others can write results into the buffers of all of them.
    pub(super) all_have_windows: bool,
}

impl Key {
    /// Ranks compare user-defined operators by name, but a cached program must have the same
    /// function.
    #[inline]
    fn matches(&self, signature: &Signature, buffers: Buffers) -> bool {
        self.buffers == buffers
            && self.signature == *signature
            && match (self.signature.op, signature.op) {
                (Some(ReduceOp::User(kept)), Some(ReduceOp::User(operator))) => kept == operator,
                _ => true,
            }
    }
}

impl Program {
    /// Returns the steps, one by one.
    pub(super) fn steps(&self) -> Box<dyn Iterator<Item = LoweredStep> + Send + '_> {
        Box::new(lower(
            (self.algorithm.steps)(&self.params),
            &self.layout,
            self.reduction.as_ref().map(JobReduction::plain),
        ))
    }

    /// Returns whether several ranks read its temporary memory.
    #[inline]
    pub(super) const fn is_staged(&self) -> bool {
        self.algorithm.traits.staged
    }

    /// Returns whether data that are received or copied into the output are not read again.
    #[inline]
    pub(super) const fn has_final_receives(&self) -> bool {
        self.params.ranks <= self.algorithm.traits.final_ranks_max
    }

    /// Returns the part of the output that this rank may put into the windows of others, if it is
    /// exposed; and so has a window of its own.
    #[inline]
    pub(super) fn results(&self) -> Option<Range<usize>> {
        let Params { rank, segments, exposed, .. } = self.params;
        if !exposed || !self.algorithm.traits.puts_results {
            return None;
        }
        self.layout.bytes(Place::Output, Blocks { first: rank * segments, count: segments })
    }

    /// Returns the steps, if they are cached.
    #[inline]
    pub(super) fn kept(&self) -> Option<&[LoweredStep]> {
        self.steps.as_deref()
    }

    fn kept_steps(&self) -> usize {
        self.kept().map_or(0, <[_]>::len)
    }

    /// Caches the steps if there are at most `at_most`. Returns the number of cached steps.
    fn keep(&mut self, at_most: usize) -> usize {
        let mut steps: Vec<LoweredStep> = self.steps().take(at_most + 1).collect();
        if steps.len() > at_most {
            return 0;
        }
        mark_only_reduced(&mut steps);
        self.steps.insert(steps.into()).len()
    }
}

/// The programs of the last calls.
#[derive(Debug)]
pub(super) struct Programs {
    group: Group,
    tuning: Tuning,
    registration_sizes: RegistrationSizes,
    kept: Vec<Program>,
    /// The index of the program that was used last, and the number of the call.
    last: (usize, u64),
    /// The number of calls that have used cached programs.
    uses: u64,
    /// The program of the last call with counts per rank, which serves only that call.
    single: Option<Program>,
    /// The last selection of an algorithm for calls whose programs are not cached.
    chosen: Option<Chosen>,
}

/// A call and the algorithm that was selected for it.
#[derive(Debug)]
struct Chosen {
    shape: CallShape,
    forced: Option<String>,
    selection: Selection,
}

impl Programs {
    pub(super) fn new(group: Group, tuning: Tuning, registration_sizes: RegistrationSizes) -> Self {
        let (kept, last, uses, single, chosen) = (Vec::new(), (0, 0), 0, None, None);
        Self { group, tuning, registration_sizes, kept, last, uses, single, chosen }
    }

    /// Returns the settings by which algorithms are selected.
    #[inline]
    pub(super) const fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Returns the program for a call, from the cache if possible.
    #[inline]
    pub(super) fn get(&mut self, call: &CheckedCall<'_>, buffers: Buffers) -> Result<&Program> {
        if !call.has_equal_blocks() {
            let program = self.compile(call, buffers)?;
            return Ok(self.single.insert(program));
        }
        let at = match self.position(call, buffers) {
            Some(at) => at,
            None => self.insert(call, buffers)?,
        };
        (self.last, self.uses) = ((at, call.number), self.uses + 1);
        let program = &mut self.kept[at];
        program.last_use = self.uses;
        Ok(program)
    }

    /// Returns the index of the cached program for a call. Calls repeat, so the last one is tried
    /// first.
    #[inline]
    fn position(&self, call: &CheckedCall<'_>, buffers: Buffers) -> Option<usize> {
        let (last, number) = self.last;
        let of_last = self.kept.get(last).and_then(|program| program.key.as_ref());
        if call.number == number && number != 0 && of_last.is_some_and(|key| key.buffers == buffers) {
            return Some(last);
        }
        let serves =
            |program: &Program| program.key.as_ref().is_some_and(|key| key.matches(call.signature, buffers));
        self.kept.iter().position(serves)
    }

    /// Compiles and caches a program, and evicts the least recently used ones if necessary.
    #[cold]
    fn insert(&mut self, call: &CheckedCall<'_>, buffers: Buffers) -> Result<usize> {
        let mut program = self.compile(call, buffers)?;
        program.key = Some(Key { signature: call.signature.clone(), buffers });
        let added = program.keep(STEPS_MAX);
        let steps = |kept: &[Program]| kept.iter().map(Program::kept_steps).sum::<usize>();
        while self.kept.len() >= KEPT_MAX || steps(&self.kept) + added > STEPS_MAX {
            let uses = self.kept.iter().enumerate().map(|(at, program)| (program.last_use, at));
            let Some((_, oldest)) = uses.min() else { break };
            self.kept.swap_remove(oldest);
        }
        self.kept.push(program);
        Ok(self.kept.len() - 1)
    }

    #[cold]
    fn compile(&mut self, call: &CheckedCall<'_>, buffers: Buffers) -> Result<Program> {
        let shape = call.shape(self.group).windows(buffers.all_have_windows);
        let selection = self.choose(&shape, call.forced())?;
        let algorithm = selection.algorithm;
        let starts_with_copy = !buffers.in_place
            && shape.collective.base() == Collective::AllReduce
            && !algorithm.traits.reads_input;
        let params = Params {
            rank: self.group.rank(),
            root: call.signature.root.unwrap_or(0),
            in_place: buffers.in_place || starts_with_copy,
            exposed: buffers.exposed,
            ..choose::params(&shape, selection.segments, &self.tuning)
        };
        let layout = call.layout(self.group, algorithm, &params);
        let signature = call.signature.clone().by(algorithm.name);
        Ok(Program {
            key: None,
            last_use: 0,
            algorithm,
            params,
            steps: None,
            reduction: call.reduction()?.map(|reduction| JobReduction::new(reduction, self.group.size())),
            scratch_bytes: (algorithm.slots)(&params) * layout.slot_bytes(),
            registers: registration::should_register(&shape, &self.registration_sizes),
            starts_with_copy,
            layout,
            fingerprint: signature.fingerprint(),
            signature,
        })
    }

    fn choose(&mut self, shape: &CallShape, forced: Option<&str>) -> Result<Selection> {
        let same = |last: &&Chosen| last.shape == *shape && last.forced.as_deref() == forced;
        if let Some(last) = self.chosen.as_ref().filter(same) {
            return Ok(last.selection);
        }
        let selection = choose::choose(shape, forced, &self.tuning)?;
        self.chosen = Some(Chosen { shape: *shape, forced: forced.map(Into::into), selection });
        Ok(selection)
    }
}
