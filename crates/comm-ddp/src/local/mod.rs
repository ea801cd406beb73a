//! Local training: inner steps on each rank alone, and an outer step of all ranks from time to
//! time.
//!
//! Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023
//! (arXiv 2311.08105), and Streaming DiLoCo with overlapping communication, 2025 (arXiv
//! 2501.18512).
//!
//! For the outer step of a fragment of `n` bytes, each of `k` ranks sends and receives `2 n (k - 1)
//! / k` bytes, as in one all-reduce. Data parallel training sends this for all parameters in every
//! step. With `H` steps between two outer steps, local training sends `1 / H` of it, whatever the
//! number of fragments. A codec of 4 bits with a scale of 32 bits for 64 elements takes 4.5 bits
//! instead of 32.

mod agreement;
mod error;
mod fragment;
mod join;
mod options;
mod outer_gradient;
mod plan;
mod state;

use std::sync::Arc;

use comm_core::{Comm, Worker, wire};

pub use error::Disagreement;
use fragment::Fragment;
pub use options::LocalOptions;
use outer_gradient::OuterGradient;
use plan::FragmentPlan;
pub use state::{LocalProgress, LocalState};

use crate::parameters::by_slot;
use crate::{Error, ParameterSet, Result, Scalar, check_replicas};

/// Trains replicas that communicate rarely, for ranks that are connected by slow links.
///
/// Every rank runs its own inner optimizer on its own samples, and calls [`LocalTraining::step`]
/// after each update. After every `sync_every` steps the *outer gradient*, the global parameters
/// minus the rank's own, is averaged over all ranks, and an outer optimizer updates the global
/// parameters, from which all ranks continue. This is DiLoCo. With `outer` set to
/// `Sgd::new(1.0)` it is local SGD, also known as federated averaging.
///
/// With [`LocalOptions::fragments`] the parameters are divided into fragments that are sent in
/// turn, and with [`LocalOptions::delay`] a fragment is sent in the background while inner steps
/// continue, and applied some steps later. This is Streaming DiLoCo. All intervals are counted in
/// calls of [`LocalTraining::step`], never in time, so a run depends on its seed alone.
///
/// The global parameters have the same bits on every rank after every step. A rank's own
/// parameters equal them after an outer step without delay and with `alpha` 0, and otherwise after
/// [`LocalTraining::synchronize`].
///
/// After [`Error::Comm`] every call fails with [`Error::Poisoned`], but the rank's parameters and
/// the global ones are as they were before the outer step that failed. [`LocalTraining::rejoin`]
/// continues with them in another group.
///
/// ```
/// use comm_ddp::{LocalOptions, LocalTraining, Parameter, ParameterSet, Result, Sgd};
///
/// comm::threads::run(2, |comm| -> Result<()> {
///     let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [2])])?;
///     // Ranks continue with the values of rank 0.
///     let mut weight = [8.0 + comm.rank() as f32; 2];
///     let options = LocalOptions::new(10).outer(Sgd::new(0.5));
///     let mut training = LocalTraining::new(&comm, parameters, options, [&mut weight[..]])?;
///     for _ in 0..10 {
///         // The inner optimizer moves by 1 on rank 0 and by 3 on rank 1.
///         weight.iter_mut().for_each(|value| *value -= 1.0 + 2.0 * comm.rank() as f32);
///         training.step([&mut weight[..]])?;
///     }
///     // The average of the outer gradients 10 and 30 is 20, and the outer step goes half as far.
///     assert_eq!(weight, [8.0 - 10.0; 2]);
///     Ok(())
/// })?
/// .into_iter()
/// .collect::<Result<Vec<()>>>()?;
/// # Ok::<_, comm_ddp::Error>(())
/// ```
#[derive(Debug)]
pub struct LocalTraining<T: Scalar> {
    // Dropped first: it waits for calls on `comm`.
    worker: Option<Worker>,
    comm: Comm,
    parameters: ParameterSet,
    options: LocalOptions,
    plan: FragmentPlan,
    fragments: Vec<Fragment<T>>,
    inner_steps: u64,
    bytes_sent: u64,
    /// Whether the global parameters belong to the run.
    has_state: bool,
    poison: Option<Arc<Error>>,
}

