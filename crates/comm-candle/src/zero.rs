//! An optimizer whose state is divided among the ranks.

/// Evaluates an expression with the optimizer of either type.
macro_rules! with_sharded {
    ($sharded:expr, |$zero:ident| $body:expr) => {
        match $sharded {
            Sharded::F32($zero) => $body,
            Sharded::F64($zero) => $body,
        }
    };
}

mod rejoin;

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use comm_checkpoint::{Checkpoint, State};
use comm_core::{Comm, DType};
use comm_ddp::{Averaged, Optimizer, Parameter, ParameterSet, Scalar, ShardedAverages, ZeroStep};

use crate::agreement::agree_to_continue;
use crate::checkpoint::{STEPS, read_state, state_name};
use crate::error::or_abort;
use crate::memory::{read, write};
use crate::segments::Event;
use crate::variables::{Variable, Variables};
use crate::{Error, LostGradients, Options, Report, Result, Segments};

/// Averages gradients over all ranks and updates the variables, with the state of the optimizer
/// divided among the ranks: the first stage of ZeRO (Rajbhandari et al., SC 2020).
///
/// It replaces [`DataParallel`](crate::DataParallel) and an optimizer, moves as many bytes, and
/// keeps only the state of its part of the variables: see [`comm_ddp::ZeroOptimizer`]. The floating
/// point variables must be all `f32` or all `f64`, and in host memory. They have the same bits on
/// every rank after each step, and under
/// [`ReduceOrder::Deterministic`](comm_core::ReduceOrder::Deterministic) those that
/// [`DataParallel`](crate::DataParallel) and a [`ReplicatedOptimizer`](crate::ReplicatedOptimizer)
/// give.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{Init, VarBuilder, VarMap};
/// use comm_candle::{Result, ZeroOptimizer};
/// use comm_ddp::Sgd;
///
/// comm::threads::run(3, |comm| -> Result<()> {
///     let variables = VarMap::new();
///     let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
///     let weight = builder.get_with_hints((2, 5), "weight", Init::Const(1.0))?;
///     let mut optimizer = ZeroOptimizer::new(&variables, &comm, |_| Sgd::new(0.25))?;
///     // The gradients are 0, 1 and 2.
///     let loss = (weight.sum_all()? * comm.rank() as f64)?;
///     optimizer.step(&loss.backward()?)?;
///     assert_eq!(weight.to_vec2::<f32>()?, [[0.75; 5]; 2]);
///     Ok(())
/// })?
/// .into_iter()
/// .collect::<Result<Vec<()>>>()?;
/// # Ok::<_, comm_candle::Error>(())
/// ```
#[derive(Debug)]
pub struct ZeroOptimizer<O> {
    comm: Comm,
    variables: Variables,
    /// The variables that are updated, in the order of their registration in `sharded`.
    trained: Vec<Variable>,
    sharded: Sharded<O>,
    max_norm: Option<f64>,
    /// The response to lost gradients in the next step.
    lost_gradients: LostGradients,
    /// Whether it has been in use in a group.
    has_joined: bool,
}

/// The beginning of an optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// With all ranks of a group.
    Together,
    /// Before it joins a group.
    Newcomer,
}

impl Start {
    fn create<T: Scalar, O: Optimizer<T>>(
        self,
        comm: &Comm,
        parameters: ParameterSet,
        options: comm_ddp::Options,
        optimizer: impl Fn(&Parameter) -> O,
    ) -> Result<comm_ddp::ZeroOptimizer<T, O>> {
        Ok(match self {
            Self::Together => comm_ddp::ZeroOptimizer::over(comm.clone(), parameters, options, optimizer)?,
            Self::Newcomer => comm_ddp::ZeroOptimizer::newcomer(comm, parameters, options, optimizer)?,
        })
    }
}

/// The optimizer for the type of the variables.
#[derive(Debug)]
enum Sharded<O> {
    F32(comm_ddp::ZeroOptimizer<f32, O>),
    F64(comm_ddp::ZeroOptimizer<f64, O>),
}

impl<O: Optimizer<f32> + Optimizer<f64>> ZeroOptimizer<O> {
    /// Prepares to train the model with these variables, and duplicates the communicator. This is a
    /// collective: every rank calls it with the same model. `optimizer` returns the settings for
    /// each variable, the same on every rank.
    ///
    /// All variables must already exist; [`ZeroOptimizer::step`] returns an error if one is added
    /// later.
    ///
    /// # Errors
    /// As [`DataParallel::new`](crate::DataParallel::new); [`Error::NotUpdated`] for variables of
    /// 16-bit floats, and for those of another type than the first.
    pub fn new(variables: &VarMap, comm: &Comm, optimizer: impl Fn(&Parameter) -> O) -> Result<Self> {
        Self::with_options(variables, comm, Options::DEFAULT, optimizer)
    }

