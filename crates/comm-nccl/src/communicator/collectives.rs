//! The collectives.

use comm_core::{Call, CallOptions, Communicator, Error, Group, Result};

use super::NcclCommunicator;
use crate::memory::Cuda;
use crate::sync::lock;

impl Communicator<Cuda> for NcclCommunicator {
    fn group(&self) -> Group {
        self.engine.group
    }

    fn run(&self, call: Call<'_, Cuda>, options: &CallOptions) -> Result<()> {
        match call {
            Call::Barrier | Call::Finalize => self.barrier(options),
            call => self.carry_out(options, |plan| plan.collective(call, options)).map(drop),
        }
    }

    fn abort(&self, reason: &str) {
        self.engine.fail(Error::Aborted { by: self.engine.group.rank(), reason: reason.into() }, None);
    }
}

impl NcclCommunicator {
    /// Waits for the device.
    fn barrier(&self, options: &CallOptions) -> Result<()> {
        let mut cell = lock(&self.cell);
        let cell = cell.view_mut();
        let sequence = self.carry_out(options, |plan| plan.barrier(cell, options))?;
        self.engine.wait(sequence, None)
    }
}
