//! A training run whose every step depends on the ranks, and its result without failures.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use comm::Comm;
use comm_core::{AsViewMut, Element, ReduceOrder, ShrinkOptions};
use comm_ddp::{
    AdamW, BucketLimits, Error, Optimizer, Options, Parameter, ParameterSet, Result, Sgd, ShardedAverages,
    ZeroOptimizer,
};
use comm_sim::network;
use half::bf16;

use crate::on_ranks;

/// The number of updates of a run.
pub(crate) const UPDATES: u64 = 6;

/// The update before which a step is skipped, because a gradient is not finite.
const SKIPPED_BEFORE: u64 = 4;

const LENGTHS: [usize; 4] = [37, 1, 130, 6];

/// An optimizer of the tests.
pub(crate) trait Settings: Optimizer<f32> + Clone + Sync {
    fn new() -> Self;
    fn set_rate(&mut self, rate: f64);
}

impl Settings for Sgd {
    fn new() -> Self {
        Self::new(0.1).momentum(0.9).dampening(0.1).weight_decay(0.05)
    }

    fn set_rate(&mut self, rate: f64) {
        self.learning_rate = rate;
    }
}

impl Settings for AdamW {
    fn new() -> Self {
        Self::new(0.1).weight_decay(0.05)
    }

    fn set_rate(&mut self, rate: f64) {
        self.learning_rate = rate;
    }
}

/// A type of parameters.
pub(crate) trait Value: Element + PartialEq + std::fmt::Debug {
    fn of(number: f32) -> Self;
}

impl Value for f32 {
    fn of(number: f32) -> Self {
        number
    }
}

impl Value for bf16 {
    fn of(number: f32) -> Self {
        Self::from_f32(number)
    }
}

pub(crate) type Tensors<V> = Vec<Vec<V>>;

/// The state of all parameters, by name of parameter and state.
pub(crate) type State = BTreeMap<(String, &'static str), Vec<f32>>;

/// The parts of the state that a rank holds.
pub(crate) type Parts = Vec<((String, &'static str), usize, Vec<f32>)>;

pub(crate) fn parameters<V: Value>() -> ParameterSet {
    // The names do not sort in the order of registration.
    let named = |(index, len): (usize, &usize)| Parameter::new::<V>(format!("p{}", 9 - index), [*len]);
    ParameterSet::new(LENGTHS.iter().enumerate().map(named)).unwrap()
}

/// Small buckets, so that parameters span several blocks and buckets.
pub(crate) fn options(replicates: bool) -> Options {
    let limits = BucketLimits::DEFAULT.first_bytes(32).bytes(120);
    Options::default().limits(limits).check_finite(true).replicate_state(replicates).clock(network::now)
}

fn number(seed: u64, index: usize, at: usize) -> f32 {
    ((seed * 7919 + index as u64 * 131 + at as u64) as f32 * 0.618).sin()
}

pub(crate) fn initial<V: Value>(seed: u64) -> Tensors<V> {
    let tensor = |(index, len): (usize, &usize)| (0..*len).map(|at| V::of(number(seed, index, at))).collect();
    LENGTHS.iter().enumerate().map(tensor).collect()
}

pub(crate) fn deterministic(comm: &Comm) -> Comm {
    comm.with_reduce_order(ReduceOrder::Deterministic)
}

/// The moment at which a rank leaves a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Begin,
    /// With some gradients ready.
    Backward,
    /// With the averages of its blocks.
    Averaged,
    /// When it has this number of accesses to parameters left in the update.
    Update(usize),
    End,
}

/// A parameter whose access fails after a while.
struct Counted<'a, V> {
    tensor: &'a mut Vec<V>,
    left: &'a std::cell::Cell<usize>,
}

impl<V: Element> AsViewMut for Counted<'_, V> {
    type Element = V;

    fn as_view_mut(&mut self) -> comm_core::Result<comm_core::HostViewMut<'_>> {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.ok_or_else(|| comm_core::Error::Internal("leaves".into()))?);
        self.tensor.as_view_mut()
    }
}

/// Makes the next update of a run. Returns false if this rank leaves in the middle of it.
pub(crate) fn update<V: Value, O: Settings>(
    comm: &Comm,
    zero: &mut ZeroOptimizer<f32, O>,
    tensors: &mut Tensors<V>,
    leaves: Option<Moment>,
) -> Result<bool> {
    let number = zero.steps() + 1;
    for (parameter, settings) in zero.settings_mut() {
        settings.set_rate(0.1 / (number + u64::from(parameter.name() == "p8")) as f64);
    }
    if leaves == Some(Moment::Begin) {
        return Ok(false);
    }
    if number == SKIPPED_BEFORE {
        let mut averages = step(comm, zero, number, (true, None))?.expect("this rank does not leave");
        assert!(!averages.is_finite()?);
    }
    let Some(mut averages) = step(comm, zero, number, (false, leaves))? else { return Ok(false) };
    averages.scale(0.75)?;
    averages.clip_norm(2.0)?;
    let left = match leaves {
        Some(Moment::Averaged) => return Ok(false),
        Some(Moment::Update(left)) => left,
        _ => usize::MAX,
    };
    let left = std::cell::Cell::new(left);
    let updated = averages.update(tensors.iter_mut().map(|tensor| Counted { tensor, left: &left }));
    match leaves {
        Some(_) => Ok(false),
        None => updated.map(|()| true),
    }
}

