//! The norm of the averaged gradients, and clipping by it.

use comm_core::{HostViewMut, ReduceOp, Reduction};

use crate::{Averaged, Gradient, Result};

impl<T: Gradient + Into<f64>> Averaged<'_, T> {
    /// Returns the L2 norm of all gradients together, in `f64`. It is the same on every rank, as
    /// the gradients are, without communication.
    #[must_use]
    pub fn norm(&self) -> f64 {
        self.iter().flatten().map(|gradient| (*gradient).into().powi(2)).sum::<f64>().sqrt()
    }

    /// Returns whether all gradients are finite. A gradient of any rank that is not finite makes
    /// the average so on every rank.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        self.iter().flatten().all(|gradient| (*gradient).into().is_finite())
    }

    /// Multiplies all gradients by a factor.
    ///
    /// # Errors
    /// None for a type whose gradients can be averaged.
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        let scaling = Reduction::new(ReduceOp::PreMulSum(factor), T::DTYPE)?;
        for index in 0..self.len() {
            if let Some(gradient) = self.get_mut(index) {
                scaling.start(HostViewMut::new(gradient).into_bytes(), 1);
            }
        }
        Ok(())
    }

    /// Scales all gradients so that their norm is at most `max_norm`. Returns the norm before, as
    /// PyTorch's `clip_grad_norm_`. Gradients whose norm is not finite remain as they are.
    ///
    /// # Errors
    /// As [`Averaged::scale`].
    pub fn clip_norm(&mut self, max_norm: f64) -> Result<f64> {
        let norm = self.norm();
        if norm.is_finite() && norm > max_norm {
            self.scale(max_norm / norm)?;
        }
        Ok(norm)
    }
}