    /// Does the same as [`ZeroOptimizer::new`] with other options.
    ///
    /// # Errors
    /// As [`ZeroOptimizer::new`].
    pub fn with_options(
        variables: &VarMap,
        comm: &Comm,
        options: Options,
        optimizer: impl Fn(&Parameter) -> O,
    ) -> Result<Self> {
        let comm = comm.duplicate()?;
        let variables = Variables::agree(variables, &comm)?;
        let options = options.agree(&comm, 0)?;
        Self::assemble(comm, variables, options, optimizer, Start::Together)
    }

    fn assemble(
        comm: Comm,
        variables: Variables,
        options: Options,
        optimizer: impl Fn(&Parameter) -> O,
        start: Start,
    ) -> Result<Self> {
        let (trained, described): (Vec<_>, Vec<_>) =
            variables.trained().map(|(variable, parameter)| (variable.clone(), parameter)).unzip();
        let dtype = common_type(&trained)?;
        let (set, buckets) = (ParameterSet::new(described)?, options.of_buckets());
        let sharded = if dtype == DType::F64 {
            Sharded::F64(start.create(&comm, set, buckets, optimizer)?)
        } else {
            Sharded::F32(start.create(&comm, set, buckets, optimizer)?)
        };
        let Options { max_norm, lost_gradients, .. } = options;
        let has_joined = start == Start::Together;
        Ok(Self { comm, variables, trained, sharded, max_norm, lost_gradients, has_joined })
    }

    /// Returns an error if the optimizer has to join a group first.
    fn check_joined(&self) -> Result<()> {
        if self.has_joined { Ok(()) } else { Err(comm_ddp::Error::NotJoined.into()) }
    }

    /// Averages gradients over all ranks and updates the variables. This is a collective, called
    /// after backward.
    ///
    /// A variable that has no gradient on any rank remains unchanged. With [`Options::max_norm`],
    /// averages are clipped; if their norm is not finite, no variable changes on any rank, and the
    /// step is not counted.
    ///
    /// # Errors
    /// [`Error::Gradient`] or [`Error::Changed`], and [`Error::Refused`] on the other ranks:
    /// nothing was sent, and all ranks may call again; [`Error::LostGradients`] on all ranks as
    /// well, if set to do so. [`Error::Ranks`] if communication fails, and [`Error::Candle`], which
    /// fails the call on all ranks; then the variables are unspecified, and every later call fails.
    pub fn step(&mut self, gradients: &GradStore) -> Result<Report> {
        self.check_joined()?;
        let own = |variable: &Variable| Ok(variable.gradient(gradients)?.cloned());
        let checked = self.variables.check_unchanged();
        let checked = checked.and_then(|()| self.trained.iter().map(own).collect());
        let gradients: Vec<Option<Tensor>> = agree_to_continue(&self.comm, checked, &mut Vec::new())?;
        let (trained, max_norm, lost) = (&self.trained[..], self.max_norm, &mut self.lost_gradients);
        let updated = with_sharded!(&mut self.sharded, |zero| {
            Update { trained, max_norm, lost }.run(zero, |step| pass_all(step, &gradients))
        });
        or_abort(&self.comm, updated)
    }

    /// Runs backward in segments, averages gradients over all ranks while it runs, and updates the
    /// variables, like [`ZeroOptimizer::step`]. This is a collective.
    ///
    /// Buckets are sent in the reverse order of names, each when it is full, and the last ones
    /// after backward.
    ///
    /// # Errors
    /// [`Error::LostGradients`] on all ranks, after which all may call again. [`Error::Changed`]
    /// and [`Error::Candle`], which fail the call on all ranks, and [`Error::Ranks`]; then every
    /// later call fails.
    pub fn backward_step(&mut self, loss: &Tensor, segments: Segments) -> Result<Report> {
        self.check_joined()?;
        or_abort(&self.comm, self.variables.check_unchanged())?;
        let (trained, max_norm, lost) = (&self.trained[..], self.max_norm, &mut self.lost_gradients);
        let updated = with_sharded!(&mut self.sharded, |zero| {
            let update = Update { trained, max_norm, lost };
            update.run(zero, |step| pass_segments(step, trained, loss, segments))
        });
        or_abort(&self.comm, updated)
    }

    /// Returns the number of updates so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        with_sharded!(&self.sharded, |zero| zero.steps())
    }

    /// Returns the settings of each variable for changes, for example of the learning rate. All
    /// ranks must make the same changes.
    pub fn settings_mut(&mut self) -> impl Iterator<Item = (&str, &mut O)> {
        let settings: Vec<(&Parameter, &mut O)> =
            with_sharded!(&mut self.sharded, |zero| zero.settings_mut().collect());
        settings.into_iter().map(|(parameter, optimizer)| (parameter.name(), optimizer))
    }

    /// Adds this rank's part of the state, and the number of steps, to the state that is saved,
    /// under the names of [`ReplicatedOptimizer::save_to`](crate::ReplicatedOptimizer::save_to).
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if a name is taken.
    pub fn save_to<'a>(&'a mut self, state: &mut State<'a>) -> Result<()> {
        state.value(STEPS, &self.steps())?;
        with_sharded!(&mut self.sharded, |zero| save_shards(zero, state))
    }

    /// Restores this rank's part of the state, and the number of steps, saved by an optimizer of
    /// this type or by a [`ReplicatedOptimizer`](crate::ReplicatedOptimizer), on any number of
    /// ranks. This is not a collective, but every rank calls it.
    ///
    /// # Errors
    /// [`Error::Stored`] and [`Error::Checkpoint`], after which the state is unspecified.
    pub fn load_from(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let steps = checkpoint.value(STEPS)?;
        with_sharded!(&mut self.sharded, |zero| {
            for shard in zero.state() {
                read_state(checkpoint, shard.state, shard.parameter, shard.start, shard.values)?;
            }
            zero.set_steps(steps);
        });
        Ok(())
    }
}

