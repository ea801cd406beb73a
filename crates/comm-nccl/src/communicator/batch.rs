//! Calls that are carried out together.

use comm_core::{Call, CallOptions, Result};

use super::NcclCommunicator;
use crate::memory::Cuda;
use crate::plan::Plan;
use crate::view::{CudaView, CudaViewMut};

/// Calls that begin together: a group of NCCL's. Messages in it do not wait for each other, so that
/// ranks can exchange some; and many small collectives cost less than one after the other.
///
/// All ranks put the same collectives into it, in the same order. It keeps the buffers until it
/// runs; nothing happens if it does not.
#[derive(Debug)]
#[must_use = "the calls are made by `run`"]
pub struct Batch<'a> {
    communicator: &'a NcclCommunicator,
    plan: Plan<'a>,
}

impl NcclCommunicator {
    /// An empty batch.
    pub fn batch(&self) -> Batch<'_> {
        Batch { communicator: self, plan: self.engine.plan() }
    }
}

impl<'a> Batch<'a> {
    /// Adds a message to rank `to`; see [`NcclCommunicator::send`].
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid), which leaves the batch as it was, as do those
    /// of all others.
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

    /// Makes the calls, as one: they have one deadline, and one number among the calls of the
    /// communicator.
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
