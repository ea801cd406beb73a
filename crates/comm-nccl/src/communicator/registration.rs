//! Registration of buffers with NCCL.

use std::sync::Arc;

use comm_core::{Element, Error, Invalid, Result};

use super::NcclCommunicator;
use super::engine::Engine;
use crate::DeviceBuffer;
use crate::allocation::Allocation;
use crate::handle::RegistrationHandle;

const STREAM_ORDERED: &str =
    "its memory was allocated in the order of a stream; allocate it with DeviceBuffer::by_nccl";

/// A registered buffer, which NCCL may access without copies. Dropping it ends the registration.
/// Until then, it keeps the buffer's memory alive.
#[derive(Debug)]
#[must_use = "NCCL forgets the buffer when this is dropped"]
pub struct Registration {
    engine: Arc<Engine>,
    handle: Option<RegistrationHandle>,
    /// Freed after the registration has ended.
    _memory: Arc<Allocation>,
}

impl NcclCommunicator {
    /// Registers a buffer that is used in many calls, with `ncclCommRegister`, which exists since
    /// NCCL 2.19. The buffer should come from [`DeviceBuffer::by_nccl`], because NCCL cannot
    /// register memory that is allocated in the order of a stream, as other buffers are on most
    /// devices. The effect on speed depends on the version, the devices and their links; results
    /// are the same.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if the library is older, and [`Invalid::Register`] if the
    /// memory cannot be registered, after which the communicator stays usable;
    /// [`Error::Backend`] if NCCL returns an error.
    pub fn register<T: Element>(&self, buffer: &DeviceBuffer<T>) -> Result<Registration> {
        let _turn = self.engine.turn()?;
        let memory = Arc::clone(buffer.memory());
        if memory.is_stream_ordered() && !buffer.is_empty() {
            return Err(Invalid::Register { backend: "nccl", reason: STREAM_ORDERED }.into());
        }
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
        // NCCL must not use the memory after deregistration. A communicator that has ended has no
        // registrations.
        let Ok(_turn) = self.engine.turn() else { return };
        let forgotten = self.engine.wait(self.engine.last(), None);
        let forgotten = forgotten.and_then(|()| self.engine.with_handle(|known| known.deregister(handle)));
        if let Err(error) = forgotten {
            tracing::warn!(%error, "could not deregister a buffer");
        }
    }
}
