//! Views of device memory that are erased: a backend sees a place, a length and a type.

#![allow(unsafe_code)]

use comm_core::{AsView, AsViewMut, DType, Erased, Error, Result, Shape};

use crate::health::Ticket;
use crate::memory::Cuda;
use crate::stream::Stream;
use crate::usage::{Access, Usage, Use};

/// The order of work on memory with other work on it.
#[derive(Debug, Clone, Copy)]
enum Order<'a> {
    /// After its earlier uses.
    Tracked(&'a Usage),
    /// As if it were done on this stream.
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

    /// The address of the element behind so many.
    pub(crate) const fn at(&self, elements: usize) -> u64 {
        self.pointer + (elements * self.dtype.size()) as u64
    }

    /// Refuses memory of another device.
    pub(crate) fn check_device(&self, ordinal: usize) -> Result<()> {
        if self.ordinal == ordinal {
            return Ok(());
        }
        let reason = format!("the buffer is there, and the communicator on device {ordinal}");
        Err(Error::setting("device", self.ordinal.to_string(), reason))
    }

    /// Whether the uses of both come in the order of one stream, and not in that of the memory.
    pub(crate) fn shares_stream(&self, other: &Self) -> bool {
        match (self.order, other.order) {
            (Order::Stream(ours), Order::Stream(theirs)) => ours.is(theirs),
            _ => false,
        }
    }

    /// Makes a stream wait for what `access` must come after.
    pub(crate) fn before(&self, stream: &Stream, access: Access) -> Result<()> {
        match self.order {
            Order::Tracked(usage) => usage.before(stream, access),
            Order::Stream(theirs) => stream.wait_for(theirs),
        }
    }

    /// The call that wrote the memory last, as far as that is known.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        match self.order {
            Order::Tracked(usage) => usage.ticket(),
            Order::Stream(_) => None,
        }
    }

    /// Lets later uses wait for this one.
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

/// Elements on a device, to be read.
#[derive(Debug, Clone, Copy)]
pub struct CudaView<'a> {
    pub(crate) span: Span<'a>,
}

/// Elements on a device, to be written.
#[derive(Debug)]
pub struct CudaViewMut<'a> {
    pub(crate) span: Span<'a>,
}

impl<'a> CudaView<'a> {
    /// The view of memory that somebody else allocated, for example a framework: `len` elements of
    /// `dtype` from `pointer` on. Calls behave as if they ran on `stream`: they come after all that
    /// was enqueued there before, and what is enqueued there afterwards comes after them. Whether a
    /// call that wrote to it was lost in a failure is not known by the memory, and to be asked of
    /// the communicator.
    ///
    /// # Safety
    /// Until the work that is enqueued with the view is done, the memory must be there, on the
    /// device of the stream, aligned for its type, and not be written by work that is not ordered
    /// with the stream.
    #[must_use]
    pub unsafe fn from_raw(pointer: u64, len: usize, dtype: DType, stream: &'a Stream) -> Self {
        Self { span: Span::on_stream(pointer, len, dtype, stream) }
    }
}

impl<'a> CudaViewMut<'a> {
    /// As [`CudaView::from_raw`], for memory that is written.
    ///
    /// # Safety
    /// As there; and nothing else may read or write the memory, but for work that is ordered with
    /// the stream.
    #[must_use]
    pub unsafe fn from_raw(pointer: u64, len: usize, dtype: DType, stream: &'a Stream) -> Self {
        Self { span: Span::on_stream(pointer, len, dtype, stream) }
    }

    /// The same elements, to be read.
    #[must_use]
    pub const fn as_view(&self) -> CudaView<'_> {
        CudaView { span: self.span }
    }

    /// The same elements, only to be read from now on.
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
                /// The address of the first element on the device. Nothing is there if there are no
                /// elements.
                #[must_use]
                pub const fn pointer(&self) -> u64 {
                    self.span.pointer
                }

                /// Refuses elements that lie on another device than that of a communicator.
                ///
                /// # Errors
                /// [`Error::Invalid`], with both.
                pub fn check_device(&self, ordinal: usize) -> Result<()> {
                    self.span.check_device(ordinal)
                }

                /// The number of the device on which they lie.
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
