//! Where buffers live.

use crate::{Communicator, DType, Element, HostCommunicator};

/// What is known of a buffer without touching it.
pub trait Shape {
    /// The type of its elements.
    fn dtype(&self) -> DType;

    /// How many elements it has.
    fn len(&self) -> usize;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A kind of memory: of the host, or of a device.
///
/// Views are erased: a backend sees a place, a length and a [`DType`], never a type parameter.
pub trait Memory: Send + Sync + Sized + 'static {
    /// What every backend for this memory can do: a [`Communicator`], and the traits beside it that all of them have.
    type Communicator: Communicator<Self> + ?Sized;
    /// A buffer that is only read.
    type View<'a>: Shape + Send;
    /// A buffer that is written.
    type ViewMut<'a>: Shape + Send;

    /// The same buffer, only to be read from now on.
    fn into_view(buffer: Self::ViewMut<'_>) -> Self::View<'_>;
}

/// The memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host;

impl Memory for Host {
    type Communicator = dyn HostCommunicator;
    type View<'a> = HostView<'a>;
    type ViewMut<'a> = HostViewMut<'a>;

    #[inline]
    fn into_view(buffer: Self::ViewMut<'_>) -> Self::View<'_> {
        buffer.into_read_only()
    }
}

/// Elements in the memory of this process, to be read.
#[derive(Debug, Clone, Copy)]
pub struct HostView<'a> {
    bytes: &'a [u8],
    dtype: DType,
}

impl<'a> HostView<'a> {
    /// The view of a slice.
    #[must_use]
    #[inline]
    pub fn new<T: Element>(elements: &'a [T]) -> Self {
        Self { bytes: bytemuck::cast_slice(elements), dtype: T::DTYPE }
    }

    /// The view of bytes that are elements of this type. `None` if they are no whole number of elements, or do not lie as
    /// elements of this type must.
    #[must_use]
    pub fn from_bytes(bytes: &'a [u8], dtype: DType) -> Option<Self> {
        are_elements(bytes, dtype).then_some(Self { bytes, dtype })
    }

    /// The elements as bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl Shape for HostView<'_> {
    #[inline]
    fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline]
    fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }
}

/// Elements in the memory of this process, to be written.
#[derive(Debug)]
pub struct HostViewMut<'a> {
    bytes: &'a mut [u8],
    dtype: DType,
}

impl<'a> HostViewMut<'a> {
    /// The view of a slice.
    #[must_use]
    #[inline]
    pub fn new<T: Element>(elements: &'a mut [T]) -> Self {
        Self { bytes: bytemuck::cast_slice_mut(elements), dtype: T::DTYPE }
    }

    /// The view of bytes that are elements of this type, as [`HostView::from_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: &'a mut [u8], dtype: DType) -> Option<Self> {
        are_elements(bytes, dtype).then_some(Self { bytes, dtype })
    }

    /// The elements as bytes.
    #[must_use]
    #[inline]
    pub const fn into_bytes(self) -> &'a mut [u8] {
        self.bytes
    }

    /// The same elements, borrowed for a shorter time.
    #[must_use]
    #[inline]
    pub const fn reborrow(&mut self) -> HostViewMut<'_> {
        HostViewMut { bytes: self.bytes, dtype: self.dtype }
    }

    /// The same elements, to be read.
    #[must_use]
    #[inline]
    pub const fn as_view(&self) -> HostView<'_> {
        HostView { bytes: self.bytes, dtype: self.dtype }
    }

    /// The same elements, only to be read from now on.
    #[must_use]
    #[inline]
    pub const fn into_read_only(self) -> HostView<'a> {
        HostView { bytes: self.bytes, dtype: self.dtype }
    }
}

impl Shape for HostViewMut<'_> {
    #[inline]
    fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline]
    fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }
}

/// Elements of every built-in type are as aligned as they are large; of others only the bytes are touched.
fn are_elements(bytes: &[u8], dtype: DType) -> bool {
    bytes.len().is_multiple_of(dtype.size()) && bytes.as_ptr().addr().is_multiple_of(dtype.align())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_elements_if_they_are_whole_and_aligned() {
        let mut words = [0_u64; 4];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        for dtype in DType::ALL {
            let size = dtype.size();
            assert_eq!(
                HostView::from_bytes(&bytes[size..], dtype).map(|view| view.len()),
                Some(32 / size - 1)
            );
            assert_eq!(HostViewMut::from_bytes(&mut bytes[..0], dtype).map(|view| view.len()), Some(0));
            let refused =
                [&bytes[..31], &bytes[1..25]].map(|bytes| HostView::from_bytes(bytes, dtype).is_none());
            assert_eq!(refused, [size > 1; 2], "{dtype}");
        }
    }
}
