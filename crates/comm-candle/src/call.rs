//! The gradients of one step.

use std::collections::HashMap;

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use comm_core::Comm;
use comm_ddp::Timeline;

use crate::agreement::agree_to_continue;
use crate::variables::{Variable, Variables};
use crate::{Place, Report, Result};

/// The gradients that are averaged in one step, by the position of their variable.
#[derive(Debug)]
pub struct StepGradients<'a> {
    variables: &'a [Variable],
    gradients: &'a mut GradStore,
    /// Whether a gradient may be overwritten in place.
    own: Vec<bool>,
    /// Whether this rank has a gradient.
    here: Vec<bool>,
    /// Whether any rank has one.
    anywhere: Vec<bool>,
    /// The norm of the averages, if it was computed.
    pub(crate) norm: Option<f64>,
    pub(crate) timeline: Option<Timeline>,
}

impl<'a> StepGradients<'a> {
    /// Checks all gradients, and determines which variables have one on any rank. A collective.
    pub(crate) fn agree<M: Place>(
        comm: &Comm<M>,
        variables: &'a Variables,
        gradients: &'a mut GradStore,
    ) -> Result<Self> {
        let checked = variables.check_unchanged().and_then(|()| Self::new(variables.sorted(), gradients));
        let mut marks = match &checked {
            Ok(call) => call.here.iter().copied().map(u8::from).collect(),
            Err(_) => vec![0; variables.sorted().len()],
        };
        let mut call = agree_to_continue(comm, checked, &mut marks)?;
        call.anywhere = marks.into_iter().map(|mark| mark != 0).collect();
        Ok(call)
    }

    /// Returns gradients for which all ranks already know whether any rank has them.
    pub(crate) fn with_marks(
        variables: &'a [Variable],
        gradients: &'a mut GradStore,
        anywhere: Vec<bool>,
    ) -> Result<Self> {
        Ok(Self { anywhere, ..Self::new(variables, gradients)? })
    }

    fn new(variables: &'a [Variable], gradients: &'a mut GradStore) -> Result<Self> {
        let present: Vec<Option<&Tensor>> =
            variables.iter().map(|variable| variable.gradient(gradients)).collect::<Result<_>>()?;
        let own = owned(variables, &present);
        let here = present.iter().map(Option::is_some).collect();
        Ok(Self { variables, gradients, own, here, anywhere: Vec::new(), norm: None, timeline: None })
    }

    pub(crate) const fn variables(&self) -> &'a [Variable] {
        self.variables
    }

    /// Returns whether any rank has a gradient of a variable, so that all ranks must get its
    /// average.
    pub(crate) fn is_anywhere(&self, at: usize) -> bool {
        self.anywhere[at]
    }

    /// Returns the gradient of a variable on this rank.
    pub(crate) fn gradient(&self, at: usize) -> Option<&Tensor> {
        self.gradients.get(&self.variables[at].var)
    }

    /// Returns the gradient if it is contiguous and shares its memory with nothing else.
    pub(crate) fn own(&self, at: usize) -> Option<&Tensor> {
        self.gradient(at).filter(|gradient| self.own[at] && gradient.is_contiguous())
    }

    /// Replaces a gradient by an average in other memory.
    pub(crate) fn put(&mut self, at: usize, average: Tensor) {
        self.gradients.insert(&self.variables[at].var, average);
    }

    /// Returns the floating point variables for which no rank has a gradient.
    pub(crate) fn without_gradient(&self) -> Vec<String> {
        self.absent_gradients(false)
    }

    pub(crate) fn report(self) -> Report {
        let (without_gradient, counted_as_zero) = (self.absent_gradients(false), self.absent_gradients(true));
        Report { without_gradient, counted_as_zero, norm: self.norm, timeline: self.timeline }
    }

    /// Returns the floating point variables for which this rank has no gradient, and some other
    /// rank has one or none has.
    fn absent_gradients(&self, is_anywhere: bool) -> Vec<String> {
        let lacking = |at: &usize| {
            let is_float = self.variables[*at].dtype.is_float();
            is_float && !self.here[*at] && self.anywhere[*at] == is_anywhere
        };
        let lacking = (0..self.variables.len()).filter(lacking);
        lacking.map(|at| self.variables[at].name.clone()).collect()
    }
}

/// Returns which gradients share their memory with no other gradient and no variable. candle's own
/// backward creates only such gradients, but a user may use one tensor twice, or a variable as its
/// own gradient.
fn owned(variables: &[Variable], gradients: &[Option<&Tensor>]) -> Vec<bool> {
    let mut users = HashMap::<usize, usize>::new();
    for tensor in variables.iter().map(|variable| &*variable.var).chain(gradients.iter().copied().flatten()) {
        *users.entry(storage(tensor)).or_default() += 1;
    }
    gradients.iter().map(|gradient| gradient.is_some_and(|tensor| users[&storage(tensor)] == 1)).collect()
}

/// Returns a number that is equal for tensors which share memory.
pub(crate) fn storage(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref(&*storage).addr()
}
