//! Pinned host memory, which a device copies to and from in the background.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use comm_core::{Error, Result};
use cudarc::driver::result;

use crate::health::CallRecord;
use crate::pause::Pause;
use crate::stream::{Event, Stream};
use crate::{Device, error};

/// The start of a buffer without bytes.
const NOWHERE: NonNull<u8> = NonNull::without_provenance(std::num::NonZero::<usize>::MIN);

/// Page-locked host memory. Copies between it and a device run in the background, at the full
/// bandwidth of the bus.
///
/// A [`Transfer`](crate::Transfer) enqueues the copies. Accessing the bytes or dropping the buffer
/// waits for the copies in flight, so no memory is read, changed or freed while a device uses it.
///
/// Page-locked memory is not available to other programs, and allocating it is slow, so reuse it.
pub struct PinnedBuffer {
    start: NonNull<u8>,
    len: usize,
    device: Device,
    state: BufferState,
    /// The calls that wrote the data copied here, which may have been lost.
    sources: Vec<CallRecord>,
}

/// The side that may access the buffer.
#[derive(Debug)]
enum BufferState {
    /// The host may access it.
    Idle,
    /// The device accesses it until this event.
    Copying(Event),
    /// Unknown, after an error.
    Unknown(Error),
}

// SAFETY: the memory belongs to this value alone and may be used from any thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: a shared reference gives no access to the memory.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates `len` zero bytes, aligned for every element, for copies to and from this device.
    ///
    /// # Errors
    /// [`Error::Backend`] if the system cannot lock that much memory.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        device.bind()?;
        let start = if len == 0 { NOWHERE } else { allocate(len)? };
        Ok(Self { start, len, device: device.clone(), state: BufferState::Idle, sources: Vec::new() })
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Waits for the copies in flight, and returns the bytes.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device fails; the bytes are then inaccessible for good.
    /// [`Error::Poisoned`], once, if the copied data was written by a call that was lost when its
    /// communicator failed.
    pub fn bytes(&mut self) -> Result<&[u8]> {
        self.synchronize()?;
        // SAFETY: the memory lives as long as this value, was filled when it was allocated, and no
        // device uses it.
        Ok(unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    /// Waits for the copies in flight, and returns the bytes for writing.
    ///
    /// # Errors
    /// As [`PinnedBuffer::bytes`].
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.synchronize()?;
        // SAFETY: as in `bytes`, and this value is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// Waits on the host for the copies in flight.
    ///
    /// # Errors
    /// As [`PinnedBuffer::bytes`].
    pub fn synchronize(&mut self) -> Result<()> {
        self.wait_for_copy()?;
        self.check_sources()
    }

    /// Waits as [`PinnedBuffer::synchronize`], for at most this time. Returns whether the copies
    /// are done.
    ///
    /// # Errors
    /// As [`PinnedBuffer::bytes`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool> {
        let (began, mut pause) = (Instant::now(), Pause::default());
        while let BufferState::Copying(done) = &self.state {
            self.device.bind()?;
            if done.is_past()? {
                self.state = BufferState::Idle;
            } else if began.elapsed() >= timeout {
                return Ok(false);
            } else {
                pause.wait();
            }
        }
        self.synchronize().map(|()| true)
    }

    /// Waits until the device has ended the copy.
    fn wait_for_copy(&mut self) -> Result<()> {
        match &self.state {
            BufferState::Idle => Ok(()),
            BufferState::Copying(done) => {
                done.synchronize()?;
                self.state = BufferState::Idle;
                Ok(())
            }
            BufferState::Unknown(error) => Err(error.clone()),
        }
    }

    fn check_sources(&mut self) -> Result<()> {
        // Drains all of them, because each is reported once.
        self.sources.drain(..).map(|source| source.check()).fold(Ok(()), Result::and)
    }

    /// Enqueues copies on a stream, after those in flight: `work` gets the address of the memory.
    /// Returns the event of their completion. `source` is the call that wrote the data copied here.
    pub(crate) fn enqueue(
        &mut self,
        stream: &Stream,
        source: Option<CallRecord>,
        work: impl FnOnce(NonNull<u8>) -> Result<()>,
    ) -> Result<Event> {
        match &self.state {
            BufferState::Idle => {}
            BufferState::Copying(done) => stream.wait(done)?,
            BufferState::Unknown(error) => return Err(error.clone()),
        }
        let enqueued = work(self.start);
        // Even after an error, a copy may be in flight.
        let done = stream.record().inspect_err(|error| self.state = BufferState::Unknown(error.clone()))?;
        self.state = BufferState::Copying(done.clone());
        self.sources.extend(source);
        enqueued.map(|()| done)
    }
}

fn allocate(len: usize) -> Result<NonNull<u8>> {
    // SAFETY: the device is bound, and the length is not zero. Without flags, the host reads the
    // memory through its caches.
    let start = unsafe { result::malloc_host(len, 0) }.map_err(error::cuda("allocate pinned memory"))?;
    let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| Error::Backend {
        backend: "cuda",
        code: 0,
        detail: "no pinned memory, and no error".into(),
    })?;
    // SAFETY: `len` bytes were allocated above, and nothing else refers to them.
    unsafe { start.write_bytes(0, len) };
    Ok(start)
}

impl Drop for PinnedBuffer {
    /// Memory that a device may still access is never freed.
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        let freed = self.wait_for_copy().and_then(|()| self.device.bind()).and_then(|()| {
            // SAFETY: it was allocated by `malloc_host`, is freed once, and no copy of it is in
            // flight.
            unsafe { result::free_host(self.start.as_ptr().cast()) }
                .map_err(error::cuda("free pinned memory"))
        });
        if let Err(error) = freed {
            tracing::warn!(bytes = self.len, %error, "could not free pinned memory");
        }
    }
}

impl std::fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("len", &self.len)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
