//! Gradients in host memory: packed into the buckets of `comm-ddp`, one set of them per element
//! type.

use candle_core::{Device, DeviceLocation, Tensor, WithDType};
use comm_core::{Comm, Host, HostView, ReduceOp};
use comm_ddp::{BucketLimits, DataParallel, Gradient, Options, Parameter, ParameterSet};
use half::{bf16, f16};

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
    // All ranks use the same types in the same order, because their variables are the same.
    let kinds = [
        kind::<f16>(comm, variables, limits)?,
        kind::<bf16>(comm, variables, limits)?,
        kind::<f32>(comm, variables, limits)?,
        kind::<f64>(comm, variables, limits)?,
    ];
    Ok(Box::new(Kinds(kinds.into_iter().flatten().collect())))
}

/// The variables of each element type.
#[derive(Debug)]
struct Kinds(Vec<Box<dyn Average>>);

impl Average for Kinds {
    fn average(&mut self, call: &mut StepGradients<'_>) -> Result<()> {
        self.0.iter_mut().try_for_each(|kind| kind.average(call))
    }
}

/// The variables of one element type.
#[derive(Debug)]
struct Kind<T: Gradient> {
    replicas: DataParallel<T>,
    /// Their positions among all.
    members: Vec<usize>,
}

fn kind<T: Gradient + WithDType>(
    comm: &Comm,
    variables: &[Variable],
    limits: BucketLimits,
) -> Result<Option<Box<dyn Average>>> {
    let is_member = |at: &usize| variables[*at].dtype == <T as comm_core::Element>::DTYPE;
    let members: Vec<usize> = (0..variables.len()).filter(is_member).collect();
    if members.is_empty() {
        return Ok(None);
    }
    let described =
        members.iter().map(|&at| Parameter::new::<T>(&variables[at].name, variables[at].var.dims()));
    // All gradients of a backward pass are ready at once, so its first step shows no order.
    let options = Options::default().limits(limits).follow_first_step(false);
    // Every call waits for its buckets before it returns, so no other call runs meanwhile.
    let replicas = DataParallel::over(comm.clone(), ParameterSet::new(described)?, options)?;
    Ok(Some(Box::new(Kind::<T> { replicas, members })))
}

impl<T: Gradient + WithDType> Average for Kind<T> {
    fn average(&mut self, call: &mut StepGradients<'_>) -> Result<()> {
        let mut step = self.replicas.step()?;
        // In reverse, as buckets are filled: the first is sent while the second is packed.
        for (index, &at) in self.members.iter().enumerate().rev() {
            if let Some(gradient) = call.gradient(at) {
                read(gradient, |elements: &[T]| step.ready(index, elements))??;
            }
        }
        let averaged = step.finish()?;
        for (index, &at) in self.members.iter().enumerate() {
            if let Some(average) = averaged.get(index).filter(|_| call.is_anywhere(at)) {
                store(call, at, average)?;
            }
        }
        Ok(())
    }
}

/// Writes an average into the gradient, or into a new tensor.
fn store<T: Gradient + WithDType>(call: &mut StepGradients<'_>, at: usize, average: &[T]) -> Result<()> {
    if let Some(gradient) = call.own(at) {
        let average = HostView::new(average).bytes();
        write(gradient, |elements| elements.into_bytes().copy_from_slice(average))?;
    } else {
        let shape = call.variables()[at].var.shape();
        call.put(at, Tensor::from_slice(average, shape, &Device::Cpu)?);
    }
    Ok(())
}
