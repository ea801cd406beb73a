//! Primary contexts, and the current one of each thread.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{self, Device};
use crate::ffi::Out;
use crate::handles::Handle;
use crate::settings::{self, Setting};

use super::{CuError, answer, given};

/// A context is the number of its device, tagged so that dereferencing it faults.
const CONTEXTS: usize = 0x5E << 56 | 0xC0 << 48;

static INITIALIZED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<Handle> = const { Cell::new(std::ptr::null_mut()) };
}

pub(crate) fn is_initialized() -> bool {
    INITIALIZED.load(Ordering::SeqCst)
}

fn of_device(device: &Device) -> Handle {
    std::ptr::without_provenance_mut(CONTEXTS | (device.ordinal + 1) << 4)
}

/// Returns the device of a context in use.
pub(super) fn device_of(context: Handle) -> Result<Arc<Device>, CuError> {
    let ordinal = (context.addr() & !CONTEXTS) >> 4;
    let is_context = context.addr() & CONTEXTS == CONTEXTS;
    let device = ordinal.checked_sub(1).filter(|_| is_context).and_then(device::get);
    let device = device.ok_or(CuError::INVALID_CONTEXT)?;
    if device.is_retained() { Ok(device) } else { Err(CuError::CONTEXT_IS_DESTROYED) }
}

/// Returns the device of this thread's context, or the device's error if it has failed.
pub(super) fn current() -> Result<Arc<Device>, CuError> {
    if !is_initialized() {
        return Err(CuError::NOT_INITIALIZED);
    }
    let device = device_of(CURRENT.get())?;
    device.healthy()?;
    Ok(device)
}

/// Returns the current device of the CUDA runtime, which NCCL uses: the device of the thread's
/// context, or the first one if the thread has no context.
pub(crate) fn current_ordinal() -> usize {
    device_of(CURRENT.get()).map_or(0, |device| device.ordinal)
}

pub(super) fn device_numbered(ordinal: i32) -> Result<Arc<Device>, CuError> {
    if !is_initialized() {
        return Err(CuError::NOT_INITIALIZED);
    }
    usize::try_from(ordinal).ok().and_then(device::get).ok_or(CuError::INVALID_DEVICE)
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> i32 {
    answer(|| match flags {
        0 if device::count() == 0 => Err(CuError::NO_DEVICE),
        0 => {
            INITIALIZED.store(true, Ordering::SeqCst);
            Ok(())
        }
        _ => Err(CuError::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<i32>) -> i32 {
    let value = i32::try_from(settings::get(Setting::DriverVersion)).unwrap_or(i32::MAX);
    answer(|| given(version.put(value)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<Handle>, ordinal: i32) -> i32 {
    answer(|| {
        let device = device_numbered(ordinal)?;
        given(context.put(of_device(&device)))?;
        device.retain();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(ordinal: i32) -> i32 {
    answer(|| device_numbered(ordinal)?.release())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> i32 {
    answer(|| {
        if !context.is_null() {
            device_of(context)?;
        }
        CURRENT.set(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<Handle>) -> i32 {
    answer(|| given(context.put(CURRENT.get())))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> i32 {
    answer(|| {
        let device = current()?;
        device.synchronize();
        device.healthy()
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(_flags: u32) -> i32 {
    answer(|| current().map(|_| ()))
}
