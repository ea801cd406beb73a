//! Views of device memory without a type parameter: an address, a length and an element type.

#![allow(unsafe_code)]

use std::ops::Range;

use comm_core::{AsView, AsViewMut, DType, Erased, Error, Result, Shape};

use crate::health::CallRecord;
use crate::memory::Cuda;
use crate::stream::Stream;
use crate::usage::{Access, Usage, Use};

/// The order of work on memory with other work on it.
#[derive(Debug, Clone, Copy)]
enum Order<'a> {
    /// After its earlier uses.
    Tracked(&'a Usage),
    /// In stream order.
    Stream(&'a Stream),
}

/// Elements on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) pointer: u64,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    ordinal: usize,
    order: Order<'a>,
}

impl<'a> Span<'a> {
    pub(crate) fn tracked(
        pointer: u64,
        len: usize,
        dtype: DType,
        (usage, stream): (&'a Usage, &'a Stream),
    ) -> Self {
        Self { pointer, len, dtype, ordinal: stream.ordinal(), order: Order::Tracked(usage) }
    }

    fn on_stream(pointer: u64, len: usize, dtype: DType, stream: &'a Stream) -> Self {
        Self { pointer, len, dtype, ordinal: stream.ordinal(), order: Order::Stream(stream) }
    }

    /// Returns the address of the element at this index.
    pub(crate) const fn at(&self, elements: usize) -> u64 {
        self.pointer + (elements * self.dtype.size()) as u64
    }

    /// Returns a range of the elements, or `None` if it is out of bounds.
    pub(crate) fn get(self, range: Range<usize>) -> Option<Self> {
        let inside = range.start <= range.end && range.end <= self.len;
        inside.then(|| Self { pointer: self.at(range.start), len: range.len(), ..self })
    }

    /// Returns the number of bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// Returns an error for memory of another device.
    pub(crate) fn check_device(&self, ordinal: usize) -> Result<()> {
        if self.ordinal == ordinal {
            return Ok(());
        }
        let reason = format!("the buffer is there, but the communicator is on device {ordinal}");
        Err(Error::setting("device", self.ordinal.to_string(), reason))
    }

    /// Returns whether the uses of both follow the order of one stream, instead of being tracked.
    pub(crate) fn shares_stream(&self, other: &Self) -> bool {
        match (self.order, other.order) {
            (Order::Stream(ours), Order::Stream(theirs)) => ours.is(theirs),
            _ => false,
        }
    }

    /// Makes a stream wait for the uses that conflict with `access`.
    pub(crate) fn before(&self, stream: &Stream, access: Access) -> Result<()> {
        match self.order {
            Order::Tracked(usage) => usage.before(stream, access),
            Order::Stream(theirs) => stream.wait_for(theirs),
        }
    }

    /// Returns the call that made the last write, if it is known.
    pub(crate) fn call_record(&self) -> Option<CallRecord> {
        match self.order {
            Order::Tracked(usage) => usage.call_record(),
            Order::Stream(_) => None,
        }
    }

    /// Makes later uses wait for this one.
    pub(crate) fn after(&self, access: Access, now: &Use) -> Result<()> {
        match self.order {
            Order::Tracked(usage) => {
                usage.after(access, now.clone());
                Ok(())
            }
            Order::Stream(theirs) if theirs.is(&now.stream) => Ok(()),
            Order::Stream(theirs) => theirs.wait(&now.done),
        }
    }
}

/// A view of elements on a device.
#[derive(Debug, Clone, Copy)]
pub struct CudaView<'a> {
    pub(crate) span: Span<'a>,
}

/// A mutable view of elements on a device.
#[derive(Debug)]
pub struct CudaViewMut<'a> {
    pub(crate) span: Span<'a>,
}

impl<'a> CudaView<'a> {
    /// Creates a view of another library's memory, such as a tensor: `len` elements of `dtype` at
    /// `pointer`. Calls run in the order of `stream`: after all work that was enqueued on it
    /// before, and before all that is enqueued later. Such memory does not record whether a call
    /// that wrote it was lost in a failure; check the communicator.
    ///
    /// # Safety
    /// Until the work that is enqueued with the view is done, the memory must be allocated on the
    /// device of the stream, aligned for its type, and written only by work that is ordered with
    /// the stream.
    #[must_use]
    pub unsafe fn from_raw(pointer: u64, len: usize, dtype: DType, stream: &'a Stream) -> Self {
        Self { span: Span::on_stream(pointer, len, dtype, stream) }
    }
}

impl<'a> CudaViewMut<'a> {
    /// Creates a mutable view, like [`CudaView::from_raw`].
    ///
    /// # Safety
    /// As [`CudaView::from_raw`]; and only work that is ordered with the stream may access the
    /// memory.
    #[must_use]
    pub unsafe fn from_raw(pointer: u64, len: usize, dtype: DType, stream: &'a Stream) -> Self {
        Self { span: Span::on_stream(pointer, len, dtype, stream) }
    }

    /// Returns the view for reading.
    #[must_use]
    pub const fn as_view(&self) -> CudaView<'_> {
        CudaView { span: self.span }
    }

    /// Converts it to a read-only view.
    #[must_use]
    pub const fn into_read_only(self) -> CudaView<'a> {
        CudaView { span: self.span }
    }
}

/// Defines the methods of all views.
macro_rules! views {
    ($($view:ident),+) => {
        $(
            impl $view<'_> {
                /// Returns the address of the first element. It is meaningless for an empty view.
                #[must_use]
                pub const fn pointer(&self) -> u64 {
                    self.span.pointer
                }

                /// Returns an error unless the elements are on the device with this number.
                ///
                /// # Errors
                /// [`Error::Invalid`] with both devices.
                pub fn check_device(&self, ordinal: usize) -> Result<()> {
                    self.span.check_device(ordinal)
                }

                /// Returns the number of the device.
                #[must_use]
                pub const fn ordinal(&self) -> usize {
                    self.span.ordinal
                }
            }

            impl Shape for $view<'_> {
                fn dtype(&self) -> DType {
                    self.span.dtype
                }

                fn len(&self) -> usize {
                    self.span.len
                }
            }
        )+
    };
}

views!(CudaView, CudaViewMut);

impl AsView<Cuda> for CudaView<'_> {
    type Element = Erased;

    fn as_view(&self) -> Result<CudaView<'_>> {
        Ok(CudaView { span: self.span })
    }
}

impl AsViewMut<Cuda> for CudaViewMut<'_> {
    type Element = Erased;

    fn as_view_mut(&mut self) -> Result<CudaViewMut<'_>> {
        Ok(CudaViewMut { span: self.span })
    }
}
