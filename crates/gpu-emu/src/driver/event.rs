//! Events: markers in streams.

use std::sync::{Arc, Mutex};

use crate::device::Device;
use crate::ffi::Out;
use crate::handles::{Handle, Handles};
use crate::sync::{Marker, lock};

use super::context::current;
use super::{CuError, answer, given, recorded, stream};

/// Flags of `cuEventCreate`, which have no effect here.
const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;

#[derive(Debug)]
pub(super) struct Event {
    device: Arc<Device>,
    recorded: Mutex<Option<Arc<Marker>>>,
}

static EVENTS: Handles<Event> = Handles::new("event", 0xE7);

/// Returns the number of events that were created and not destroyed.
pub(crate) fn live() -> usize {
    EVENTS.live()
}

pub(super) fn of_handle(handle: Handle) -> Result<Arc<Event>, CuError> {
    let event = EVENTS.get(handle).ok_or(CuError::INVALID_HANDLE)?;
    event.device.healthy()?;
    Ok(event)
}

impl Event {
    /// Returns the last recorded marker, if there is one.
    pub(super) fn marker(&self) -> Option<Arc<Marker>> {
        lock(&self.recorded).clone()
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<Handle>, flags: u32) -> i32 {
    answer(|| {
        if event.is_null() || flags & !(BLOCKING_SYNC | DISABLE_TIMING) != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let created = Event { device: current()?, recorded: Mutex::default() };
        given(event.put(EVENTS.insert(Arc::new(created))))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> i32 {
    answer(|| EVENTS.remove(event).map(|_| ()).ok_or(CuError::INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> i32 {
    recorded("cuEventRecord", &format_args!("event={event:p} stream={stream:p}"), || {
        let event = of_handle(event)?;
        let stream = stream::of_handle(stream)?;
        if event.device.ordinal != stream.device.ordinal {
            return Err(CuError::INVALID_HANDLE);
        }
        *lock(&event.recorded) = Some(stream.add(|_| ()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> i32 {
    answer(|| {
        let reached = of_handle(event)?.marker().is_none_or(|marker| marker.is_reached());
        if reached { Ok(()) } else { Err(CuError::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> i32 {
    answer(|| {
        let event = of_handle(event)?;
        if let Some(marker) = event.marker() {
            marker.wait();
        }
        event.device.healthy()
    })
}
