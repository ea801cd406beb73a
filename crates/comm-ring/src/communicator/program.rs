//! What calls that are alike have in common: worked out for the first of them, and kept.

use std::borrow::Cow;

use comm_core::{
    Accumulate, Call, CallOptions, Collective, DType, Group, Layout, ReduceOp, ReduceOrder, Reduction, Result,
};

use super::exposure;
use super::request::Request;
use crate::Tuning;
use crate::choose::{self, Choice, Question};
use crate::executor::{Located, locate};
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
    steps: Option<Box<[Located]>>,
    pub(super) reduction: Option<Reduction>,
    pub(super) scratch_bytes: usize,
    /// Whether receivers may read what it sends where it lies.
    pub(super) exposes: bool,
    pub(super) call: Call,
    pub(super) fingerprint: u64,
}

/// What tells calls apart that are not alike.
#[derive(Debug, Clone, PartialEq)]
struct Key {
    collective: Collective,
    /// Without the factor of a premultiplied sum, which may be another in every call.
    op: Option<ReduceOp>,
    dtype: Option<DType>,
    accumulate: Accumulate,
    count: usize,
    root: Option<usize>,
    details: [u64; 2],
    in_place: bool,
    order: ReduceOrder,
    forced: Option<Cow<'static, str>>,
}

impl Key {
    #[inline]
    fn matches(&self, request: &Request<'_>, in_place: bool, options: &CallOptions) -> bool {
        self.count == request.count
            && self.collective == request.collective
            && self.op == request.op.map(without_factor)
            && self.dtype == request.dtype
            && self.accumulate == request.accumulate
            && self.root == request.root
            && self.details == [request.detail, options.detail]
            && self.in_place == in_place
            && self.order == options.order
            && self.forced == options.algorithm
    }

    fn of(request: &Request<'_>, in_place: bool, options: &CallOptions) -> Self {
        Self {
            collective: request.collective,
            op: request.op.map(without_factor),
            dtype: request.dtype,
            accumulate: request.accumulate,
            count: request.count,
            root: request.root,
            details: [request.detail, options.detail],
            in_place,
            order: options.order,
            forced: options.algorithm.clone(),
        }
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
        request: &Request<'_>,
        choice: Choice,
        params: Params,
        options: &CallOptions,
    ) -> Result<Self> {
        let algorithm = choice.algorithm;
        let layout = request.layout(group, algorithm, &params);
        let call = request.call(group, algorithm, options.detail);
        Ok(Self {
            key: None,
            algorithm,
            params,
            steps: None,
            reduction: request.reduction()?,
            scratch_bytes: (algorithm.slots)(&params) * layout.slot_bytes(),
            exposes: exposure::pays(&request.question(group, request.order(options))),
            layout,
            fingerprint: call.fingerprint(),
            call,
        })
    }

    /// The steps, one by one.
    pub(super) fn steps(&self) -> Box<dyn Iterator<Item = Located> + Send + '_> {
        Box::new(locate((self.algorithm.steps)(&self.params), &self.layout, self.reduction))
    }

    /// Whether several ranks read what lies in temporary memory.
    #[inline]
    pub(super) const fn is_staged(&self) -> bool {
        self.algorithm.traits.staged
    }

    /// The steps, if they are kept.
    #[inline]
    pub(super) fn kept(&self) -> Option<&[Located]> {
        self.steps.as_deref()
    }

    /// Keeps the steps if they are no more than that. Returns how many are kept.
    fn keep(&mut self, at_most: usize) -> usize {
        let steps: Vec<Located> = self.steps().take(at_most + 1).collect();
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

/// A question and its answer.
#[derive(Debug)]
struct Chosen {
    question: Question,
    forced: Option<Cow<'static, str>>,
    choice: Choice,
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
    pub(super) fn take(
        &mut self,
        request: &Request<'_>,
        in_place: bool,
        options: &CallOptions,
    ) -> Result<Box<Program>> {
        if request.has_equal_shares()
            && let Some(program) = self.take_kept(request, in_place, options)
        {
            self.steps -= program.kept().map_or(0, <[_]>::len);
            return Ok(program);
        }
        self.make(request, in_place, options)
    }

    #[inline]
    fn take_kept(
        &mut self,
        request: &Request<'_>,
        in_place: bool,
        options: &CallOptions,
    ) -> Option<Box<Program>> {
        let fits = |program: &Program| {
            program.key.as_ref().is_some_and(|key| key.matches(request, in_place, options))
        };
        // Calls repeat: nothing moves if it is the one that was used last.
        self.kept.pop_if(|last| fits(last)).or_else(|| {
            let at = self.kept.iter().rposition(|program| fits(program))?;
            Some(self.kept.remove(at))
        })
    }

    #[cold]
    fn make(&mut self, request: &Request<'_>, in_place: bool, options: &CallOptions) -> Result<Box<Program>> {
        let choice = self.choose(request, options)?;
        let question = request.question(self.group, request.order(options));
        let params = Params {
            rank: self.group.rank(),
            root: request.root.unwrap_or(0),
            in_place,
            ..choose::params(&question, choice.segments, &self.tuning)
        };
        let mut program = Program::new(self.group, request, choice, params, options)?;
        if request.has_equal_shares() {
            program.key = Some(Key::of(request, in_place, options));
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

    fn choose(&mut self, request: &Request<'_>, options: &CallOptions) -> Result<Choice> {
        let question = request.question(self.group, request.order(options));
        let same = |last: &&Chosen| last.question == question && last.forced == options.algorithm;
        if let Some(last) = self.chosen.as_ref().filter(same) {
            return Ok(last.choice);
        }
        let choice = choose::choose(&question, options.algorithm.as_deref(), &self.tuning)?;
        self.chosen = Some(Chosen { question, forced: options.algorithm.clone(), choice });
        Ok(choice)
    }
}
