//! Optimizer state sharded over the ranks.

use std::ops::Range;

use comm_core::{AsView, Comm, Host, Kernels, ReduceOp};

use crate::bucket_buffer::Exchange;
use crate::parameters::by_slot;
use crate::{
    Averaged, CommHook, DataParallel, Error, Optimizer, Options, Parameter, ParameterSet, Result, Scalar,
    Step,
};

/// Averages gradients and updates parameters, with the state of the optimizer divided among the
/// ranks: the first stage of ZeRO (Rajbhandari et al., SC 2020).
///
/// Gradients are sent in buckets while backward runs, as by [`DataParallel`]. Each rank gets the
/// averages of its block of each bucket by a reduce-scatter, updates the parameters of the block,
/// and shares them by an all-gather. That moves as many bytes as an all-reduce of the gradients. A
/// rank keeps the state of its blocks alone: that of `n` elements takes `n / size` elements per
/// state, rounded up per bucket.
///
/// The parameters have the same bits on every rank after each step, and under
/// [`ReduceOrder::Deterministic`](comm_core::ReduceOrder::Deterministic) the bits that an
/// all-reduce followed by the whole optimizer gives.
///
/// After [`Error::Comm`] the parameters are unspecified, and every call fails.
///
/// ```
/// use comm_ddp::{AdamW, Options, Parameter, ParameterSet, Result, ZeroOptimizer};
///
/// comm::threads::run(2, |comm| -> Result<()> {
///     let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [3, 2])])?;
///     // Biases have other settings than weights.
///     let settings = |parameter: &Parameter| AdamW::new(0.1).weight_decay(if parameter.shape().len() > 1 { 0.1 } else { 0.0 });
///     let mut optimizer = ZeroOptimizer::new(&comm, parameters, Options::default(), settings)?;
///     let mut weight = vec![1.0_f32; 6];
///     let mut step = optimizer.step()?;
///     step.ready(0, &[comm.rank() as f32; 6])?;
///     let mut averages = step.finish()?;
///     averages.clip_norm(1.0)?;
///     averages.update([&mut weight[..]])?;
///     assert!(weight.iter().all(|value| (value - 0.89).abs() < 1e-6));
///     Ok(())
/// })?
/// .into_iter()
/// .collect::<Result<Vec<()>>>()?;
/// # Ok::<_, comm_ddp::Error>(())
/// ```
#[derive(Debug)]
pub struct ZeroOptimizer<T: Scalar, O> {
    replicas: DataParallel,
    shards: Shards<T, O>,
}

/// The optimizers, and the state of this rank's blocks.
#[derive(Debug)]
struct Shards<T, O> {
    /// The optimizer of each slot.
    optimizers: Vec<O>,
    /// The parts of parameters in this rank's block of each bucket.
    parts: Vec<Vec<Part<T>>>,
    steps: u64,
}

/// The part of a parameter that lies in this rank's block of a bucket.
#[derive(Debug)]
struct Part<T> {
    slot: usize,
    /// Its elements within the parameter.
    elements: Range<usize>,
    /// Its elements within the bucket.
    located: Range<usize>,
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
    /// each parameter, the same on every rank. This is a collective. Buckets follow the reverse
    /// order of registration, whatever [`Options::follow_first_step`] says.
    ///
    /// # Errors
    /// As [`DataParallel::new`]; [`Error::WrongType`] if a parameter does
    /// not hold `T`.
    pub fn new(
        comm: &Comm,
        parameters: ParameterSet,
        options: Options,
        optimizer: impl Fn(&Parameter) -> O,
    ) -> Result<Self> {
        Self::over(comm.duplicate()?, parameters, options, optimizer)
    }

    /// Prepares an optimizer over `comm` itself, as [`DataParallel::over`].
    ///
    /// # Errors
    /// As [`ZeroOptimizer::new`].
    pub fn over(
        comm: Comm,
        parameters: ParameterSet,
        options: Options,
        optimizer: impl Fn(&Parameter) -> O,
    ) -> Result<Self> {
        let optimizers: Vec<O> = parameters.sorted().iter().map(optimizer).collect();
        // The blocks of the state follow the buckets, so these must not change.
        let options = options.follow_first_step(false);
        let replicas = DataParallel::with_exchange(comm, parameters, options, Exchange::ReduceScatter)?;
        replicas.parameters().sorted().iter().try_for_each(Parameter::check_type::<T>)?;
        let parts = parts(&replicas, &optimizers);
        Ok(Self { replicas, shards: Shards { optimizers, parts, steps: 0 } })
    }