/// Returns the type of all variables, or an error for the first that differs or cannot be updated.
fn common_type(trained: &[Variable]) -> Result<DType> {
    let first = trained.first().map_or(DType::F32, |variable| variable.dtype);
    let is_updated = |dtype| dtype == first && matches!(dtype, DType::F32 | DType::F64);
    match trained.iter().find(|variable| !is_updated(variable.dtype)) {
        Some(other) => Err(Error::NotUpdated { name: other.name.clone(), dtype: other.dtype }),
        None => Ok(first),
    }
}

fn save_shards<'a, T: Scalar, O: Optimizer<T>>(
    zero: &'a mut comm_ddp::ZeroOptimizer<T, O>,
    state: &mut State<'a>,
) -> Result<()> {
    for shard in zero.state() {
        let (name, shape) = (state_name(shard.state, shard.parameter.name()), shard.parameter.shape());
        let values: &'a [T] = shard.values;
        state.shard(name, shape, shard.start, values)?;
    }
    Ok(())
}

/// One step.
struct Update<'u> {
    trained: &'u [Variable],
    max_norm: Option<f64>,
    lost: &'u mut LostGradients,
}

impl Update<'_> {
    /// Runs a step. `pass` passes all gradients, and returns which variables have one.
    fn run<T: Scalar, O: Optimizer<T>>(
        self,
        zero: &mut comm_ddp::ZeroOptimizer<T, O>,
        pass: impl FnOnce(&mut ZeroStep<'_, T, O>) -> Result<Vec<bool>>,
    ) -> Result<Report> {
        let mut step = zero.step()?;
        let here = pass(&mut step)?;
        let mut averages = step.finish()?;
        let mut report = self.report(averages.averaged(), &here);
        self.lost.check(report.without_gradient(), self.trained.len())?;
        report.norm = self.max_norm.map(|max_norm| averages.clip_norm(max_norm)).transpose()?;
        if report.norm.is_none_or(f64::is_finite) {
            self.write(&mut averages)?;
        }
        Ok(report)
    }

    /// Updates the variables in place.
    fn write<T: Scalar, O: Optimizer<T>>(&self, averages: &mut ShardedAverages<'_, T, O>) -> Result<()> {
        let mut failed = None;
        let updated = averages.update_with(|index, visit| {
            let var = &self.trained[index].var;
            let written = write(var, |value| visit(value.into_elements().unwrap_or_default()));
            written.map_err(|error| {
                failed = Some(error);
                comm_ddp::Error::Abandoned
            })
        });
        failed.map_or_else(|| Ok(updated?), |error| Err(error.into()))
    }

    fn report(&self, averaged: &Averaged<'_>, here: &[bool]) -> Report {
        let absent_gradients = |is_anywhere: bool| {
            let lacking = (0..here.len()).filter(|at| !here[*at] && averaged.is_unused(*at) != is_anywhere);
            lacking.map(|at| self.trained[at].name.clone()).collect()
        };
        let timeline = Some(averaged.timeline().clone());
        Report {
            without_gradient: absent_gradients(false),
            counted_as_zero: absent_gradients(true),
            norm: None,
            timeline,
        }
    }
}

/// Passes the gradients of a completed backward pass.
fn pass_all<T: Scalar, O: Optimizer<T>>(
    step: &mut ZeroStep<'_, T, O>,
    gradients: &[Option<Tensor>],
) -> Result<Vec<bool>> {
    // In reverse, the order in which buckets are filled.
    for (index, gradient) in gradients.iter().enumerate().rev() {
        if let Some(gradient) = gradient {
            ready(step, index, gradient)?;
        }
    }
    Ok(gradients.iter().map(Option::is_some).collect())
}

/// Runs backward, and passes gradients as they become ready.
fn pass_segments<T: Scalar, O: Optimizer<T>>(
    step: &mut ZeroStep<'_, T, O>,
    trained: &[Variable],
    loss: &Tensor,
    segments: Segments,
) -> Result<Vec<bool>> {
    let mut here = vec![false; trained.len()];
    segments.backward(loss, trained, |event| match event {
        Event::Unused(index) => Ok(step.mark_unused(index)?),
        Event::Ready(index, gradient) => {
            here[index] = true;
            ready(step, index, gradient)
        }
    })?;
    Ok(here)
}

fn ready<T: Scalar, O: Optimizer<T>>(
    step: &mut ZeroStep<'_, T, O>,
    index: usize,
    gradient: &Tensor,
) -> Result<()> {
    Ok(read(gradient, |elements| step.ready(index, &elements))??)
}
