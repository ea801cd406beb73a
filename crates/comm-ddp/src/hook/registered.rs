//! A hook that all ranks have registered.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use comm_core::{Comm, Kernels};

use super::{CommHook, GradBucket, HookError};
use crate::agreement::gather_unequal;
use crate::{BucketPlan, DataParallel, Error, Parameter, Result};

impl<M: Kernels> DataParallel<M> {
    /// Registers a communication hook, which averages the buckets of all later steps. This is a
    /// collective: all ranks register hooks with the same
    /// [`description`](CommHook::description).
    ///
    /// A step borrows the `DataParallel`, so a hook cannot be registered during one. Hooks never
    /// see the status of a step, which includes weights and unused parameters. With a hook, the
    /// status takes an all-reduce of its own.
    ///
    /// ```
    /// use comm::Comm;
    /// use comm::ddp::{
    ///     CommHook, DataParallel, GradBucket, HookError, Options, Parameter, ParameterSet, QuantizationHook,
    /// };
    ///
    /// /// The largest gradient of all ranks instead of the average.
    /// struct Largest;
    ///
    /// impl CommHook for Largest {
    ///     fn description(&self) -> String {
    ///         "largest".into()
    ///     }
    ///
    ///     fn average(&mut self, comm: &Comm, bucket: &mut GradBucket<'_>) -> Result<(), HookError> {
    ///         Ok(comm.all_reduce(bucket, comm::ReduceOp::Max)?)
    ///     }
    /// }
    ///
    /// comm::threads::run(3, |comm| {
    ///     let set = || ParameterSet::new([Parameter::new::<f32>("weight", [2])]).unwrap();
    ///     let mut replicas = DataParallel::new(&comm, set(), Options::default()).unwrap();
    ///     replicas.register_comm_hook(Largest).unwrap();
    ///     let mut step = replicas.step().unwrap();
    ///     step.ready(0, &[comm.rank() as f32, 1.0]).unwrap();
    ///     assert_eq!(step.finish().unwrap().get::<f32>(0).unwrap(), [2.0, 1.0]);
    ///
    ///     // Integers of 8 bits, in about a quarter of the bytes.
    ///     let mut replicas = DataParallel::new(&comm, set(), Options::default()).unwrap();
    ///     replicas.register_comm_hook(QuantizationHook::int8()).unwrap();
    ///     let mut step = replicas.step().unwrap();
    ///     step.ready(0, &[comm.rank() as f32, 1.0]).unwrap();
    ///     let averaged = step.finish().unwrap();
    ///     assert!(averaged.get::<f32>(0).unwrap().iter().all(|average| (average - 1.0).abs() < 0.02));
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// ```compile_fail,E0499
    /// # use comm::ddp::{CastHook, DataParallel};
    /// fn during_a_step(replicas: &mut DataParallel) {
    ///     let step = replicas.step().unwrap();
    ///     replicas.register_comm_hook(CastHook::bf16()).unwrap();
    ///     step.finish().unwrap();
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::HookRegistered`] if there already is a hook, which remains; nothing is sent.
    /// [`Error::HookMismatch`] on every rank if hooks differ; then none is registered, and training
    /// can continue without one. [`Error::Comm`] if communication fails or there is not enough
    /// memory.
    pub fn register_comm_hook(&mut self, hook: impl CommHook<M>) -> Result<()> {
        self.reducer.check()?;
        let refused = hook.description();
        if let Some(registered) = self.reducer.hook() {
            return Err(Error::HookRegistered { registered: registered.description().into(), refused });
        }
        match check_hooks(&self.comm, &refused) {
            Ok(()) => {}
            Err(error @ Error::HookMismatch { .. }) => return Err(error),
            Err(error) => return Err(self.reducer.poison(error)),
        }
        let hook = RegisteredHook { description: refused.into(), hook: Arc::new(Mutex::new(hook)) };
        hook.set_plan(self.parameters().sorted(), self.plan());
        self.reducer.set_hook(hook)
    }
}

/// Returns an error on every rank unless all have the same description.
fn check_hooks<M: Kernels>(comm: &Comm<M>, description: &str) -> Result<()> {
    let Some(descriptions) = gather_unequal(comm, description.as_bytes())? else { return Ok(()) };
    let occurrences =
        |rank: &usize| descriptions.iter().filter(|other| **other == descriptions[*rank]).count();
    // The lowest rank with the most common hook.
    let reference = (0..descriptions.len()).rev().max_by_key(occurrences).unwrap_or(0);
    let differs = |rank: &usize| descriptions[*rank] != descriptions[reference];
    let ranks: Vec<usize> = (0..descriptions.len()).filter(differs).collect();
    let text = |rank: usize| String::from_utf8_lossy(&descriptions[rank]).into_owned();
    let found = ranks.first().map_or_else(String::new, |rank| text(*rank));
    Err(Error::HookMismatch { expected: text(reference), found, ranks, reference })
}

/// A hook that the communication thread and the owner of the reducer share. They never use it at
/// the same time.
pub(crate) struct RegisteredHook<M: Kernels> {
    description: Arc<str>,
    hook: Arc<Mutex<dyn CommHook<M>>>,
}

impl<M: Kernels> RegisteredHook<M> {
    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    pub(crate) fn set_plan(&self, parameters: &[Parameter], plan: &BucketPlan) {
        self.lock().set_plan(parameters, plan);
    }

    pub(crate) fn rescale(&self, factor: f64) {
        self.lock().rescale(factor);
    }

    /// Averages a bucket. If that fails, aborts the communicator for all ranks.
    pub(crate) fn average(&self, comm: &Comm<M>, bucket: &mut GradBucket<'_, M>) -> Result<()> {
        let index = bucket.index();
        let outcome = self.lock().average(comm, bucket);
        outcome.map_err(|error| {
            // The others may be waiting in a call that the hook did not make.
            comm.abort(&format!(
                "the communication hook {:?} failed in bucket {index}: {error}",
                self.description
            ));
            self.typed(error, index)
        })
    }

    fn typed(&self, error: HookError, bucket: usize) -> Error {
        let error = match error.downcast::<comm_core::Error>() {
            Ok(error) => return Error::Comm(*error),
            Err(error) => error,
        };
        match error.downcast::<Error>() {
            Ok(error) => *error,
            Err(source) => Error::Hook { hook: self.description.to_string(), bucket, source: source.into() },
        }
    }

    /// A panic in the hook aborts the communicator, so its state is no longer used.
    fn lock(&self) -> MutexGuard<'_, dyn CommHook<M>> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Kernels> Clone for RegisteredHook<M> {
    fn clone(&self) -> Self {
        Self { description: Arc::clone(&self.description), hook: Arc::clone(&self.hook) }
    }
}

impl<M: Kernels> fmt::Debug for RegisteredHook<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredHook").field("description", &self.description).finish_non_exhaustive()
    }
}
