//! The settings of a run.

use std::f64::consts::PI;

use comm::ddp::LocalOptions;
use serde::{Deserialize, Serialize};

use crate::model::Size;
use crate::{Error, Result};

/// The settings of a run. Equal settings and numbers of ranks give equal losses, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The size of the model.
    pub size: Size,
    /// The number of bytes of the text that are used, from its beginning.
    pub text: usize,
    /// The windows of all ranks together in a step.
    pub batch: usize,
    /// The number of steps.
    pub steps: u64,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// The steps in which the learning rate rises to it.
    pub warmup: u64,
    /// The seed of initial parameters and of the order of windows.
    pub seed: u64,
    /// Training with rare communication, or `None` to average gradients in each step.
    pub local: Option<LocalOptions>,
}

impl Settings {
    /// A model that is clearly better than a trigram after some minutes on two cores.
    pub const DEFAULT: Self = Self {
        size: Size { layers: 4, heads: 4, width: 128, context: 64 },
        text: usize::MAX,
        batch: 64,
        steps: 600,
        learning_rate: 3e-3,
        warmup: 30,
        seed: 0,
        local: None,
    };

    /// A model for tests, which trains for moments on a little text.
    pub const TINY: Self = Self {
        size: Size { layers: 2, heads: 2, width: 16, context: 16 },
        text: 50_000,
        batch: 12,
        steps: 60,
        warmup: 5,
        ..Self::DEFAULT
    };

    /// The limit of the norm of the gradient.
    pub const NORM_MAX: f64 = 1.0;

    /// The decay of matrices per unit of the learning rate.
    pub const WEIGHT_DECAY: f64 = 0.1;

    /// The highest number of windows of a validation during training.
    pub const SAMPLE: usize = 640;

    /// Returns an error if ranks cannot share a batch equally, or an epoch has no full batch.
    pub(crate) fn check(&self, ranks: usize, training: usize, validation: usize) -> Result<()> {
        let batch = self.batch;
        if batch == 0 || !batch.is_multiple_of(ranks) {
            return Err(Error::Batch { batch, ranks });
        }
        if training < batch || validation == 0 {
            return Err(Error::TextTooShort { training, validation, batch });
        }
        Ok(())
    }

    /// Returns the learning rate of a step, counted from 1: it rises linearly, then falls to a
    /// tenth along half a period of the cosine (Loshchilov and Hutter, SGDR, ICLR 2017).
    #[must_use]
    pub fn learning_rate(&self, step: u64) -> f64 {
        if step <= self.warmup {
            return self.learning_rate * step as f64 / self.warmup as f64;
        }
        let falling = self.steps.saturating_sub(self.warmup).max(1);
        let share = (step - self.warmup).min(falling) as f64 / falling as f64;
        self.learning_rate * (0.55 + 0.45 * (PI * share).cos())
    }

    /// Returns the number of bytes that all ranks together train on in a step.
    #[must_use]
    pub fn bytes_per_step(&self) -> usize {
        self.batch * self.size.context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_rises_and_falls() {
        let settings = Settings { steps: 100, warmup: 10, learning_rate: 2.0, ..Settings::DEFAULT };
        let near = |step, expected: f64| {
            let rate = settings.learning_rate(step);
            assert!((rate - expected).abs() < 1e-12, "{step}: {rate}");
        };
        near(1, 0.2);
        near(10, 2.0);
        near(55, 1.1);
        near(100, 0.2);
        near(101, 0.2);
        assert!((10..100).all(|step| settings.learning_rate(step + 1) < settings.learning_rate(step)));
    }

    #[test]
    fn a_run_that_ends_during_the_rise_has_a_rate() {
        let settings = Settings { steps: 3, warmup: 10, learning_rate: 2.0, ..Settings::DEFAULT };
        assert!((1..=20).all(|step| settings.learning_rate(step) > 0.0));
    }
}
