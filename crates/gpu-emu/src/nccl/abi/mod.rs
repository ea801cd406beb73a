//! NCCL's functions, under their own names and with the types of the bindings.

mod collectives;
mod division;
mod groups;
mod lifecycle;
mod memory;
mod operators;
mod queries;

use std::fmt::Display;
use std::sync::Arc;

use nccl_sys::{ncclComm_t, ncclResult_t};

use crate::device::{self, Device};
use crate::driver::current_ordinal;
use crate::injection;
use crate::record;
use crate::settings::{self, Setting};

use super::communicator;
use super::failure::{self, Failure, Outcome};

/// Returns the result of a call, or the one that a test has planned, and records the call.
fn answer(
    name: &str,
    device: usize,
    arguments: &dyn Display,
    call: impl FnOnce() -> Outcome,
) -> ncclResult_t {
    let outcome = match injection::answer(device, name) {
        Some(code) => Err(Failure::new(ncclResult_t(code), "injected")),
        None => call(),
    };
    let code = outcome.map_or_else(
        |failure| {
            failure::remember(&failure);
            failure.code
        },
        |()| ncclResult_t::ncclSuccess,
    );
    record::call(name, arguments, i32::try_from(code.0).unwrap_or(i32::MAX));
    code
}

/// Returns the device to which planned results and records of a call on a communicator belong.
fn device_of(communicator: ncclComm_t) -> usize {
    communicator::of_handle(communicator).map_or_else(|_| current_ordinal(), |known| known.device.ordinal)
}

/// Returns the current device of the CUDA runtime.
fn current_device() -> Outcome<Arc<Device>> {
    let device = device::get(current_ordinal()).ok_or_else(|| {
        let words = "Cuda failure 'no CUDA-capable device is detected'";
        Failure::new(ncclResult_t::ncclUnhandledCudaError, words)
    })?;
    device.healthy()?;
    Ok(device)
}

/// Returns an error and records a fault if the emulated version is older than `code`, which
/// introduced the call. A real library of that version would lack the symbol, so the caller must
/// have failed to check for it.
fn since(code: u64, name: &str) -> Outcome {
    if settings::get(Setting::NcclVersion) >= code {
        return Ok(());
    }
    let words = format!("{name} was called, but this version does not have it");
    record::fault(None, &words);
    Err(Failure::new(ncclResult_t::ncclInternalError, words))
}

/// Returns success if the result could be written.
fn given(written: bool) -> Outcome {
    written.then_some(()).ok_or_else(|| Failure::argument("an argument is NULL"))
}
