//! The driver: the functions of `cuda.h` that cudarc calls, under their own names.
//!
//! Each returns what the CUDA documentation specifies. An invalid argument fails only the call
//! itself and leaves the device usable; an error of enqueued work is sticky, and every later call
//! returns it. Both are recorded as faults.

mod context;
mod copy;
mod device;
mod error;
mod event;
mod memory;
mod module;
mod stream;

use std::fmt::Display;
use std::io;

use crate::device::memory::AccessError;
use crate::injection;
use crate::record;

pub(crate) use context::current_ordinal;
pub(crate) use event::live as live_events;
pub(crate) use stream::{live as live_streams, on_device as stream_on};

/// A code of `CUresult` other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CuError(pub(crate) i32);

impl CuError {
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_INITIALIZED: Self = Self(3);
    pub(crate) const NO_DEVICE: Self = Self(100);
    pub(crate) const INVALID_DEVICE: Self = Self(101);
    pub(crate) const INVALID_CONTEXT: Self = Self(201);
    pub(crate) const INVALID_PTX: Self = Self(218);
    pub(crate) const INVALID_HANDLE: Self = Self(400);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const ILLEGAL_ADDRESS: Self = Self(700);
    pub(crate) const CONTEXT_IS_DESTROYED: Self = Self(709);
    pub(crate) const SYSTEM: Self = Self(999);
}

impl From<io::Error> for CuError {
    fn from(_no_thread: io::Error) -> Self {
        Self::SYSTEM
    }
}

type CuResult = Result<(), CuError>;

fn code(outcome: CuResult) -> i32 {
    outcome.map_or_else(|error| error.0, |()| 0)
}

fn answer(call: impl FnOnce() -> CuResult) -> i32 {
    code(call())
}

/// Like [`answer`], but returns the result that a test has planned, if any, and records the call.
fn recorded(name: &str, arguments: &dyn Display, call: impl FnOnce() -> CuResult) -> i32 {
    let code = injection::answer(current_ordinal(), name).map_or_else(|| answer(call), u32::cast_signed);
    record::call(name, arguments, code);
    code
}

/// Returns success if the result could be written.
fn given(written: bool) -> CuResult {
    written.then_some(()).ok_or(CuError::INVALID_VALUE)
}

/// Records an invalid address in an argument, and returns its error.
fn refused(ordinal: usize, name: &str, error: AccessError) -> CuError {
    record::fault(Some(ordinal), &format!("{name}: {error}"));
    CuError::INVALID_VALUE
}
