//! Kinds of memory, and views of buffers in them.

use std::ops::Range;

use crate::{Communicator, DType, Element, HostCommunicator};

/// The type and length of a buffer.
pub trait Shape {
    /// Returns the type of its elements.
    fn dtype(&self) -> DType;

    /// Returns the number of its elements.
    fn len(&self) -> usize;

    /// Returns whether it has no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A kind of memory: of the host, or of a device.
///
/// Views are erased: a backend sees an address, a length and a [`DType`], never a type parameter.
pub trait Memory: Send + Sync + Sized + 'static {
    /// The capabilities of every backend for this memory: a [`Communicator`] and further traits.
    type Communicator: Communicator<Self> + ?Sized;
    /// A view of a buffer that is only read.
    type View<'a>: Shape + Send;
    /// A view of a buffer that is written.
    type ViewMut<'a>: Shape + Send;

    /// Converts the view of a buffer to a read-only one.
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

/// A read-only view of elements in the memory of this process.
#[derive(Debug, Clone, Copy)]
pub struct HostView<'a> {
    bytes: &'a [u8],
    dtype: DType,
}

impl<'a> HostView<'a> {
    /// Returns a view of a slice.
    #[must_use]
    #[inline]
    pub fn new<T: Element>(elements: &'a [T]) -> Self {
        Self { bytes: bytemuck::cast_slice(elements), dtype: T::DTYPE }
    }

    /// Returns a view of bytes that are elements of this type. `None` if they are not a whole
    /// number of elements or not aligned for the type.
    #[must_use]
    pub fn from_bytes(bytes: &'a [u8], dtype: DType) -> Option<Self> {
        are_elements(bytes, dtype).then_some(Self { bytes, dtype })
    }

    /// Returns the elements as bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the elements as a slice, or `None` if they have another type.
    #[must_use]
    pub fn elements<T: Element>(&self) -> Option<&'a [T]> {
        (self.dtype == T::DTYPE).then(|| bytemuck::cast_slice(self.bytes))
    }

    /// Returns a range of the elements, or `None` if there are fewer.
    #[must_use]
    pub fn get(&self, range: Range<usize>) -> Option<Self> {
        let bytes = self.bytes.get(byte_range(range, self.dtype)?)?;
        Some(Self { bytes, ..*self })
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

/// A mutable view of elements in the memory of this process.
#[derive(Debug)]
pub struct HostViewMut<'a> {
    bytes: &'a mut [u8],
    dtype: DType,
}

impl<'a> HostViewMut<'a> {
    /// Returns a view of a slice.
    #[must_use]
    #[inline]
    pub fn new<T: Element>(elements: &'a mut [T]) -> Self {
        Self { bytes: bytemuck::cast_slice_mut(elements), dtype: T::DTYPE }
    }

    /// Returns a view of bytes that are elements of this type, like [`HostView::from_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: &'a mut [u8], dtype: DType) -> Option<Self> {
        are_elements(bytes, dtype).then_some(Self { bytes, dtype })
    }

    /// Returns the elements as bytes.
    #[must_use]
    #[inline]
    pub const fn into_bytes(self) -> &'a mut [u8] {
        self.bytes
    }

    /// Returns the elements as a slice, or `None` if they have another type.
    #[must_use]
    pub fn into_elements<T: Element>(self) -> Option<&'a mut [T]> {
        (self.dtype == T::DTYPE).then(|| bytemuck::cast_slice_mut(self.bytes))
    }

    /// Returns a range of the elements, or `None` if there are fewer.
    #[must_use]
    pub fn get_mut(self, range: Range<usize>) -> Option<Self> {
        let bytes = self.bytes.get_mut(byte_range(range, self.dtype)?)?;
        Some(Self { bytes, dtype: self.dtype })
    }

    /// Returns the same elements, borrowed for a shorter time.
    #[must_use]
    #[inline]
    pub const fn reborrow(&mut self) -> HostViewMut<'_> {
        HostViewMut { bytes: self.bytes, dtype: self.dtype }
    }

    /// Returns a read-only view of the same elements.
    #[must_use]
    #[inline]
    pub const fn as_view(&self) -> HostView<'_> {
        HostView { bytes: self.bytes, dtype: self.dtype }
    }

    /// Converts the view to a read-only one of the same elements.
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

/// Returns the bytes of a range of elements, or `None` if no buffer can be that long.
fn byte_range(range: Range<usize>, dtype: DType) -> Option<Range<usize>> {
    Some(range.start.checked_mul(dtype.size())?..range.end.checked_mul(dtype.size())?)
}

/// Checks length and alignment. Built-in types are aligned to their size; others are only moved as
/// bytes.
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

    #[test]
    fn a_view_is_cut_and_read_as_its_own_type() {
        let mut numbers = [1.0_f32, 2.0, 3.0];
        let view = HostView::new(&numbers);
        assert_eq!(view.get(1..3).and_then(|part| part.elements::<f32>()), Some(&[2.0, 3.0][..]));
        assert!(view.elements::<i32>().is_none() && view.get(1..4).is_none());
        assert!(view.get(0..usize::MAX).is_none());
        let part = HostViewMut::new(&mut numbers).get_mut(0..2).unwrap();
        part.into_elements::<f32>().unwrap().fill(9.0);
        assert_eq!(numbers, [9.0, 9.0, 3.0]);
        assert!(HostViewMut::new(&mut numbers).into_elements::<u32>().is_none());
    }
}