    /// Returns the parameters.
    #[must_use]
    pub const fn parameters(&self) -> &ParameterSet {
        self.replicas.parameters()
    }

    /// Registers a communication hook, as [`DataParallel::register_comm_hook`]. Hooks average whole
    /// buckets, so a step moves more bytes than with an equal all-reduce alone: those of the hook,
    /// and the parameters in full.
    ///
    /// # Errors
    /// As [`DataParallel::register_comm_hook`].
    pub fn register_comm_hook(&mut self, hook: impl CommHook) -> Result<()> {
        self.replicas.register_comm_hook(hook)
    }

    /// Starts a step, as [`DataParallel::step`].
    ///
    /// # Errors
    /// As [`DataParallel::step`].
    pub fn step(&mut self) -> Result<ZeroStep<'_, T, O>> {
        Ok(ZeroStep { step: self.replicas.step()?, shards: &mut self.shards })
    }

    /// Starts a step in which the gradients of this rank have a weight, as
    /// [`DataParallel::step_with_weight`].
    ///
    /// # Errors
    /// As [`DataParallel::step_with_weight`].
    pub fn step_with_weight(&mut self, weight: f64) -> Result<ZeroStep<'_, T, O>> {
        Ok(ZeroStep { step: self.replicas.step_with_weight(weight)?, shards: &mut self.shards })
    }

    /// Takes part in a step of the other ranks, as [`DataParallel::join`].
    ///
    /// # Errors
    /// As [`DataParallel::join`].
    pub fn join(&mut self) -> Result<Option<ShardedAverages<'_, T, O>>> {
        let averaged = self.replicas.join()?;
        Ok(averaged.map(|averaged| ShardedAverages { averaged, shards: &mut self.shards }))
    }

    /// Returns the number of updates so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.shards.steps
    }

    /// Sets the number of updates so far, for a run that is resumed.
    pub const fn set_steps(&mut self, steps: u64) {
        self.shards.steps = steps;
    }

    /// Returns the settings of each parameter for changes, for example of the learning rate. All
    /// ranks make the same.
    pub fn settings_mut(&mut self) -> impl Iterator<Item = (&Parameter, &mut O)> {
        self.replicas.parameters().sorted().iter().zip(&mut self.shards.optimizers)
    }

    /// Returns the parts of the state that this rank holds. Those of all ranks cover every
    /// parameter once, so they can be saved as shards and read into another number of ranks.
    pub fn state(&mut self) -> impl Iterator<Item = StateShard<'_, T>> {
        let parameters = self.replicas.parameters().sorted();
        let Shards { optimizers, parts, .. } = &mut self.shards;
        parts.iter_mut().flatten().flat_map(move |part| {
            let (parameter, start) = (&parameters[part.slot], part.elements.start);
            let names = optimizers[part.slot].state_names().iter();
            let named = names.zip(&mut part.states);
            named.map(move |(state, values)| StateShard { parameter, state, start, values })
        })
    }
}

/// Returns the parts of parameters in this rank's block of each bucket, with state that is zero.
fn parts<T: Scalar, O: Optimizer<T>>(replicas: &DataParallel, optimizers: &[O]) -> Vec<Vec<Part<T>>> {
    let (comm, plan) = (&replicas.comm, replicas.plan());
    let of_bucket = |bucket: &crate::Bucket| {
        let length = bucket.len().div_ceil(comm.size());
        let block = length * comm.rank()..length * (comm.rank() + 1);
        let part = |slot: &usize| {
            let whole = &plan.locations()[*slot].elements;
            let located = whole.start.max(block.start)..whole.end.min(block.end);
            (!located.is_empty()).then(|| Part {
                slot: *slot,
                elements: located.start - whole.start..located.end - whole.start,
                states: vec![vec![T::zeroed(); located.len()]; optimizers[*slot].state_names().len()],
                located,
            })
        };
        bucket.slots().iter().filter_map(part).collect()
    };
    plan.buckets().iter().map(of_bucket).collect()
}

/// One step with a sharded optimizer, as [`Step`].
#[derive(Debug)]
#[must_use = "a step averages nothing until it is finished"]
pub struct ZeroStep<'a, T: Scalar, O> {
    step: Step<'a>,
    shards: &'a mut Shards<T, O>,
}

