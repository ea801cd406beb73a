//! The gradients of one step.

use std::collections::HashMap;

use candle_core::Tensor;
use candle_core::backprop::GradStore;

use crate::variables::Variable;
use crate::{Report, Result};

/// Whose gradient of a variable a step has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Here,
    Elsewhere,
    Nowhere,
}

/// The gradients that are averaged in one step, by the position of their variable.
#[derive(Debug)]
pub struct Call<'a> {
    variables: &'a [Variable],
    gradients: &'a mut GradStore,
    /// Whether a gradient may be overwritten where it lies.
    own: Vec<bool>,
    found: Vec<Found>,
}

impl<'a> Call<'a> {
    /// Checks all gradients.
    pub(crate) fn new(variables: &'a [Variable], gradients: &'a mut GradStore) -> Result<Self> {
        let present: Vec<Option<&Tensor>> =
            variables.iter().map(|variable| variable.gradient(gradients)).collect::<Result<_>>()?;
        let own = owned(variables, &present);
        let found = present.iter().map(|gradient| gradient.map_or(Found::Nowhere, |_| Found::Here)).collect();
        Ok(Self { variables, gradients, own, found })
    }

    pub(crate) const fn variables(&self) -> &'a [Variable] {
        self.variables
    }

    /// The gradient of a variable on this rank.
    pub(crate) fn gradient(&self, at: usize) -> Option<&Tensor> {
        self.gradients.get(&self.variables[at].var)
    }

    /// The same if nothing else lies in its memory, and it lies there in one piece.
    pub(crate) fn own(&self, at: usize) -> Option<&Tensor> {
        self.gradient(at).filter(|gradient| self.own[at] && gradient.is_contiguous())
    }

    /// Puts an average that is not where the gradient was in its place.
    pub(crate) fn put(&mut self, at: usize, average: Tensor) {
        self.gradients.insert(&self.variables[at].var, average);
    }

    /// Notes that there is an average.
    pub(crate) fn averaged(&mut self, at: usize) {
        if self.found[at] == Found::Nowhere {
            self.found[at] = Found::Elsewhere;
        }
    }

    pub(crate) fn report(self) -> Report {
        let names = |wanted: Found| {
            let all = self.variables.iter().zip(&self.found);
            let listed = all.filter(|(variable, found)| **found == wanted && variable.dtype.is_float());
            listed.map(|(variable, _)| variable.name.clone()).collect()
        };
        Report { nowhere: names(Found::Nowhere), elsewhere: names(Found::Elsewhere) }
    }
}

/// Which gradients share their memory with no other gradient and no variable. candle's own backward makes no others, but
/// whoever writes gradients himself may well use one tensor twice, or a variable as its own gradient.
fn owned(variables: &[Variable], gradients: &[Option<&Tensor>]) -> Vec<bool> {
    let mut users = HashMap::<usize, usize>::new();
    for tensor in variables.iter().map(|variable| &*variable.var).chain(gradients.iter().copied().flatten()) {
        *users.entry(storage(tensor)).or_default() += 1;
    }
    gradients.iter().map(|gradient| gradient.is_some_and(|tensor| users[&storage(tensor)] == 1)).collect()
}

/// What tensors have in common that share memory.
fn storage(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref(&*storage).addr()
}
