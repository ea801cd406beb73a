//! Compiled schedules, which are kept for calls with the same signature.

use comm_core::{Group, Layout, ReduceOp, Reduction, Result, Signature};

use super::checked_call::CheckedCall;
use super::exposure;
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
    /// The calls that it serves; `None` if only one, as its shares are those of that call.
    key: Option<Key>,
    algorithm: &'static Algorithm,
    params: Params,
    layout: Layout,
    /// The steps, unless they are too many to keep.
    steps: Option<Box<[LoweredStep]>>,
    pub(super) reduction: Option<Reduction>,
    pub(super) scratch_bytes: usize,
    /// Whether receivers may read what it sends where it lies.
    pub(super) exposes: bool,
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
            algorithm,
            params,
            steps: None,
            reduction: call.reduction()?,
            scratch_bytes: (algorithm.slots)(&params) * layout.slot_bytes(),
            exposes: exposure::should_register(&call.shape(group)),
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
    /// The one used last comes last.
    #[expect(
        clippy::vec_box,
        reason = "a program is taken out for every call, and a pointer is quicker to move"
    )]
    kept: Vec<Box<Program>>,
    /// How many steps are kept in all of them.
    steps: usize,
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
        Self { group, tuning, kept: Vec::new(), steps: 0, chosen: None }
    }

    /// What algorithms are chosen by.
    #[inline]
    pub(super) const fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The program for a call. It is to be given back after the call.
    #[inline]
    pub(super) fn take(&mut self, call: &CheckedCall<'_>, in_place: bool) -> Result<Box<Program>> {
        if call.has_equal_blocks()
            && let Some(program) = self.take_kept(call.signature, in_place)
        {
            self.steps -= program.kept().map_or(0, <[_]>::len);
            return Ok(program);
        }
        self.make(call, in_place)
    }

    #[inline]
    fn take_kept(&mut self, signature: &Signature, in_place: bool) -> Option<Box<Program>> {
        let fits =
            |program: &Program| program.key.as_ref().is_some_and(|key| key.matches(signature, in_place));
        // Calls repeat: nothing moves if it is the one that was used last.
        self.kept.pop_if(|last| fits(last)).or_else(|| {
            let at = self.kept.iter().rposition(|program| fits(program))?;
            Some(self.kept.remove(at))
        })
    }

    #[cold]
    fn make(&mut self, call: &CheckedCall<'_>, in_place: bool) -> Result<Box<Program>> {
        let selection = self.choose(call)?;
        let params = Params {
            rank: self.group.rank(),
            root: call.signature.root.unwrap_or(0),
            in_place,
            ..choose::params(&call.shape(self.group), selection.segments, &self.tuning)
        };
        let mut program = Program::new(self.group, call, selection.algorithm, params)?;
        if call.has_equal_blocks() {
            program.key = Some(Key { signature: call.signature.clone(), in_place });
            program.keep(STEPS_MAX);
        }
        Ok(Box::new(program))
    }

    /// Keeps a program for calls to come, and forgets those that were not used for the longest time.
    #[inline]
    pub(super) fn give_back(&mut self, program: Box<Program>) {
        if program.key.is_none() {
            return;
        }
        self.steps += program.kept().map_or(0, <[_]>::len);
        self.kept.push(program);
        while self.kept.len() > KEPT_MAX || self.steps > STEPS_MAX {
            self.steps -= self.kept.remove(0).kept().map_or(0, <[_]>::len);
        }
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
