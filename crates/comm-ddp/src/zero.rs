//! Optimizer state sharded over the ranks.

use std::ops::Range;

use comm_core::{Buffer, Comm, ReduceOp};

use crate::agreement::check_parameters;
use crate::{BucketLimits, BucketPlan, Error, Optimizer, Parameter, ParameterSet, Result, Scalar};

/// Averages gradients and updates parameters, with the state of the optimizer divided among the
/// ranks: the first stage of ZeRO (Rajbhandari et al., SC 2020).
///
/// Gradients are packed into buckets, and every rank gets the average of its block of each bucket
/// by a reduce-scatter, updates the parameters of the block, and shares them by an all-gather. That
/// moves as many bytes as an all-reduce of the gradients. A rank keeps the state of its blocks
/// alone: that of `n` elements takes `n / size` elements per state, rounded up per bucket.
///
/// The parameters have the same bits on every rank after each step, and under
/// [`ReduceOrder::Deterministic`](comm_core::ReduceOrder::Deterministic) the bits that an
/// all-reduce followed by the whole optimizer gives.
///
/// After [`Error::Comm`] the parameters are unspecified, and every call fails.
///
/// ```
/// use comm_ddp::{AdamW, Parameter, ParameterSet, Result, ZeroOptimizer};
///
/// comm::threads::run(2, |comm| -> Result<()> {
///     let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [3, 2])])?;
///     // Biases have other settings than weights.
///     let settings = |parameter: &Parameter| AdamW::new(0.1).weight_decay(if parameter.shape().len() > 1 { 0.1 } else { 0.0 });
///     let mut optimizer = ZeroOptimizer::new(&comm, parameters, settings)?;
///     let mut weight = vec![1.0; 6];
///     optimizer.step([&[comm.rank() as f32; 6][..]], [&mut weight[..]])?;
///     assert!(weight.iter().all(|value| (value - 0.89).abs() < 1e-6));
///     Ok(())
/// })?
/// .into_iter()
/// .collect::<Result<Vec<()>>>()?;
/// # Ok::<_, comm_ddp::Error>(())
/// ```
#[derive(Debug)]
pub struct ZeroOptimizer<T: Scalar, O> {
    comm: Comm,
    parameters: ParameterSet,
    /// The optimizer of each slot.
    optimizers: Vec<O>,
    plan: BucketPlan,
    buckets: Vec<Shard<T>>,
    steps: u64,
}

/// A bucket, and the state of this rank's block of it.
#[derive(Debug)]
struct Shard<T> {
    /// One block per rank; the last may end beyond the elements of the bucket.
    elements: Buffer<T>,
    /// The parts of parameters in the block.
    parts: Vec<Part<T>>,
}

/// The part of a parameter that lies in this rank's block of a bucket.
#[derive(Debug)]
struct Part<T> {
    slot: usize,
    /// Its elements within the parameter.
    elements: Range<usize>,
    /// Its first element within the bucket.
    start: usize,
    states: Vec<Vec<T>>,
}

/// A part of the state of an optimizer that this rank holds, for checkpoints.
#[derive(Debug)]
#[non_exhaustive]
pub struct StateShard<'a, T> {
    /// The parameter.
    pub parameter: &'a Parameter,
    /// The name of the number that the optimizer keeps per element.
    pub state: &'static str,
    /// The position of the first element within the parameter.
    pub start: usize,
    /// The values.
    pub values: &'a mut [T],
}

impl<T: Scalar, O: Optimizer<T>> ZeroOptimizer<T, O> {
    /// Prepares an optimizer, and duplicates the communicator. `optimizer` returns the settings for
    /// each parameter, the same on every rank. This is a collective.
    ///
    /// # Errors
    /// [`Error::Mismatch`] on every rank if the parameters differ; [`Error::WrongType`] if one does
    /// not hold `T`; [`Error::Comm`].
    pub fn new(comm: &Comm, parameters: ParameterSet, optimizer: impl Fn(&Parameter) -> O) -> Result<Self> {
        let comm = comm.duplicate()?;
        check_parameters(&comm, &parameters)?;
        parameters.sorted().iter().try_for_each(Parameter::check_type::<T>)?;
        let plan = BucketPlan::new(parameters.sorted(), &[], BucketLimits::DEFAULT);
        let optimizers: Vec<O> = parameters.sorted().iter().map(optimizer).collect();
        let shard = |bucket| Shard::new(&comm, &plan, bucket, &optimizers);
        let buckets = (0..plan.buckets().len()).map(shard).collect::<Result<_>>()?;
        Ok(Self { comm, parameters, optimizers, plan, buckets, steps: 0 })
    }

