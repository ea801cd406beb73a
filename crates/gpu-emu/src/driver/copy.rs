//! Copies and fills.
//!
//! As in CUDA, copies from and to pageable host memory are synchronous: the memory is read or
//! written before the call returns. Only pinned memory is accessed asynchronously. Copies and fills
//! without a stream run on the legacy stream, and even then, those that do not involve the host are
//! asynchronous.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::device::memory::AccessError;
use crate::device::stream::Stream;
use crate::device::{access, pinned};
use crate::ffi::HostMemory;
use crate::handles::Handle;
use crate::sync::{Marker, lock};

use super::context::device_of;
use super::{CuError, CuResult, recorded, refused, stream};

/// One end of a copy.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Memory that a device can access.
    Reachable(u64),
    /// Host memory that only the caller can access.
    Pageable(HostMemory),
}

impl End {
    fn host(memory: HostMemory, length: usize) -> Self {
        if pinned::contains(memory.address(), length) {
            Self::Reachable(memory.address() as u64)
        } else {
            Self::Pageable(memory)
        }
    }

    fn check(self, length: usize) -> Result<(), AccessError> {
        match self {
            Self::Reachable(address) => access::check(address, length),
            Self::Pageable(memory) if memory.is_null() => Err(AccessError::Foreign(0)),
            Self::Pageable(_) => Ok(()),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reachable(address) => write!(formatter, "{address:#x}"),
            Self::Pageable(_) => formatter.write_str("host"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Waits until the copy is done, like calls without a stream that involve the host.
    Always,
    IfPageable,
}

/// Reads the bytes to copy, when the stream reaches the copy.
type Source = Box<dyn FnOnce() -> Result<Vec<u8>, AccessError> + Send>;

/// Copies `length` bytes on `stream`, from the second end to the first.
fn copy(name: &'static str, (to, from): (End, End), length: usize, stream: &Stream, wait: Wait) -> CuResult {
    if length == 0 {
        return Ok(());
    }
    for end in [from, to] {
        end.check(length).map_err(|error| refused(stream.device.ordinal, name, error))?;
    }
    let source: Source = match from {
        End::Reachable(address) => Box::new(move || access::read(address, length)),
        End::Pageable(memory) => {
            // SAFETY: the caller passed this many readable bytes.
            let bytes = unsafe { memory.read(length) };
            Box::new(move || Ok(bytes))
        }
    };
    match to {
        End::Reachable(address) => {
            let done = on_stream(stream, name, move || access::write(address, &source()?));
            if wait == Wait::Always {
                done.wait();
            }
            stream.device.healthy()
        }
        End::Pageable(memory) => {
            let bytes = fetch(stream, name, source)?;
            // SAFETY: the caller passed this many writable bytes, and waits for the copy.
            unsafe { memory.write(&bytes) };
            Ok(())
        }
    }
}

/// Waits until `stream` reaches this point, and returns the bytes of `source` at that time.
fn fetch(stream: &Stream, name: &'static str, source: Source) -> Result<Vec<u8>, CuError> {
    let slot = Arc::new(Mutex::new(None));
    let place = slot.clone();
    on_stream(stream, name, move || {
        *lock(&place) = Some(source()?);
        Ok(())
    })
    .wait();
    stream.device.healthy()?;
    lock(&slot).take().ok_or(CuError::SYSTEM)
}

/// Adds work whose failure makes the device fail.
fn on_stream(
    stream: &Stream,
    name: &'static str,
    work: impl FnOnce() -> Result<(), AccessError> + Send + 'static,
) -> Arc<Marker> {
    stream.add(move |device| {
        if let Err(error) = work() {
            device.fail(CuError::ILLEGAL_ADDRESS, &format!("{name}: {error}"));
        }
    })
}

/// Writes `pattern` repeatedly.
fn fill(name: &'static str, address: u64, pattern: Vec<u8>, stream: &Stream) -> CuResult {
    if pattern.is_empty() {
        return Ok(());
    }
    access::check(address, pattern.len()).map_err(|error| refused(stream.device.ordinal, name, error))?;
    on_stream(stream, name, move || access::write(address, &pattern));
    Ok(())
}

const NO_STREAM: Handle = std::ptr::null_mut();

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: HostMemory, length: usize) -> i32 {
    let ends = (End::Reachable(to), End::host(from, length));
    run("cuMemcpyHtoD", ends, length, NO_STREAM, Wait::Always)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: HostMemory, length: usize, stream: Handle) -> i32 {
    let ends = (End::Reachable(to), End::host(from, length));
    run("cuMemcpyHtoDAsync", ends, length, stream, Wait::IfPageable)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: HostMemory, from: u64, length: usize) -> i32 {
    let ends = (End::host(to, length), End::Reachable(from));
    run("cuMemcpyDtoH", ends, length, NO_STREAM, Wait::Always)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: HostMemory, from: u64, length: usize, stream: Handle) -> i32 {
    let ends = (End::host(to, length), End::Reachable(from));
    run("cuMemcpyDtoHAsync", ends, length, stream, Wait::IfPageable)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, length: usize) -> i32 {
    let ends = (End::Reachable(to), End::Reachable(from));
    run("cuMemcpyDtoD", ends, length, NO_STREAM, Wait::IfPageable)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, length: usize, stream: Handle) -> i32 {
    let ends = (End::Reachable(to), End::Reachable(from));
    run("cuMemcpyDtoDAsync", ends, length, stream, Wait::IfPageable)
}

/// The addresses identify their devices, so the contexts are only checked.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    to_context: Handle,
    from: u64,
    from_context: Handle,
    length: usize,
    stream: Handle,
) -> i32 {
    if let Err(error) = device_of(to_context).and_then(|_| device_of(from_context)) {
        return error.0;
    }
    let ends = (End::Reachable(to), End::Reachable(from));
    run("cuMemcpyPeerAsync", ends, length, stream, Wait::IfPageable)
}

fn run(name: &'static str, ends: (End, End), length: usize, stream: Handle, wait: Wait) -> i32 {
    let arguments =
        format_args!("to={} from={} bytes={length} stream={stream:p}", ends.0, ends.1).to_string();
    recorded(name, &arguments, || copy(name, ends, length, &*stream::of_handle(stream)?, wait))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: Handle) -> i32 {
    let arguments = format_args!("to={address:#x} bytes={count} stream={stream:p}").to_string();
    recorded("cuMemsetD8Async", &arguments, || {
        fill("cuMemsetD8Async", address, vec![value; count], &*stream::of_handle(stream)?)
    })
}
