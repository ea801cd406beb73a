//! Calls that are enqueued together.

use comm_core::{Call, CallOptions, Result};

use super::NcclCommunicator;
use crate::memory::Cuda;
use crate::plan::Plan;
use crate::view::{CudaView, CudaViewMut};

/// A group of calls. Messages in it do not wait for each other, so two ranks can exchange messages,
/// and many small collectives are faster than separate calls.
///
/// All ranks add the same collectives in the same order. The batch borrows the buffers until it
/// runs; dropping it makes no call.
#[derive(Debug)]
#[must_use = "call `run` to make the calls"]
pub struct Batch<'a> {
    communicator: &'a NcclCommunicator,
    plan: Plan<'a>,
}

impl NcclCommunicator {
    /// Creates an empty batch.
    pub fn batch(&self) -> Batch<'_> {
        Batch { communicator: self, plan: self.engine.plan() }
    }
}

impl<'a> Batch<'a> {
    /// Adds a message to rank `to`; see [`NcclCommunicator::send`].
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid), which leaves the batch unchanged.
    pub fn send(&mut self, to: usize, message: CudaView<'a>) -> Result<&mut Self> {
        self.plan.send(to, message)?;
        Ok(self)
    }

    /// Adds a message from rank `from`; see [`NcclCommunicator::recv`].
    ///
    /// # Errors
    /// As [`Batch::send`].
    pub fn recv(&mut self, from: usize, buffer: CudaViewMut<'a>) -> Result<&mut Self> {
        self.plan.recv(from, buffer)?;
        Ok(self)
    }

    /// Adds a collective.
    ///
    /// # Errors
    /// As [`Batch::send`].
    pub fn add(&mut self, call: Call<'a, Cuda>) -> Result<&mut Self> {
        self.plan.collective(call, &CallOptions::default())?;
        Ok(self)
    }

    /// Enqueues the calls. They share one deadline, and count as one call of the communicator.
    ///
    /// # Errors
    /// See [`Error`](comm_core::Error).
    pub fn run(self, options: &CallOptions) -> Result<()> {
        let Self { communicator, plan } = self;
        plan.check_options(options)?;
        let engine = &communicator.engine;
        let turn = engine.turn()?;
        engine.enqueue(&turn, plan, options).map(drop)
    }
}