    /// Averages the gradients of all ranks and updates the parameters. Both have one slice per
    /// parameter, in the order of registration. This is a collective.
    ///
    /// # Errors
    /// [`Error::Count`] and [`Error::Length`] if slices do not match the parameters, before
    /// anything is sent; [`Error::Comm`].
    pub fn step<'g, 'p>(
        &mut self,
        gradients: impl IntoIterator<Item = &'g [T]>,
        parameters: impl IntoIterator<Item = &'p mut [T]>,
    ) -> Result<()>
    where
        T: 'g + 'p,
    {
        let gradients = self.by_slot(gradients)?;
        let mut parameters = self.by_slot(parameters)?;
        self.steps += 1;
        for (bucket, shard) in self.plan.buckets().iter().zip(&mut self.buckets) {
            let located =
                || bucket.slots().iter().map(|slot| (*slot, self.plan.locations()[*slot].elements.clone()));
            for (slot, elements) in located() {
                shard.elements[elements].copy_from_slice(gradients[slot]);
            }
            shard.elements[bucket.len()..].fill(T::zeroed());
            self.comm.reduce_scatter_in_place(&mut shard.elements, ReduceOp::Avg)?;
            for part in &mut shard.parts {
                let gradient = &mut shard.elements[part.start..][..part.elements.len()];
                let parameter = &mut parameters[part.slot][part.elements.clone()];
                let mut states: Vec<&mut [T]> = part.states.iter_mut().map(|state| &mut state[..]).collect();
                self.optimizers[part.slot].update(self.steps, parameter, gradient, &mut states);
                gradient.copy_from_slice(parameter);
            }
            self.comm.all_gather_in_place(&mut shard.elements)?;
            for (slot, elements) in located() {
                parameters[slot].copy_from_slice(&shard.elements[elements]);
            }
        }
        Ok(())
    }

    /// Sorts slices by slot. Returns an error if they do not match the parameters.
    fn by_slot<S: AsRef<[T]>>(&self, slices: impl IntoIterator<Item = S>) -> Result<Vec<S>> {
        let mut slices: Vec<(usize, S)> = self
            .parameters
            .slots()
            .iter()
            .copied()
            .chain(std::iter::repeat(usize::MAX))
            .zip(slices)
            .collect();
        let (expected, got) = (self.parameters.len(), slices.len());
        if expected != got {
            return Err(Error::Count { expected, got });
        }
        slices.sort_by_key(|(slot, _)| *slot);
        for (parameter, (_, slice)) in self.parameters.sorted().iter().zip(&slices) {
            let (expected, got) = (parameter.len(), slice.as_ref().len());
            if expected != got {
                return Err(Error::Length { name: parameter.name().to_owned(), expected, got });
            }
        }
        Ok(slices.into_iter().map(|(_, slice)| slice).collect())
    }

    /// Returns the number of steps so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Sets the number of steps so far, for a run that is resumed.
    pub const fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// Returns the parts of the state that this rank holds. Those of all ranks cover every
    /// parameter once, so they can be saved as shards and read into another number of ranks.
    pub fn state(&mut self) -> impl Iterator<Item = StateShard<'_, T>> {
        let (parameters, optimizers) = (self.parameters.sorted(), &self.optimizers);
        self.buckets.iter_mut().flat_map(|shard| &mut shard.parts).flat_map(move |part| {
            let (parameter, start) = (&parameters[part.slot], part.elements.start);
            let names = optimizers[part.slot].state_names().iter();
            let named = names.zip(&mut part.states);
            named.map(move |(state, values)| StateShard { parameter, state, start, values })
        })
    }
}

impl<T: Scalar> Shard<T> {
    fn new<O: Optimizer<T>>(comm: &Comm, plan: &BucketPlan, bucket: usize, optimizers: &[O]) -> Result<Self> {
        let planned = &plan.buckets()[bucket];
        let length = planned.len().div_ceil(comm.size());
        let block = length * comm.rank()..length * (comm.rank() + 1);
        let part = |slot: &usize| {
            let located = &plan.locations()[*slot].elements;
            let start = located.start.max(block.start);
            let end = located.end.min(block.end);
            (start < end).then(|| Part {
                slot: *slot,
                elements: start - located.start..end - located.start,
                start,
                states: vec![vec![T::zeroed(); end - start]; optimizers[*slot].state_names().len()],
            })
        };
        let parts = planned.slots().iter().filter_map(part).collect();
        Ok(Self { elements: comm.alloc(length * comm.size())?, parts })
    }
}
