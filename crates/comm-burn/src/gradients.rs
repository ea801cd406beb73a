//! The gradients of one step.

use std::collections::HashSet;

use burn::module::{Module, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use comm_core::Comm;

use crate::agreement::agree_to_continue;
use crate::error::Form;
use crate::parameters::Parameters;
use crate::values::Values;
use crate::walk::{self, ReadParameters};
use crate::{Error, Report, Result};

/// The parameters that have a gradient in a step, by position.
#[derive(Debug)]
pub(crate) struct Presence {
    /// Whether this rank has one.
    pub(crate) here: Vec<bool>,
    /// Whether any rank has one.
    pub(crate) anywhere: Vec<bool>,
}

impl Presence {
    /// Checks all gradients, and determines which parameters have one on any rank. This is a
    /// collective.
    pub(crate) fn agree<M: Module>(
        comm: &Comm,
        parameters: &Parameters,
        module: &M,
        gradients: &GradientsParams,
    ) -> Result<Self> {
        let checked = parameters.check_unchanged(module).and_then(|()| find(parameters, module, gradients));
        let mut marks = match &checked {
            Ok(here) => here.iter().copied().map(u8::from).collect(),
            Err(_) => vec![0; parameters.sorted.len()],
        };
        let here = agree_to_continue(comm, checked, &mut marks)?;
        Ok(Self { here, anywhere: marks.into_iter().map(|mark| mark != 0).collect() })
    }

    pub(crate) fn report(&self, parameters: &Parameters) -> Report {
        let names = |is_anywhere: bool| {
            let trained = (0..self.here.len()).filter(|at| parameters.trained[*at]);
            let lacking = trained.filter(|at| !self.here[*at] && self.anywhere[*at] == is_anywhere);
            lacking.map(|at| parameters.sorted[at].name.clone()).collect()
        };
        Report { without_gradient: names(false), counted_as_zero: names(true) }
    }
}

/// Returns which parameters have a gradient on this rank.
fn find<M: Module>(parameters: &Parameters, module: &M, gradients: &GradientsParams) -> Result<Vec<bool>> {
    let here = vec![false; parameters.sorted.len()];
    let mut finder = FindGradients { parameters, gradients, here, seen: HashSet::new(), refused: None };
    walk::read(module, &mut finder);
    finder.refused.map_or(Ok(finder.here), Err)
}

/// Takes the values of all gradients out of `gradients`.
pub(crate) fn take<M: Module>(
    parameters: &Parameters,
    module: &M,
    gradients: &mut GradientsParams,
) -> Result<Values> {
    let values = vec![None; parameters.sorted.len()];
    let mut taker = TakeGradients { parameters, gradients, values, failed: None };
    walk::read(module, &mut taker);
    taker.failed.map_or(Ok(taker.values), Err)
}

/// Registers gradients with these values.
pub(crate) fn put<M: Module>(
    parameters: &Parameters,
    module: &M,
    gradients: &mut GradientsParams,
    values: Values,
) {
    walk::read(module, &mut PutGradients { parameters, gradients, values });
}

struct FindGradients<'g> {
    parameters: &'g Parameters,
    gradients: &'g GradientsParams,
    here: Vec<bool>,
    /// The parameters visited so far. A clone of a parameter has the same id. As in burn's
    /// optimizers, the first one gets the gradient.
    seen: HashSet<ParamId>,
    refused: Option<Error>,
}

impl ReadParameters for FindGradients<'_> {
    fn float<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>) {
        let Some(at) = self.parameters.position(&name).filter(|_| self.seen.insert(parameter.id)) else {
            return;
        };
        let Some(gradient) = self.gradients.get::<D>(parameter.id) else { return };
        self.here[at] = true;
        let expected = Form::new(&parameter.dims(), parameter.dtype());
        let got = Form::new(&gradient.dims(), gradient.dtype());
        let refused = if expected != got {
            Error::Gradient { name, expected: expected.into(), got: got.into() }
        } else if !self.parameters.trained[at] {
            Error::NotTrained { name }
        } else {
            return;
        };
        self.refused = self.refused.take().or(Some(refused));
    }
}

struct TakeGradients<'g> {
    parameters: &'g Parameters,
    gradients: &'g mut GradientsParams,
    values: Values,
    failed: Option<Error>,
}

impl ReadParameters for TakeGradients<'_> {
    fn float<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>) {
        let Some(at) = self.parameters.position(&name) else { return };
        // If its memory has no other owner, a gradient is converted to data without a copy.
        match self.gradients.remove::<D>(parameter.id).map(Tensor::try_into_data) {
            Some(Ok(data)) => self.values[at] = Some(data),
            Some(Err(error)) => self.failed = self.failed.take().or(Some(Error::read(&name, error))),
            None => {}
        }
    }
}

struct PutGradients<'g> {
    parameters: &'g Parameters,
    gradients: &'g mut GradientsParams,
    values: Values,
}

impl ReadParameters for PutGradients<'_> {
    fn float<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>) {
        let value = self.parameters.position(&name).and_then(|at| self.values[at].take());
        if let Some(value) = value {
            // Optimizers expect gradients outside autodiff.
            let options = (&parameter.device().without_autodiff(), value.dtype());
            self.gradients.register::<D>(parameter.id, Tensor::from_data(value, options));
        }
    }
}
