//! The parameters of a module, in the same order on all ranks.

use burn::module::{Module, Param};
use burn::tensor::{Bool, Int, Tensor};
use comm_core::{Comm, DType, ReduceOp};
use comm_ddp::{Parameter, ParameterSet};

use crate::agreement::agree_to_continue;
use crate::elements;
use crate::walk::{self, ReadParameters};
use crate::{Error, Result};

/// A parameter that every rank has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModuleParameter {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    /// The type of the elements as they are sent. Booleans are sent as bytes.
    pub(crate) dtype: DType,
}

impl ModuleParameter {
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    pub(crate) fn describe(&self) -> Parameter {
        Parameter::with_dtype(&self.name, &*self.shape, self.dtype)
    }
}

/// The parameters of a module, sorted by name.
#[derive(Debug, Clone)]
pub(crate) struct Parameters {
    pub(crate) sorted: Vec<ModuleParameter>,
    /// Whether a parameter requires gradients on any rank, by position.
    pub(crate) trained: Vec<bool>,
    /// Whether a parameter is a buffer: a running statistic, integers or booleans.
    pub(crate) buffer: Vec<bool>,
}

impl Parameters {
    /// Returns the parameters of a module, after checking that all ranks have the same. This is a
    /// collective.
    pub(crate) fn agree<M: Module>(module: &M, comm: &Comm) -> Result<Self> {
        // Ranks whose modules cannot take part are found first, because the others would wait for
        // them.
        let sorted = agree_to_continue(comm, find(module), &mut Vec::new())?;
        let described = ParameterSet::new(sorted.iter().map(ModuleParameter::describe))?;
        comm_ddp::check_parameters(comm, &described)?;
        let mut parameters = Self { sorted, trained: Vec::new(), buffer: Vec::new() };
        parameters.agree_on_roles(module, comm)?;
        Ok(parameters)
    }

    fn agree_on_roles<M: Module>(&mut self, module: &M, comm: &Comm) -> Result<()> {
        let trained = self.require_grad(module);
        // Running statistics are floats too, but cannot require gradients. A copy without autodiff
        // accepts the change for every parameter, even for results of tracked operations.
        let is_weight = self.require_grad(&module.valid().set_require_grad(true).train());
        let buffer = is_weight.into_iter().map(|is_weight| !is_weight);
        let mut marks: Vec<u8> = trained.into_iter().chain(buffer).map(u8::from).collect();
        comm.all_reduce(&mut marks, ReduceOp::Max)?;
        let mut marks = marks.into_iter().map(|mark| mark != 0);
        self.trained = marks.by_ref().take(self.sorted.len()).collect();
        self.buffer = marks.collect();
        Ok(())
    }

    /// Returns which parameters require gradients on this rank.
    fn require_grad<M: Module>(&self, module: &M) -> Vec<bool> {
        let mut finder = FindTrained { parameters: self, trained: vec![false; self.sorted.len()] };
        walk::read(module, &mut finder);
        finder.trained
    }

    /// Returns the position of the parameter with this name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.sorted.binary_search_by(|parameter| parameter.name.as_str().cmp(name)).ok()
    }

    /// Returns an error if the module has other parameters.
    pub(crate) fn check_unchanged<M: Module>(&self, module: &M) -> Result<()> {
        let now = find(module)?;
        if self.sorted == now {
            return Ok(());
        }
        let differs = |one: &[ModuleParameter], other: &[ModuleParameter]| {
            one.iter().find(|parameter| !other.contains(parameter)).map(|found| found.name.clone())
        };
        let name = differs(&self.sorted, &now).or_else(|| differs(&now, &self.sorted));
        Err(Error::Changed { name: name.unwrap_or_default() })
    }
}

/// Returns the parameters of a module on this rank, sorted by name.
fn find<M: Module>(module: &M) -> Result<Vec<ModuleParameter>> {
    let mut finder = FindParameters { found: Vec::new(), refused: None };
    walk::read(module, &mut finder);
    let FindParameters { mut found, refused } = finder;
    found.sort_by(|one, other| one.name.cmp(&other.name));
    let twice = found.windows(2).find(|pair| pair[0].name == pair[1].name);
    let twice = twice.map(|pair| comm_ddp::Error::DuplicateName { name: pair[0].name.clone() }.into());
    refused.or(twice).map_or(Ok(found), Err)
}

struct FindParameters {
    found: Vec<ModuleParameter>,
    refused: Option<Error>,
}

impl FindParameters {
    fn add(&mut self, name: String, shape: &[usize], dtype: burn::tensor::DType) {
        match elements::sent_type(dtype) {
            Some(dtype) => self.found.push(ModuleParameter { name, shape: shape.to_vec(), dtype }),
            None => self.refused = self.refused.take().or(Some(Error::Type { name, dtype })),
        }
    }
}

impl ReadParameters for FindParameters {
    fn float<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>) {
        self.add(name, &parameter.dims(), parameter.dtype());
    }

    fn int<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D, Int>>) {
        self.add(name, &parameter.dims(), parameter.dtype());
    }

    fn bool<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D, Bool>>) {
        self.add(name, &parameter.dims(), parameter.dtype());
    }
}

struct FindTrained<'p> {
    parameters: &'p Parameters,
    trained: Vec<bool>,
}

impl ReadParameters for FindTrained<'_> {
    fn float<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>) {
        if let Some(at) = self.parameters.position(&name) {
            self.trained[at] = parameter.is_require_grad();
        }
    }
}
