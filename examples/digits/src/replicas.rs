//! The ways to train replicas together: averaged gradients, with whole or sharded state of the
//! optimizer, and local training.

use std::time::{Duration, Instant};

use comm::Comm;
use comm::ddp::{BucketLimits, DataParallel, LocalTraining, Options, ParameterSet, Timeline, ZeroOptimizer};

use crate::data::Batch;
use crate::error::Result;
use crate::model::{Gradients, Mlp, Pass};
use crate::optimizer::{Optimizer, Update};
use crate::real::Real;
use crate::train::{Settings, StateLayout};

/// The limits of buckets. The defaults are meant for models a hundred times as large; with these
/// smaller limits, each layer has its own bucket.
const LIMITS: BucketLimits = BucketLimits::DEFAULT.first_bytes(4 << 10).bytes(64 << 10);

/// The part of a trainer that communicates.
#[derive(Debug)]
pub(crate) enum Replicas<T: Real> {
    /// Gradients are averaged in every step.
    DataParallel { replicas: Box<DataParallel>, timelines: Vec<Timeline> },
    /// Gradients are averaged in every step, and each rank has a part of the optimizer's state.
    Sharded { zero: Box<ZeroOptimizer<T, Update>>, timelines: Vec<Timeline> },
    /// Each rank uses its own gradients, and parameters are synchronized once in many steps.
    Local { training: Box<LocalTraining<T>>, gradients: OwnGradients<T> },
}

/// The gradients of this rank's batch.
#[derive(Debug)]
pub(crate) struct OwnGradients<T>(Vec<Vec<T>>);

impl<T> Gradients<T> for OwnGradients<T> {
    type Error = comm::ddp::Error;

    fn memory(&mut self, index: usize) -> Result<&mut [T], Self::Error> {
        Ok(&mut self.0[index])
    }

    fn ready(&mut self, _: usize) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// The model of a rank, with everything else that a step needs.
#[derive(Debug)]
pub(crate) struct Replica<T> {
    pub(crate) model: Mlp<T>,
    pub(crate) optimizer: Optimizer<T>,
    pub(crate) pass: Pass<T>,
}

/// The loss and the times of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepReport {
    pub(crate) loss: f64,
    /// The time of collectives; in local training, the time in which the rank waited.
    pub(crate) communicating: Duration,
    pub(crate) waiting: Duration,
}

impl StepReport {
    fn new(loss: impl Real, timeline: &Timeline) -> Self {
        let (communicating, waiting) = (timeline.communicating(), timeline.exposed());
        Self { loss: loss.widen(), communicating, waiting }
    }
}

fn options(settings: &Settings) -> Options {
    Options::default().limits(LIMITS).replicate_state(settings.state == StateLayout::ShardedWithCopies)
}

impl<T: Real> Replicas<T> {
    /// Prepares the ranks for training, with the weights of rank 0. Collective.
    pub(crate) fn new(
        comm: &Comm,
        parameters: ParameterSet,
        settings: &Settings,
        model: &mut Mlp<T>,
    ) -> Result<Self> {
        if let Some(options) = settings.local {
            let training = LocalTraining::new(comm, parameters, options, model.parameters_mut())?;
            let gradients = model.parameters().map(|p| vec![T::zero(); p.numbers.len()]).collect();
            return Ok(Self::Local { training: Box::new(training), gradients: OwnGradients(gradients) });
        }
        if settings.state.is_sharded() {
            let update = settings.update();
            let mut zero = ZeroOptimizer::new(comm, parameters, options(settings), |_| update)?;
            zero.broadcast_parameters(model.parameters_mut())?;
            return Ok(Self::Sharded { zero: Box::new(zero), timelines: Vec::new() });
        }
        let mut replicas = DataParallel::new(comm, parameters, options(settings))?;
        replicas.broadcast_parameters(model.parameters_mut())?;
        Ok(Self::DataParallel { replicas: Box::new(replicas), timelines: Vec::new() })
    }

    /// Does the same as [`Replicas::new`] while the other ranks call [`Replicas::replace`].
    pub(crate) fn join(
        comm: &Comm,
        parameters: ParameterSet,
        settings: &Settings,
        model: &mut Mlp<T>,
    ) -> Result<Self> {
        if !settings.state.is_sharded() {
            return Self::new(comm, parameters, settings, model);
        }
        let update = settings.update();
        let mut zero = ZeroOptimizer::newcomer(comm, parameters, options(settings), |_| update)?;
        zero.rejoin(comm, model.parameters_mut())?;
        Ok(Self::Sharded { zero: Box::new(zero), timelines: Vec::new() })
    }

