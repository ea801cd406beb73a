//! One training step.

use comm_core::{AsView, Element, Host, HostViewMut, Kernels};

use crate::data_parallel::unit_of;
use crate::{Averaged, DataParallel, Divisor, Error, Location, Result, Uneven};

/// One step of data parallel training, from the first gradient to the averages.
///
/// Gradients can be passed in any order, which may differ from rank to rank. A parameter is
/// identified by the index with which it was registered.
///
/// To accumulate over several backward passes, call [`Step::accumulate`] in all but the last and
/// [`Step::ready`] in the last: gradients are summed locally and averaged once. As in PyTorch, the
/// sum is not divided by the number of passes.
///
/// Dropping a step before any of its buckets was sent has no effect. Dropping it later aborts the
/// communicator, so that the other ranks do not wait for the remaining buckets.
#[derive(Debug)]
#[must_use = "a step averages nothing until it is finished"]
pub struct Step<'a, M: Kernels = Host> {
    /// `None` once finished.
    owner: Option<&'a mut DataParallel<M>>,
}

impl<'a, M: Kernels> Step<'a, M> {
    pub(crate) const fn new(owner: &'a mut DataParallel<M>) -> Self {
        Self { owner: Some(owner) }
    }

    /// Returns the memory of a gradient: the sum accumulated in this step, or zeros. Write the
    /// gradient there and call [`Step::mark_ready`] to avoid a copy.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`], [`Error::Frozen`], or [`Error::AlreadyReady`] if it was marked
    /// before.
    pub fn view_mut(&mut self, index: usize) -> Result<M::ViewMut<'_>> {
        let owner = owner(&mut self.owner)?;
        let (slot, location) = locate(owner, index)?;
        let fresh = !std::mem::replace(&mut owner.written[slot], true);
        let memory = owner.reducer.buffer_mut(location.bucket)?;
        if fresh {
            M::zero(&owner.comm, memory.elements(location.elements.clone()).into_view()?)?;
        }
        Ok(memory.elements(location.elements).into_view()?)
    }

    /// Returns the memory of a gradient with unspecified values, for a backward that overwrites all
    /// of them: [`Step::view_mut`] without the pass that sets them to zero. The sum accumulated in
    /// this step is lost.
    ///
    /// # Errors
    /// As [`Step::view_mut`].
    pub fn overwrite_view(&mut self, index: usize) -> Result<M::ViewMut<'_>> {
        let owner = owner(&mut self.owner)?;
        let (slot, location) = locate(owner, index)?;
        owner.written[slot] = true;
        Ok(owner.reducer.buffer_mut(location.bucket)?.elements(location.elements).into_view()?)
    }

    /// Adds to the gradient of a parameter without marking it as ready.
    ///
    /// # Errors
    /// As [`Step::view_mut`], and [`Error::Length`] or [`Error::WrongType`] if `gradient` does not
    /// match the parameter.
    pub fn accumulate(&mut self, index: usize, gradient: &(impl AsView<M> + ?Sized)) -> Result<()> {
        let owner = owner(&mut self.owner)?;
        let (slot, location) = locate(owner, index)?;
        let gradient = gradient.as_view()?;
        owner.parameters().check_value(slot, &gradient)?;
        let fresh = !std::mem::replace(&mut owner.written[slot], true);
        let sum = owner.reducer.buffer_mut(location.bucket)?.elements(location.elements).into_view()?;
        let write = if fresh { M::copy } else { M::add };
        Ok(write(&owner.comm, sum, gradient)?)
    }

    /// Adds to the gradient of a parameter and marks it as ready. Its bucket is sent as soon as it
    /// is complete.
    ///
    /// # Errors
    /// As [`Step::accumulate`].
    pub fn ready(&mut self, index: usize, gradient: &(impl AsView<M> + ?Sized)) -> Result<()> {
        self.accumulate(index, gradient)?;
        self.mark_ready(index)
    }

    /// Marks the gradient of a parameter as ready, with the value in [`Step::view_mut`].
    ///
    /// # Errors
    /// As [`Step::view_mut`].
    pub fn mark_ready(&mut self, index: usize) -> Result<()> {
        let owner = owner(&mut self.owner)?;
        let (slot, location) = locate(owner, index)?;
        complete_gradient(owner, slot, location, true)?;
        owner.reducer.mark_ready(slot);
        Ok(())
    }

    /// Marks a parameter, on which the loss does not depend, as ready without a gradient on this
    /// rank, so that its bucket does not have to wait for the end of the step. Gradients that were
    /// accumulated before still count.
    ///
    /// # Errors
    /// As [`Step::view_mut`].
    pub fn mark_unused(&mut self, index: usize) -> Result<()> {
        let owner = owner(&mut self.owner)?;
        let (slot, location) = locate(owner, index)?;
        let used = owner.written[slot];
        complete_gradient(owner, slot, location, used)?;
        owner.reducer.mark_ready(slot);
        Ok(())
    }

    /// Asks all ranks to stop training after this step: see [`Averaged::stop_requested`]. The
    /// request travels with the last bucket of the step, so it is too late once all gradients are
    /// ready.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after an error.
    pub fn request_stop(&mut self) -> Result<()> {
        owner(&mut self.owner)?.reducer.status.stops = true;
        Ok(())
    }

    /// Sends the remaining buckets and waits for the averages over all ranks.
    ///
    /// A parameter without a gradient counts as zero on this rank. A gradient that was accumulated
    /// but not marked as ready counts with its current value.
    ///
    /// # Errors
    /// [`Error::Comm`] if a bucket could not be averaged. Every later call fails with
    /// [`Error::Poisoned`]. [`Error::Exhausted`] on every rank if some rank had no batch and
    /// [`Uneven::Refuse`] is set, and [`Error::GraphChanged`] if some rank used other parameters
    /// under [`Options::static_graph`](crate::Options::static_graph); the next step can run as
    /// usual.
    pub fn finish(mut self) -> Result<Averaged<'a, M>> {
        let Some(owner) = self.owner.take() else { return Err(Error::Abandoned) };
        for slot in 0..owner.parameters().len() {
            if !owner.reducer.queue().is_ready(slot) && !owner.parameters().sorted()[slot].is_frozen() {
                let (location, used) = (owner.plan().locations()[slot].clone(), owner.written[slot]);
                complete_gradient(owner, slot, location, used)?;
            }
        }
        let (timeline, mut status) = owner.reducer.finish()?;
        owner.learn_order()?;
        owner.record(&status);
        owner.check_digest(&status)?;
        owner.check_graph(&mut status)?;
        let ranks = owner.comm.size();
        if owner.options.uneven == Uneven::Refuse && (1..ranks).contains(&status.active) {
            return Err(Error::Exhausted { active: status.active, ranks });
        }
        let mean_weight = status.mean_weight / owner.unit;
        let factor = match owner.options.divisor {
            Divisor::Weights => 1.0 / status.mean_weight,
            Divisor::Ranks => 1.0 / owner.unit,
            Divisor::Number(number) => ranks as f64 / (owner.unit * number),
        };
        if factor != 1.0 && status.mean_weight > 0.0 {
            owner.reducer.scale(factor).map_err(|error| owner.reducer.poison(error))?;
        }
        if status.mean_weight > 0.0 {
            let unit = unit_of(mean_weight * ranks as f64 / status.active as f64);
            let rescaled = unit / std::mem::replace(&mut owner.unit, unit);
            if let Some(hook) = owner.reducer.hook().filter(|_| rescaled != 1.0) {
                hook.rescale(rescaled);
            }
        }
        Ok(Averaged { owner, timeline, status, total_weight: mean_weight * ranks as f64 })
    }
}

