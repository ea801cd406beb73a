//! The state of local training, for checkpoints.

use super::fragment::Fragment;
use super::outer_gradient::has_error_feedback;
use super::plan::FragmentPlan;
use crate::{Error, LocalTraining, Parameter, Result, Scalar};

/// The position of a run with local training. It is equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LocalProgress {
    /// The number of inner steps of each rank.
    pub inner_steps: u64,
    /// The number of outer steps of each fragment.
    pub outer_steps: Vec<u64>,
    /// The inner step after which an average that is already known will be applied, for each
    /// fragment that has one.
    pub due: Vec<Option<u64>>,
}

/// A part of the state of local training that is equal on all ranks, for checkpoints.
#[derive(Debug)]
#[non_exhaustive]
pub struct LocalState<'a, T> {
    /// The parameter.
    pub parameter: &'a Parameter,
    /// The name of the part: `global`, `momentum` or `outer_gradient`.
    pub state: &'static str,
    /// The values.
    pub values: &'a mut [T],
}

impl<T: Scalar> LocalTraining<T> {
    /// Returns the position of the run.
    #[must_use]
    pub fn progress(&self) -> LocalProgress {
        LocalProgress {
            inner_steps: self.inner_steps,
            outer_steps: self.fragments.iter().map(|fragment| fragment.updates).collect(),
            due: self.fragments.iter().map(|fragment| fragment.due).collect(),
        }
    }

    /// Sets the position of the run, after [`LocalTraining::state`] was read from a checkpoint.
    ///
    /// # Errors
    /// [`Error::Setting`] if the run had another number of fragments; [`Error::Comm`] and
    /// [`Error::Poisoned`] as [`LocalTraining::state`]. Nothing has changed.
    pub fn set_progress(&mut self, progress: &LocalProgress) -> Result<()> {
        let LocalProgress { inner_steps, outer_steps, due } = progress;
        let count = self.fragments.len();
        if outer_steps.len() != count || due.len() != count {
            return Err(Error::Setting { name: "fragments", requirement: "the same as in the saved run" });
        }
        self.wait_all()?;
        self.inner_steps = *inner_steps;
        for (fragment, (updates, due)) in self.fragments.iter_mut().zip(outer_steps.iter().zip(due)) {
            (fragment.updates, fragment.due) = (*updates, *due);
        }
        Ok(())
    }

    /// Returns the global parameters, the outer momentum, and the averages that were received and
    /// are not yet applied. Waits for the averages that are still in flight. The list of parts
    /// depends on the options alone.
    ///
    /// A run that continues from this state, from [`LocalTraining::progress`], and from each rank's
    /// parameters, inner optimizer and [`LocalTraining::residual`] has the same bits as one that
    /// was not interrupted.
    ///
    /// # Errors
    /// [`Error::Comm`] if averages cannot be received; [`Error::Poisoned`] after an error.
    pub fn state(&mut self) -> Result<impl Iterator<Item = LocalState<'_, T>>> {
        self.check()?;
        self.wait_all()?;
        let has_delay = self.options.delay > 0;
        let mut parts: Vec<LocalState<'_, T>> = Vec::new();
        for (number, fragment) in self.fragments.iter_mut().enumerate() {
            let parameters = self.parameters.sorted();
            let Fragment { global, momentum, outer_gradient, .. } = fragment;
            let pending = if has_delay { &mut outer_gradient.values[..] } else { &mut [] };
            let named = [("global", &mut global[..]), ("momentum", momentum), ("outer_gradient", pending)];
            for (state, values) in named.into_iter().filter(|(_, values)| !values.is_empty()) {
                let split = split(&self.plan, number, values);
                parts.extend(split.map(|(slot, values)| LocalState {
                    parameter: &parameters[slot],
                    state,
                    values,
                }));
            }
        }
        Ok(parts.into_iter())
    }
}

impl<T: Scalar> LocalTraining<T> {
    /// Returns the rounding errors that this rank will add to its next outer gradients: one per
    /// element of all parameters, in an unspecified order, or none if the codec has no error
    /// feedback. They differ from rank to rank. Waits like [`LocalTraining::state`].
    ///
    /// # Errors
    /// As [`LocalTraining::state`].
    pub fn residual(&mut self) -> Result<Vec<f32>> {
        self.check()?;
        self.wait_all()?;
        if !has_error_feedback(self.options.codec) {
            return Ok(Vec::new());
        }
        let mut residual = Vec::new();
        for (fragment, len) in self.fragments.iter().zip(self.plan.lens()) {
            let start = residual.len();
            residual.extend_from_slice(fragment.outer_gradient.residual());
            residual.resize(start + len, 0.0);
        }
        Ok(residual)
    }

    /// Sets the rounding errors that [`LocalTraining::residual`] returned on this rank.
    ///
    /// # Errors
    /// [`Error::Length`] if there is not one per element, or none; and as [`LocalTraining::state`].
    pub fn set_residual(&mut self, residual: &[f32]) -> Result<()> {
        self.check()?;
        self.wait_all()?;
        let expected = self.plan.lens().iter().sum();
        if !residual.is_empty() && residual.len() != expected {
            return Err(Error::Length { name: "residual".to_owned(), expected, got: residual.len() });
        }
        let mut rest = residual;
        for (fragment, len) in self.fragments.iter_mut().zip(self.plan.lens()) {
            let (own, after) = rest.split_at((*len).min(rest.len()));
            fragment.outer_gradient.set_residual(own.to_vec());
            rest = after;
        }
        Ok(())
    }
}

/// Splits the elements of a fragment by parameter.
fn split<'v, T>(
    plan: &FragmentPlan,
    fragment: usize,
    values: &'v mut [T],
) -> impl Iterator<Item = (usize, &'v mut [T])> {
    let mut rest = values;
    plan.members(fragment).map(move |(slot, elements)| {
        let (values, after) = std::mem::take(&mut rest).split_at_mut(elements.len());
        rest = after;
        (slot, values)
    })
}

impl LocalProgress {
    /// Encodes the progress. The number of words depends only on the number of fragments.
    pub(super) fn to_words(&self) -> Vec<u64> {
        let due = self.due.iter().map(|due| due.unwrap_or(u64::MAX));
        [self.inner_steps].into_iter().chain(self.outer_steps.iter().copied()).chain(due).collect()
    }

    /// Decodes the progress of another rank with the same number of fragments.
    pub(super) fn from_words(words: &[u64]) -> Self {
        let (first, rest) = words.split_at(1.min(words.len()));
        let (outer_steps, due) = rest.split_at(rest.len() / 2);
        Self {
            inner_steps: first.first().copied().unwrap_or(0),
            outer_steps: outer_steps.to_vec(),
            due: due.iter().map(|&due| (due != u64::MAX).then_some(due)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_round_trips() {
        for progress in [
            LocalProgress { inner_steps: 7, outer_steps: vec![1, 2, 0], due: vec![None, Some(9), None] },
            LocalProgress { inner_steps: 0, outer_steps: Vec::new(), due: Vec::new() },
        ] {
            assert_eq!(LocalProgress::from_words(&progress.to_words()), progress);
        }
    }
}
