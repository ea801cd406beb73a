//! The scale of the loss in training with 16-bit floats.

/// Scales the loss so that small gradients do not vanish in `f16`, like PyTorch's `GradScaler`.
///
/// The loss is multiplied by [`LossScaler::scale`] before backward, and gradients are divided by it
/// before the optimizer. After a step with a gradient that is not finite, the optimizer is skipped
/// and the scale is reduced; after many good steps it grows. Ranks whose scalers got the same
/// answers have the same scale: [`any_rank`](crate::any_rank) makes an answer that all ranks share.
///
/// ```
/// use comm_ddp::LossScaler;
///
/// let mut scaler = LossScaler::default();
/// assert_eq!(scaler.scale(), 65536.0);
/// let is_finite = false;
/// if scaler.update(is_finite) {
///     // Divide the gradients by the scale, and run the optimizer.
/// }
/// assert_eq!(scaler.scale(), 32768.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LossScaler {
    /// The factor of the loss.
    pub scale: f64,
    /// The factor of the scale after [`growth_interval`](Self::growth_interval) good steps.
    pub growth: f64,
    /// The factor of the scale after a step that was skipped.
    pub backoff: f64,
    /// The number of good steps in a row after which the scale grows.
    pub growth_interval: u32,
    /// The number of good steps since the scale changed.
    pub good_steps: u32,
}

impl Default for LossScaler {
    /// Returns a scale of 65536 that is doubled after 2000 good steps and halved after a bad one.
    fn default() -> Self {
        Self { scale: 65536.0, growth: 2.0, backoff: 0.5, growth_interval: 2000, good_steps: 0 }
    }
}

impl LossScaler {
    comm_core::setters!(growth: f64, backoff: f64, growth_interval: u32);

    /// Creates a scaler with this scale.
    #[must_use]
    pub fn new(scale: f64) -> Self {
        Self { scale, ..Self::default() }
    }

    /// Returns the factor of the loss.
    #[must_use]
    pub const fn scale(&self) -> f64 {
        self.scale
    }

    /// Records whether all gradients of a step were finite, and returns whether the optimizer is to
    /// run. Call it once per step, with the same answer on every rank.
    pub fn update(&mut self, is_finite: bool) -> bool {
        if !is_finite {
            (self.scale, self.good_steps) = (self.scale * self.backoff, 0);
            return false;
        }
        self.good_steps += 1;
        if self.good_steps >= self.growth_interval {
            (self.scale, self.good_steps) = (self.scale * self.growth, 0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_grows_after_good_steps_and_shrinks_after_bad_ones() {
        let mut scaler = LossScaler::new(8.0).growth_interval(3).growth(4.0);
        let answers = [true, true, true, true, true, false, true, true, true];
        let scales: Vec<f64> = answers
            .into_iter()
            .map(|is_finite| {
                assert_eq!(scaler.update(is_finite), is_finite);
                scaler.scale()
            })
            .collect();
        assert_eq!(scales, [8.0, 8.0, 32.0, 32.0, 32.0, 16.0, 16.0, 16.0, 64.0]);
    }
}