impl<'a, T: Scalar, O: Optimizer<T>> ZeroStep<'a, T, O> {
    /// Adds to the gradient of a parameter, as [`Step::accumulate`].
    ///
    /// # Errors
    /// As [`Step::accumulate`].
    pub fn accumulate(&mut self, index: usize, gradient: &(impl AsView + ?Sized)) -> Result<()> {
        self.step.accumulate(index, gradient)
    }

    /// Adds to the gradient of a parameter and marks it as ready, as [`Step::ready`].
    ///
    /// # Errors
    /// As [`Step::ready`].
    pub fn ready(&mut self, index: usize, gradient: &(impl AsView + ?Sized)) -> Result<()> {
        self.step.ready(index, gradient)
    }

    /// Returns the memory of a gradient, as [`Step::gradient_mut`].
    ///
    /// # Errors
    /// As [`Step::gradient_mut`].
    pub fn gradient_mut(&mut self, index: usize) -> Result<&mut [T]> {
        self.step.gradient_mut(index)
    }

    /// Marks the gradient of a parameter as ready, as [`Step::mark_ready`].
    ///
    /// # Errors
    /// As [`Step::mark_ready`].
    pub fn mark_ready(&mut self, index: usize) -> Result<()> {
        self.step.mark_ready(index)
    }

    /// Marks a parameter as ready without gradient on this rank, as [`Step::mark_unused`].
    ///
    /// # Errors
    /// As [`Step::mark_unused`].
    pub fn mark_unused(&mut self, index: usize) -> Result<()> {
        self.step.mark_unused(index)
    }

    /// Asks all ranks to stop after this step, as [`Step::request_stop`].
    ///
    /// # Errors
    /// As [`Step::request_stop`].
    pub fn request_stop(&mut self) -> Result<()> {
        self.step.request_stop()
    }

    /// Sends the remaining buckets and waits for the averages of this rank's blocks.
    ///
    /// # Errors
    /// As [`Step::finish`].
    pub fn finish(self) -> Result<ShardedAverages<'a, T, O>> {
        Ok(ShardedAverages { averaged: self.step.finish()?, shards: self.shards })
    }
}

/// The averages of a step, of which each rank has its blocks.
///
/// Dropping them skips the update. All ranks must do the same, for example because
/// [`ShardedAverages::norm`], which is the same on all, is not finite.
#[derive(Debug)]
pub struct ShardedAverages<'a, T: Scalar, O> {
    averaged: Averaged<'a>,
    shards: &'a mut Shards<T, O>,
}

