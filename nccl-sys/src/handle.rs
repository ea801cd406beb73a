//! What may be done with handles apart from calls.

use std::ptr;

use crate::{ncclComm_t, ncclWindow_t};

// SAFETY: NCCL ties a communicator to no thread. That two threads do not use it at once is a
// condition of every call.
#[allow(unsafe_code)]
unsafe impl Send for ncclComm_t {}

// SAFETY: a window belongs to a communicator, and is as little tied to a thread.
#[allow(unsafe_code)]
unsafe impl Send for ncclWindow_t {}

impl ncclComm_t {
    /// No communicator. Some calls take it for "whichever", such as `ncclGetLastError`.
    pub const NULL: Self = Self(ptr::null_mut());

    /// Whether this is no communicator.
    pub const fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl ncclWindow_t {
    /// No window.
    pub const NULL: Self = Self(ptr::null_mut());

    /// Whether this is no window.
    pub const fn is_null(self) -> bool {
        self.0.is_null()
    }
}
