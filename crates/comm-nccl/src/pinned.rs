//! Memory of the host that a device reads and writes by itself, while the host goes on.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use comm_core::{Error, Result};
use cudarc::driver::result;

use crate::communicator::pause::Pause;
use crate::health::Ticket;
use crate::stream::{Event, Stream};
use crate::{Device, error};

/// Where a buffer starts that has no bytes.
const NOWHERE: NonNull<u8> = NonNull::without_provenance(std::num::NonZero::<usize>::MIN);

/// Page-locked bytes of the host: copies between them and a device run in the background, at the
/// full speed of the bus.
///
/// A copy on it is enqueued by a [`Transfer`](crate::Transfer). Whoever looks at the bytes, or
/// drops the buffer, waits for the copies that are under way first. So nobody ever sees, changes or
/// frees what a device is about to read or write.
///
/// Page-locked memory is taken from all programs of the machine, and to allocate it takes long:
/// keep it.
pub struct PinnedBuffer {
    start: NonNull<u8>,
    len: usize,
    device: Device,
    state: BufferState,
    /// The calls that wrote what was copied here, which may have been lost.
    sources: Vec<Ticket>,
}

/// The side that may access the buffer.
#[derive(Debug)]
enum BufferState {
    /// The host's.
    Idle,
    /// The device's, until its work has come so far.
    Copying(Event),
    /// Nobody can know any more.
    Unknown(Error),
}

// SAFETY: the memory belongs to this value alone and may be used from any thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared, it shows nothing of the memory.
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

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, when no copy is under way: waits for it.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device fails: the bytes are out of reach for good.
    /// [`Error::Poisoned`], once, if what was copied here was to be written by a call that was lost
    /// when its communicator failed.
    pub fn bytes(&mut self) -> Result<&[u8]> {
        self.synchronize()?;
        // SAFETY: the memory lives as long as this value, was filled when it was allocated, and no
        // device uses it.
        Ok(unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    /// The bytes, to be written, when no copy is under way: waits for it.
    ///
    /// # Errors
    /// As [`PinnedBuffer::bytes`].
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.synchronize()?;
        // SAFETY: as in `bytes`, and this value is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// Waits on the host until no copy is under way.
    ///
    /// # Errors
    /// As [`PinnedBuffer::bytes`].
    pub fn synchronize(&mut self) -> Result<()> {
        self.settle()?;
        self.check_sources()
    }

    /// Waits as [`PinnedBuffer::synchronize`], but not longer than this. Tells whether the wait is
    /// over.
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

    /// Waits for the device, whatever it wrote.
    fn settle(&mut self) -> Result<()> {
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
        // All of them, as they are told once.
        self.sources.drain(..).map(|source| source.check()).fold(Ok(()), Result::and)
    }

    /// Enqueues copies on a stream, behind those that are under way: `work` is given where the
    /// memory starts. Tells the point at which they are done. `source` is the call that wrote what
    /// is copied here.
    pub(crate) fn enqueue(
        &mut self,
        stream: &Stream,
        source: Option<Ticket>,
        work: impl FnOnce(NonNull<u8>) -> Result<()>,
    ) -> Result<Event> {
        match &self.state {
            BufferState::Idle => {}
            BufferState::Copying(done) => stream.wait(done)?,
            BufferState::Unknown(error) => return Err(error.clone()),
        }
        let enqueued = work(self.start);
        // Whatever it answers, something may be under way.
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
    // SAFETY: so many bytes were allocated here, and nobody else knows them.
    unsafe { start.write_bytes(0, len) };
    Ok(start)
}

impl Drop for PinnedBuffer {
    /// Memory that a device may still use is never freed.
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        let freed = self.settle().and_then(|()| self.device.bind()).and_then(|()| {
            // SAFETY: it was allocated like this, is freed once, and no copy on it is under way.
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