/// Averages the gradients of a step. Returns `None` if this rank leaves before the end.
fn step<'z, O: Settings>(
    comm: &Comm,
    zero: &'z mut ZeroOptimizer<f32, O>,
    number: u64,
    (is_infinite, leaves): (bool, Option<Moment>),
) -> Result<Option<ShardedAverages<'z, f32, O>>> {
    let (rank, size) = (comm.rank(), comm.size());
    // In every third step, the last rank of several has no batch.
    if number.is_multiple_of(3) && rank + 1 == size && size > 1 && leaves != Some(Moment::Backward) {
        return zero.join();
    }
    let is_half = zero.parameters().sorted()[0].dtype() == bf16::DTYPE;
    let mut step = zero.step_with_weight((1 + rank) as f64)?;
    for index in (0..LENGTHS.len()).rev() {
        let seed = 1000 * number + 10 * size as u64 + rank as u64;
        let mut gradient: Vec<f32> = (0..LENGTHS[index]).map(|at| self::number(seed, index, at)).collect();
        if is_infinite && rank == 0 && index == 2 {
            gradient[129] = f32::INFINITY;
        }
        // Parameter 1 is unused in some steps, and accumulated in others.
        if index == 1 && number.is_multiple_of(2) {
            continue;
        }
        if is_half {
            let gradient: Vec<bf16> = gradient.into_iter().map(bf16::from_f32).collect();
            step.accumulate(index, &gradient)?;
            step.ready(index, &gradient)?;
        } else {
            step.accumulate(index, &gradient)?;
            step.ready(index, &gradient)?;
        }
        if index == 2 && leaves == Some(Moment::Backward) {
            return Ok(None);
        }
    }
    step.finish().map(Some)
}

pub(crate) fn parts<O: Settings>(zero: &mut ZeroOptimizer<f32, O>) -> Parts {
    let part = |shard: comm_ddp::StateShard<'_, f32>| {
        ((shard.parameter.name().to_owned(), shard.state), shard.start, shard.values.to_vec())
    };
    zero.state().map(part).collect()
}

/// Joins the parts of all ranks.
pub(crate) fn whole(parts: impl IntoIterator<Item = Parts>) -> State {
    let mut state = State::new();
    for (name, start, values) in parts.into_iter().flatten() {
        let whole = state.entry(name).or_default();
        whole.resize(whole.len().max(start + values.len()), f32::NAN);
        whole[start..start + values.len()].copy_from_slice(&values);
    }
    state
}

/// Parameters and state after some update.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Snapshot<V> {
    pub(crate) tensors: Tensors<V>,
    pub(crate) state: State,
}

impl<V: Value> Snapshot<V> {
    fn bits(&self) -> (Vec<&[u8]>, Vec<Vec<u32>>) {
        let tensors = self.tensors.iter().map(|tensor| comm_core::bytemuck::cast_slice(tensor)).collect();
        let state = self.state.values().map(|values| values.iter().map(|value| value.to_bits()).collect());
        (tensors, state.collect())
    }

    pub(crate) fn assert_equals(&self, other: &Self, context: &str) {
        assert!(self.bits() == other.bits(), "{context}");
    }
}

/// Continues a run, from its beginning or after some update, with new optimizers of a number of
/// ranks that do not fail. Returns the result of every update.
pub(crate) fn continue_run<V: Value, O: Settings>(
    size: usize,
    start: Option<(u64, &Snapshot<V>)>,
    updates: RangeInclusive<u64>,
) -> Vec<Snapshot<V>> {
    let ranks = on_ranks(size, |comm| {
        let comm = deterministic(&comm);
        let mut zero =
            ZeroOptimizer::<f32, O>::new(&comm, parameters::<V>(), options(false), |_| O::new()).unwrap();
        let mut tensors = initial::<V>(0);
        if let Some((steps, snapshot)) = start {
            for shard in zero.state() {
                let whole = &snapshot.state[&(shard.parameter.name().to_owned(), shard.state)];
                shard.values.copy_from_slice(&whole[shard.start..][..shard.values.len()]);
            }
            zero.set_steps(steps);
            tensors.clone_from(&snapshot.tensors);
        }
        let mut snapshots = Vec::new();
        for number in updates.clone() {
            assert!(update(&comm, &mut zero, &mut tensors, None).unwrap() && zero.steps() == number);
            snapshots.push((tensors.clone(), parts(&mut zero)));
        }
        snapshots
    });
    let snapshot = |at: usize| Snapshot {
        tensors: ranks[0][at].0.clone(),
        state: whole(ranks.iter().map(|snapshots| snapshots[at].1.clone())),
    };
    (0..ranks[0].len()).map(snapshot).collect()
}

