//! Checkpoints of models: the variables, and names for the state of optimizers.
//!
//! Each variable is saved under its own name, so that candle's readers of safetensors find it. The
//! optimizers of this crate add their state with `save_to`, and a program adds any other state that
//! it needs as serde values.
//!
//! ```
//! use candle_core::{DType, Device};
//! use candle_nn::{Init, VarBuilder, VarMap};
//! use comm_candle::{Result, ZeroOptimizer, checkpoint};
//! use comm_checkpoint::{Checkpoints, Options, State};
//! use comm_ddp::AdamW;
//!
//! fn train(comm: &comm::Comm, folder: &std::path::Path, until: u64) -> Result<f32> {
//!     let variables = VarMap::new();
//!     let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
//!     let weight = builder.get_with_hints((4, 2), "weight", Init::Const(1.0))?;
//!     let mut optimizer = ZeroOptimizer::new(&variables, comm, |_| AdamW::new(0.1))?;
//!     let mut checkpoints = Checkpoints::open(comm, folder, Options::default())?;
//!     let mut losses: Vec<f32> = Vec::new();
//!     if let Some(found) = checkpoints.load_latest()? {
//!         checkpoint::load(&found, &variables)?;
//!         optimizer.load_from(&found)?;
//!         losses = found.value("losses")?;
//!     }
//!     while optimizer.steps() < until {
//!         let loss = weight.sqr()?.mean_all()?;
//!         losses.push(loss.to_scalar()?);
//!         optimizer.step(&loss.backward()?)?;
//!     }
//!     let step = optimizer.steps();
//!     let mut state = State::new();
//!     state.value("losses", &losses)?;
//!     optimizer.save_to(&mut state)?;
//!     checkpoint::save(&mut checkpoints, step, &variables, state)?;
//!     Ok(losses.iter().sum())
//! }
//!
//! # fn main() -> Result<()> {
//! # let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
//! // Two ranks stop after two steps, and three continue.
//! comm::threads::run(2, |comm| train(&comm, folder.path(), 2).unwrap())?;
//! let resumed = comm::threads::run(3, |comm| train(&comm, folder.path(), 4).unwrap())?;
//! let uninterrupted = comm::threads::run(3, |comm| train(&comm, other.path(), 4).unwrap())?;
//! assert_eq!(resumed, uninterrupted);
//! # Ok(())
//! # }
//! ```

use candle_core::{Device, Tensor, Var};
use candle_nn::VarMap;
use comm_checkpoint::{Checkpoint, Checkpoints, Error as Fault, State};
use comm_core::Element;
use comm_ddp::Parameter;

use crate::memory::{elements, write};
use crate::variables::{dtype, named};
use crate::{Error, Result};

/// The name under which optimizers save the number of their steps.
pub(crate) const STEPS: &str = "optimizer.steps";

/// Saves variables and other state as the checkpoint of a step, like
/// [`Checkpoints::save`](comm_checkpoint::Checkpoints::save). This is a collective. Variables must
/// be equal on all ranks, and one rank writes each.
///
/// # Errors
/// [`Error::Checkpoint`]; [`Error::Type`] for a variable that safetensors files cannot hold;
/// [`Error::Candle`].
pub fn save(checkpoints: &mut Checkpoints, step: u64, variables: &VarMap, state: State<'_>) -> Result<()> {
    with_variables(variables, state, |state| checkpoints.save(step, state))
}

/// Saves variables and other state in the background, like
/// [`Checkpoints::save_async`](comm_checkpoint::Checkpoints::save_async). Training may continue
/// when it returns. This is a collective.
///
/// # Errors
/// As [`save`]; errors of writing are returned by the next call on `checkpoints`.
pub fn save_async(
    checkpoints: &mut Checkpoints,
    step: u64,
    variables: &VarMap,
    state: State<'_>,
) -> Result<()> {
    with_variables(variables, state, |state| checkpoints.save_async(step, state))
}

/// Sets all variables of a map to the values in a checkpoint. This is not a collective. Other
/// contents of the checkpoint are ignored. The variables may be on any device.
///
/// # Errors
/// [`Error::Stored`] for a variable of another shape and [`Error::Checkpoint`] for one that is
/// missing or has another type, before any is changed; [`Error::Checkpoint`] for damaged files and
/// [`Error::Candle`], after which the values are unspecified.
pub fn load(checkpoint: &Checkpoint, variables: &VarMap) -> Result<()> {
    let variables = named(variables);
    for (name, var) in &variables {
        let (shape, stored) = checkpoint.shape(name)?;
        check_shape(name, var.dims(), shape)?;
        let got = dtype(var.dtype()).ok_or_else(|| unsupported(name, var))?;
        if stored != got {
            return Err(Fault::WrongType { name: name.clone(), expected: stored, got }.into());
        }
    }
    for (name, var) in &variables {
        if var.device().is_cpu() && var.is_contiguous() {
            write(var, |mut value| checkpoint.read(name, &mut value))??;
        } else {
            let value = Tensor::zeros(var.shape(), var.dtype(), &Device::Cpu)?;
            write(&value, |mut value| checkpoint.read(name, &mut value))??;
            var.set(&value.to_device(var.device())?)?;
        }
    }
    Ok(())
}

/// Calls `save` with state that includes the variables.
fn with_variables(
    variables: &VarMap,
    state: State<'_>,
    save: impl FnOnce(&State<'_>) -> comm_checkpoint::Result<()>,
) -> Result<()> {
    let mut tensors = Vec::new();
    for (name, var) in named(variables) {
        dtype(var.dtype()).ok_or_else(|| unsupported(&name, &var))?;
        tensors.push((name, var.to_device(&Device::Cpu)?.contiguous()?));
    }
    let views = tensors.iter().map(|(_, tensor)| elements(tensor));
    let views: Vec<_> = views.collect::<candle_core::Result<_>>()?;
    let mut state = state;
    for ((name, tensor), view) in tensors.iter().zip(&views) {
        state.tensor(name, tensor.dims(), view)?;
    }
    Ok(save(&state)?)
}

/// Returns the name under which the state of a variable is saved.
pub(crate) fn state_name(state: &str, variable: &str) -> String {
    format!("optimizer.{state}.{variable}")
}

/// Reads elements of the state of a variable, beginning at `start`.
pub(crate) fn read_state<T: Element>(
    checkpoint: &Checkpoint,
    state: &str,
    parameter: &Parameter,
    start: usize,
    values: &mut [T],
) -> Result<()> {
    // A sharded optimizer has no shard of a variable without elements.
    if values.is_empty() {
        return Ok(());
    }
    let name = state_name(state, parameter.name());
    check_shape(&name, parameter.shape(), checkpoint.shape(&name)?.0)?;
    Ok(checkpoint.read_range(&name, start, values)?)
}

fn check_shape(name: &str, expected: &[usize], got: &[usize]) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    Err(Error::Stored { name: name.to_owned(), expected: expected.to_vec(), got: got.to_vec() })
}

fn unsupported(name: &str, var: &Var) -> Error {
    Error::Type { name: name.to_owned(), dtype: var.dtype() }
}
