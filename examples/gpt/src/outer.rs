//! Training with rare communication: DiLoCo (Douillard et al., 2023).

use candle_core::{Tensor, Var};
use comm::Comm;
use comm::checkpoint::{Checkpoint, State};
use comm::ddp::{LocalOptions, LocalTraining, Parameter, ParameterSet};

use crate::Result;

/// The outer steps of all ranks, between which each rank trains alone.
#[derive(Debug)]
pub(crate) struct Outer {
    training: LocalTraining<f32>,
    /// In the order of their names.
    parameters: Vec<Var>,
}

/// The values of all parameters.
struct Values(Vec<Vec<f32>>);

impl Outer {
    /// Begins a run with the parameters of rank 0. A collective.
    pub(crate) fn new(comm: &Comm, options: LocalOptions, parameters: Vec<(String, Var)>) -> Result<Self> {
        let described =
            parameters.iter().map(|(name, parameter)| Parameter::new::<f32>(name, parameter.dims()));
        let set = ParameterSet::new(described)?;
        let parameters: Vec<Var> = parameters.into_iter().map(|(_, parameter)| parameter).collect();
        let mut values = Values::of(&parameters)?;
        let training = LocalTraining::new(comm, set, options, values.slices())?;
        values.write(&parameters)?;
        Ok(Self { training, parameters })
    }

    /// Counts a step of the inner optimizer, and makes an outer one if it is due.
    pub(crate) fn step(&mut self) -> Result<()> {
        // Most steps need no copies.
        if !self.training.is_due() {
            return Ok(self.training.skip()?);
        }
        let mut values = Values::of(&self.parameters)?;
        self.training.step(values.slices())?;
        values.write(&self.parameters)
    }

    /// Makes the parameters of all ranks equal by an outer step of all of them. A collective.
    pub(crate) fn synchronize(&mut self) -> Result<()> {
        let mut values = Values::of(&self.parameters)?;
        self.training.synchronize(values.slices())?;
        values.write(&self.parameters)
    }

    /// Calls a function while the parameters of this rank are the global ones.
    pub(crate) fn with_global<T>(&self, function: impl FnOnce() -> Result<T>) -> Result<T> {
        let (own, mut global) = (Values::of(&self.parameters)?, Values::of(&self.parameters)?);
        self.training.copy_global(global.slices())?;
        global.write(&self.parameters)?;
        let result = function();
        own.write(&self.parameters)?;
        result
    }

    /// Adds the state that is equal on all ranks to the saved state.
    pub(crate) fn save_to<'a>(&'a mut self, state: &mut State<'a>) -> Result<()> {
        state.value(PROGRESS, &self.training.progress())?;
        for part in self.training.state()? {
            let values: &'a [f32] = part.values;
            state.tensor(name(part.state, part.parameter), part.parameter.shape(), values)?;
        }
        Ok(())
    }

    /// Returns the rounding errors of this rank that its next outer gradients contain, or none if
    /// the codec keeps none. They differ from rank to rank, so each rank saves its own.
    pub(crate) fn residual(&mut self) -> Result<Vec<f32>> {
        Ok(self.training.residual()?)
    }

    /// Restores the state that is equal on all ranks, and the rounding errors of this one.
    pub(crate) fn load_from(&mut self, shared: &Checkpoint, own: &Checkpoint) -> Result<()> {
        for part in self.training.state()? {
            shared.read(&name(part.state, part.parameter), part.values)?;
        }
        let mut residual = self.training.residual()?;
        if !residual.is_empty() {
            own.read(RESIDUAL, &mut residual[..])?;
            self.training.set_residual(&residual)?;
        }
        Ok(self.training.set_progress(&shared.value(PROGRESS)?)?)
    }

    /// The bytes that this rank has sent.
    pub(crate) const fn bytes_sent(&self) -> u64 {
        self.training.bytes_sent()
    }
}

/// The name under which the position of the run is saved.
const PROGRESS: &str = "outer.progress";

/// The name under which the rounding errors of a rank are saved.
pub(crate) const RESIDUAL: &str = "outer.residual";

/// Returns the name under which a part of the state is saved.
fn name(state: &str, parameter: &Parameter) -> String {
    format!("outer.{state}.{}", parameter.name())
}

impl Values {
    fn of(parameters: &[Var]) -> Result<Self> {
        let value = |parameter: &Var| Ok(parameter.flatten_all()?.to_vec1()?);
        Ok(Self(parameters.iter().map(value).collect::<Result<_>>()?))
    }

    fn slices(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.0.iter_mut().map(|value| &mut value[..])
    }

    fn write(self, parameters: &[Var]) -> Result<()> {
        for (value, parameter) in self.0.into_iter().zip(parameters) {
            parameter.set(&Tensor::from_vec(value, parameter.shape(), parameter.device())?)?;
        }
        Ok(())
    }
}
