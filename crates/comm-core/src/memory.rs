//! Where buffers live.

use crate::{Buffer, Communicator, DType, Element, HostCommunicator};

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
}

/// The memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host;

impl Memory for Host {
    type Communicator = dyn HostCommunicator;
    type View<'a> = HostView<'a>;
    type ViewMut<'a> = HostViewMut<'a>;
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

/// Elements of every type are as aligned as they are large.
fn are_elements(bytes: &[u8], dtype: DType) -> bool {
    bytes.len().is_multiple_of(dtype.size()) && bytes.as_ptr().addr().is_multiple_of(dtype.size())
}

/// What a call can read from: slices, arrays, vectors and [`Buffer`]s of [`Element`]s for [`Host`].
pub trait IntoView<'a, M: Memory> {
    /// The type of the elements, so that the buffers of one call must agree.
    type Element;

    /// The erased view.
    fn into_view(self) -> M::View<'a>;
}

/// What a call can write to: slices, arrays, vectors and [`Buffer`]s of [`Element`]s for [`Host`].
pub trait IntoViewMut<'a, M: Memory> {
    /// The type of the elements, so that the buffers of one call must agree.
    type Element;

    /// The erased view.
    fn into_view_mut(self) -> M::ViewMut<'a>;
}

/// The element type of views that are erased already: it is checked when the call is made.
#[derive(Debug, Clone, Copy)]
pub enum Erased {}

impl<'a> IntoView<'a, Host> for HostView<'a> {
    type Element = Erased;

    fn into_view(self) -> HostView<'a> {
        self
    }
}

impl<'a> IntoViewMut<'a, Host> for HostViewMut<'a> {
    type Element = Erased;

    fn into_view_mut(self) -> HostViewMut<'a> {
        self
    }
}

/// `&` and `&mut` of everything that is, or points to, a slice.
macro_rules! host_buffers {
    ($( [$($param:tt)*] $buffer:ty ),+ $(,)?) => {
        $(
            impl<'a, T: Element, $($param)*> IntoView<'a, Host> for &'a $buffer {
                type Element = T;

                fn into_view(self) -> HostView<'a> {
                    HostView::new(&self[..])
                }
            }

            impl<'a, T: Element, $($param)*> IntoViewMut<'a, Host> for &'a mut $buffer {
                type Element = T;

                fn into_view_mut(self) -> HostViewMut<'a> {
                    HostViewMut::new(&mut self[..])
                }
            }
        )+
    };
}

host_buffers!([] [T], [const N: usize] [T; N], [] Vec<T>, [] Box<[T]>, [] Buffer<T>);

impl<'a, T: Element> IntoViewMut<'a, Host> for &'a mut &mut [T] {
    type Element = T;

    fn into_view_mut(self) -> HostViewMut<'a> {
        HostViewMut::new(self)
    }
}

impl<'a, T: Element> IntoView<'a, Host> for &'a &mut [T] {
    type Element = T;

    fn into_view(self) -> HostView<'a> {
        HostView::new(self)
    }
}

impl<'a, T: Element> IntoView<'a, Host> for &'a &[T] {
    type Element = T;

    fn into_view(self) -> HostView<'a> {
        HostView::new(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len<'a>(buffer: impl IntoViewMut<'a, Host>) -> usize {
        buffer.into_view_mut().len()
    }

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
    fn whatever_holds_a_slice_is_a_buffer() {
        let mut vec = vec![1.0_f32; 3];
        let mut boxed: Box<[u8]> = vec![0; 4].into();
        assert_eq!(len(&mut vec), 3);
        assert_eq!(len(&mut vec[1..]), 2);
        assert_eq!(len(&mut [0_i64; 5]), 5);
        assert_eq!(len(&mut boxed), 4);
        let mut slice = &mut vec[..];
        assert_eq!(len(&mut slice), 3);
        let read: &[f32] = slice;
        assert_eq!(IntoView::<Host>::into_view(read).len(), 3);
    }
}
