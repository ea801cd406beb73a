//! Optimizer state sharded over the ranks.

use comm_core::{AsView, AsViewMut, Comm, Element};

use crate::agreement::Leader;
use crate::bucket_buffer::BucketCollective;
use crate::rejoin::Incoming;
use crate::shards::{self, Shards};
use crate::{
    CommHook, DataParallel, Optimizer, Options, Parameter, ParameterSet, Result, Scalar, ShardedAverages,
    StateShard, Step, Stragglers,
};

/// Averages gradients and updates parameters, with the state of the optimizer divided among the
/// ranks: the first stage of ZeRO (Rajbhandari et al., SC 2020).
///
/// Gradients are sent in buckets while backward runs, as by [`DataParallel`]. Each rank gets the
/// averages of its block of each bucket by a reduce-scatter, updates the parameters of the block,
/// and shares them by an all-gather. That moves as many bytes as an all-reduce of the gradients. A
/// rank keeps only the state of its blocks: for `n` elements, that is `n / size` elements per
/// state, rounded up per bucket.
///
/// The parameters of a model may have 16 bits. Then each rank also keeps the values of its blocks
/// in `T`, which the optimizer updates, and the ranks share them rounded. The first update
/// initializes these values from the parameters.
///
/// The settings of the optimizer may change between steps, in the same way on every rank: see
/// [`ZeroOptimizer::settings_mut`].
///
/// The parameters have the same bits on every rank after each step, and under
/// [`ReduceOrder::Deterministic`](comm_core::ReduceOrder::Deterministic) the bits that an
/// all-reduce followed by the whole optimizer gives.
///
/// After [`Error::Comm`](crate::Error::Comm) the parameters are unspecified, and every call fails
/// but [`ZeroOptimizer::rejoin`]. With it, the ranks that remain can go on without a checkpoint, if
/// [`Options::replicate_state`] was set.
///
/// ```
/// use comm_ddp::{AdamW, Options, Parameter, ParameterSet, Result, ZeroOptimizer};
///
/// comm::threads::run(2, |comm| -> Result<()> {
///     let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [3, 2])])?;
///     // Biases have other settings than weights.
///     let settings = |parameter: &Parameter| AdamW::new(0.1).weight_decay(if parameter.shape().len() > 1 { 0.1 } else { 0.0 });
///     let mut optimizer = ZeroOptimizer::<f32, _>::new(&comm, parameters, Options::default(), settings)?;
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
    pub(crate) replicas: DataParallel,
    pub(crate) shards: Shards<T, O>,
    /// The state in another group that this rank has received, if it does not know whether all
    /// ranks have.
    pub(crate) incoming: Option<Box<Incoming<T>>>,
    /// Whether settings may have changed since the last step.
    pub(crate) is_modified: bool,
}

