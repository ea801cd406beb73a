//! Gradients in host memory, packed into the buckets of `comm-ddp`.

use candle_core::backprop::GradStore;
use candle_core::{DeviceLocation, Tensor};
use comm_core::{Comm, Host, ReduceOp};
use comm_ddp::{Averaged, BucketLimits, DataParallel, ParameterSet};

use crate::broadcast;
use crate::call::StepGradients;
use crate::memory::{read, write};
use crate::place::{Average, Sealed};
use crate::segments::Event;
use crate::variables::{Variable, Variables};
use crate::{LostGradients, Options, Report, Result, Segments};

impl Sealed for Host {
    type Averager = Buckets;

    const NAME: &'static str = "host memory";

    fn holds(location: DeviceLocation) -> bool {
        location == DeviceLocation::Cpu
    }

    fn duplicate(comm: &Comm) -> comm_core::Result<Comm> {
        comm.duplicate()
    }

    fn all_gather(comm: &Comm, own: &[u8], all: &mut [u8]) -> comm_core::Result<()> {
        comm.all_gather(own, all)
    }

    fn largest(comm: &Comm, bytes: &mut [u8]) -> comm_core::Result<()> {
        comm.all_reduce(bytes, ReduceOp::Max)
    }

    fn broadcast(comm: &Comm, variables: &[Variable]) -> Result<()> {
        broadcast::in_buckets(comm, variables, BucketLimits::DEFAULT.bytes)
    }

    fn averager(comm: &Comm, variables: &[Variable]) -> Result<Buckets> {
        Buckets::new(comm, variables, Options::DEFAULT)
    }
}

/// The buckets of the gradients of all floating point variables.
#[derive(Debug)]
pub struct Buckets {
    replicas: DataParallel,
    /// The positions of their variables among all variables.
    members: Vec<usize>,
    max_norm: Option<f64>,
}

impl Buckets {
    /// Creates an averager of gradients over the communicator itself.
    pub(crate) fn new(comm: &Comm, variables: &[Variable], options: Options) -> Result<Self> {
        let members: Vec<usize> = (0..variables.len()).filter(|at| variables[*at].dtype.is_float()).collect();
        let described = ParameterSet::new(members.iter().map(|&at| variables[at].parameter()))?;
        // Every call waits for its buckets before it returns, so no other call runs at the same
        // time.
        let replicas = DataParallel::over(comm.clone(), described, options.of_buckets())?;
        Ok(Self { replicas, members, max_norm: options.max_norm })
    }

    /// Runs backward in segments, and averages gradients while it runs.
    pub(crate) fn backward(
        &mut self,
        variables: &Variables,
        loss: &Tensor,
        segments: Segments,
        lost: &mut LostGradients,
    ) -> Result<(GradStore, Report)> {
        let variables = variables.sorted();
        let trained: Vec<Variable> = self.members.iter().map(|&at| variables[at].clone()).collect();
        let mut step = self.replicas.step()?;
        let mut gradients = segments.backward(loss, &trained, |event| match event {
            Event::Unused(index) => Ok(step.mark_unused(index)?),
            Event::Ready(index, gradient) => Ok(read(gradient, |elements| step.ready(index, &elements))??),
        })?;
        let averaged = step.finish()?;
        let mut anywhere = vec![false; variables.len()];
        for (index, &at) in self.members.iter().enumerate() {
            anywhere[at] = !averaged.is_unused(index);
        }
        let mut call = StepGradients::with_marks(variables, &mut gradients, anywhere)?;
        lost.check(&call.without_gradient(), trained.len())?;
        take(averaged, self.max_norm, &self.members, &mut call)?;
        let report = call.report();
        Ok((gradients, report))
    }
}

impl Average for Buckets {
    fn average(&mut self, call: &mut StepGradients<'_>) -> Result<()> {
        let mut step = self.replicas.step()?;
        // In reverse, the order in which buckets are filled, so that the first is sent while the
        // second is packed.
        for (index, &at) in self.members.iter().enumerate().rev() {
            if let Some(gradient) = call.gradient(at) {
                read(gradient, |elements| step.ready(index, &elements))??;
            }
        }
        take(step.finish()?, self.max_norm, &self.members, call)
    }
}

/// Replaces gradients with their averages, after clipping.
fn take(
    mut averaged: Averaged<'_>,
    max_norm: Option<f64>,
    members: &[usize],
    call: &mut StepGradients<'_>,
) -> Result<()> {
    call.norm = max_norm.map(|max_norm| averaged.clip_norm(max_norm)).transpose()?;
    call.timeline = Some(averaged.timeline().clone());
    for (index, &at) in members.iter().enumerate() {
        if !call.is_anywhere(at) {
            continue;
        }
        let (gradient, is_new) = match call.own(at) {
            Some(own) => (own.clone(), false),
            None => (call.variables()[at].var.zeros_like()?, true),
        };
        write(&gradient, |elements| averaged.copy_to(index, elements))??;
        if is_new {
            call.put(at, gradient);
        }
    }
    Ok(())
}
