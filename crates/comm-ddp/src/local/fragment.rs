//! One fragment of the parameters: its global values, outer gradient and momentum.

use comm_core::Work;

use super::outer_gradient::OuterGradient;
use crate::{LocalOptions, Optimizer, Result, Scalar, Sgd};

/// A fragment of the parameters. Global values and momentum are equal on all ranks.
#[derive(Debug)]
pub(super) struct Fragment<T> {
    pub(super) global: Vec<T>,
    /// Empty if the outer optimizer has none.
    pub(super) momentum: Vec<T>,
    /// Empty while it is being sent.
    pub(super) outer_gradient: OuterGradient<T>,
    /// The call that averages the outer gradient in the background.
    pub(super) work: Option<Work<OuterGradient<T>>>,
    /// The inner step after which the average is applied.
    pub(super) due: Option<u64>,
    /// The number of outer steps so far.
    pub(super) updates: u64,
}

impl<T: Scalar> Fragment<T> {
    /// Creates a fragment of zeros.
    pub(super) fn new(len: usize, options: &LocalOptions) -> Self {
        let has_momentum = options.outer.momentum != 0.0;
        Self {
            global: vec![T::zeroed(); len],
            momentum: vec![T::zeroed(); if has_momentum { len } else { 0 }],
            outer_gradient: OuterGradient::new(len, options.codec),
            work: None,
            due: None,
            updates: 0,
        }
    }

    /// Waits for the average, and keeps it until it is applied.
    ///
    /// # Errors
    /// As [`Fragment::receive`].
    pub(super) fn wait(&mut self, options: &LocalOptions) -> Result<()> {
        self.work.take().map_or(Ok(()), |work| self.receive(work.wait(), options))
    }

    /// Keeps the result of a call until it is applied.
    ///
    /// # Errors
    /// The error of the call. The fragment is then as if it had not been sent: the difference
    /// between local and global parameters still contains what was lost, except for rounding
    /// errors.
    pub(super) fn receive(
        &mut self,
        averaged: comm_core::Result<OuterGradient<T>>,
        options: &LocalOptions,
    ) -> Result<()> {
        match averaged {
            Ok(average) => {
                self.outer_gradient = average;
                Ok(())
            }
            Err(error) => {
                self.outer_gradient = OuterGradient::new(self.global.len(), options.codec);
                self.due = None;
                Err(error.into())
            }
        }
    }

    /// Performs the outer step with the average.
    pub(super) fn update(&mut self, outer: &Sgd) {
        self.due = None;
        self.updates += 1;
        let mut states: Vec<&mut [T]> = Vec::new();
        states.extend((outer.momentum != 0.0).then_some(&mut self.momentum[..]));
        outer.update(self.updates, &mut self.global, &self.outer_gradient.values, &mut states);
    }

    /// Returns a digest of the state that is equal on all ranks.
    pub(super) fn digest(&self) -> u64 {
        let pending = if self.due.is_some() { &self.outer_gradient.values[..] } else { &[] };
        let parts = [&self.global[..], &self.momentum, pending];
        let parts = parts.map(|part| crate::consensus::digest(comm_core::bytemuck::cast_slice(part)));
        comm_core::wire::digest(parts.into_iter().chain([self.updates, self.due.unwrap_or(u64::MAX)]))
    }
}
