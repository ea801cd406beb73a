//! Gradients in host memory, packed into the buckets of `comm-ddp`.

use candle_core::DeviceLocation;
use comm_core::{Comm, Host, ReduceOp};
use comm_ddp::{BucketLimits, DataParallel, Options, Parameter, ParameterSet};

use crate::Result;
use crate::broadcast;
use crate::call::StepGradients;
use crate::memory::{read, write};
use crate::place::{Average, Sealed};
use crate::variables::Variable;

impl Sealed for Host {
    const NAME: &'static str = "host memory";

    fn holds(location: DeviceLocation) -> bool {
        location == DeviceLocation::Cpu
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

    fn averager(comm: &Comm, variables: &[Variable]) -> Result<Box<dyn Average>> {
        averager(comm, variables, BucketLimits::DEFAULT)
    }
}

/// Creates an averager of gradients through buckets of these sizes.
pub(crate) fn averager(
    comm: &Comm,
    variables: &[Variable],
    limits: BucketLimits,
) -> Result<Box<dyn Average>> {
    let members: Vec<usize> = (0..variables.len()).filter(|at| variables[*at].dtype.is_float()).collect();
    let described = members.iter().map(|&at| &variables[at]);
    let described = described.map(|own| Parameter::with_dtype(&own.name, own.var.dims(), own.dtype));
    // All gradients of a backward pass are ready at once, so its first step shows no order.
    let options = Options::default().limits(limits).follow_first_step(false);
    // Every call waits for its buckets before it returns, so no other call runs meanwhile.
    let replicas = DataParallel::over(comm.clone(), ParameterSet::new(described)?, options)?;
    Ok(Box::new(Buckets { replicas, members }))
}

/// The buckets of the gradients of all floating point variables.
#[derive(Debug)]
struct Buckets {
    replicas: DataParallel,
    /// The positions of their variables among all.
    members: Vec<usize>,
}

impl Average for Buckets {
    fn average(&mut self, call: &mut StepGradients<'_>) -> Result<()> {
        let mut step = self.replicas.step()?;
        // In reverse, as buckets are filled: the first is sent while the second is packed.
        for (index, &at) in self.members.iter().enumerate().rev() {
            if let Some(gradient) = call.gradient(at) {
                read(gradient, |elements| step.ready(index, &elements))??;
            }
        }
        let averaged = step.finish()?;
        for (index, &at) in self.members.iter().enumerate() {
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
}