/// Runs whose number of ranks changes between updates, without failures.
pub(crate) struct References<V> {
    runs: BTreeMap<Vec<(u64, usize)>, Snapshot<V>>,
}

impl<V: Value> References<V> {
    pub(crate) const fn new() -> Self {
        Self { runs: BTreeMap::new() }
    }

    /// Returns the result of a run with these numbers of ranks, each from after some update on.
    pub(crate) fn end<O: Settings>(&mut self, groups: &[(u64, usize)]) -> &Snapshot<V> {
        if !self.runs.contains_key(groups) {
            let mut snapshot: Option<(u64, Snapshot<V>)> = None;
            for (at, (from, size)) in groups.iter().enumerate() {
                let until = groups.get(at + 1).map_or(UPDATES, |next| next.0);
                let start = snapshot.as_ref().map(|(steps, snapshot)| (*steps, snapshot));
                let last = continue_run::<V, O>(*size, start, from + 1..=until).pop();
                snapshot = last.map(|last| (until, last)).or(snapshot);
            }
            let (_, end) = snapshot.expect("a run has updates");
            self.runs.insert(groups.to_vec(), end);
        }
        &self.runs[groups]
    }
}

/// A run of one rank, in smaller groups after failures.
#[derive(Debug)]
pub(crate) struct Run<V, O> {
    pub(crate) comm: Comm,
    pub(crate) zero: ZeroOptimizer<f32, O>,
    pub(crate) tensors: Tensors<V>,
    /// As [`Survivor::groups`].
    pub(crate) groups: Vec<(u64, usize)>,
    /// The numbers of updates that this rank had completed itself when groups failed.
    pub(crate) completed: Vec<u64>,
}

impl<V: Value, O: Settings> Run<V, O> {
    pub(crate) fn new(comm: &Comm) -> Result<Self> {
        let comm = deterministic(comm);
        let zero = ZeroOptimizer::new(&comm, parameters::<V>(), options(true), |_| O::new())?;
        let groups = vec![(0, comm.size())];
        Ok(Self { comm, zero, tensors: initial(0), groups, completed: Vec::new() })
    }

    /// Trains until the last update, and goes on after failures. Returns false if this rank leaves.
    pub(crate) fn train(&mut self, leaves: Option<(u64, Moment)>, shrink: &ShrinkOptions) -> Result<bool> {
        loop {
            let next = self.zero.steps() + 1;
            let leaves = leaves.filter(|(number, _)| *number == next).map(|(_, moment)| moment);
            let outcome = if next > UPDATES {
                self.comm.barrier().map_err(Error::from)
            } else {
                match update(&self.comm, &mut self.zero, &mut self.tensors, leaves) {
                    Ok(false) => return Ok(false),
                    outcome => outcome.map(drop),
                }
            };
            match outcome {
                Ok(()) if next > UPDATES => return Ok(true),
                Ok(()) => {}
                Err(Error::Comm(_)) => self.go_on(shrink)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Goes on with the ranks that remain.
    pub(crate) fn go_on(&mut self, shrink: &ShrinkOptions) -> Result<()> {
        self.completed.push(self.zero.steps());
        loop {
            self.comm = deterministic(&self.comm.shrink(shrink)?.comm);
            match self.zero.rejoin(&self.comm, &mut self.tensors) {
                Err(Error::Comm(_)) => {}
                outcome => {
                    // A group that failed before its first update may be known to some ranks only.
                    self.groups.retain(|(from, _)| *from != self.zero.steps());
                    self.groups.push((self.zero.steps(), self.comm.size()));
                    return outcome;
                }
            }
        }
    }

    pub(crate) fn into_survivor(mut self) -> Survivor<V> {
        let parts = parts(&mut self.zero);
        Survivor { groups: self.groups, tensors: self.tensors, parts }
    }
}

/// A surviving rank of a run.
#[derive(Debug)]
pub(crate) struct Survivor<V> {
    /// The number of ranks, each from after some update on.
    pub(crate) groups: Vec<(u64, usize)>,
    pub(crate) tensors: Tensors<V>,
    pub(crate) parts: Parts,
}

/// Compares the end of a run on all surviving ranks.
pub(crate) fn check_survivors<V: Value, O: Settings>(
    survivors: &[Survivor<V>],
    references: &mut References<V>,
    context: &str,
) {
    let first = &survivors[0];
    for survivor in survivors {
        assert_eq!(survivor.groups, first.groups, "{context}");
        assert!(survivor.tensors == first.tensors, "{context}");
    }
    let expected = references.end::<O>(&first.groups);
    let parts = survivors.iter().map(|survivor| survivor.parts.clone());
    let mut end = Snapshot { tensors: first.tensors.clone(), state: whole(parts) };
    if first.groups.last().is_some_and(|(_, size)| *size > survivors.len()) {
        // A rank died after its last update, with its part of the state.
        end.state.clone_from(&expected.state);
    }
    end.assert_equals(expected, &format!("{context}: {:?}", first.groups));
}
