//! The averages of a step.

use comm_core::{Element, Host, Kernels};

use crate::status::GroupStatus;
use crate::{DataParallel, Error, Location, Result, Stragglers, Timeline};

/// The averages of a step, the same on every rank, in the memory of the buckets.
#[derive(Debug)]
pub struct Averaged<'a, M: Kernels = Host> {
    pub(crate) owner: &'a mut DataParallel<M>,
    pub(crate) timeline: Timeline,
    pub(crate) status: GroupStatus,
    pub(crate) total_weight: f64,
}

impl<M: Kernels> Averaged<'_, M> {
    /// Returns the averaged gradient of the parameter with this index.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`] and [`Error::Frozen`].
    pub fn view(&self, index: usize) -> Result<M::View<'_>> {
        self.owner.reducer.view(self.location(index)?)
    }

    /// Returns the averaged gradient for writing, for example to clip it.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`].
    pub fn view_mut(&mut self, index: usize) -> Result<M::ViewMut<'_>> {
        let Location { bucket, elements, .. } = self.location(index)?.clone();
        Ok(self.owner.reducer.buffer_mut(bucket)?.elements(elements).into_view()?)
    }

    /// Copies the averaged gradient, converted if `into` has another floating point type: for
    /// example to `f32`, for an optimizer that keeps its own `f32` copy of 16-bit parameters.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`]; [`Error::Comm`] if `into` has another length or is not of a
    /// floating point type.
    pub fn copy_to(&self, index: usize, into: M::ViewMut<'_>) -> Result<()> {
        Ok(M::copy(&self.owner.comm, into, self.view(index)?)?)
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
        !self.owner.parameters().slot(index).is_ok_and(|slot| self.status.used.get(slot) == Some(&true))
    }

    /// Returns the times of the events of this step.
    #[must_use]
    pub const fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Returns the lateness of every rank in the steps up to this one.
    #[must_use]
    pub const fn stragglers(&self) -> &Stragglers {
        &self.owner.stragglers
    }

    /// Returns the number of ranks that had a batch in this step.
    #[must_use]
    pub const fn active_ranks(&self) -> usize {
        self.status.active
    }

    /// Returns the sum of the weights of all ranks, or the number of ranks with a batch if there
    /// are no weights.
    #[must_use]
    pub const fn total_weight(&self) -> f64 {
        self.total_weight
    }

    /// Returns whether any rank asked all to stop after this step.
    #[must_use]
    pub const fn stop_requested(&self) -> bool {
        self.status.stops
    }

    /// Returns the L2 norm of all gradients together, computed in `f64`. It takes no communication,
    /// and is the same on every rank because the gradients are.
    ///
    /// # Errors
    /// [`Error::Comm`] with the error of a device.
    pub fn norm(&self) -> Result<f64> {
        // In the order of slots, because ranks may have registered parameters in another order, and
        // the sum is rounded.
        let locations = self.owner.plan().locations().iter();
        let squares = |location| -> Result<f64> {
            Ok(M::sum_of_squares(&self.owner.comm, self.owner.reducer.view(location)?)?)
        };
        let trained = locations.filter(|location| **location != Location::NOWHERE);
        Ok(trained.map(squares).sum::<Result<f64>>()?.sqrt())
    }

    /// Returns whether all averages are finite, and with
    /// [`Options::check_finite`](crate::Options::check_finite) also whether the gradients of all
    /// ranks were. The answer is the same on every rank.
    ///
    /// # Errors
    /// [`Error::Comm`] with the error of a device.
    pub fn is_finite(&self) -> Result<bool> {
        let mut is_finite = self.status.is_finite;
        for index in self.trained() {
            is_finite = is_finite && M::is_finite(&self.owner.comm, self.view(index)?)?;
        }
        Ok(is_finite)
    }

    /// Multiplies all gradients by a factor.
    ///
    /// # Errors
    /// [`Error::Comm`] with the error of a device.
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        self.owner.reducer.scale(factor)
    }

    /// Scales all gradients so that their norm is at most `max_norm`. Returns the norm before
    /// scaling, like PyTorch's `clip_grad_norm_`. Gradients whose norm is not finite are left
    /// unchanged.
    ///
    /// # Errors
    /// [`Error::Comm`] with the error of a device.
    pub fn clip_norm(&mut self, max_norm: f64) -> Result<f64> {
        let norm = self.norm()?;
        if norm.is_finite() && norm > max_norm {
            self.scale(max_norm / norm)?;
        }
        Ok(norm)
    }

    /// Returns the indices of the parameters that are not frozen.
    fn trained(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|index| self.owner.parameters().trained_slot(*index).is_ok())
    }

    fn location(&self, index: usize) -> Result<&Location> {
        let slot = self.owner.parameters().trained_slot(index)?;
        Ok(&self.owner.plan().locations()[slot])
    }
}

/// Slices of gradients in host memory, whose type the program knows.
impl Averaged<'_, Host> {
    /// Returns the averaged gradient of the parameter with this index.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`]; [`Error::WrongType`] if it has another type.
    pub fn get<T: Element>(&self, index: usize) -> Result<&[T]> {
        self.check_type::<T>(index)?;
        Ok(self.view(index)?.elements().unwrap_or_default())
    }

    /// Returns the averaged gradient for writing, like [`Averaged::get`].
    ///
    /// # Errors
    /// As [`Averaged::get`].
    pub fn get_mut<T: Element>(&mut self, index: usize) -> Result<&mut [T]> {
        self.check_type::<T>(index)?;
        Ok(self.view_mut(index)?.into_elements().unwrap_or_default())
    }

    /// Returns the averaged gradients of all parameters, in the order of registration, with empty
    /// slices for those that are frozen.
    ///
    /// # Errors
    /// [`Error::WrongType`] if any has another type.
    pub fn iter<T: Element>(&self) -> Result<impl Iterator<Item = &[T]>> {
        let gradient = |index| match self.get(index) {
            Err(Error::Frozen { .. }) => Ok(&[][..]),
            other => other,
        };
        let gradients: Vec<&[T]> = (0..self.len()).map(gradient).collect::<Result<_>>()?;
        Ok(gradients.into_iter())
    }

    fn check_type<T: Element>(&self, index: usize) -> Result<()> {
        let parameters = self.owner.parameters();
        parameters.sorted()[parameters.trained_slot(index)?].check_type::<T>()
    }
}
