//! Device operations other than collectives: work on streams, and properties from the driver.

#![allow(unsafe_code)]

mod foreign;

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use comm_core::{Element, Error, Result};
use comm_nccl::{DeviceBuffer, DeviceSlice, DeviceSliceMut, Stream};
use cudarc::driver::{DriverError, result, sys};

pub(crate) use foreign::Foreign;

/// The limit of [`hold`], after which a stream continues, so that a test fails instead of hanging.
const HOLD_MAX: Duration = Duration::from_secs(60);

fn failed(doing: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| Error::Backend {
        backend: "cuda",
        code: i64::from(error.0 as u32),
        detail: format!("{doing}: {error}"),
    }
}

/// Blocks a stream until the returned sender is dropped.
pub(crate) fn hold(stream: &Stream) -> Result<Sender<()>> {
    extern "C" fn wait(receiver: *mut c_void) {
        // SAFETY: the pointer comes from a box below, and the function runs once.
        let receiver = unsafe { Box::from_raw(receiver.cast::<Receiver<()>>()) };
        let _released = receiver.recv_timeout(HOLD_MAX);
    }
    let (release, receiver) = channel::<()>();
    stream.device().context().bind_to_thread().map_err(failed("bind the device to a thread"))?;
    let receiver = Box::into_raw(Box::new(receiver));
    let handle = stream.as_cudarc().cu_stream();
    // SAFETY: the function takes ownership of its argument, and calls no CUDA function.
    unsafe { sys::cuLaunchHostFunc(handle, Some(wait), receiver.cast()).result() }
        .map_err(failed("enqueue a host function"))?;
    Ok(release)
}

/// Enqueues a write of one value to all bytes, as a user's kernel would.
pub(crate) fn fill(buffer: &mut DeviceBuffer<u8>, stream: &Stream, value: u8) -> Result<()> {
    let len = buffer.len();
    buffer.as_mut_slice().write_on(stream, |pointer| fill_at(pointer, len, stream, value))
}

/// Like [`fill`], for `len` bytes of valid memory at an address.
fn fill_at(pointer: u64, len: usize, stream: &Stream, value: u8) -> Result<()> {
    // SAFETY: the caller guarantees that the memory is valid, and orders other accesses.
    unsafe { result::memset_d8_async(pointer, value, len, stream.as_cudarc().cu_stream()) }
        .map_err(failed("enqueue a write"))
}

/// Enqueues a copy within device memory.
pub(crate) fn copy<T: Element>(
    from: DeviceSlice<'_, T>,
    mut to: DeviceSliceMut<'_, T>,
    stream: &Stream,
) -> Result<()> {
    let bytes = from.len().min(to.len()) * size_of::<T>();
    from.read_on(stream, |from| to.write_on(stream, |to| copy_at(to, from, bytes, stream)))
}

/// Like [`copy`], for valid memory at addresses.
fn copy_at(to: u64, from: u64, bytes: usize, stream: &Stream) -> Result<()> {
    // SAFETY: the caller guarantees that both ranges are valid, and orders other accesses.
    unsafe { result::memcpy_dtod_async(to, from, bytes, stream.as_cudarc().cu_stream()) }
        .map_err(failed("enqueue a copy"))
}

/// Returns the CUDA version of the driver, such as 13.0.
pub(crate) fn cuda_version() -> Result<String> {
    let mut version = 0;
    // SAFETY: the driver writes to a local value.
    unsafe { sys::cuDriverGetVersion(&raw mut version).result() }
        .map_err(failed("query the version of the driver"))?;
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}

/// Returns the name of the device of a stream.
pub(crate) fn name(stream: &Stream) -> Result<String> {
    stream.device().context().name().map_err(failed("query the device's name"))
}

/// Returns the compute capability, such as 9.0.
pub(crate) fn compute_capability(stream: &Stream) -> Result<String> {
    let of = stream.device().context().compute_capability();
    of.map(|(major, minor)| format!("{major}.{minor}")).map_err(failed("query the compute capability"))
}

/// Waits for the device, and returns its free and total memory in bytes.
pub(crate) fn memory(stream: &Stream) -> Result<(usize, usize)> {
    let device = stream.device();
    device.context().synchronize().map_err(failed("wait for the device"))?;
    device.context().mem_get_info().map_err(failed("query the free memory"))
}