    /// Averages the gradients of another group of ranks, whose weights are equal unless the state
    /// of the optimizer is sharded. Collective.
    pub(crate) fn replace(
        &mut self,
        comm: &Comm,
        parameters: ParameterSet,
        settings: &Settings,
        model: &mut Mlp<T>,
    ) -> Result<()> {
        match self {
            Self::DataParallel { replicas, .. } => {
                **replicas = DataParallel::new(comm, parameters, options(settings))?;
                replicas.broadcast_parameters(model.parameters_mut())?;
            }
            Self::Sharded { zero, .. } => zero.rejoin(comm, model.parameters_mut())?,
            Self::Local { .. } => {}
        }
        Ok(())
    }

    /// Runs forward and backward, updates the weights, and communicates before or after the update.
    pub(crate) fn step(&mut self, replica: &mut Replica<T>, batch: &Batch<T>) -> Result<StepReport> {
        let Replica { model, optimizer, pass } = replica;
        match self {
            Self::DataParallel { replicas, timelines } => {
                let mut step = replicas.step()?;
                let loss = model.backward(pass, batch, &mut step)?;
                let averaged = step.finish()?;
                optimizer.step(model.parameters_mut().zip(averaged.iter()?));
                timelines.push(averaged.timeline().clone());
                Ok(StepReport::new(loss, averaged.timeline()))
            }
            Self::Sharded { zero, timelines } => {
                let mut step = zero.step()?;
                let loss = model.backward(pass, batch, &mut step)?;
                let mut averages = step.finish()?;
                averages.update(model.parameters_mut())?;
                timelines.push(averages.averaged().timeline().clone());
                Ok(StepReport::new(loss, averages.averaged().timeline()))
            }
            Self::Local { training, gradients } => {
                let loss = model.backward(pass, batch, gradients)?;
                optimizer.step(model.parameters_mut().zip(gradients.0.iter().map(|gradient| &gradient[..])));
                let began = Instant::now();
                training.step(model.parameters_mut())?;
                let waiting = began.elapsed();
                Ok(StepReport { loss: loss.widen(), communicating: waiting, waiting })
            }
        }
    }

    /// Makes the parameters of all ranks equal; with averaged gradients they always are.
    /// Collective.
    pub(crate) fn synchronize(&mut self, model: &mut Mlp<T>) -> Result<()> {
        if let Self::Local { training, .. } = self {
            training.synchronize(model.parameters_mut())?;
        }
        Ok(())
    }

    /// Calls `evaluate` on a model with the parameters that all ranks share, and then restores the
    /// rank's own.
    pub(crate) fn evaluate<R>(
        &self,
        replica: &mut Replica<T>,
        evaluate: impl FnOnce(&mut Replica<T>) -> R,
    ) -> Result<R> {
        let Self::Local { training, .. } = self else { return Ok(evaluate(replica)) };
        let own: Vec<Vec<T>> = replica.model.parameters().map(|p| p.numbers.to_vec()).collect();
        training.copy_global(replica.model.parameters_mut())?;
        let result = evaluate(replica);
        replica.model.parameters_mut().zip(own).for_each(|(numbers, own)| numbers.copy_from_slice(&own));
        Ok(result)
    }

    /// Returns the timelines of all steps with averaged gradients so far.
    pub(crate) fn timelines(&self) -> &[Timeline] {
        match self {
            Self::DataParallel { timelines, .. } | Self::Sharded { timelines, .. } => timelines,
            Self::Local { .. } => &[],
        }
    }

    /// Returns the bytes of gradients that each of `ranks` ranks has sent. In an all-reduce, a rank
    /// sends one part to every other rank to be reduced, and later its reduced part to each. With
    /// sharded state, the second part has weights; those of copies are not counted.
    pub(crate) fn bytes_sent(&self, ranks: usize) -> u64 {
        match self {
            Self::DataParallel { timelines, .. } | Self::Sharded { timelines, .. } => {
                let buckets = timelines.iter().flat_map(|timeline| &timeline.buckets);
                buckets.map(|bucket| (2 * (ranks - 1) * bucket.bytes / ranks) as u64).sum()
            }
            Self::Local { training, .. } => training.bytes_sent(),
        }
    }
}