/// The communication of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LocalStep {
    /// The fragment whose outer gradient was sent.
    pub launched: Option<usize>,
    /// The fragment that made an outer step.
    pub applied: Option<usize>,
    /// The bytes that this rank sends for the fragment that was launched.
    pub bytes_sent: u64,
}

impl<T: Scalar> LocalTraining<T> {
    /// Counts an inner step, which the program has just made, and sends and applies the fragments
    /// whose turn it is. Every rank must call it the same number of times. `values` holds the
    /// rank's parameters, one slice each, in the order of registration.
    ///
    /// # Errors
    /// [`Error::Count`] and [`Error::Length`] if `values` does not match the parameters: nothing
    /// was counted, and the call can be repeated. [`Error::Comm`] if an average could not be
    /// received, and `values` is unchanged. [`Error::Poisoned`] after an error.
    pub fn step<'p>(&mut self, values: impl IntoIterator<Item = &'p mut [T]>) -> Result<LocalStep>
    where
        T: 'p,
    {
        self.check()?;
        let mut values = by_slot(&self.parameters, values)?;
        self.inner_steps += 1;
        let mut step = LocalStep { launched: self.launched_now(), ..LocalStep::default() };
        if let Some(number) = step.launched {
            let due = self.inner_steps + self.options.delay as u64;
            step.bytes_sent = self.launch(number, due, &values)?;
        }
        step.applied = self.applied_now();
        if let Some(number) = step.applied {
            self.apply(number, self.options.alpha, &mut values)?;
        }
        Ok(step)
    }

    /// Returns whether the next step sends or applies a fragment. If not, it does not access the
    /// parameters, and [`LocalTraining::skip`] may be called instead of
    /// [`LocalTraining::step`], for example to save copies from a device.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let next = self.inner_steps + 1;
        self.plan.launched_at(next, self.options.sync_every).is_some()
            || self.fragments.iter().any(|fragment| fragment.due == Some(next))
    }

    /// Counts an inner step like [`LocalTraining::step`], without the parameters.
    ///
    /// # Errors
    /// [`Error::SyncDue`] if [`LocalTraining::is_due`]: nothing was counted. [`Error::Poisoned`]
    /// after an error.
    pub fn skip(&mut self) -> Result<()> {
        self.check()?;
        if self.is_due() {
            return Err(Error::SyncDue);
        }
        self.inner_steps += 1;
        Ok(())
    }

    /// Makes an outer step of all parameters now, after which the parameters of all ranks are the
    /// global ones. Call it before an evaluation, at the end of training, or before ranks leave.
    /// This is a collective. Fragments in flight are applied first. The turns of later steps do not
    /// change.
    ///
    /// Returns the bytes that this rank sent.
    ///
    /// # Errors
    /// As [`LocalTraining::step`]; but if [`Error::Comm`] occurs between two fragments, the first
    /// ones have been applied.
    pub fn synchronize<'p>(&mut self, values: impl IntoIterator<Item = &'p mut [T]>) -> Result<u64>
    where
        T: 'p,
    {
        self.check()?;
        let mut values = by_slot(&self.parameters, values)?;
        self.wait_all()?;
        let count = self.fragments.len();
        let mut bytes = 0;
        for number in 0..count {
            if self.fragments[number].due.is_some() {
                self.apply(number, self.options.alpha, &mut values)?;
            }
            bytes += self.launch(number, self.inner_steps, &values)?;
        }
        self.wait_all()?;
        (0..count).try_for_each(|number| self.apply(number, 0.0, &mut values))?;
        Ok(bytes)
    }

    /// Copies the global parameters into a rank's own, for an evaluation of the global model or
    /// after a state was read from a checkpoint. It does not communicate.
    ///
    /// # Errors
    /// [`Error::Count`] and [`Error::Length`] if `values` does not match the parameters.
    pub fn copy_global<'p>(&self, values: impl IntoIterator<Item = &'p mut [T]>) -> Result<()>
    where
        T: 'p,
    {
        self.write_global(&mut by_slot(&self.parameters, values)?);
        Ok(())
    }

    /// Returns the global parameters, in the order of registration.
    pub fn global_parameters(&self) -> impl Iterator<Item = &[T]> {
        self.parameters.slots().iter().map(|&slot| {
            let place = &self.plan.places()[slot];
            &self.fragments[place.fragment].global[place.elements.clone()]
        })
    }

    /// Returns an error if ranks have different bits in the global parameters, like
    /// [`check_replicas`]. This is a collective.
    ///
    /// # Errors
    /// [`Error::Diverged`], the same on every rank; [`Error::Comm`]; [`Error::Poisoned`] after an
    /// error.
    pub fn check_replicas(&mut self) -> Result<()> {
        self.check()?;
        self.wait_all()?;
        let named = self.parameters.sorted().iter().zip(self.plan.places()).map(|(parameter, place)| {
            (parameter.name(), &self.fragments[place.fragment].global[place.elements.clone()])
        });
        check_replicas(&self.comm, named)
    }

    /// Returns the parameters.
    #[must_use]
    pub const fn parameters(&self) -> &ParameterSet {
        &self.parameters
    }

    /// Returns the options.
    #[must_use]
    pub const fn options(&self) -> &LocalOptions {
        &self.options
    }

    /// Returns the bytes that this rank has sent in outer steps since it was created.
    #[must_use]
    pub const fn bytes_sent(&self) -> u64 {
        self.bytes_sent
    }

    fn launched_now(&self) -> Option<usize> {
        self.plan.launched_at(self.inner_steps, self.options.sync_every)
    }

    fn applied_now(&self) -> Option<usize> {
        self.fragments.iter().position(|fragment| fragment.due == Some(self.inner_steps))
    }

    /// Sends the outer gradient of a fragment, in the background if there is a delay. Returns the
    /// bytes sent.
    fn launch(&mut self, number: usize, due: u64, values: &[&mut [T]]) -> Result<u64> {
        let fragment = &mut self.fragments[number];
        for (slot, elements) in self.plan.members(number) {
            let pairs = fragment.global[elements.clone()].iter().zip(values[slot].iter());
            let gradient = fragment.outer_gradient.values[elements].iter_mut();
            gradient.zip(pairs).for_each(|(gradient, (global, local))| *gradient = *global - *local);
        }
        fragment.due = Some(due);
        // Ranks that have made different numbers of steps must not average with each other.
        let key = wire::digest([self.inner_steps, number as u64, fragment.updates]);
        let mut gradient = std::mem::replace(&mut fragment.outer_gradient, OuterGradient::new(0, None));
        let average = move |comm: &Comm| {
            gradient.average(&comm.with_extra_fingerprint(key))?;
            Ok(gradient)
        };
        if let Some(worker) = &self.worker {
            fragment.work = Some(worker.submit(average));
        } else {
            let averaged = fragment.receive(average(&self.comm), &self.options);
            averaged.map_err(|error| self.poison(error))?;
        }
        let bytes =
            OuterGradient::<T>::bytes_sent(self.options.codec, self.plan.lens()[number], self.comm.size());
        self.bytes_sent += bytes;
        Ok(bytes)
    }

    /// Performs the outer step of a fragment, and mixes the result into the rank's parameters.
    fn apply(&mut self, number: usize, alpha: f64, values: &mut [&mut [T]]) -> Result<()> {
        let waited = self.fragments[number].wait(&self.options);
        waited.map_err(|error| self.poison(error))?;
        let fragment = &mut self.fragments[number];
        fragment.update(&self.options.outer);
        let (own, other) = (T::from_f64(alpha), T::from_f64(1.0 - alpha));
        for (slot, elements) in self.plan.members(number) {
            let (local, global) = (&mut *values[slot], &fragment.global[elements]);
            if alpha == 0.0 {
                local.copy_from_slice(global);
            } else {
                let pairs = local.iter_mut().zip(global);
                pairs.for_each(|(local, global)| *local = own * *local + other * *global);
            }
        }
        Ok(())
    }
}