impl<T: Scalar, O: Optimizer<T>> ShardedAverages<'_, T, O> {
    /// Returns the L2 norm of all gradients together, computed in `f64`. Not finite if any gradient
    /// is. This is a collective: one all-reduce of a number.
    ///
    /// # Errors
    /// [`Error::Comm`].
    pub fn norm(&mut self) -> Result<f64> {
        let owner = &mut *self.averaged.owner;
        let mut squares = 0.0;
        for bucket in 0..owner.plan().buckets().len() {
            let buffer = owner.reducer.buffer_mut(bucket)?;
            squares += Host::sum_of_squares(&owner.comm, buffer.view(buffer.block(&owner.comm))?)?;
        }
        if !self.averaged.status.is_finite {
            squares = f64::NAN;
        }
        let sum = owner.comm.all_reduce_scalar(squares, ReduceOp::Sum);
        Ok(sum.map_err(|error| owner.reducer.poison(error.into()))?.sqrt())
    }

    /// Multiplies all gradients by a factor, the same on every rank.
    ///
    /// # Errors
    /// None for a type whose gradients can be averaged.
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        self.averaged.scale(factor)
    }

    /// Scales all gradients so that their norm is at most `max_norm`. Returns the norm before, as
    /// [`Averaged::clip_norm`]. This is a collective, as [`ShardedAverages::norm`].
    ///
    /// # Errors
    /// As [`ShardedAverages::norm`].
    pub fn clip_norm(&mut self, max_norm: f64) -> Result<f64> {
        let norm = self.norm()?;
        if norm.is_finite() && norm > max_norm {
            self.scale(max_norm / norm)?;
        }
        Ok(norm)
    }

    /// Returns what [`Averaged`] knows of the step besides gradients, of which it has this rank's
    /// blocks only.
    #[must_use]
    pub const fn averaged(&self) -> &Averaged<'_> {
        &self.averaged
    }

    /// Updates the parameters, of which there is one slice each, in the order of registration. This
    /// is a collective. A parameter for which no rank had a gradient in this step stays as it is.
    ///
    /// # Errors
    /// [`Error::Count`] and [`Error::Length`] if slices
    /// do not match the parameters, before anything is sent; the call can be repeated.
    /// [`Error::Comm`].
    pub fn update<'p>(&mut self, parameters: impl IntoIterator<Item = &'p mut [T]>) -> Result<()>
    where
        T: 'p,
    {
        let mut parameters = by_slot(self.averaged.owner.parameters(), parameters)?;
        self.update_slots(|slot, visit| {
            visit(&mut *parameters[slot]);
            Ok(())
        })
    }

    /// Does the same as [`ShardedAverages::update`] for parameters in memory that can be written
    /// only one at a time, such as the tensors of a framework.
    ///
    /// `access` is called with the index of a parameter, several times for each, and calls the
    /// function that it gets with the elements of that parameter.
    ///
    /// # Errors
    /// The error of `access`, or [`Error::Length`] if it shows another number of elements. Either
    /// aborts the communicator, so that the other ranks do not wait. [`Error::Comm`].
    pub fn update_with(
        &mut self,
        mut access: impl FnMut(usize, &mut dyn FnMut(&mut [T])) -> Result<()>,
    ) -> Result<()> {
        let set = self.averaged.owner.parameters();
        let (sorted, mut indices) = (set.sorted().to_vec(), vec![0; set.len()]);
        for (index, slot) in set.slots().iter().enumerate() {
            indices[*slot] = index;
        }
        self.update_slots(|slot, visit| {
            let (expected, mut got) = (sorted[slot].len(), None);
            access(indices[slot], &mut |elements| {
                got = Some(elements.len());
                if got == Some(expected) {
                    visit(elements);
                }
            })?;
            let (name, got) = (sorted[slot].name().to_owned(), got.unwrap_or(0));
            if got == expected { Ok(()) } else { Err(Error::Length { name, expected, got }) }
        })
    }

    /// Updates the parameters, whose elements `access` passes to the function that it gets.
    fn update_slots(
        &mut self,
        mut access: impl FnMut(usize, &mut dyn FnMut(&mut [T])) -> Result<()>,
    ) -> Result<()> {
        self.shards.steps += 1;
        for bucket in 0..self.shards.parts.len() {
            if let Err(error) = self.update_block(bucket, &mut access) {
                self.averaged.owner.abandon();
                return Err(error);
            }
            // The next block is updated while this one is sent.
            self.averaged.owner.reducer.share(bucket);
        }
        let owner = &mut *self.averaged.owner;
        for bucket in 0..self.shards.parts.len() {
            owner.reducer.wait_shared(bucket)?;
            for &slot in owner.plan().buckets()[bucket].slots() {
                let value = owner.reducer.view(&owner.plan().locations()[slot])?;
                let value = value.elements().unwrap_or_default();
                if let Err(error) = access(slot, &mut |elements| elements.copy_from_slice(value)) {
                    owner.abandon();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Updates this rank's block of a bucket, and leaves the new values in the bucket.
    fn update_block(
        &mut self,
        bucket: usize,
        access: &mut impl FnMut(usize, &mut dyn FnMut(&mut [T])) -> Result<()>,
    ) -> Result<()> {
        let (owner, used) = (&mut *self.averaged.owner, &self.averaged.status.used);
        let Shards { optimizers, parts, steps } = &mut *self.shards;
        for part in &mut parts[bucket] {
            let gradient = owner.reducer.buffer_mut(bucket)?.elements(part.located.clone()).into_view()?;
            let gradient: &mut [T] = gradient.into_elements().unwrap_or_default();
            access(part.slot, &mut |elements| {
                let parameter = &mut elements[part.elements.clone()];
                if used.get(part.slot) == Some(&true) {
                    let mut states: Vec<&mut [T]> =
                        part.states.iter_mut().map(|state| &mut state[..]).collect();
                    optimizers[part.slot].update(*steps, parameter, gradient, &mut states);
                }
                gradient.copy_from_slice(parameter);
            })?;
        }
        Ok(())
    }
}
