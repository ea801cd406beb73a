//! Slices of device buffers.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use comm_core::{AsView, AsViewMut, Element, Invalid, Result};

use crate::allocation::Allocation;
use crate::memory::Cuda;
use crate::stream::Stream;
use crate::usage::{Access, Use};
use crate::view::{CudaView, CudaViewMut, Span};

/// A slice of a [`DeviceBuffer`](crate::DeviceBuffer).
#[derive(Debug, Clone, Copy)]
pub struct DeviceSlice<'a, T: Element> {
    memory: &'a Arc<Allocation>,
    start: usize,
    len: usize,
    element: PhantomData<&'a [T]>,
}

/// A mutable slice of a [`DeviceBuffer`](crate::DeviceBuffer).
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

    /// Returns a part of the slice.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the range is not within the slice.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = within(&range, self.len)?;
        Ok(Self { start: self.start + start, len, ..self })
    }

    /// Waits for all work that was enqueued on the buffer, and copies the elements to the host.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the lengths differ;
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails;
    /// [`Error::Poisoned`](comm_core::Error::Poisoned) if the call that should have written the
    /// elements was lost when its communicator failed.
    pub fn copy_to_host(&self, elements: &mut [T]) -> Result<()> {
        same_length(elements.len(), self.len)?;
        self.memory.download(self.start * size_of::<T>(), bytemuck::cast_slice_mut(elements))
    }

    /// Returns a copy of the elements on the host.
    ///
    /// # Errors
    /// As [`DeviceSlice::copy_to_host`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut elements = vec![T::zeroed(); self.len];
        self.copy_to_host(&mut elements)?;
        Ok(elements)
    }

    /// Runs `work`, which enqueues work on `stream` that reads the elements, such as a kernel. It
    /// gets their address, and the enqueued work runs after the uses that wrote them. It must not
    /// write them.
    ///
    /// # Errors
    /// The error of `work`; [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    pub fn read_on<R>(&self, stream: &Stream, work: impl FnOnce(u64) -> Result<R>) -> Result<R> {
        on(self.memory, Access::Read, stream, || work(self.span().pointer))
    }
}

impl<'a, T: Element> DeviceSliceMut<'a, T> {
    /// Creates a slice of memory. If it is written, there must be no other view of the memory.
    pub(crate) const fn whole(memory: &'a Arc<Allocation>, len: usize) -> Self {
        Self { memory, start: 0, len, element: PhantomData }
    }

    /// Returns a part of the slice.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the range is not within the slice.
    pub fn slice_mut(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = within(&range, self.len)?;
        Ok(Self { start: self.start + start, len, ..self })
    }

    /// Divides the slice after `middle` elements.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if there are fewer elements.
    pub fn split_at(self, middle: usize) -> Result<(Self, Self)> {
        let (_, len) = within(&(..middle), self.len)?;
        let Self { memory, start, element, .. } = self;
        let second = Self { memory, start: start + len, len: self.len - len, element };
        Ok((Self { memory, start, len, element }, second))
    }

    /// Returns the slice for reading.
    #[must_use]
    pub const fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice { memory: self.memory, start: self.start, len: self.len, element: PhantomData }
    }

    /// Overwrites the slice with elements from the host. Returns when the copy is done.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the lengths differ,
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    pub fn copy_from_host(&mut self, elements: &[T]) -> Result<()> {
        same_length(elements.len(), self.len)?;
        self.memory.upload(self.start * size_of::<T>(), bytemuck::cast_slice(elements))
    }

    /// Runs `work` like [`DeviceSlice::read_on`]. It may also write the elements.
    ///
    /// # Errors
    /// As [`DeviceSlice::read_on`].
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

                /// Returns whether there are no elements.
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

/// Enqueues the caller's work after earlier uses of the memory, and records it for later ones.
fn on<R>(
    memory: &Allocation,
    access: Access,
    stream: &Stream,
    work: impl FnOnce() -> Result<R>,
) -> Result<R> {
    stream.device().bind()?;
    memory.usage().before(stream, access)?;
    let answer = work();
    // Even after an error, work may be enqueued.
    memory.usage().after(access, Use::until_now(stream)?);
    answer
}

/// Returns the start and length of a range within `len` elements.
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
    /// Returns a view of the slice for a backend.
    #[must_use]
    pub fn into_view(self) -> CudaView<'a> {
        CudaView { span: self.span() }
    }
}

impl<'a, T: Element> DeviceSliceMut<'a, T> {
    /// Returns a mutable view of the slice for a backend.
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
