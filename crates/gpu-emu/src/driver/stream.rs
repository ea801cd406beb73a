//! The stream functions of the driver.

use std::sync::Arc;

use crate::device::Device;
use crate::device::stream::{Stream, StreamKind};
use crate::ffi::Out;
use crate::handles::{Handle, Handles};

use super::context::current;
use super::{CuError, answer, event, given, recorded};

static STREAMS: Handles<Stream> = Handles::new("stream", 0x57);

/// Flag of `cuStreamCreate`: the stream is independent of the legacy one.
const NON_BLOCKING: u32 = 1;

/// Returns the number of streams that were created and not destroyed.
pub(crate) fn live() -> usize {
    STREAMS.live()
}

/// Returns the stream of `handle`: a created one, or one of the predefined ones of the thread's
/// device.
pub(crate) fn of_handle(handle: Handle) -> Result<Arc<Stream>, CuError> {
    let stream = match handle.addr() {
        0 | 1 => Stream::legacy(&current()?)?,
        2 => Stream::per_thread(&current()?)?,
        _ => STREAMS.get(handle).ok_or(CuError::INVALID_HANDLE)?,
    };
    stream.device.healthy()?;
    Ok(stream)
}

/// Like [`of_handle`], but predefined streams belong to `device`.
pub(crate) fn on_device(handle: Handle, device: &Arc<Device>) -> Result<Arc<Stream>, CuError> {
    device.healthy()?;
    match handle.addr() {
        0 | 1 => Ok(Stream::legacy(device)?),
        2 => Ok(Stream::per_thread(device)?),
        _ => of_handle(handle),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<Handle>, flags: u32) -> i32 {
    answer(|| {
        let kind = if flags & NON_BLOCKING == 0 { StreamKind::Blocking } else { StreamKind::NonBlocking };
        if stream.is_null() || flags & !NON_BLOCKING != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let created = Stream::new(current()?, kind)?;
        given(stream.put(STREAMS.insert(created)))
    })
}

/// Destroying a stream does not cancel its work.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> i32 {
    answer(|| STREAMS.remove(stream).map(|_| ()).ok_or(CuError::INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> i32 {
    answer(|| {
        let stream = of_handle(stream)?;
        stream.last().wait();
        stream.device.healthy()
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) -> i32 {
    recorded("cuStreamWaitEvent", &format_args!("stream={stream:p} event={event:p}"), || {
        let marker = event::of_handle(event)?.marker();
        let stream = of_handle(stream)?;
        if let Some(marker) = marker {
            stream.wait_for(marker);
        }
        Ok(())
    })
}

/// The emulator does not support stream capture, so no stream is being captured.
#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<i32>) -> i32 {
    answer(|| {
        of_handle(stream)?;
        given(status.put(0))
    })
}
