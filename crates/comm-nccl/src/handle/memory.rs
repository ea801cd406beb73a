//! Memory that NCCL allocates. This needs no communicator.

use std::ffi::c_void;

use comm_core::Result;
use nccl_sys::{MissingSymbol, Nccl, ncclResult_t};

use crate::error;

/// Allocates memory with unspecified contents on the current device.
pub(crate) fn allocate(nccl: &Nccl, bytes: usize) -> Result<u64> {
    let mut start: *mut c_void = std::ptr::null_mut();
    // SAFETY: the answer is written to a value that lives here.
    let code = unsafe { nccl.ncclMemAlloc(&raw mut start, bytes) };
    done(nccl, "ncclMemAlloc", code)?;
    Ok(start.addr() as u64)
}

/// # Safety
/// The memory must be allocated by [`allocate`] and no longer be used.
pub(crate) unsafe fn free(nccl: &Nccl, pointer: u64) -> Result<()> {
    let start: *mut c_void = std::ptr::without_provenance_mut(pointer as usize);
    // SAFETY: as the caller promises.
    let code = unsafe { nccl.ncclMemFree(start) };
    done(nccl, "ncclMemFree", code)
}

fn done(nccl: &Nccl, call: &str, answer: Result<ncclResult_t, MissingSymbol>) -> Result<()> {
    match answer.map_err(error::missing)? {
        ncclResult_t::ncclSuccess => Ok(()),
        code => Err(error::nccl(nccl, call, code)),
    }
}
