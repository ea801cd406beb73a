//! The memories in which models are trained.

use std::fmt::Debug;

use candle_core::DeviceLocation;
use comm_core::{Comm, Memory};

use crate::Result;
use crate::call::Call;
use crate::variables::Variable;

/// A memory in which candle has tensors and a communicator has buffers: [`Host`](comm_core::Host),
/// and with feature `cuda` `comm_nccl::Cuda`.
///
/// The trait is sealed.
pub trait Place: Sealed {}

impl<M: Sealed> Place for M {}

/// What is done in another way in another memory.
pub trait Sealed: Memory {
    /// What tensors of it are on.
    const NAME: &'static str;

    /// Whether tensors there are of this memory.
    fn holds(location: DeviceLocation) -> bool;

    /// Gives every rank the bytes of all ranks, in rank order, which all bring as many.
    fn all_gather(comm: &Comm<Self>, own: &[u8], all: &mut [u8]) -> comm_core::Result<()>;

    /// Gives every rank the largest byte of all ranks at each position.
    fn largest(comm: &Comm<Self>, bytes: &mut [u8]) -> comm_core::Result<()>;

    /// Gives every rank the values of rank 0.
    fn broadcast(comm: &Comm<Self>, variables: &[Variable]) -> Result<()>;

    /// What averages the gradients of these variables. A collective.
    fn averager(comm: &Comm<Self>, variables: &[Variable]) -> Result<Box<dyn Average>>;
}

/// What averages the gradients of a model, step by step.
pub trait Average: Debug + Send {
    /// Replaces all gradients of a step by their averages.
    fn average(&mut self, call: &mut Call<'_>) -> Result<()>;
}
