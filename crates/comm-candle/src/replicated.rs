//! An optimizer whose whole state is on every rank.

mod rejoin;

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use comm_checkpoint::{Checkpoint, State};
use comm_core::{DType, Host};
use comm_ddp::{Optimizer, Parameter, Scalar};

use crate::call::storage;
use crate::checkpoint::{STEPS, read_state, state_name};
use crate::memory::{read, write};
use crate::variables::{Variable, Variables};
use crate::{Error, Result};

/// Updates the variables of a model with an optimizer of `comm-ddp`, such as
/// [`AdamW`](comm_ddp::AdamW), and keeps the whole state on every rank.
///
/// It replaces candle's optimizers, whose state cannot be saved. Variables of `f32` and `f64` are
/// updated in place, with state of the same type; they must be in host memory. A variable without a
/// gradient remains unchanged.
///
/// [`ZeroOptimizer`](crate::ZeroOptimizer) divides the state among the ranks, and its checkpoints
/// have the same format.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{Init, VarBuilder, VarMap};
/// use comm_candle::{Error, ReplicatedOptimizer};
/// use comm_ddp::Sgd;
///
/// let variables = VarMap::new();
/// let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
/// let weight = builder.get_with_hints(3, "weight", Init::Const(1.0))?;
/// let mut optimizer = ReplicatedOptimizer::new(&variables, |_| Sgd::new(0.25).momentum(0.5))?;
/// for _ in 0..2 {
///     let gradients = weight.sum_all()?.backward()?;
///     optimizer.step(&gradients)?;
/// }
/// // The first step subtracts 0.25, and the second one 1.5 times that.
/// assert_eq!(weight.to_vec1::<f32>()?, [0.375; 3]);
/// # Ok::<_, Error>(())
/// ```
#[derive(Debug)]
pub struct ReplicatedOptimizer<O> {
    variables: Variables,
    trained: Vec<Trained<O>>,
    steps: u64,
}

/// A variable with its optimizer and state.
#[derive(Debug)]
struct Trained<O> {
    variable: Variable,
    optimizer: O,
    states: States,
}

/// The numbers that an optimizer keeps for a variable, by state.
#[derive(Debug)]
enum States {
    F32(Vec<Vec<f32>>),
    F64(Vec<Vec<f64>>),
}

impl<O: Optimizer<f32> + Optimizer<f64>> ReplicatedOptimizer<O> {
    /// Creates an optimizer of the floating point variables in a map. `optimizer` returns the
    /// settings for each. This is not a collective, but all ranks must use the same settings.
    ///
    /// All variables must already exist; [`ReplicatedOptimizer::step`] returns an error if one is
    /// added later.
    ///
    /// # Errors
    /// [`Error::NotUpdated`] for variables of 16-bit floats; [`Error::Type`] or [`Error::Place`].
    pub fn new(variables: &VarMap, optimizer: impl Fn(&Parameter) -> O) -> Result<Self> {
        let variables = Variables::local::<Host>(variables)?;
        let trained = variables.trained().map(|(variable, parameter)| {
            let optimizer = optimizer(&parameter);
            let states = States::new(variable, &optimizer)?;
            Ok(Trained { variable: variable.clone(), optimizer, states })
        });
        let trained = trained.collect::<Result<_>>()?;
        Ok(Self { variables, trained, steps: 0 })
    }

    /// Updates all variables that have a gradient.
    ///
    /// # Errors
    /// [`Error::Gradient`] and [`Error::Changed`], in which case no variable has changed;
    /// [`Error::Candle`] if there is not enough memory.
    pub fn step(&mut self, gradients: &GradStore) -> Result<()> {
        self.variables.check_unchanged()?;
        let own = |trained: &Trained<O>| Ok(trained.variable.gradient(gradients)?.cloned());
        let gradients: Vec<Option<Tensor>> = self.trained.iter().map(own).collect::<Result<_>>()?;
        self.trained.iter_mut().for_each(Trained::resize_states);
        self.steps += 1;
        for (trained, gradient) in self.trained.iter_mut().zip(&gradients) {
            if let Some(gradient) = gradient {
                trained.update(self.steps, gradient)?;
            }
        }
        Ok(())
    }

    /// Returns the number of steps so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the name and the settings of each variable for changes, for example of the learning
    /// rate. All ranks must make the same changes.
    pub fn settings_mut(&mut self) -> impl Iterator<Item = (&str, &mut O)> {
        self.trained.iter_mut().map(|trained| (trained.variable.name.as_str(), &mut trained.optimizer))
    }

