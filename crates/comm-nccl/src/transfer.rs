//! Copies between a device and pinned host memory, in parts and in the background.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;

use comm_core::{Invalid, Result};
use cudarc::driver::{DriverError, result};

use crate::health::CallRecord;
use crate::stream::{Event, Stream};
use crate::usage::{Access, Use};
use crate::view::{CudaView, CudaViewMut, Span};
use crate::{Device, PinnedBuffer, error};

/// Two streams for copies to the host and from it, because a device can run both simultaneously.
///
/// Clones refer to the same streams, which can be used from several threads.
#[derive(Debug, Clone)]
pub struct CopyStreams {
    download: Stream,
    upload: Stream,
}

impl CopyStreams {
    /// Creates streams on this device that do not synchronize with others.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the driver returns an error.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { download: device.new_stream()?, upload: device.new_stream()? })
    }

    /// Returns the stream of copies from the host. Work that is enqueued there runs after the
    /// copies that were enqueued before.
    #[must_use]
    pub const fn upload_stream(&self) -> &Stream {
        &self.upload
    }

    /// Waits on the host for all copies that were enqueued so far.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if any of them failed.
    pub fn synchronize(&self) -> Result<()> {
        self.download.synchronize().and(self.upload.synchronize())
    }
}

/// A range of elements of a device buffer, and their position in a pinned buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyRegion {
    /// The elements of the buffer on the device.
    pub elements: Range<usize>,
    /// The index of the first element in the pinned buffer.
    pub at: usize,
}

/// Elements on a device that are copied in parts.
///
/// The copies run after all earlier work on the memory, and the next use of it waits for them on
/// the device, without the host. Copies in one direction run in order. A copy from a pinned buffer
/// runs after the copy to it. Otherwise, the two directions are unordered, so copy an element from
/// the host only after its copy to the host is done.
#[derive(Debug)]
pub struct Transfer<'a> {
    span: Span<'a>,
    streams: CopyStreams,
    /// The call that wrote the elements before the transfer.
    source: Option<CallRecord>,
    is_written: bool,
    last_read: Option<Use>,
}

impl<'a> CudaView<'a> {
    /// Starts a transfer of the elements to the host.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the streams are on another device;
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    pub fn transfer(self, streams: &CopyStreams) -> Result<Transfer<'a>> {
        Transfer::new(self.span, streams, false)
    }
}

impl<'a> CudaViewMut<'a> {
    /// Starts a transfer of elements from the host to the device, and also to the host.
    ///
    /// # Errors
    /// As [`CudaView::transfer`].
    pub fn transfer(self, streams: &CopyStreams) -> Result<Transfer<'a>> {
        Transfer::new(self.span, streams, true)
    }
}

impl<'a> Transfer<'a> {
    fn new(span: Span<'a>, streams: &CopyStreams, is_written: bool) -> Result<Self> {
        let source = span.call_record();
        if span.len > 0 {
            span.check_device(streams.download.ordinal())?;
            streams.download.device().bind()?;
            span.before(&streams.download, Access::Read)?;
            if is_written {
                span.before(&streams.upload, Access::Write)?;
            }
        }
        Ok(Self { span, streams: streams.clone(), source, is_written, last_read: None })
    }

