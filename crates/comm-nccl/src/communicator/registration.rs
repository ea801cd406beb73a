//! Memory that NCCL knows.

use std::sync::Arc;

use comm_core::{Element, Error, Result};

use super::NcclCommunicator;
use super::engine::Engine;
use crate::DeviceBuffer;
use crate::allocation::Allocation;
use crate::handle::RegistrationHandle;

/// A buffer that NCCL knows, so that it may reach it without copies of its own. Ends when it is
/// dropped; keeps the buffer's memory until then.
#[derive(Debug)]
#[must_use = "NCCL forgets the buffer when this is dropped"]
pub struct Registration {
    engine: Arc<Engine>,
    handle: Option<RegistrationHandle>,
    /// Freed after NCCL has forgotten it.
    _memory: Arc<Allocation>,
}

impl NcclCommunicator {
    /// Lets NCCL know a buffer that is used in many calls: `ncclCommRegister`, from NCCL 2.19 on.
    /// What comes of it depends on the version, the devices and how they are connected; results are
    /// the same.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if the library is older, which leaves the communicator usable;
    /// [`Error::Backend`] if NCCL refuses the buffer.
    pub fn register<T: Element>(&self, buffer: &DeviceBuffer<T>) -> Result<Registration> {
        let _turn = self.engine.turn()?;
        let memory = Arc::clone(buffer.memory());
        let (start, bytes) = (memory.pointer(), buffer.size());
        let registered = (bytes > 0).then(|| self.engine.with_handle(|handle| handle.register(start, bytes)));
        let handle = registered.transpose().map_err(|error| match error {
            unavailable @ Error::BackendUnavailable { .. } => unavailable,
            error => self.engine.fail(error, None),
        })?;
        Ok(Registration { engine: Arc::clone(&self.engine), handle, _memory: memory })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        // NCCL may not use it any more when it is forgotten. A communicator that has ended has
        // forgotten everything.
        let Ok(_turn) = self.engine.turn() else { return };
        let forgotten = self.engine.wait(self.engine.last(), None);
        let forgotten = forgotten.and_then(|()| self.engine.with_handle(|known| known.deregister(handle)));
        if let Err(error) = forgotten {
            tracing::warn!(%error, "could not deregister a buffer");
        }
    }
}
