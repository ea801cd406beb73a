//! Buffers on a device.

use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use comm_core::{AsView, AsViewMut, Element, Invalid, Result};

use crate::allocation::Allocation;
use crate::memory::Cuda;
use crate::stream::Stream;
use crate::view::{CudaView, CudaViewMut};
use crate::{Device, DeviceSlice, DeviceSliceMut, Library};

/// A fixed-length array of elements on a device.
///
/// Conflicting uses run in the order in which they were enqueued, on any number of streams: the
/// buffer records its last uses, and the next one waits for them on the device. Dropping it frees
/// the memory after its last use. It is allocated, filled, copied and freed on the stream with
/// which it was created.
#[derive(Debug)]
pub struct DeviceBuffer<T: Element> {
    memory: Arc<Allocation>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> DeviceBuffer<T> {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the device does not have enough memory.
    pub fn zeros(stream: &Stream, len: usize) -> Result<Self> {
        let buffer = Self::unspecified(stream, len)?;
        buffer.memory.clear(0, buffer.size())?;
        Ok(buffer)
    }

    /// Copies elements from the host to a new buffer, and returns when the copy is done.
    ///
    /// # Errors
    /// As [`DeviceBuffer::zeros`].
    pub fn from_host(stream: &Stream, elements: &[T]) -> Result<Self> {
        let buffer = Self::unspecified(stream, elements.len())?;
        buffer.memory.upload(0, bytemuck::cast_slice(elements))?;
        Ok(buffer)
    }

    /// Allocates `len` zeros with `ncclMemAlloc`, which exists since NCCL 2.19. If the devices
    /// support it and the buffer is registered
    /// ([`NcclCommunicator::register`](crate::NcclCommunicator::register)), other ranks access such
    /// memory without copies. Every call accepts buffers of both kinds. Allocating and freeing
    /// waits for the device, so reuse the buffer.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable) if the library is older,
    /// [`Error::Backend`](comm_core::Error::Backend) with NCCL's code if there is not enough
    /// memory.
    pub fn by_nccl(library: &Library, stream: &Stream, len: usize) -> Result<Self> {
        let buffer = Self::over(len, |bytes| Allocation::by_nccl(library, stream, bytes))?;
        buffer.memory.clear(0, buffer.size())?;
        Ok(buffer)
    }

    fn unspecified(stream: &Stream, len: usize) -> Result<Self> {
        Self::over(len, |bytes| Allocation::new(stream, bytes))
    }

    fn over(len: usize, allocate: impl FnOnce(usize) -> Result<Allocation>) -> Result<Self> {
        let too_long =
            Invalid::Length { what: "the buffer", expected: usize::MAX / size_of::<T>(), got: len };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(too_long)?;
        Ok(Self { memory: Arc::new(allocate(bytes)?), len, element: PhantomData })
    }

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

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.memory.stream().device()
    }

    /// Returns the stream with which the buffer was created.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.memory.stream()
    }

    /// Returns a slice of all elements.
    #[must_use]
    pub const fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::whole(&self.memory, self.len)
    }

    /// Returns a mutable slice of all elements.
    #[must_use]
    pub const fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::whole(&self.memory, self.len)
    }

    /// Returns a view of the buffer for a backend.
    #[must_use]
    pub fn view(&self) -> CudaView<'_> {
        self.as_slice().into_view()
    }

    /// Returns a mutable view of the buffer for a backend.
    #[must_use]
    pub fn view_mut(&mut self) -> CudaViewMut<'_> {
        self.as_mut_slice().into_view_mut()
    }

    /// Returns a slice of a part of the buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the range is not within the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        self.as_slice().slice(range)
    }

    /// Returns a mutable slice of a part of the buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the range is not within the buffer.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        self.as_mut_slice().slice_mut(range)
    }

    /// Overwrites the buffer with elements from the host. Returns when the copy is done.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the lengths differ,
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    pub fn copy_from_host(&mut self, elements: &[T]) -> Result<()> {
        self.as_mut_slice().copy_from_host(elements)
    }

    /// Copies all elements to the host, after all work that was enqueued on the buffer.
    ///
    /// # Errors
    /// As [`DeviceSlice::copy_to_host`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_slice().to_vec()
    }

    pub(crate) const fn memory(&self) -> &Arc<Allocation> {
        &self.memory
    }

    /// Returns the number of bytes.
    pub(crate) const fn size(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T: Element> AsView<Cuda> for DeviceBuffer<T> {
    type Element = T;

    fn as_view(&self) -> Result<CudaView<'_>> {
        Ok(self.view())
    }
}

impl<T: Element> AsViewMut<Cuda> for DeviceBuffer<T> {
    type Element = T;

    fn as_view_mut(&mut self) -> Result<CudaViewMut<'_>> {
        Ok(self.view_mut())
    }
}