impl<T: Scalar, O: Optimizer<T>> ZeroOptimizer<T, O> {
    /// Prepares an optimizer, and duplicates the communicator. `optimizer` returns the settings for
    /// each parameter, the same on every rank. This is a collective. Buckets follow the reverse
    /// order of registration, regardless of [`Options::follow_first_step`].
    ///
    /// # Errors
    /// As [`DataParallel::new`]; [`Error::WrongType`](crate::Error::WrongType) if a parameter that
    /// is trained holds neither `T` nor 16-bit floats.
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
        let leader = Leader::first(&parameters);
        let replicas = DataParallel::with_collective(comm, parameters, options, (reduce_scatter, &leader))?;
        replicas.parameters().sorted().iter().try_for_each(shards::check_type::<T>)?;
        let shards = Shards::new(&replicas, optimizers);
        Ok(Self { replicas, shards, incoming: None, is_modified: true })
    }

    /// Returns the parameters.
    #[must_use]
    pub const fn parameters(&self) -> &ParameterSet {
        self.replicas.parameters()
    }

    /// Registers a communication hook, as [`DataParallel::register_comm_hook`]. Hooks average whole
    /// buckets, so a step moves the bytes of the hook and those of an all-gather of all parameters.
    ///
    /// # Errors
    /// As [`DataParallel::register_comm_hook`].
    pub fn register_comm_hook(&mut self, hook: impl CommHook) -> Result<()> {
        self.replicas.register_comm_hook(hook)
    }

    /// Returns the lateness of every rank, as [`DataParallel::stragglers`].
    #[must_use]
    pub const fn stragglers(&self) -> &Stragglers {
        self.replicas.stragglers()
    }

    /// Starts a step, as [`DataParallel::step`].
    ///
    /// # Errors
    /// As [`DataParallel::step`].
    pub fn step(&mut self) -> Result<ZeroStep<'_, T, O>> {
        self.prepare_step();
        Ok(ZeroStep { step: self.replicas.step()?, shards: &mut self.shards })
    }

    /// Starts a step in which the gradients of this rank have a weight, as
    /// [`DataParallel::step_with_weight`].
    ///
    /// # Errors
    /// As [`DataParallel::step_with_weight`].
    pub fn step_with_weight(&mut self, weight: f64) -> Result<ZeroStep<'_, T, O>> {
        self.prepare_step();
        Ok(ZeroStep { step: self.replicas.step_with_weight(weight)?, shards: &mut self.shards })
    }

    /// Takes part in a step of the other ranks, as [`DataParallel::join`].
    ///
    /// # Errors
    /// As [`DataParallel::join`].
    pub fn join(&mut self) -> Result<Option<ShardedAverages<'_, T, O>>> {
        self.prepare_step();
        let averaged = self.replicas.join()?;
        averaged.map(|averaged| ShardedAverages::new(averaged, &mut self.shards)).transpose()
    }

    /// Returns the settings of each parameter for changes, for example of the learning rate of all
    /// or of a group.
    ///
    /// Every rank makes the same changes. The next step compares the settings of all ranks, without
    /// another call, by the text that `Debug` prints of them. If they differ, it fails with
    /// [`Error::Diverged`](crate::Error::Diverged) on every rank, and updates nothing.
    ///
    /// ```
    /// # use comm_ddp::{AdamW, Options, Parameter, ParameterSet, Result, ZeroOptimizer};
    /// # comm::threads::run(2, |comm| -> Result<()> {
    /// # let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [3, 2])])?;
    /// # let mut optimizer = ZeroOptimizer::<f32, _>::new(&comm, parameters, Options::default(), |_| AdamW::new(0.1))?;
    /// for step in 0..3 {
    ///     for (_, settings) in optimizer.settings_mut() {
    ///         settings.learning_rate = 0.1 / f64::from(step + 1);
    ///     }
    ///     // Forward, backward and update.
    /// }
    /// # Ok(())
    /// # })?.into_iter().collect::<Result<Vec<()>>>()?;
    /// # Ok::<_, comm_ddp::Error>(())
    /// ```
    pub fn settings_mut(&mut self) -> impl Iterator<Item = (&Parameter, &mut O)> {
        self.is_modified = true;
        self.replicas.parameters().sorted().iter().zip(&mut self.shards.optimizers)
    }

    /// Prepares the data that accompany the status of the next step.
    fn prepare_step(&mut self) {
        self.apply_settings();
        self.replicas.reducer.lacks_replica = self.shards.lacks_replica();
    }

    /// Applies changes of settings.
    pub(crate) fn apply_settings(&mut self) {
        if std::mem::take(&mut self.is_modified) {
            self.shards.resize_states();
            if let Some(incoming) = &mut self.incoming {
                incoming.state.resize(&self.shards.optimizers);
            }
            self.replicas.reducer.digest = Some(self.shards.digest());
        }
    }

    /// Broadcasts the parameters of rank 0, as [`DataParallel::broadcast_parameters`].
    ///
    /// # Errors
    /// As [`DataParallel::broadcast_parameters`].
    pub fn broadcast_parameters<V: AsViewMut>(&mut self, values: impl IntoIterator<Item = V>) -> Result<()> {
        self.replicas.broadcast_parameters(values)
    }

    /// Registers the buffers of the model, as [`DataParallel::register_buffers`].
    ///
    /// # Errors
    /// As [`DataParallel::register_buffers`].
    pub fn register_buffers(&mut self, buffers: ParameterSet) -> Result<()> {
        self.replicas.register_buffers(buffers)
    }

    /// Gives all ranks the buffers of one rank, as [`DataParallel::broadcast_buffers`].
    ///
    /// # Errors
    /// As [`DataParallel::broadcast_buffers`].
    pub fn broadcast_buffers<V: AsViewMut>(&mut self, values: impl IntoIterator<Item = V>) -> Result<()> {
        self.replicas.broadcast_buffers(values)
    }

    /// Gives all ranks the mean of their buffers, as [`DataParallel::average_buffers`].
    ///
    /// # Errors
    /// As [`DataParallel::average_buffers`].
    pub fn average_buffers<V: AsViewMut>(&mut self, values: impl IntoIterator<Item = V>) -> Result<()> {
        self.replicas.average_buffers(values)
    }

    /// Returns the number of updates so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.shards.state.steps
    }

    /// Sets the number of updates so far, for a run that is resumed. Unless it is zero, the values
    /// of 16-bit parameters are those that [`ZeroOptimizer::state`] gives access to.
    pub const fn set_steps(&mut self, steps: u64) {
        let Shards { state, parameters_are_shared, .. } = &mut self.shards;
        (state.steps, state.has_masters, state.has_replica) = (steps, steps > 0, false);
        *parameters_are_shared = false;
    }

    /// Returns the parts of the state that this rank holds. Those of all ranks cover every
    /// parameter once, so they can be saved as shards and read by another number of ranks.
    ///
    /// The copies of [`Options::replicate_state`] are made again in the next step, because the
    /// caller can change the state.
    pub fn state(&mut self) -> impl Iterator<Item = StateShard<'_, T>> {
        self.apply_settings();
        self.shards.state(self.replicas.parameters().sorted())
    }
}

/// One step with a sharded optimizer, as [`Step`].
#[derive(Debug)]
#[must_use = "a step averages nothing until it is finished"]
pub struct ZeroStep<'a, T: Scalar, O> {
    step: Step<'a>,
    pub(crate) shards: &'a mut Shards<T, O>,
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
    pub fn gradient_mut<E: Element>(&mut self, index: usize) -> Result<&mut [E]> {
        self.step.gradient_mut(index)
    }

    /// Marks the gradient of a parameter as ready, as [`Step::mark_ready`].
    ///
    /// # Errors
    /// As [`Step::mark_ready`].
    pub fn mark_ready(&mut self, index: usize) -> Result<()> {
        self.step.mark_ready(index)
    }

    /// Marks a parameter as ready without a gradient on this rank, as [`Step::mark_unused`].
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
        ShardedAverages::new(self.step.finish()?, self.shards)
    }
}

/// Returns the collective that leaves on each rank its block of a bucket.
pub(crate) const fn reduce_scatter(options: &Options) -> BucketCollective {
    BucketCollective::ReduceScatter { replicates: options.replicate_state }
}