    /// Enqueues copies of these parts to the host.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if a part is not within its buffer, before
    /// anything is enqueued; [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    pub fn download(&mut self, parts: &[CopyRegion], to: &mut PinnedBuffer) -> Result<()> {
        let Some(copies) = self.copies(parts, to.len())? else { return Ok(()) };
        let stream = &self.streams.download;
        stream.device().bind()?;
        let done = to.enqueue(stream, self.source.clone(), |host| {
            copies
                .iter()
                .try_for_each(|copy| copy.download(host, stream))
                .map_err(error::cuda("enqueue a copy"))
        });
        let now = until(stream, &done)?;
        self.span.after(Access::Read, &now)?;
        self.last_read = Some(now);
        done.map(drop)
    }

    /// Enqueues copies of these parts from the host.
    ///
    /// # Errors
    /// As [`Transfer::download`]; [`Error::Invalid`](comm_core::Error::Invalid) if the elements are
    /// read-only.
    pub fn upload(&mut self, parts: &[CopyRegion], from: &mut PinnedBuffer) -> Result<()> {
        if !self.is_written {
            return Err(Invalid::WithoutRecv.into());
        }
        let Some(copies) = self.copies(parts, from.len())? else { return Ok(()) };
        let stream = &self.streams.upload;
        stream.device().bind()?;
        let done = from.enqueue(stream, None, |host| {
            copies
                .iter()
                .try_for_each(|copy| copy.upload(host, stream))
                .map_err(error::cuda("enqueue a copy"))
        });
        self.span.after(Access::Write, &until(stream, &done)?)?;
        // A later write waits only for the last write and the reads recorded since. Earlier reads
        // may still be in flight on the other stream, so they are recorded again.
        self.last_read.iter().try_for_each(|read| self.span.after(Access::Read, read))?;
        done.map(drop)
    }

    /// Converts the parts to copies of bytes; `None` if there is nothing to copy.
    fn copies(&self, parts: &[CopyRegion], capacity: usize) -> Result<Option<Vec<PinnedCopy>>> {
        let size = self.span.dtype.size();
        let checked = parts.iter().filter(|part| !part.elements.is_empty()).map(|part| {
            let Range { start, end } = part.elements;
            if end > self.span.len {
                let (what, expected) = ("the buffer on the device", end);
                return Err(Invalid::Length { what, expected, got: self.span.len }.into());
            }
            let last = part.at.checked_add(end - start).and_then(|last| last.checked_mul(size));
            if last.is_none_or(|last| last > capacity) {
                let expected = part.at.saturating_add(end - start);
                return Err(
                    Invalid::Length { what: "the pinned buffer", expected, got: capacity / size }.into()
                );
            }
            let (device, bytes) = (self.span.at(start), (end - start) * size);
            Ok(PinnedCopy { device, host: part.at * size, bytes })
        });
        let copies = checked.collect::<Result<Vec<PinnedCopy>>>()?;
        Ok(Some(copies).filter(|copies| !copies.is_empty()))
    }
}

/// Returns the completion of copies. After an error, some may be enqueued, so it covers all work on
/// the stream.
fn until(stream: &Stream, enqueued: &Result<Event>) -> Result<Use> {
    match enqueued {
        Ok(done) => Ok(Use { stream: stream.clone(), done: done.clone(), call_record: None }),
        Err(_) => Use::until_now(stream),
    }
}

/// Bytes on a device, and their position in a pinned buffer. Both are in bounds.
#[derive(Debug)]
struct PinnedCopy {
    device: u64,
    host: usize,
    bytes: usize,
}

impl PinnedCopy {
    fn download(&self, host: NonNull<u8>, stream: &Stream) -> Result<(), DriverError> {
        // SAFETY: the bytes are within the pinned buffer, as was checked.
        let start = unsafe { host.add(self.host) };
        // SAFETY: nothing else accesses the bytes until the copy is done.
        let to = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.bytes) };
        // SAFETY: the bytes are within the memory on the device, as was checked, and it is freed
        // after its uses; every access to the pinned buffer waits for the copy.
        unsafe { result::memcpy_dtoh_async(to, self.device, stream.as_cudarc().cu_stream()) }
    }

    fn upload(&self, host: NonNull<u8>, stream: &Stream) -> Result<(), DriverError> {
        // SAFETY: the bytes are within the pinned buffer, as was checked.
        let start = unsafe { host.add(self.host) };
        // SAFETY: nothing writes the bytes until the copy is done.
        let from = unsafe { std::slice::from_raw_parts(start.as_ptr(), self.bytes) };
        // SAFETY: as in `download`.
        unsafe { result::memcpy_htod_async(self.device, from, stream.as_cudarc().cu_stream()) }
    }
}