impl Step<'_, Host> {
    /// Returns the memory of a gradient as a slice: [`Step::view_mut`] for a known type.
    ///
    /// # Errors
    /// As [`Step::view_mut`], and [`Error::WrongType`] if the parameter has another type.
    pub fn gradient_mut<T: Element>(&mut self, index: usize) -> Result<&mut [T]> {
        self.check_type::<T>(index)?;
        self.view_mut(index).map(|view| HostViewMut::into_elements(view).unwrap_or_default())
    }

    /// Returns the memory of a gradient as a slice of unspecified values: [`Step::overwrite_view`]
    /// for a known type.
    ///
    /// # Errors
    /// As [`Step::gradient_mut`].
    pub fn overwrite<T: Element>(&mut self, index: usize) -> Result<&mut [T]> {
        self.check_type::<T>(index)?;
        self.overwrite_view(index).map(|view| HostViewMut::into_elements(view).unwrap_or_default())
    }

    fn check_type<T: Element>(&mut self, index: usize) -> Result<()> {
        let owner = owner(&mut self.owner)?;
        let (slot, _) = locate(owner, index)?;
        owner.parameters().sorted()[slot].check_type::<T>()
    }
}

impl<M: Kernels> Drop for Step<'_, M> {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take().filter(|owner| owner.reducer.queue().has_released()) {
            owner.abandon();
        }
    }
}

/// Returns the `DataParallel` of the step. It is `None` only while `finish` runs, which consumes
/// the step.
fn owner<'s, M: Kernels>(owner: &'s mut Option<&mut DataParallel<M>>) -> Result<&'s mut DataParallel<M>> {
    owner.as_deref_mut().ok_or(Error::Abandoned)
}

/// Returns slot and location of a gradient that may still be written.
fn locate<M: Kernels>(owner: &DataParallel<M>, index: usize) -> Result<(usize, Location)> {
    owner.reducer.check()?;
    let slot = owner.parameters().trained_slot(index)?;
    if owner.reducer.queue().is_ready(slot) {
        return Err(Error::AlreadyReady { name: owner.parameters().sorted()[slot].name().to_owned() });
    }
    Ok((slot, owner.plan().locations()[slot].clone()))
}

/// Zeroes a gradient that was not written, and records whether this rank has one.
fn complete_gradient<M: Kernels>(
    owner: &mut DataParallel<M>,
    slot: usize,
    location: Location,
    used: bool,
) -> Result<()> {
    if !owner.written[slot] {
        let gradient = owner.reducer.buffer_mut(location.bucket)?.elements(location.elements).into_view()?;
        M::zero(&owner.comm, gradient)?;
    }
    owner.reducer.status.used[slot] = used;
    Ok(())
}
