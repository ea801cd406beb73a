//! Operations on handles without calls of NCCL.

use std::ptr;

use crate::{ncclComm_t, ncclWindow_t};

// SAFETY: NCCL does not bind a communicator to a thread. Exclusive use is a condition of every
// call.
#[allow(unsafe_code)]
unsafe impl Send for ncclComm_t {}

// SAFETY: a window belongs to a communicator, and is not bound to a thread either.
#[allow(unsafe_code)]
unsafe impl Send for ncclWindow_t {}

impl ncclComm_t {
    /// The null communicator. Some calls, such as `ncclGetLastError`, accept it for any
    /// communicator.
    pub const NULL: Self = Self(ptr::null_mut());

    /// Whether this is the null communicator.
    pub const fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl ncclWindow_t {
    /// The null window.
    pub const NULL: Self = Self(ptr::null_mut());

    /// Whether this is the null window.
    pub const fn is_null(self) -> bool {
        self.0.is_null()
    }
}
