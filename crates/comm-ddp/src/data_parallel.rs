//! Data parallel training in host memory.

use std::time::Instant;

use comm_core::{Comm, ReduceOp};

use crate::agreement::{Settings, agree_on_order, agree_on_settings, check_parameters};
use crate::gradients::Gradients;
use crate::{BucketLimits, BucketPlan, Clock, Error, Gradient, ParameterSet, Reducer, Result, Step};

/// Options of [`DataParallel`]. Except for the clock, all ranks use those of rank 0.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Options {
    /// The sizes at which buckets are full.
    pub limits: BucketLimits,
    /// Whether buckets are rebuilt after the first step, in the order in which rank 0's gradients
    /// became ready in it. Otherwise, and until then, buckets use the reverse order of
    /// registration.
    pub follow_first_step: bool,
    /// The clock of [`Timeline`](crate::Timeline).
    pub clock: Clock,
}

/// Setters, as in `Options::default().follow_first_step(false)`.
impl Options {
    /// Returns [`BucketLimits::DEFAULT`], buckets that follow the first step, and the system clock.
    pub const DEFAULT: Self =
        Self { limits: BucketLimits::DEFAULT, follow_first_step: true, clock: Instant::now };

    comm_core::setters!(limits: BucketLimits, follow_first_step: bool, clock: Clock);
}

impl Default for Options {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Averages the gradients of a model over all ranks, overlapped with backward.
///
/// Every rank holds all parameters and trains on its own samples. After each step all ranks have
/// the same average of their gradients, bit for bit, so equal optimizers keep the replicas equal.
///
/// Gradients are stored in buckets, which are allocated once. A communication thread sends a bucket
/// as soon as it and all buckets before it are complete, while backward continues. Buckets use a
/// duplicate of the caller's communicator, so the caller can use its own for other calls at any
/// time, also during a step.
///
/// All gradients have the type `T`. A model with parameters of two types needs one `DataParallel`
/// for each type.
///
/// After [`Error::Comm`] or [`Error::Abandoned`], every call fails with [`Error::Poisoned`].
#[derive(Debug)]
pub struct DataParallel<T: Gradient> {
    comm: Comm,
    parameters: ParameterSet,
    settings: Settings,
    pub(crate) reducer: Reducer<Gradients<T>>,
    /// The slots whose gradients were written in this step.
    pub(crate) written: Vec<bool>,
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

impl<T: Gradient> DataParallel<T> {
    /// Prepares to train a model and duplicates the communicator. This is a collective: every rank
    /// calls it with the same parameters.
    ///
    /// # Errors
    /// [`Error::Mismatch`] on every rank if the parameters differ; [`Error::WrongType`] if one does
    /// not hold `T`; [`Error::Comm`] if `T` is not a floating point type or communication fails.
    pub fn new(comm: &Comm, parameters: ParameterSet, options: Options) -> Result<Self> {
        Self::over(comm.duplicate()?, parameters, options)
    }

    /// Prepares to train a model over `comm` itself, without a duplicate. The program must make no
    /// other calls on that communicator during a step, because they would be matched with buckets.
    ///
    /// # Errors
    /// As [`DataParallel::new`].
    pub fn over(comm: Comm, parameters: ParameterSet, options: Options) -> Result<Self> {
        // Ranks are compared first: if only one has a wrong type, all should learn it instead of
        // waiting.
        check_parameters(&comm, &parameters)?;
        if let Some(wrong) = parameters.not_of(T::DTYPE) {
            let (name, got) = (wrong.name().to_owned(), wrong.dtype());
            return Err(Error::WrongType { name, expected: T::DTYPE, got });
        }
        ReduceOp::Avg.check(T::DTYPE).map_err(comm_core::Error::from)?;
        let settings = Settings { limits: options.limits, follow_first_step: options.follow_first_step };
        let (settings, mut order) = agree_on_settings(&comm, &settings, &parameters)?;
        order.reverse();
        let plan = BucketPlan::new(parameters.sorted(), &order, settings.limits);
        let allocate = |bucket: &crate::Bucket| Gradients::new(&comm, bucket);
        let reducer = Reducer::new(comm.clone(), plan, options.clock, allocate)?;
        let rebuild = if settings.follow_first_step { Rebuild::AfterFirstStep } else { Rebuild::Settled };
        let written = vec![false; parameters.len()];
        Ok(Self { comm, parameters, settings, reducer, written, rebuild })
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

    /// Broadcasts the parameters of rank 0. This is a collective. `values` holds one slice per
    /// parameter, in the order of registration.
    ///
    /// # Errors
    /// [`Error::Count`] or [`Error::Length`] if `values` does not match the parameters, before
    /// anything is sent; [`Error::Comm`] if communication fails, and then the values are
    /// unspecified.
    pub fn broadcast_parameters<'v>(&mut self, values: impl IntoIterator<Item = &'v mut [T]>) -> Result<()>
    where
        T: 'v,
    {
        self.reducer.check()?;
        let mut values: Vec<&mut [T]> = values.into_iter().collect();
        self.check_lengths(&values)?;
        // The buckets hold nothing between steps: they carry the parameters in a few large
        // messages.
        if self.comm.rank() == 0 {
            self.for_each_gradient(&mut values, |gradient, value| gradient.copy_from_slice(value));
        }
        for bucket in 0..self.plan().buckets().len() {
            if let Some(gradients) = self.reducer.buffer_mut(bucket) {
                let sent = self.comm.broadcast(0, gradients.all_mut());
                sent.map_err(|error| self.reducer.poison(error.into()))?;
            }
        }
        if self.comm.rank() != 0 {
            self.for_each_gradient(&mut values, |gradient, value| value.copy_from_slice(gradient));
        }
        Ok(())
    }

    fn check_lengths(&self, values: &[&mut [T]]) -> Result<()> {
        let (expected, got) = (self.parameters.len(), values.len());
        if expected != got {
            return Err(Error::Count { expected, got });
        }
        let slots = self.parameters.slots().iter().copied();
        slots.zip(values).try_for_each(|(slot, value)| self.check_length(slot, value.len()))
    }

    /// Returns an error if a parameter has another number of elements.
    pub(crate) fn check_length(&self, slot: usize, got: usize) -> Result<()> {
        let parameter = &self.parameters.sorted()[slot];
        let expected = parameter.len();
        if expected == got {
            Ok(())
        } else {
            Err(Error::Length { name: parameter.name().to_owned(), expected, got })
        }
    }

    /// Calls a function with the gradient memory and the value of each parameter.
    fn for_each_gradient(&mut self, values: &mut [&mut [T]], mut visit: impl FnMut(&mut [T], &mut [T])) {
        for (slot, value) in self.parameters.slots().iter().zip(values) {
            let location = self.reducer.plan().locations()[*slot].clone();
            if let Some(gradients) = self.reducer.buffer_mut(location.bucket) {
                visit(gradients.get_mut(&location), value);
            }
        }
    }

    /// Starts a step: one or several backward passes, then one average.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after an error.
    pub fn step(&mut self) -> Result<Step<'_, T>> {
        self.reducer.check()?;
        if let Rebuild::Pending(order) = &self.rebuild {
            let plan = BucketPlan::new(self.parameters.sorted(), order, self.settings.limits);
            if plan != *self.reducer.plan() {
                self.reducer.set_plan(plan, |bucket| Gradients::new(&self.comm, bucket))?;
            }
            self.rebuild = Rebuild::Settled;
        }
        self.reducer.begin()?;
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
