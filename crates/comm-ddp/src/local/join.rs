//! Ranks that begin to train, continue in another group, or join a run.

use std::sync::Arc;

use comm_core::{Comm, Worker, wire};

use super::agreement::{JoinState, agree, find_leader};
use super::fragment::Fragment;
use super::plan::FragmentPlan;
use super::state::LocalProgress;
use crate::parameters::by_slot;
use crate::{Error, LocalOptions, LocalTraining, Parameter, ParameterSet, Result, Scalar};

impl<T: Scalar> LocalTraining<T> {
    /// Begins or joins a run over the ranks of `comm`, which is duplicated. This is a collective:
    /// every rank of the group calls it, or [`LocalTraining::rejoin`] if it has trained before.
    ///
    /// `values` holds one slice per parameter, in the order of registration. They are set to the
    /// global parameters of the run, or to those of rank 0 if the run begins.
    ///
    /// # Errors
    /// The same on every rank: [`Error::Mismatch`] if the parameters differ,
    /// [`Error::Disagreement`] and [`Error::Setting`] if options differ or are out of range,
    /// [`Error::Diverged`] if ranks that have trained do not have the same global parameters.
    /// [`Error::Count`], [`Error::Length`] or [`Error::WrongType`] if `values` does not match the
    /// parameters of this rank, and then [`Error::Refused`] on the others. [`Error::Comm`].
    pub fn new<'p>(
        comm: &Comm,
        parameters: ParameterSet,
        options: LocalOptions,
        values: impl IntoIterator<Item = &'p mut [T]>,
    ) -> Result<Self>
    where
        T: 'p,
    {
        let comm = comm.duplicate()?;
        let typed = parameters.sorted().iter().try_for_each(Parameter::check_type::<T>);
        let values = typed.and_then(|()| by_slot(&parameters, values));
        let (states, values) = agree_to_train(&comm, &parameters, &options, JoinState::NEW, values)?;
        let plan = FragmentPlan::new(parameters.sorted(), options.fragments);
        let fragments = plan.lens().iter().map(|len| Fragment::new(*len, &options)).collect();
        let mut training = Self {
            worker: worker(&comm, &options)?,
            comm,
            parameters,
            options,
            plan,
            fragments,
            inner_steps: 0,
            bytes_sent: 0,
            has_state: false,
            poison: None,
        };
        training.adopt(&states, values)?;
        Ok(training)
    }

    /// Continues over the ranks of another communicator, which is duplicated: some ranks have left,
    /// others have come, or the last communicator failed. This is a collective: every rank of the
    /// group calls it, or [`LocalTraining::new`] if it is new.
    ///
    /// It first waits for averages that are in flight. If they are lost, the next outer gradients
    /// contain them. New ranks get the global parameters, the outer momentum and the position of
    /// the run from a rank that has them. So does a rank whose last communicator failed before it
    /// had received the last averages: it continues from the global parameters. The parameters of
    /// other ranks do not change.
    ///
    /// # Errors
    /// As [`LocalTraining::new`]. This rank is then unchanged and may try again. But if
    /// communication fails while it receives the state of another rank, its global parameters are
    /// unspecified until it has rejoined.
    pub fn rejoin<'p>(&mut self, comm: &Comm, values: impl IntoIterator<Item = &'p mut [T]>) -> Result<()>
    where
        T: 'p,
    {
        // The error has been recorded, and is part of the state.
        let _ = self.wait_all();
        let comm = comm.duplicate()?;
        let values = by_slot(&self.parameters, values);
        let (states, values) =
            agree_to_train(&comm, &self.parameters, &self.options, self.join_state(), values)?;
        let worker = worker(&comm, &self.options)?;
        let earlier = std::mem::replace(&mut self.comm, comm);
        match self.adopt(&states, values) {
            Ok(()) => {
                (self.worker, self.poison) = (worker, None);
                Ok(())
            }
            Err(error) => {
                self.comm = earlier;
                // A rank that has lost its state cannot continue in the earlier group either.
                Err(if self.has_state { error } else { self.poison(error) })
            }
        }
    }

    fn join_state(&self) -> JoinState {
        let fragments = || self.fragments.iter();
        let pending = fragments().filter(|fragment| fragment.due.is_some()).count() as u64;
        JoinState {
            refuses: false,
            has_state: self.has_state,
            has_failed: self.poison.is_some(),
            inner_steps: self.inner_steps,
            averages: fragments().map(|fragment| fragment.updates).sum::<u64>() + pending,
            digest: wire::digest(fragments().map(Fragment::digest)),
        }
    }

    /// Takes over the state of the most advanced rank, or the parameters of rank 0 if all are new.
    fn adopt(&mut self, states: &[JoinState], mut values: Vec<&mut [T]>) -> Result<()> {
        let leader = find_leader(states)?;
        let source = leader.unwrap_or(0);
        let lacks_state = |state: &JoinState| !state.agrees(&states[source]);
        if states.iter().any(lacks_state) {
            let lacks_state = lacks_state(&states[self.comm.rank()]);
            // Until all is received, a rank that is behind has neither the old state nor the new.
            self.has_state &= !lacks_state;
            if leader.is_none() {
                self.read_global(&values);
            }
            self.broadcast_state(source)?;
            if lacks_state {
                self.write_global(&mut values);
                self.fragments
                    .iter_mut()
                    .for_each(|fragment| fragment.outer_gradient.set_residual(Vec::new()));
            }
            self.has_state = true;
        }
        self.inner_steps = states[source].inner_steps;
        Ok(())
    }

    /// Gives all ranks the state of one.
    fn broadcast_state(&mut self, source: usize) -> Result<()> {
        let mut words = self.progress().to_words();
        self.comm.broadcast(source, &mut words)?;
        self.set_progress(&LocalProgress::from_words(&words))?;
        for fragment in &mut self.fragments {
            self.comm.broadcast(source, &mut fragment.global)?;
            self.comm.broadcast(source, &mut fragment.momentum)?;
            if fragment.due.is_some() {
                self.comm.broadcast(source, &mut fragment.outer_gradient.values)?;
            }
        }
        Ok(())
    }

    /// Copies parameters into the global ones.
    fn read_global(&mut self, values: &[&mut [T]]) {
        for (place, value) in self.plan.places().iter().zip(values) {
            self.fragments[place.fragment].global[place.elements.clone()].copy_from_slice(value);
        }
    }

    /// Copies the global parameters into a rank's own.
    pub(super) fn write_global(&self, values: &mut [&mut [T]]) {
        for (place, value) in self.plan.places().iter().zip(values) {
            value.copy_from_slice(&self.fragments[place.fragment].global[place.elements.clone()]);
        }
    }
}

