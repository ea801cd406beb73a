//! Parts of buffers on a device.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use comm_core::{AsView, AsViewMut, Element, Invalid, Result};

use crate::allocation::Allocation;
use crate::memory::Cuda;
use crate::stream::Stream;
use crate::usage::{Access, Use};
use crate::view::{CudaView, CudaViewMut, Span};

/// A part of a [`DeviceBuffer`](crate::DeviceBuffer), to be read.
#[derive(Debug, Clone, Copy)]
pub struct DeviceSlice<'a, T: Element> {
    memory: &'a Arc<Allocation>,
    start: usize,
    len: usize,
    element: PhantomData<&'a [T]>,
}

/// A part of a [`DeviceBuffer`](crate::DeviceBuffer), to be written.
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T: Element> {
    memory: &'a Arc<Allocation>,
    start: usize,
    len: usize,
    element: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> DeviceSlice<'a, T> {
    pub(crate) const fn whole(memory: &'a Arc<Allocation>, len: usize) -> Self {
        Self { memory, start: 0, len, element: PhantomData }
    }

    /// A part of this part.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the range is not within it.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = within(&range, self.len)?;
        Ok(Self { start: self.start + start, len, ..self })
    }

    /// Copies the elements to as many on the host, as they are when all work that was enqueued on
    /// the buffer is done: waits for it.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) for another length,
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    /// [`Error::Poisoned`](comm_core::Error::Poisoned) if they were to be written by a call that
    /// was lost when its communicator failed: there is no result then.
    pub fn copy_to_host(&self, elements: &mut [T]) -> Result<()> {
        same_length(elements.len(), self.len)?;
        self.memory.download(self.start * size_of::<T>(), bytemuck::cast_slice_mut(elements))
    }

    /// The elements on the host.
    ///
    /// # Errors
    /// As [`DeviceSlice::copy_to_host`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut elements = vec![T::zeroed(); self.len];
        self.copy_to_host(&mut elements)?;
        Ok(elements)
    }

    /// Lets `work` enqueue something on `stream` that reads the elements, such as a kernel: it is
    /// given their address, and comes after whoever wrote them. `work` itself is to enqueue nothing
    /// else than reads of them.
    ///
    /// # Errors
    /// What `work` answers, and [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    pub fn read_on<R>(&self, stream: &Stream, work: impl FnOnce(u64) -> Result<R>) -> Result<R> {
        on(self.memory, Access::Read, stream, || work(self.span().pointer))
    }
}

impl<'a, T: Element> DeviceSliceMut<'a, T> {
    /// Nobody else may have a view of the memory that is written.
    pub(crate) const fn whole(memory: &'a Arc<Allocation>, len: usize) -> Self {
        Self { memory, start: 0, len, element: PhantomData }
    }

    /// A part of this part.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the range is not within it.
    pub fn slice_mut(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = within(&range, self.len)?;
        Ok(Self { start: self.start + start, len, ..self })
    }

    /// The first `middle` elements, and the others.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if there are not so many.
    pub fn split_at(self, middle: usize) -> Result<(Self, Self)> {
        let (_, len) = within(&(..middle), self.len)?;
        let Self { memory, start, element, .. } = self;
        let second = Self { memory, start: start + len, len: self.len - len, element };
        Ok((Self { memory, start, len, element }, second))
    }

    /// The same elements, to be read.
    #[must_use]
    pub const fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice { memory: self.memory, start: self.start, len: self.len, element: PhantomData }
    }

    /// Copies as many elements of the host to the device. They may be used again when this returns.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) for another length,
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    pub fn copy_from_host(&mut self, elements: &[T]) -> Result<()> {
        same_length(elements.len(), self.len)?;
        self.memory.upload(self.start * size_of::<T>(), bytemuck::cast_slice(elements))
    }

    /// As [`DeviceSlice::read_on`], for work that may write the elements too.
    ///
    /// # Errors
    /// As there.
    pub fn write_on<R>(&mut self, stream: &Stream, work: impl FnOnce(u64) -> Result<R>) -> Result<R> {
        on(self.memory, Access::Write, stream, || work(self.span().pointer))
    }
}

/// Defines the methods of all slices.
macro_rules! parts {
    ($($slice:ident),+) => {
        $(
            impl<'a, T: Element> $slice<'a, T> {
                /// Returns the number of elements.
                #[must_use]
                pub const fn len(&self) -> usize {
                    self.len
                }

                /// Whether it has none.
                #[must_use]
                pub const fn is_empty(&self) -> bool {
                    self.len == 0
                }

                fn span(&self) -> Span<'a> {
                    let pointer = self.memory.pointer() + (self.start * size_of::<T>()) as u64;
                    let order = (self.memory.usage(), self.memory.stream());
                    Span::tracked(pointer, self.len, T::DTYPE, order)
                }
            }
        )+
    };
}

parts!(DeviceSlice, DeviceSliceMut);

/// Enqueues work of somebody else between the uses that it comes after, and those that come after
/// it.
fn on<R>(
    memory: &Allocation,
    access: Access,
    stream: &Stream,
    work: impl FnOnce() -> Result<R>,
) -> Result<R> {
    stream.device().bind()?;
    memory.usage().before(stream, access)?;
    let answer = work();
    // Whatever it answers, something may have been enqueued.
    memory.usage().after(access, Use::until_now(stream)?);
    answer
}

/// Start and length of a range that lies within so many elements.
fn within(range: &impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    if start <= end && end <= len {
        Ok((start, end - start))
    } else {
        Err(Invalid::Length { what: "the range", expected: len, got: end.max(start) }.into())
    }
}

fn same_length(got: usize, expected: usize) -> Result<()> {
    if got == expected {
        Ok(())
    } else {
        Err(Invalid::Length { what: "the slice on the host", expected, got }.into())
    }
}

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// The slice as a backend sees it.
    #[must_use]
    pub fn into_view(self) -> CudaView<'a> {
        CudaView { span: self.span() }
    }
}

impl<'a, T: Element> DeviceSliceMut<'a, T> {
    /// The slice as a backend sees it.
    #[must_use]
    pub fn into_view_mut(self) -> CudaViewMut<'a> {
        CudaViewMut { span: self.span() }
    }
}

impl<T: Element> AsView<Cuda> for DeviceSlice<'_, T> {
    type Element = T;

    fn as_view(&self) -> Result<CudaView<'_>> {
        Ok(CudaView { span: self.span() })
    }
}

impl<T: Element> AsViewMut<Cuda> for DeviceSliceMut<'_, T> {
    type Element = T;

    fn as_view_mut(&mut self) -> Result<CudaViewMut<'_>> {
        Ok(CudaViewMut { span: self.span() })
    }
}
