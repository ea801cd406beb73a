//! Data parallel training in any memory.

use comm_core::{AsViewMut, Comm, Host, Kernels, Membership, ReduceOp, wire};

use crate::agreement::{Leader, agree_on_options, agree_on_order, all_gather, check_parameters};
use crate::bucket_buffer::BucketCollective;
use crate::consensus::minority;
use crate::packed::{self, Packed};
use crate::reducer::Reducer;
use crate::static_graph::StaticGraph;
use crate::status::{GroupStatus, Status};
use crate::{Averaged, BucketPlan, Error, Options, ParameterSet, Result, Step, Stragglers};

/// Averages the gradients of a model over all ranks, overlapped with backward.
///
/// Every rank holds all parameters and trains on its own samples. After each step all ranks have
/// the same average of their gradients, bit for bit, so equal optimizers keep the replicas equal.
///
/// Gradients are stored in buckets, which are allocated once in memory `M`. A communication thread
/// sends a bucket as soon as it and all buckets before it are complete, while backward continues.
/// Buckets use a duplicate of the caller's communicator, so the caller can use its own for other
/// calls at any time, even during a step.
///
/// Parameters may have different floating point types. A bucket holds gradients of one type, and a
/// gradient has the type of its parameter.
///
/// After [`Error::Comm`] or [`Error::Abandoned`], every call fails with [`Error::Poisoned`].
#[derive(Debug)]
pub struct DataParallel<M: Kernels = Host> {
    pub(crate) comm: Comm<M>,
    parameters: ParameterSet,
    pub(crate) options: Options,
    pub(crate) reducer: Reducer<M>,
    /// The slots whose gradients were written in this step.
    pub(crate) written: Vec<bool>,
    /// A power of two near the inverse of the weights of the last step, by which weights are
    /// multiplied so that products with gradients are neither huge nor tiny.
    pub(crate) unit: f64,
    rebuild: Rebuild,
    /// The parameters that are used in every step, once they are known under
    /// [`Options::static_graph`].
    graph: Option<StaticGraph>,
    pub(crate) stragglers: Stragglers,
    /// Whether each rank had a batch in the last step in which any had.
    pub(crate) active: Vec<bool>,
    pub(crate) buffers: Option<Packed<M>>,
}

/// The progress of the switch to the order of the first step.
#[derive(Debug)]
enum Rebuild {
    /// The first step has not run yet.
    AfterFirstStep,
    /// The first step had this order; the next step will use it.
    Pending(Vec<usize>),
    Settled,
}

impl<M: Kernels> DataParallel<M> {
    /// Prepares to train a model and duplicates the communicator. This is a collective: every rank
    /// calls it with the same parameters.
    ///
    /// # Errors
    /// [`Error::Mismatch`] on every rank if the parameters differ; [`Error::Comm`] if one does not
    /// have a floating point type or communication fails.
    pub fn new(comm: &Comm<M>, parameters: ParameterSet, options: Options) -> Result<Self> {
        Self::over(comm.duplicate()?, parameters, options)
    }

    /// Prepares to train a model over `comm` itself, without a duplicate. The program must make no
    /// other calls on that communicator during a step, because they would be matched with buckets.
    ///
    /// # Errors
    /// As [`DataParallel::new`].
    pub fn over(comm: Comm<M>, parameters: ParameterSet, options: Options) -> Result<Self> {
        let leader = Leader::first(&parameters);
        Self::with_collective(comm, parameters, options, (|_| BucketCollective::AllReduce, &leader))
    }

    /// Does the same as [`DataParallel::over`] with the options and the order of buckets of any
    /// rank, and with a collective that depends on these options.
    pub(crate) fn with_collective(
        comm: Comm<M>,
        parameters: ParameterSet,
        options: Options,
        (collective, leader): (fn(&Options) -> BucketCollective, &Leader),
    ) -> Result<Self> {
        // Ranks are compared first: if only one has a wrong type, all should get an error instead
        // of waiting.
        check_parameters(&comm, &parameters)?;
        for parameter in parameters.sorted().iter().filter(|parameter| !parameter.is_frozen()) {
            ReduceOp::Avg.check(parameter.dtype()).map_err(comm_core::Error::from)?;
        }
        let (options, order) = agree_on_options(&comm, options, &parameters, leader)?;
        Self::assemble(comm, parameters, options, (collective, &order))
    }

