//! Compiled schedules, which are kept for calls with the same signature.

use comm_core::{Group, Layout, ReduceOp, Reduction, Result, Signature};

use super::checked_call::CheckedCall;
use super::registration;
use crate::Tuning;
use crate::choose::{self, CallShape, Selection};
use crate::executor::{LoweredStep, lower};
use crate::schedule::{Algorithm, Params};

/// How many programs are kept at most: as many as a training step has buckets, or a benchmark sizes.
const KEPT_MAX: usize = 32;
/// How many steps all of them may have together. Longer schedules are walked lazily, as their steps are needed.
const STEPS_MAX: usize = 16 << 10;

/// Everything about a call but its buffers and its number.
#[derive(Debug)]
pub(super) struct Program {
    /// The calls that it serves; `None` if only one, as its counts are those of that call.
    key: Option<Key>,
    /// The number of the last use.
    last_use: u64,
    algorithm: &'static Algorithm,
    params: Params,
    layout: Layout,
    /// The steps, unless they are too many to keep.
    steps: Option<Box<[LoweredStep]>>,
    pub(super) reduction: Option<Reduction>,
    pub(super) scratch_bytes: usize,
    /// Whether receivers may read what it sends where it lies.
    pub(super) registers: bool,
    pub(super) signature: Signature,
    pub(super) fingerprint: u64,
}

/// The calls that a program serves.
#[derive(Debug, Clone)]
struct Key {
    signature: Signature,
    in_place: bool,
}

impl Key {
    /// Ranks compare an operator of the program by its name; here it must be the same function.
    #[inline]
    fn matches(&self, signature: &Signature, in_place: bool) -> bool {
        self.in_place == in_place
            && self.signature == *signature
            && self.signature.op.map(without_factor) == signature.op.map(without_factor)
    }
}

/// The operator, as far as calls with it are alike.
#[inline]
const fn without_factor(op: ReduceOp) -> ReduceOp {
    match op {
        ReduceOp::PreMulSum(_) => ReduceOp::PreMulSum(1.0),
        op => op,
    }
}

impl Program {
    fn new(
        group: Group,
        call: &CheckedCall<'_>,
        algorithm: &'static Algorithm,
        params: Params,
    ) -> Result<Self> {
        let layout = call.layout(group, algorithm, &params);
        let signature = call.signature.clone().by(algorithm.name);
        Ok(Self {
            key: None,
            last_use: 0,
            algorithm,
            params,
            steps: None,
            reduction: call.reduction()?,
            scratch_bytes: (algorithm.slots)(&params) * layout.slot_bytes(),
            registers: registration::should_register(&call.shape(group)),
            layout,
            fingerprint: signature.fingerprint(),
            signature,
        })
    }

    /// The steps, one by one.
    pub(super) fn steps(&self) -> Box<dyn Iterator<Item = LoweredStep> + Send + '_> {
        Box::new(lower((self.algorithm.steps)(&self.params), &self.layout, self.reduction))
    }

    /// Whether several ranks read what lies in temporary memory.
    #[inline]
    pub(super) const fn is_staged(&self) -> bool {
        self.algorithm.traits.staged
    }

    /// The steps, if they are kept.
    #[inline]
    pub(super) fn kept(&self) -> Option<&[LoweredStep]> {
        self.steps.as_deref()
    }

    fn kept_steps(&self) -> usize {
        self.kept().map_or(0, <[_]>::len)
    }

    /// Keeps the steps if they are no more than that. Returns how many are kept.
    fn keep(&mut self, at_most: usize) -> usize {
        let steps: Vec<LoweredStep> = self.steps().take(at_most + 1).collect();
        if steps.len() > at_most {
            return 0;
        }
        self.steps.insert(steps.into()).len()
    }
}

/// The programs of the last calls.
#[derive(Debug)]
pub(super) struct Programs {
    group: Group,
    tuning: Tuning,
    kept: Vec<Program>,
    /// The index of the program that was used last.
    last: usize,
    /// How many calls have used kept programs.
    uses: u64,
    /// The program of the last call with lengths of its own, which serves that call alone.
    single: Option<Program>,
    /// The last choice of an algorithm for calls whose programs are not kept.
    chosen: Option<Chosen>,
}

/// A call and the algorithm that was chosen for it.
#[derive(Debug)]
struct Chosen {
    shape: CallShape,
    forced: Option<String>,
    selection: Selection,
}

impl Programs {
    pub(super) const fn new(group: Group, tuning: Tuning) -> Self {
        Self { group, tuning, kept: Vec::new(), last: 0, uses: 0, single: None, chosen: None }
    }

    /// The settings by which algorithms are chosen.
    #[inline]
    pub(super) const fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The program for a call, which is compiled unless it is kept.
    #[inline]
    pub(super) fn get(&mut self, call: &CheckedCall<'_>, in_place: bool) -> Result<&Program> {
        if !call.has_equal_blocks() {
            let program = self.compile(call, in_place)?;
            return Ok(self.single.insert(program));
        }
        let at = match self.position(call.signature, in_place) {
            Some(at) => at,
            None => self.insert(call, in_place)?,
        };
        (self.last, self.uses) = (at, self.uses + 1);
        let program = &mut self.kept[at];
        program.last_use = self.uses;
        Ok(program)
    }

    /// The index of the kept program for a call. Calls repeat, so the last one is looked at first.
    #[inline]
    fn position(&self, signature: &Signature, in_place: bool) -> Option<usize> {
        let serves =
            |program: &Program| program.key.as_ref().is_some_and(|key| key.matches(signature, in_place));
        if self.kept.get(self.last).is_some_and(serves) {
            return Some(self.last);
        }
        self.kept.iter().position(serves)
    }

    /// Compiles a program and keeps it, in place of those that were not used for the longest time.
    #[cold]
    fn insert(&mut self, call: &CheckedCall<'_>, in_place: bool) -> Result<usize> {
        let mut program = self.compile(call, in_place)?;
        program.key = Some(Key { signature: call.signature.clone(), in_place });
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
    fn compile(&mut self, call: &CheckedCall<'_>, in_place: bool) -> Result<Program> {
        let selection = self.choose(call)?;
        let params = Params {
            rank: self.group.rank(),
            root: call.signature.root.unwrap_or(0),
            in_place,
            ..choose::params(&call.shape(self.group), selection.segments, &self.tuning)
        };
        Program::new(self.group, call, selection.algorithm, params)
    }

    fn choose(&mut self, call: &CheckedCall<'_>) -> Result<Selection> {
        let (shape, forced) = (call.shape(self.group), call.forced());
        let same = |last: &&Chosen| last.shape == shape && last.forced.as_deref() == forced;
        if let Some(last) = self.chosen.as_ref().filter(same) {
            return Ok(last.selection);
        }
        let selection = choose::choose(&shape, forced, &self.tuning)?;
        self.chosen = Some(Chosen { shape, forced: forced.map(Into::into), selection });
        Ok(selection)
    }
}
