//! Data parallel training in any memory.

use comm_core::{AsViewMut, Comm, Host, Kernels, ReduceOp, Shape};

use crate::agreement::{agree_on_options, agree_on_order, check_parameters};
use crate::bucket_buffer::Exchange;
use crate::reducer::Reducer;
use crate::status::Status;
use crate::{Averaged, BucketPlan, Error, Options, ParameterSet, Result, Step};

/// Averages the gradients of a model over all ranks, overlapped with backward.
///
/// Every rank holds all parameters and trains on its own samples. After each step all ranks have
/// the same average of their gradients, bit for bit, so equal optimizers keep the replicas equal.
///
/// Gradients are stored in buckets, which are allocated once in memory `M`. A communication thread
/// sends a bucket as soon as it and all buckets before it are complete, while backward continues.
/// Buckets use a duplicate of the caller's communicator, so the caller can use its own for other
/// calls at any time, also during a step.
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
        Self::with_exchange(comm, parameters, options, Exchange::AllReduce)
    }

    /// Does the same as [`DataParallel::over`] by another collective.
    pub(crate) fn with_exchange(
        comm: Comm<M>,
        parameters: ParameterSet,
        options: Options,
        exchange: Exchange,
    ) -> Result<Self> {
        // Ranks are compared first: if only one has a wrong type, all should learn it instead of
        // waiting.
        check_parameters(&comm, &parameters)?;
        for parameter in parameters.sorted() {
            ReduceOp::Avg.check(parameter.dtype()).map_err(comm_core::Error::from)?;
        }
        let (options, mut order) = agree_on_options(&comm, options, &parameters)?;
        order.reverse();
        let plan = BucketPlan::new(parameters.sorted(), &order, options.limits);
        let reducer = Reducer::new(&comm, plan, exchange, options.check_finite, options.clock)?;
        let rebuild = if options.follow_first_step { Rebuild::AfterFirstStep } else { Rebuild::Settled };
        let written = vec![false; parameters.len()];
        let unit = unit_of(options.typical_weight);
        Ok(Self { comm, parameters, options, reducer, written, unit, rebuild })
    }

    /// Returns the parameters.
    #[must_use]
    pub const fn parameters(&self) -> &ParameterSet {
        &self.parameters
    }

    /// Returns the assignment of gradients to buckets.
    #[must_use]
    pub const fn plan(&self) -> &BucketPlan {
        self.reducer.plan()
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
        self.check_values(&mut values)?;
        // The buckets hold nothing between steps: they carry the parameters in a few large
        // messages.
        let sent = self.broadcast_in_buckets(&mut values);
        sent.map_err(|error| self.reducer.poison(error))
    }

    fn broadcast_in_buckets<V: AsViewMut<M>>(&mut self, values: &mut [V]) -> Result<()> {
        let is_root = self.comm.rank() == 0;
        for bucket in 0..self.plan().buckets().len() {
            if is_root {
                self.for_each_of(bucket, values, |comm, gradient, value| {
                    M::copy(comm, gradient, M::into_view(value))
                })?;
            }
            let buffer = self.reducer.buffer_mut(bucket)?;
            self.comm.broadcast(0, &mut buffer.gradients())?;
            if !is_root {
                self.for_each_of(bucket, values, |comm, gradient, value| {
                    M::copy(comm, value, M::into_view(gradient))
                })?;
            }
        }
        Ok(())
    }

    /// Calls a function with the memory of each gradient of a bucket and the parameter's value.
    fn for_each_of<V: AsViewMut<M>>(
        &mut self,
        bucket: usize,
        values: &mut [V],
        visit: impl Fn(&Comm<M>, M::ViewMut<'_>, M::ViewMut<'_>) -> comm_core::Result<()>,
    ) -> Result<()> {
        for (slot, value) in self.parameters.slots().iter().zip(values) {
            let location = self.reducer.plan().locations()[*slot].clone();
            if location.bucket == bucket {
                let gradient = self.reducer.buffer_mut(bucket)?.elements(location.elements).into_view()?;
                visit(&self.comm, gradient, value.as_view_mut()?)?;
            }
        }
        Ok(())
    }

    fn check_values<V: AsViewMut<M>>(&self, values: &mut [V]) -> Result<()> {
        let (expected, got) = (self.parameters.len(), values.len());
        if expected != got {
            return Err(Error::Count { expected, got });
        }
        let slots = self.parameters.slots().iter().copied();
        slots.zip(values).try_for_each(|(slot, value)| self.check_value(slot, &value.as_view_mut()?))
    }

    /// Returns an error if a parameter has another type or number of elements.
    pub(crate) fn check_value(&self, slot: usize, value: &impl Shape) -> Result<()> {
        let parameter = &self.parameters.sorted()[slot];
        let (name, expected, got) = (|| parameter.name().to_owned(), parameter.dtype(), value.dtype());
        if expected != got {
            return Err(Error::WrongType { name: name(), expected, got });
        }
        let (expected, got) = (parameter.len(), value.len());
        if expected == got { Ok(()) } else { Err(Error::Length { name: name(), expected, got }) }
    }

    /// Starts a step: one or several backward passes, then one average.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after an error.
    pub fn step(&mut self) -> Result<Step<'_, M>> {
        self.start(Status::new(1.0, true))
    }

    /// Starts a step in which the gradients of this rank have a weight, for example the number of
    /// its samples or tokens: the average over all of them is the sum of each rank's weight times
    /// its gradients, divided by the sum of weights.
    ///
    /// Gradients are means over this rank's samples, as those of a mean loss. The total weight of
    /// all ranks travels with the gradients, without another call.
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

    /// Takes part in a step of the other ranks, as this rank has no batch left. Returns the
    /// averages of those that have, which the optimizer uses as after any step, so that replicas
    /// remain equal. Returns `None` when no rank has a batch: the epoch is over.
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
            let order = agree_on_order(&self.comm, self.reducer.queue().order(), self.parameters.len());
            self.rebuild = Rebuild::Pending(order.map_err(|error| self.reducer.poison(error))?);
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

/// Returns a power of two near the inverse of a weight, with which products are exact.
pub(crate) fn unit_of(weight: f64) -> f64 {
    let inverse = 2_f64.powi(-(weight.log2().round() as i32));
    if weight > 0.0 && inverse.is_normal() { inverse } else { 1.0 }
}
