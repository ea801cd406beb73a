//! Communicators created from a communicator, and registration of memory.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use comm_core::{Error, Result};
use nccl_sys::{NCCL_SHRINK_DEFAULT, NCCL_SPLIT_NOCOLOR, ncclComm_t, ncclConfig_t};

use super::{Handle, Progress, Setup, number};

/// The color of a rank that gets no communicator.
pub(crate) const NO_COLOR: c_int = NCCL_SPLIT_NOCOLOR;

/// A communicator that is being created. NCCL writes its handle when the call completes.
#[derive(Debug)]
pub(crate) struct CommInit {
    nccl: Arc<nccl_sys::Nccl>,
    child: *mut ncclComm_t,
    /// NCCL reads it until the call completes.
    config: *mut ncclConfig_t,
    setup: Setup,
}

// SAFETY: both point to heap memory that belongs to this value, or to a pending NCCL call; neither
// is tied to a thread.
unsafe impl Send for CommInit {}

impl CommInit {
    fn new(parent: &Handle, setup: Setup) -> Self {
        let config = Box::into_raw(Box::new(setup.config()));
        let child = Box::into_raw(Box::new(ncclComm_t::NULL));
        Self { nccl: Arc::clone(&parent.nccl), child, config, setup }
    }

    /// Returns the communicator after the call on its parent has completed; `None` if this rank
    /// gets none. If this is not called, the memory is never freed, because NCCL may still write to
    /// it.
    pub(crate) fn finish(self) -> Option<Handle> {
        // SAFETY: the pointer came from a box, the call that used it has completed, and the box is
        // restored once.
        let comm = *unsafe { Box::from_raw(self.child) };
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(self.config) });
        let Self { nccl, setup, .. } = self;
        (!comm.is_null()).then_some(Handle { nccl, comm, setup })
    }
}

impl Handle {
    /// Starts to create a communicator of the ranks with the same color, ranked by `key`. It exists
    /// when this communicator's progress is [`Progress::Ready`]: NCCL returns success even if it
    /// continues in the background.
    pub(crate) fn split(&self, color: c_int, key: usize, setup: Setup) -> Result<CommInit> {
        let key = number(key)?;
        let init = CommInit::new(self, setup);
        // SAFETY: the communicator exists, and both pointers are valid until the call has
        // completed.
        let code = unsafe { self.nccl.ncclCommSplit(self.comm, color, key, init.child, init.config) };
        self.progress_of("ncclCommSplit", code)?;
        Ok(init)
    }

    /// Starts to create a communicator of all ranks except some, which do not include this rank. It
    /// exists as after [`Handle::split`].
    pub(crate) fn shrink(&self, without: &[usize], setup: Setup) -> Result<CommInit> {
        let mut without = without.iter().map(|rank| number(*rank)).collect::<Result<Vec<c_int>>>()?;
        let count = number(without.len())?;
        let init = CommInit::new(self, setup);
        let list = without.as_mut_ptr();
        // SAFETY: the communicator exists, the list has this number of entries and is read in the
        // call, and the other pointers are valid until the call has completed.
        let code = unsafe {
            self.nccl.ncclCommShrink(self.comm, list, count, init.child, init.config, NCCL_SHRINK_DEFAULT)
        };
        self.progress_of("ncclCommShrink", code)?;
        Ok(init)
    }

    /// Registers memory of the device, so that NCCL may access it without copies.
    pub(crate) fn register(&self, pointer: u64, bytes: usize) -> Result<RegistrationHandle> {
        let mut handle = std::ptr::null_mut();
        let start: *mut c_void = std::ptr::without_provenance_mut(pointer as usize);
        // SAFETY: the communicator exists; NCCL refuses memory that is not there.
        let code = unsafe { self.nccl.ncclCommRegister(self.comm, start, bytes, &raw mut handle) };
        match self.progress_of("ncclCommRegister", code)? {
            Progress::Ready => Ok(RegistrationHandle(handle)),
            Progress::Busy => Err(Error::Internal("NCCL registers memory in the background".into())),
        }
    }

    /// Deregisters memory.
    pub(crate) fn deregister(&self, registration: RegistrationHandle) -> Result<()> {
        // SAFETY: the communicator exists, and gave out this handle, which is used once.
        let code = unsafe { self.nccl.ncclCommDeregister(self.comm, registration.0) };
        self.progress_of("ncclCommDeregister", code).map(|_| ())
    }
}

/// The handle of memory that is registered with NCCL.
#[derive(Debug)]
pub(crate) struct RegistrationHandle(*mut c_void);

// SAFETY: only NCCL dereferences it, on any thread.
unsafe impl Send for RegistrationHandle {}
