//! What a program does on a device besides collectives: work of its own on streams, and questions to the driver.

#![allow(unsafe_code)]

mod foreign;

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use comm_core::{Element, Error, Result};
use comm_nccl::{DeviceBuffer, DeviceSlice, DeviceSliceMut, Stream};
use cudarc::driver::{DriverError, result, sys};

pub(crate) use foreign::Foreign;

/// No stream is held up for longer, so that what waits for it is wrong, and does not hang.
const HOLD_MAX: Duration = Duration::from_secs(60);

fn failed(doing: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| Error::Backend {
        backend: "cuda",
        code: i64::from(error.0 as u32),
        detail: format!("{doing}: {error}"),
    }
}

/// Holds a stream up until the answer is dropped: what is enqueued meanwhile does not begin.
pub(crate) fn hold(stream: &Stream) -> Result<Sender<()>> {
    extern "C" fn wait(receiver: *mut c_void) {
        // SAFETY: the pointer came out of a box below, and the function runs once.
        let receiver = unsafe { Box::from_raw(receiver.cast::<Receiver<()>>()) };
        let _released = receiver.recv_timeout(HOLD_MAX);
    }
    let (release, receiver) = channel::<()>();
    stream.device().context().bind_to_thread().map_err(failed("bind the device to a thread"))?;
    let receiver = Box::into_raw(Box::new(receiver));
    let handle = stream.as_cudarc().cu_stream();
    // SAFETY: the function takes what is passed along with it, and touches no device.
    unsafe { sys::cuLaunchHostFunc(handle, Some(wait), receiver.cast()).result() }
        .map_err(failed("enqueue a function of the host"))?;
    Ok(release)
}

/// Enqueues a write of one value to all bytes, as a kernel of the user would be.
pub(crate) fn fill(buffer: &mut DeviceBuffer<u8>, stream: &Stream, value: u8) -> Result<()> {
    let len = buffer.len();
    buffer.as_mut_slice().write_on(stream, |pointer| fill_at(pointer, len, stream, value))
}

/// As [`fill`], for memory by its address, which must be there and of this length.
fn fill_at(pointer: u64, len: usize, stream: &Stream, value: u8) -> Result<()> {
    // SAFETY: the caller has so many bytes there, and orders what comes before and after.
    unsafe { result::memset_d8_async(pointer, value, len, stream.as_cudarc().cu_stream()) }
        .map_err(failed("enqueue a write"))
}

/// Enqueues a copy from one part of a device's memory to another of the same length.
pub(crate) fn copy<T: Element>(
    from: DeviceSlice<'_, T>,
    mut to: DeviceSliceMut<'_, T>,
    stream: &Stream,
) -> Result<()> {
    let bytes = from.len().min(to.len()) * size_of::<T>();
    from.read_on(stream, |from| to.write_on(stream, |to| copy_at(to, from, bytes, stream)))
}

/// As [`copy`], for memory by its addresses, which must be there and of this length.
fn copy_at(to: u64, from: u64, bytes: usize, stream: &Stream) -> Result<()> {
    // SAFETY: the caller has so many bytes at both, and orders what comes before and after.
    unsafe { result::memcpy_dtod_async(to, from, bytes, stream.as_cudarc().cu_stream()) }
        .map_err(failed("enqueue a copy"))
}

/// The version of CUDA that the driver is for, as in 13.0.
pub(crate) fn cuda_version() -> Result<String> {
    let mut version = 0;
    // SAFETY: the answer is written to a value that lives here.
    unsafe { sys::cuDriverGetVersion(&raw mut version).result() }.map_err(failed("ask for a version"))?;
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}

/// What the driver tells of the device of a stream.
pub(crate) fn name(stream: &Stream) -> Result<String> {
    stream.device().context().name().map_err(failed("ask for the device's name"))
}

/// As in 9.0.
pub(crate) fn compute_capability(stream: &Stream) -> Result<String> {
    let of = stream.device().context().compute_capability();
    of.map(|(major, minor)| format!("{major}.{minor}")).map_err(failed("ask for the compute capability"))
}

/// Free bytes of the device and all that it has, when all work on it is done.
pub(crate) fn memory(stream: &Stream) -> Result<(usize, usize)> {
    let device = stream.device();
    device.context().synchronize().map_err(failed("wait for the device"))?;
    device.context().mem_get_info().map_err(failed("ask for free memory"))
}