    /// Adds the state and the number of steps to the state that is saved. For example, the state
    /// `mean` of the variable `layer.weight` has the name `optimizer.mean.layer.weight`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if a name is taken.
    pub fn save_to<'a>(&'a mut self, state: &mut State<'a>) -> Result<()> {
        state.value(STEPS, &self.steps)?;
        self.trained.iter_mut().for_each(Trained::resize_states);
        for trained in &self.trained {
            let (names, dims) = (trained.state_names(), trained.variable.var.dims());
            for (at, name) in names.iter().enumerate() {
                let name = state_name(name, &trained.variable.name);
                match &trained.states {
                    States::F32(states) => state.tensor(name, dims, &states[at])?,
                    States::F64(states) => state.tensor(name, dims, &states[at])?,
                };
            }
        }
        Ok(())
    }

    /// Restores the state and the number of steps, saved by an optimizer of this type or by a
    /// [`ZeroOptimizer`](crate::ZeroOptimizer), on any number of ranks.
    ///
    /// # Errors
    /// [`Error::Stored`] and [`Error::Checkpoint`], after which the state is unspecified.
    pub fn load_from(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        self.trained.iter_mut().for_each(Trained::resize_states);
        for trained in &mut self.trained {
            let (names, parameter) = (trained.state_names(), trained.variable.parameter());
            for (at, name) in names.iter().enumerate() {
                match &mut trained.states {
                    States::F32(states) => read_state(checkpoint, name, &parameter, 0, &mut states[at])?,
                    States::F64(states) => read_state(checkpoint, name, &parameter, 0, &mut states[at])?,
                }
            }
        }
        self.steps = checkpoint.value(STEPS)?;
        Ok(())
    }
}

impl<O: Optimizer<f32> + Optimizer<f64>> Trained<O> {
    fn state_names(&self) -> &'static [&'static str] {
        match self.states {
            States::F32(_) => Optimizer::<f32>::state_names(&self.optimizer),
            States::F64(_) => Optimizer::<f64>::state_names(&self.optimizer),
        }
    }

    /// Gives the variable as many states as its optimizer needs, whose settings may have changed.
    fn resize_states(&mut self) {
        let (count, len) = (self.state_names().len(), self.variable.var.elem_count());
        match &mut self.states {
            States::F32(states) => states.resize_with(count, || vec![0.0; len]),
            States::F64(states) => states.resize_with(count, || vec![0.0; len]),
        }
    }

    fn update(&mut self, step: u64, gradient: &Tensor) -> Result<()> {
        let (var, optimizer) = (&self.variable.var, &self.optimizer);
        match &mut self.states {
            States::F32(states) => with_both(var, gradient, |value, gradient| {
                optimizer.update(step, value, gradient, &mut slices(states));
            }),
            States::F64(states) => with_both(var, gradient, |value, gradient| {
                optimizer.update(step, value, gradient, &mut slices(states));
            }),
        }
    }
}

impl States {
    fn new<O: Optimizer<f32> + Optimizer<f64>>(variable: &Variable, optimizer: &O) -> Result<Self> {
        let len = variable.var.elem_count();
        match variable.dtype {
            DType::F32 => Ok(Self::F32(vec![vec![0.0; len]; Optimizer::<f32>::state_names(optimizer).len()])),
            DType::F64 => Ok(Self::F64(vec![vec![0.0; len]; Optimizer::<f64>::state_names(optimizer).len()])),
            dtype => Err(Error::NotUpdated { name: variable.name.clone(), dtype }),
        }
    }
}

fn slices<T>(states: &mut [Vec<T>]) -> Vec<&mut [T]> {
    states.iter_mut().map(|state| &mut state[..]).collect()
}

/// Calls `update` with the elements of a variable and of its gradient, whose types are known.
fn with_both<T: Scalar>(var: &Tensor, gradient: &Tensor, update: impl FnOnce(&mut [T], &[T])) -> Result<()> {
    // candle locks memory that is written, so it must not be read at the same time.
    let is_shared = storage(var) == storage(gradient);
    let gradient = if is_shared { gradient.copy()? } else { gradient.clone() };
    read(&gradient, |gradient| {
        write(var, |value| {
            update(value.into_elements().unwrap_or_default(), gradient.elements().unwrap_or_default());
        })
    })??;
    Ok(())
}
