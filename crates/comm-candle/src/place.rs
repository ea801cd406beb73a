//! The memories in which models are trained.

use std::fmt::Debug;

use candle_core::DeviceLocation;
use comm_core::{Comm, Memory};

use crate::Result;
use crate::call::StepGradients;
use crate::variables::Variable;

/// A memory in which candle has tensors and a communicator has buffers: [`Host`](comm_core::Host),
/// and with the feature `cuda` also `comm_nccl::Cuda`.
///
/// The trait is sealed.
pub trait Place: Sealed {}

impl<M: Sealed> Place for M {}

/// The operations that differ between memories.
pub trait Sealed: Memory {
    /// Averages the gradients of a model in this memory.
    type Averager: Average;

    /// The name of its devices.
    const NAME: &'static str;

    /// Returns whether tensors at this location are in this memory.
    fn holds(location: DeviceLocation) -> bool;

    /// Returns a communicator that is used only for training, if buckets are sent in the
    /// background.
    fn duplicate(comm: &Comm<Self>) -> comm_core::Result<Comm<Self>>;

    /// Gathers the bytes of all ranks, in rank order, on every rank. All ranks pass the same number
    /// of bytes.
    fn all_gather(comm: &Comm<Self>, own: &[u8], all: &mut [u8]) -> comm_core::Result<()>;

    /// Replaces each byte with the largest one of all ranks at its position.
    fn largest(comm: &Comm<Self>, bytes: &mut [u8]) -> comm_core::Result<()>;

    /// Broadcasts the values of rank 0.
    fn broadcast(comm: &Comm<Self>, variables: &[Variable]) -> Result<()>;

    /// Creates the averager of the gradients of these variables. This is a collective.
    fn averager(comm: &Comm<Self>, variables: &[Variable]) -> Result<Self::Averager>;
}

/// Averages the gradients of a model, step by step.
pub trait Average: Debug + Send {
    /// Replaces all gradients of a step by their averages.
    fn average(&mut self, call: &mut StepGradients<'_>) -> Result<()>;
}