    /// Creates the state of a rank, without communication. All ranks have the same options, and the
    /// same order of slots in buckets.
    pub(crate) fn assemble(
        comm: Comm<M>,
        parameters: ParameterSet,
        options: Options,
        (collective, order): (fn(&Options) -> BucketCollective, &[usize]),
    ) -> Result<Self> {
        let plan = BucketPlan::new(parameters.sorted(), order, options.limits);
        let reducer = Reducer::new(&comm, plan, collective(&options), options.check_finite, options.clock)?;
        let rebuild = if options.follow_first_step { Rebuild::AfterFirstStep } else { Rebuild::Settled };
        let written = vec![false; parameters.len()];
        let unit = unit_of(options.typical_weight);
        let stragglers = Stragglers::new(comm.size(), options.late_after);
        let active = vec![true; comm.size()];
        Ok(Self {
            comm,
            parameters,
            options,
            reducer,
            written,
            unit,
            rebuild,
            graph: None,
            stragglers,
            active,
            buffers: None,
        })
    }

    /// Returns the parameters.
    #[must_use]
    pub const fn parameters(&self) -> &ParameterSet {
        &self.parameters
    }

    /// Returns the rank of this process, and the number of ranks.
    pub(crate) fn member(&self) -> Membership {
        Membership { rank: self.comm.rank(), size: self.comm.size() }
    }

    /// Returns the assignment of gradients to buckets.
    #[must_use]
    pub const fn plan(&self) -> &BucketPlan {
        self.reducer.plan()
    }

    /// Returns the lateness of every rank in the steps so far, the same report on every rank.
    #[must_use]
    pub const fn stragglers(&self) -> &Stragglers {
        &self.stragglers
    }

