//! A replica of a model, and its step with and without synchronization.

use std::time::Duration;

use clap::ValueEnum;
use comm::Comm;
use comm::ddp::{CastHook, DataParallel, Options, Parameter, ParameterSet};

use crate::Result;
use crate::models::{LocalGradients, Model, Workload};

const LEARNING_RATE: f32 = 1e-3;

/// The treatment of gradients before they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Variant {
    /// As they are, in `f32`.
    Plain,
    /// Sent as `bf16` by a hook.
    Bf16,
}

impl Variant {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Bf16 => "bf16",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Training {
    workload: Workload,
    replicas: DataParallel,
    local: LocalGradients,
    /// The time from the end of backward to the end of synchronization, per step.
    pub(crate) exposed: Vec<Duration>,
}

/// The result of the first step.
#[derive(Debug)]
pub(crate) struct FirstStep {
    pub(crate) loss: f32,
    /// The norm of the averaged gradients.
    pub(crate) norm: f64,
}

impl Training {
    pub(crate) fn new(comm: &Comm, model: Model, variant: Variant) -> Result<Self> {
        let lengths = model.lengths();
        let named = |(index, len): (usize, &usize)| Parameter::new::<f32>(format!("{index}"), [*len]);
        let parameters = ParameterSet::new(lengths.iter().enumerate().map(named))?;
        let mut replicas = DataParallel::new(comm, parameters, Options::default())?;
        match variant {
            Variant::Plain => {}
            Variant::Bf16 => replicas.register_comm_hook(CastHook::bf16())?,
        }
        let local = LocalGradients(lengths.iter().map(|len| vec![1.0; *len]).collect());
        Ok(Self { workload: model.workload(comm.rank()), replicas, local, exposed: Vec::new() })
    }

    /// Makes a step with the averages of all ranks.
    pub(crate) fn step(&mut self) -> Result<f32> {
        let mut step = self.replicas.step()?;
        let loss = self.workload.backward(&mut step)?;
        let averaged = step.finish()?;
        self.workload.update(averaged.iter()?, LEARNING_RATE);
        self.exposed.push(averaged.timeline().exposed());
        Ok(loss)
    }

    /// Makes a step with the gradients of this rank.
    pub(crate) fn local_step(&mut self) -> Result<f32> {
        let Ok(loss) = self.workload.backward(&mut self.local);
        self.workload.update(self.local.0.iter().map(Vec::as_slice), LEARNING_RATE);
        Ok(loss)
    }

    /// Makes the first step, and compares its averages with the gradients that each rank computes
    /// without synchronization.
    pub(crate) fn check(&mut self, comm: &Comm, variant: Variant) -> Result<FirstStep> {
        let initial = self.workload.parameters();
        self.local_step()?;
        let mut expected = self.local.0.clone();
        for gradient in &mut expected {
            comm.all_reduce(gradient, comm::ReduceOp::Avg)?;
        }
        self.workload.set_parameters(&initial);
        let mut step = self.replicas.step()?;
        let loss = match &mut self.workload {
            Workload::Fixed(_) => {
                // The following steps average the same values again.
                (0..self.local.0.len()).try_for_each(|index| step.ready(index, &self.local.0[index]))?;
                0.0
            }
            computed => computed.backward(&mut step)?,
        };
        let averaged = step.finish()?;
        let pairs = averaged.iter::<f32>()?.zip(&expected).flat_map(|(ours, exact)| ours.iter().zip(exact));
        let error = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt();
        let norm = averaged.norm()?;
        let allowed = match variant {
            Variant::Plain => 0.0,
            Variant::Bf16 => 1e-2,
        };
        if error.is_nan() || error > allowed * norm {
            return Err(format!("the averages differ by {error} from those of all ranks, {norm}").into());
        }
        Ok(FirstStep { loss, norm })
    }
}
