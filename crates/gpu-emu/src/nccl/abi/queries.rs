//! The calls that query the library or a communicator.

use std::ffi::c_char;

use nccl_sys::{ncclComm_t, ncclResult_t};

use crate::driver::current_ordinal;
use crate::ffi::Out;
use crate::nccl::communicator;
use crate::nccl::failure;
use crate::settings::{self, Setting};

use super::{answer, device_of, given};

/// The version that introduced the result `ncclTimeout`.
const TIMEOUT_SINCE: u64 = 23_003;

#[unsafe(no_mangle)]
extern "C" fn ncclGetVersion(version: Out<i32>) -> ncclResult_t {
    let code = i32::try_from(settings::get(Setting::NcclVersion)).unwrap_or(i32::MAX);
    answer("ncclGetVersion", current_ordinal(), &"", || given(version.put(code)))
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: ncclResult_t) -> *const c_char {
    let words = match code {
        ncclResult_t::ncclSuccess => c"no error",
        ncclResult_t::ncclUnhandledCudaError => {
            c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
        }
        ncclResult_t::ncclSystemError => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ncclResult_t::ncclInternalError => {
            c"internal error - please report this issue to the NCCL developers"
        }
        ncclResult_t::ncclInvalidArgument => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        ncclResult_t::ncclInvalidUsage => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        ncclResult_t::ncclRemoteError => c"remote process exited or there was a network error",
        ncclResult_t::ncclInProgress => c"NCCL operation in progress",
        ncclResult_t::ncclTimeout if settings::get(Setting::NcclVersion) >= TIMEOUT_SINCE => c"timeout",
        _ => c"unknown result code",
    };
    words.as_ptr()
}

/// As in NCCL, there is one text for the whole process.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: ncclComm_t) -> *const c_char {
    failure::last().as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommGetAsyncError(handle: ncclComm_t, error: Out<ncclResult_t>) -> ncclResult_t {
    let asked = || given(error.put(communicator::of_handle(handle)?.asynchronous_error()));
    answer("ncclCommGetAsyncError", device_of(handle), &"", asked)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCount(handle: ncclComm_t, count: Out<i32>) -> ncclResult_t {
    answer("ncclCommCount", device_of(handle), &"", || {
        let members = communicator::of_handle(handle)?.link()?.members.len();
        given(count.put(i32::try_from(members).unwrap_or(i32::MAX)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommUserRank(handle: ncclComm_t, rank: Out<i32>) -> ncclResult_t {
    answer("ncclCommUserRank", device_of(handle), &"", || {
        let own = communicator::of_handle(handle)?.link()?.rank;
        given(rank.put(i32::try_from(own).unwrap_or(i32::MAX)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCuDevice(handle: ncclComm_t, device: Out<i32>) -> ncclResult_t {
    answer("ncclCommCuDevice", device_of(handle), &"", || {
        let ordinal = communicator::of_handle(handle)?.device.ordinal;
        given(device.put(i32::try_from(ordinal).unwrap_or(i32::MAX)))
    })
}