    /// Broadcasts the parameters of rank 0. This is a collective. `values` holds one buffer per
    /// parameter, in the order of registration.
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::Length`] or [`Error::WrongType`] if `values` does not match the
    /// parameters, before anything is sent; [`Error::Comm`] if communication fails, and then the
    /// values are unspecified.
    pub fn broadcast_parameters<V: AsViewMut<M>>(
        &mut self,
        values: impl IntoIterator<Item = V>,
    ) -> Result<()> {
        self.reducer.check()?;
        let mut values: Vec<V> = values.into_iter().collect();
        self.parameters.check_values(&mut values)?;
        // The buckets are unused between steps, so they can carry the parameters in a few large
        // messages.
        let sent = self.broadcast_in_buckets(&mut values);
        sent.map_err(|error| self.reducer.poison(error))
    }

    fn broadcast_in_buckets<V: AsViewMut<M>>(&mut self, values: &mut [V]) -> Result<()> {
        for bucket in 0..self.plan().buckets().len() {
            let (plan, memory) = self.reducer.plan_and_buffer_mut(bucket)?;
            packed::broadcast(&self.comm, 0, (&self.parameters, plan, bucket), memory, values)?;
        }
        self.broadcast_frozen(0, values)
    }

    /// Sends the parameters of rank `root` to the buckets of all ranks, for
    /// [`DataParallel::copy_staged`]. Those that are in no bucket are copied at once.
    pub(crate) fn stage_parameters<V: AsViewMut<M>>(&mut self, root: usize, values: &mut [V]) -> Result<()> {
        for bucket in 0..self.plan().buckets().len() {
            let (plan, memory) = self.reducer.plan_and_buffer_mut(bucket)?;
            packed::stage(&self.comm, root, (&self.parameters, plan, bucket), memory, values)?;
        }
        self.broadcast_frozen(root, values)
    }

    /// Copies the parameters that the buckets hold.
    pub(crate) fn copy_staged<V: AsViewMut<M>>(&mut self, values: &mut [V]) -> Result<()> {
        for bucket in 0..self.plan().buckets().len() {
            let (plan, memory) = self.reducer.plan_and_buffer_mut(bucket)?;
            packed::unpack(&self.comm, (&self.parameters, plan, bucket), memory, values)?;
        }
        Ok(())
    }

    /// Broadcasts the parameters that are in no bucket.
    fn broadcast_frozen<V: AsViewMut<M>>(&mut self, root: usize, values: &mut [V]) -> Result<()> {
        let registered = self.parameters.slots().iter().map(|slot| &self.parameters.sorted()[*slot]);
        let frozen = registered.zip(values).filter(|(parameter, _)| parameter.is_frozen());
        let (parameters, mut values): (Vec<_>, Vec<_>) =
            frozen.map(|(parameter, value)| (parameter.clone().trained(), value)).unzip();
        if parameters.is_empty() {
            return Ok(());
        }
        let set = ParameterSet::new(parameters)?;
        packed::broadcast_once(&self.comm, root, (&set, self.options.limits), &mut values)
    }

    /// Starts a step: one or more backward passes, then one average. The gradients of this rank
    /// have a weight of 1.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after an error.
    pub fn step(&mut self) -> Result<Step<'_, M>> {
        self.start(Status::new(self.unit, true))
    }

    /// Starts a step in which the gradients of this rank have a weight, for example the number of
    /// its samples or tokens: the average over all of them is the sum of each rank's weight times
    /// its gradients, divided by the sum of weights.
    ///
    /// Gradients are means over this rank's samples, like those of a mean loss. With a weight of 0
    /// they are ignored whatever their values, because the mean over no samples is NaN. The total
    /// weight of all ranks travels with the gradients, without another call.
    ///
    /// # Errors
    /// [`Error::Weight`] if the weight is negative or not finite; [`Error::Poisoned`] after an
    /// error.
    pub fn step_with_weight(&mut self, weight: f64) -> Result<Step<'_, M>> {
        if !weight.is_finite() || weight < 0.0 {
            return Err(Error::Weight { weight });
        }
        self.start(Status::new(weight * self.unit, true))
    }

    /// Takes part in a step of the other ranks when this rank has no batch left. Returns the
    /// averages of the ranks that have one, which the optimizer applies as after any other step, so
    /// that replicas remain equal. Returns `None` when no rank has a batch, which means that the
    /// epoch is over.
    ///
    /// ```
    /// use comm_ddp::{DataParallel, Options, Parameter, ParameterSet, Result};
    ///
    /// fn train(comm: &comm::Comm) -> Result<f32> {
    ///     let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [1])])?;
    ///     let mut replicas = DataParallel::new(comm, parameters, Options::default())?;
    ///     let mut weight = 0.0;
    ///     // Rank 0 has one batch, rank 1 two, and so on.
    ///     let mut batches = (0..=comm.rank()).map(|batch| batch as f32);
    ///     loop {
    ///         let averaged = if let Some(batch) = batches.next() {
    ///             let mut step = replicas.step()?;
    ///             step.ready(0, &[batch + comm.rank() as f32])?;
    ///             step.finish()?
    ///         } else if let Some(averaged) = replicas.join()? {
    ///             averaged
    ///         } else {
    ///             return Ok(weight);
    ///         };
    ///         weight -= averaged.get::<f32>(0)?[0];
    ///     }
    /// }
    ///
    /// // The average of 0, 1 and 2, then that of 2 and 3, then 4.
    /// let weights = comm::threads::run(3, |comm| train(&comm).unwrap())?;
    /// assert_eq!(weights, [-7.5; 3]);
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Step::finish`].
    pub fn join(&mut self) -> Result<Option<Averaged<'_, M>>> {
        let averaged = self.start(Status::new(0.0, false))?.finish()?;
        Ok((averaged.active_ranks() > 0).then_some(averaged))
    }

    fn start(&mut self, status: Status) -> Result<Step<'_, M>> {
        self.reducer.check()?;
        if let Rebuild::Pending(order) = &self.rebuild {
            let plan = BucketPlan::new(self.parameters.sorted(), order, self.options.limits);
            if plan != *self.reducer.plan() {
                self.reducer.set_plan(plan)?;
                if let Some(hook) = self.reducer.hook() {
                    hook.set_plan(self.parameters.sorted(), self.reducer.plan());
                }
            }
            self.rebuild = Rebuild::Settled;
        }
        self.reducer.begin(status)?;
        self.written.fill(false);
        Ok(Step::new(self))
    }

    /// Agrees on the order of gradients in later steps, after the first step.
    pub(crate) fn learn_order(&mut self) -> Result<()> {
        if matches!(self.rebuild, Rebuild::AfterFirstStep) {
            let leader = Leader { rank: 0, order: self.reducer.queue().order().to_vec() };
            let order = agree_on_order(&self.comm, &leader, self.parameters.len());
            self.rebuild = Rebuild::Pending(order.map_err(|error| self.reducer.poison(error))?);
        }
        Ok(())
    }

    /// Records the ranks that had a batch in a step, and their delays.
    pub(crate) fn record(&mut self, status: &GroupStatus) {
        self.stragglers.record(&status.times);
        if status.active > 0 {
            self.active = status.times.iter().map(Option::is_some).collect();
        }
    }

    /// Returns an error on every rank if their settings of the optimizer differ.
    pub(crate) fn check_digest(&mut self, status: &GroupStatus) -> Result<()> {
        if !status.digests_differ {
            return Ok(());
        }
        let mut digests = vec![0_u8; self.comm.size() * 8];
        let own: [u8; 8] = wire::words([u64::from(self.reducer.digest.unwrap_or_default())]);
        all_gather(&self.comm, &own, &mut digests).map_err(|error| self.reducer.poison(error.into()))?;
        let digests: Vec<u64> =
            digests.as_chunks::<8>().0.iter().map(|word| wire::read_words::<1, 8>(word)[0]).collect();
        let ranks = minority(&digests).map(|(_, ranks)| ranks).unwrap_or_default();
        Err(Error::Diverged { name: "the settings of the optimizer".into(), ranks })
    }

    /// Records which parameters are used, if the graph is static, and adds them to the status of a
    /// step. Returns an error on every rank if some rank uses other parameters.
    pub(crate) fn check_graph(&mut self, status: &mut GroupStatus) -> Result<()> {
        if let Some(graph) = &self.graph {
            if status.deviates {
                let own = &self.reducer.status;
                let used = own.is_active.then_some(&own.used[..]);
                let deviation = graph.deviation(&self.comm, &self.parameters, used);
                return Err(deviation.unwrap_or_else(|error| self.reducer.poison(error)));
            }
            status.used.clone_from(&graph.any);
        } else if self.options.static_graph && status.active == self.comm.size() {
            let own = self.reducer.status.used.clone();
            self.reducer.fix_used()?;
            self.graph = Some(StaticGraph { own, any: status.used.clone() });
        }
        Ok(())
    }

    /// Aborts the communicator, because this rank dropped a step after gradients had been sent.
    pub(crate) fn abandon(&mut self) {
        // The other ranks would wait for the rest of the buckets until their deadline.
        self.comm.abort("a training step was abandoned");
        self.reducer.poison(Error::Abandoned);
    }
}

/// Returns a power of two near the inverse of a weight, so that products with it are exact, or 1 if
/// the weight is not positive and finite.
pub(crate) fn unit_of(weight: f64) -> f64 {
    if !weight.is_finite() || weight <= 0.0 {
        return 1.0;
    }
    let inverse = 2_f64.powi(-(weight.log2().round() as i32));
    if inverse.is_normal() { inverse } else { 1.0 }
}
