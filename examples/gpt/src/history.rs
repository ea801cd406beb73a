//! The losses of a run.

use comm::checkpoint::{Checkpoint, State};
use serde::Serialize;

use crate::Result;

/// The losses of a run in bits per byte. They are the same on every rank, and in every run with
/// equal settings and numbers of ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct History {
    /// The losses of the training steps.
    pub training: Vec<f32>,
    /// The steps after which the model was validated.
    pub validated: Vec<u64>,
    /// The losses on a sample of the validation part after these steps.
    pub validation: Vec<f32>,
}

const NAMES: [&str; 3] = ["history.training", "history.validated", "history.validation"];

impl History {
    /// Returns the mean loss of the training steps between the last two validations.
    #[must_use]
    pub fn recent(&self) -> f32 {
        let before = self.validated.iter().rev().nth(1).map_or(0, |step| *step as usize);
        let losses = self.training.get(before..).unwrap_or_default();
        losses.iter().sum::<f32>() / losses.len() as f32
    }

    /// Adds the losses to the state of a rank. As tensors they keep every bit, unlike as decimals.
    ///
    /// # Errors
    /// If the names are taken.
    pub fn save<'a>(&'a self, state: &mut State<'a>) -> Result<()> {
        let [training, validated, validation] = NAMES;
        state.tensor(training, &[self.training.len()], &self.training)?;
        state.tensor(validated, &[self.validated.len()], &self.validated)?;
        state.tensor(validation, &[self.validation.len()], &self.validation)?;
        Ok(())
    }

    /// Reads the losses from a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint has none, or is damaged.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self> {
        let length = |name| -> Result<usize> { Ok(checkpoint.shape(name)?.0.iter().product()) };
        let mut history = Self {
            training: vec![0.0; length(NAMES[0])?],
            validated: vec![0; length(NAMES[1])?],
            validation: vec![0.0; length(NAMES[2])?],
        };
        checkpoint.read(NAMES[0], &mut history.training)?;
        checkpoint.read(NAMES[1], &mut history.validated)?;
        checkpoint.read(NAMES[2], &mut history.validation)?;
        Ok(history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_losses_are_those_since_the_last_validation_but_one() {
        let (training, validation) = (vec![8.0, 4.0, 3.0, 1.0], vec![5.0; 2]);
        let mut history = History { training, validated: vec![2, 4], validation };
        assert_eq!(history.recent(), 2.0);
        history.validated.pop();
        assert_eq!(history.recent(), 4.0);
    }
}
