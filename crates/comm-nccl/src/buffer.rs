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

/// Elements on a device: what a `Vec` is on the host, of a length that does not change.
///
/// Work on it from any number of streams comes in the order in which it was enqueued, as far as it
/// must: the buffer knows who used it last, and whoever uses it next waits for that on the device.
/// So does its memory when it is dropped. It is allocated, filled, copied and freed on the stream
/// with which it was made.
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

    /// A copy of elements of the host. They may be used again when this returns.
    ///
    /// # Errors
    /// As [`DeviceBuffer::zeros`].
    pub fn from_host(stream: &Stream, elements: &[T]) -> Result<Self> {
        let buffer = Self::unspecified(stream, elements.len())?;
        buffer.memory.upload(0, bytemuck::cast_slice(elements))?;
        Ok(buffer)
    }

    /// Allocates `len` zeros by `ncclMemAlloc`, from NCCL 2.19 on. Where the devices allow it and
    /// the buffer is registered
    /// ([`NcclCommunicator::register`](crate::NcclCommunicator::register)), other ranks reach such
    /// memory without copies. Any buffer may be given to any call. Allocating and freeing it waits
    /// for the device; it should be kept.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable) if the library is older,
    /// [`Error::Backend`](comm_core::Error::Backend) with NCCL's code if there is not so much
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

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device on which it lies.
    #[must_use]
    pub fn device(&self) -> Device {
        self.memory.stream().device()
    }

    /// The stream with which it was made.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.memory.stream()
    }

    /// All of it, to be read.
    #[must_use]
    pub const fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::whole(&self.memory, self.len)
    }

    /// All of it, to be written.
    #[must_use]
    pub const fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::whole(&self.memory, self.len)
    }

    /// The buffer as a backend sees it, to be read.
    #[must_use]
    pub fn view(&self) -> CudaView<'_> {
        self.as_slice().into_view()
    }

    /// The buffer as a backend sees it, to be written.
    #[must_use]
    pub fn view_mut(&mut self) -> CudaViewMut<'_> {
        self.as_mut_slice().into_view_mut()
    }

    /// A part of it, to be read.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the range is not within the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        self.as_slice().slice(range)
    }

    /// A part of it, to be written.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) if the range is not within the buffer.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        self.as_mut_slice().slice_mut(range)
    }

    /// Copies elements of the host to the device, of which there must be as many as the buffer has.
    /// They may be used again when this returns.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) for another length,
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    pub fn copy_from_host(&mut self, elements: &[T]) -> Result<()> {
        self.as_mut_slice().copy_from_host(elements)
    }

    /// Copies all elements to the host, as they are when all work that was enqueued on the buffer
    /// is done.
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
