//! Buffers whose element type is known at run time.

use std::sync::Arc;

use comm_core::{AsView, AsViewMut, DType, Erased, Invalid, Result};

use crate::Stream;
use crate::allocation::Allocation;
use crate::memory::Cuda;
use crate::view::{CudaView, CudaViewMut, Span};

/// An array of elements on a device, of a type that is known at run time: the counterpart of
/// [`DeviceBuffer`](crate::DeviceBuffer).
#[derive(Debug)]
pub struct ErasedDeviceBuffer {
    memory: Arc<Allocation>,
    dtype: DType,
    len: usize,
}

impl ErasedDeviceBuffer {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the device does not have enough memory.
    pub fn zeros(stream: &Stream, dtype: DType, len: usize) -> Result<Self> {
        let buffer = Self::unspecified(stream, dtype, len)?;
        buffer.memory.clear(0, buffer.span().bytes())?;
        Ok(buffer)
    }

    pub(super) fn unspecified(stream: &Stream, dtype: DType, len: usize) -> Result<Self> {
        let size = dtype.size();
        let expected = usize::MAX.checked_div(size).unwrap_or(usize::MAX);
        let too_long = Invalid::Length { what: "the buffer", expected, got: len };
        let bytes = len.checked_mul(size).ok_or(too_long)?;
        Ok(Self { memory: Arc::new(Allocation::new(stream, bytes)?), dtype, len })
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

    /// Returns the type of the elements.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn span(&self) -> Span<'_> {
        let order = (self.memory.usage(), self.memory.stream());
        Span::tracked(self.memory.pointer(), self.len, self.dtype, order)
    }
}

impl AsView<Cuda> for ErasedDeviceBuffer {
    type Element = Erased;

    fn as_view(&self) -> Result<CudaView<'_>> {
        Ok(CudaView { span: self.span() })
    }
}

impl AsViewMut<Cuda> for ErasedDeviceBuffer {
    type Element = Erased;

    fn as_view_mut(&mut self) -> Result<CudaViewMut<'_>> {
        Ok(CudaViewMut { span: self.span() })
    }
}