/// Agrees with the other ranks on whether all can train together. Every rank calls it, even if its
/// arguments are wrong.
fn agree_to_train<'p, T>(
    comm: &Comm,
    parameters: &ParameterSet,
    options: &LocalOptions,
    state: JoinState,
    values: Result<Vec<&'p mut [T]>>,
) -> Result<(Vec<JoinState>, Vec<&'p mut [T]>)> {
    let state = JoinState { refuses: values.is_err(), ..state };
    let agreed = agree(comm, parameters, options, state);
    match (values, agreed) {
        (Ok(values), agreed) => Ok((agreed?, values)),
        // The others know that this rank refuses, but not why.
        (Err(own), Ok(_) | Err(Error::Refused { .. })) => Err(own),
        (Err(_), Err(error)) => Err(error),
    }
}

/// Starts the thread that averages while inner steps run. Without delay the caller waits anyway.
fn worker(comm: &Comm, options: &LocalOptions) -> Result<Option<Worker>> {
    Ok((options.delay > 0).then(|| Worker::new(comm.clone())).transpose()?)
}

impl<T: Scalar> LocalTraining<T> {
    /// Waits for all averages that have been started.
    pub(super) fn wait_all(&mut self) -> Result<()> {
        let mut first = Ok(());
        for fragment in &mut self.fragments {
            first = first.and(fragment.wait(&self.options));
        }
        first.map_err(|error| self.poison(error))
    }

    /// Records an error with which every call fails until the rank rejoins, unless there is an
    /// earlier one, and returns it.
    pub(super) fn poison(&mut self, error: Error) -> Error {
        self.poison.get_or_insert_with(|| Arc::new(error.clone()));
        error
    }

    /// Returns an error if an earlier call failed.
    pub(super) fn check(&self) -> Result<()> {
        self.poison.as_ref().map_or(Ok(()), |first| Err(Error::Poisoned(Arc::clone(first))))
    }
}
