//! The interface of the loaded library for tests: our own symbols, in addition to those of CUDA and
//! NCCL.
//!
//! [`Control`](crate::Control) is the only caller. Settings and reports are passed as the numbers
//! of their enums.

use std::ffi::{CString, c_char};

use nccl_sys::ncclResult_t;

use crate::device::{self, access, pinned, stream};
use crate::driver;
use crate::ffi::{HostMemory, In, Text};
use crate::injection::{self, InjectedFault};
use crate::kernel::{self, Kernel, Registered};
use crate::nccl;
use crate::record;
use crate::settings;

/// The kinds of reports of [`gpu_emu_take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Report {
    Calls = 0,
    Faults = 1,
    Live = 2,
    Waiting = 3,
}

/// Changes a [`Setting`](crate::Setting); returns 0 if it exists.
#[unsafe(no_mangle)]
extern "C" fn gpu_emu_set(setting: u32, value: u64) -> i32 {
    i32::from(!settings::set(setting, value))
}

/// Returns a report as text, which must be passed to [`gpu_emu_release`]; NULL if the number is
/// unknown.
#[unsafe(no_mangle)]
extern "C" fn gpu_emu_take(report: u32) -> *mut c_char {
    let text = match report {
        n if n == Report::Calls as u32 => record::take_calls(),
        n if n == Report::Faults as u32 => record::take_faults(),
        n if n == Report::Live as u32 => live(),
        n if n == Report::Waiting as u32 => nccl::waiting(),
        _ => return std::ptr::null_mut(),
    };
    CString::new(text).map_or(std::ptr::null_mut(), CString::into_raw)
}

/// Formats the numbers of existing objects as `name=number`, one per line.
fn live() -> String {
    let counts = [
        ("bytes", device::bytes_in_use()),
        ("pinned", pinned::live()),
        ("streams", driver::live_streams()),
        ("threads", stream::live()),
        ("events", driver::live_events()),
        ("communicators", nccl::live_communicators()),
    ];
    counts.map(|(name, count)| format!("{name}={count}\n")).concat()
}

/// Frees a text of [`gpu_emu_take`].
///
/// # Safety
/// `text` must come from that function, and be passed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpu_emu_release(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: it was made by `CString::into_raw`, and the caller no longer uses it.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Makes a failed device usable again; returns 0 if there is such a device.
#[unsafe(no_mangle)]
extern "C" fn gpu_emu_reset_device(ordinal: usize) -> i32 {
    i32::from(device::get(ordinal).map(|device| device.reset()).is_none())
}

/// Plans that the call `name`, on this device and after `before` others, returns `code`.
#[unsafe(no_mangle)]
extern "C" fn gpu_emu_plan_answer(device: usize, name: Text, before: u64, code: u32) -> i32 {
    let planned = name.read().map(|name| injection::plan_answer(device, name, before, code));
    i32::from(planned.is_none())
}

/// Plans that an operation on this device, after `before` others, does not end: silently if `code`
/// is 0, and with this error of its communicator otherwise.
#[unsafe(no_mangle)]
extern "C" fn gpu_emu_plan_fault(device: usize, before: u64, code: u32) {
    let fault = match code {
        0 => InjectedFault::Hang,
        code => InjectedFault::AsyncError(ncclResult_t(code)),
    };
    injection::plan_fault(device, before, fault);
}

/// Plans that an operation on this device, after `before` others, has one wrong bit in its result.
#[unsafe(no_mangle)]
extern "C" fn gpu_emu_plan_wrong_bit(device: usize, before: u64) {
    injection::plan_fault(device, before, InjectedFault::WrongBit);
}

#[unsafe(no_mangle)]
extern "C" fn gpu_emu_register_kernel(name: Text, function: Kernel, sizes: In<usize>, count: usize) -> i32 {
    let sizes: Option<Vec<usize>> = (0..count).map(|index| sizes.get(index)).collect();
    let kernel = name.read().zip(sizes).map(|(name, sizes)| (name, Registered { sizes, function }));
    i32::from(kernel.map(|(name, kernel)| kernel::register(name, kernel)).is_none())
}

/// Reads device memory immediately, independently of streams; returns 0 if it could be read.
#[unsafe(no_mangle)]
extern "C" fn gpu_emu_read(address: u64, to: HostMemory, length: usize) -> i32 {
    match access::read(address, length) {
        Ok(bytes) => {
            // SAFETY: the client passed a buffer of this length.
            unsafe { to.write(&bytes) };
            0
        }
        Err(error) => failed(address, &error),
    }
}

/// Writes device memory immediately, independently of streams; returns 0 if it could be written.
#[unsafe(no_mangle)]
extern "C" fn gpu_emu_write(address: u64, from: HostMemory, length: usize) -> i32 {
    // SAFETY: the client passed a buffer of this length.
    let bytes = unsafe { from.read(length) };
    access::write(address, &bytes).map_or_else(|error| failed(address, &error), |()| 0)
}

/// Records a fault of the device for a kernel's failed access, as on a real device.
fn failed(address: u64, error: &dyn std::fmt::Display) -> i32 {
    match device::of_address(address) {
        Some(device) => device.fail(driver::CuError::ILLEGAL_ADDRESS, &format!("kernel: {error}")),
        None => record::fault(None, &format!("kernel: {error}")),
    }
    1
}
