//! One training step.

use crate::{DataParallel, Error, Gradient, Location, Result, Timeline, gradients};

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
pub struct Step<'a, T: Gradient> {
    /// `None` once finished.
    owner: Option<&'a mut DataParallel<T>>,
}

impl<'a, T: Gradient> Step<'a, T> {
    pub(crate) const fn new(owner: &'a mut DataParallel<T>) -> Self {
        Self { owner: Some(owner) }
    }

    /// Returns the memory of a gradient: the sum accumulated in this step, or zeros. Write the
    /// gradient there and call [`Step::mark_ready`] to avoid a copy.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`], or [`Error::AlreadyReady`] if it was marked before.
    pub fn gradient_mut(&mut self, index: usize) -> Result<&mut [T]> {
        let owner = owner(&mut self.owner)?;
        let (slot, location) = locate(owner, index)?;
        let fresh = !std::mem::replace(&mut owner.written[slot], true);
        let gradient = memory(owner, &location)?;
        if fresh {
            gradient.fill(T::zeroed());
        }
        Ok(gradient)
    }

    /// Adds to the gradient of a parameter without marking it as ready.
    ///
    /// # Errors
    /// As [`Step::gradient_mut`], and [`Error::Length`] if `gradient` has the wrong length.
    pub fn accumulate(&mut self, index: usize, gradient: &[T]) -> Result<()> {
        let owner = owner(&mut self.owner)?;
        let (slot, location) = locate(owner, index)?;
        owner.check_length(slot, gradient.len())?;
        let fresh = !std::mem::replace(&mut owner.written[slot], true);
        let sum = memory(owner, &location)?;
        if fresh {
            sum.copy_from_slice(gradient);
            Ok(())
        } else {
            gradients::add(sum, gradient)
        }
    }

    /// Adds to the gradient of a parameter and marks it as ready. Its bucket is sent as soon as it
    /// is complete.
    ///
    /// # Errors
    /// As [`Step::accumulate`].
    pub fn ready(&mut self, index: usize, gradient: &[T]) -> Result<()> {
        self.accumulate(index, gradient)?;
        self.mark_ready(index)
    }

    /// Marks the gradient of a parameter as ready, with the value in [`Step::gradient_mut`].
    ///
    /// # Errors
    /// As [`Step::gradient_mut`].
    pub fn mark_ready(&mut self, index: usize) -> Result<()> {
        let owner = owner(&mut self.owner)?;
        let (slot, location) = locate(owner, index)?;
        settle(owner, slot, &location, true);
        owner.reducer.mark_ready(slot);
        Ok(())
    }

    /// Sends the remaining buckets and waits for the averages over all ranks.
    ///
    /// A parameter without a gradient counts as zero on this rank. A gradient that was accumulated
    /// but not marked as ready counts with its current value.
    ///
    /// # Errors
    /// [`Error::Comm`] if a bucket could not be averaged. Every later call fails with
    /// [`Error::Poisoned`].
    pub fn finish(mut self) -> Result<Averaged<'a, T>> {
        let Some(owner) = self.owner.take() else { return Err(Error::Abandoned) };
        for slot in 0..owner.parameters().len() {
            if !owner.reducer.queue().is_ready(slot) {
                let (location, used) = (owner.plan().locations()[slot].clone(), owner.written[slot]);
                settle(owner, slot, &location, used);
            }
        }
        let timeline = owner.reducer.finish()?;
        owner.learn_order()?;
        Ok(Averaged { owner, timeline })
    }
}

impl<T: Gradient> Drop for Step<'_, T> {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take().filter(|owner| owner.reducer.queue().has_released()) {
            owner.abandon();
        }
    }
}

/// Returns the `DataParallel` of the step. It is `None` only while `finish` runs, which consumes
/// the step.
fn owner<'s, T: Gradient>(owner: &'s mut Option<&mut DataParallel<T>>) -> Result<&'s mut DataParallel<T>> {
    owner.as_deref_mut().ok_or(Error::Abandoned)
}

/// Returns slot and location of a gradient that may still be written.
fn locate<T: Gradient>(owner: &DataParallel<T>, index: usize) -> Result<(usize, Location)> {
    owner.reducer.check()?;
    let slot = owner.parameters().slot(index)?;
    if owner.reducer.queue().is_ready(slot) {
        return Err(Error::AlreadyReady { name: owner.parameters().sorted()[slot].name().to_owned() });
    }
    Ok((slot, owner.plan().locations()[slot].clone()))
}

/// Returns the memory of a gradient that is not ready. Its bucket is idle, because it is sent only
/// when all are ready.
fn memory<'o, T: Gradient>(owner: &'o mut DataParallel<T>, location: &Location) -> Result<&'o mut [T]> {
    let gradients = owner.reducer.buffer_mut(location.bucket).ok_or(Error::Abandoned)?;
    Ok(gradients.get_mut(location))
}

/// Sets the value of a gradient, and whether this rank has one.
fn settle<T: Gradient>(owner: &mut DataParallel<T>, slot: usize, location: &Location, used: bool) {
    let written = owner.written[slot];
    if let Some(gradients) = owner.reducer.buffer_mut(location.bucket) {
        if !written {
            gradients.get_mut(location).fill(T::zeroed());
        }
        gradients.set_used(location, used);
    }
}

/// The averages of a step, the same on every rank, in the memory of the buckets.
#[derive(Debug)]
pub struct Averaged<'a, T: Gradient> {
    owner: &'a mut DataParallel<T>,
    timeline: Timeline,
}

impl<T: Gradient> Averaged<'_, T> {
    /// Returns the averaged gradient of the parameter with this index, or `None` if there is no
    /// such parameter.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[T]> {
        let location = self.location(index)?;
        Some(self.owner.reducer.buffer(location.bucket)?.get(location))
    }

    /// Returns the averaged gradient for writing, for example to clip it.
    #[must_use]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut [T]> {
        let location = self.location(index)?.clone();
        Some(self.owner.reducer.buffer_mut(location.bucket)?.get_mut(&location))
    }

    /// Returns the averaged gradients of all parameters, in the order of registration.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Returns the number of parameters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owner.parameters().len()
    }

    /// Returns whether there are no parameters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether no rank had a gradient for this parameter in this step. Its average is then
    /// zero, and an optimizer should skip it. Also true if there is no such parameter.
    #[must_use]
    pub fn is_unused(&self, index: usize) -> bool {
        let used = |location: &Location| {
            self.owner.reducer.buffer(location.bucket).is_some_and(|gradients| gradients.is_used(location))
        };
        !self.location(index).is_some_and(used)
    }

    /// Returns the times of the events of this step.
    #[must_use]
    pub const fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    fn location(&self, index: usize) -> Option<&Location> {
        let slot = self.owner.parameters().slot(index).ok()?;
        self.owner.plan().locations().get(slot)
    }
}
