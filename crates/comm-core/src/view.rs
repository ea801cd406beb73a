//! The types that calls accept as buffers.

#[cfg(feature = "ndarray")]
mod ndarray;

use crate::{Buffer, Element, Host, HostView, HostViewMut, Memory, Result};

/// A buffer that calls can read: the bound of every `send` parameter.
///
/// For [`Host`] memory, buffers are an [`Element`] (`f32`, `u8`, ...), `[T]`, `[T; N]`, `Vec<T>`,
/// `Box<[T]>`, `Box<[T; N]>` and [`Buffer<T>`] of elements, a [`HostView`] or [`HostViewMut`],
/// references to any of these, and with the feature `ndarray` the arrays and views of that crate.
///
/// A function that accepts any buffer takes it by reference, as calls do:
///
/// ```
/// use comm::{AsView, Comm, Result};
///
/// fn send_to_next(comm: &Comm, message: &(impl AsView + ?Sized)) -> Result<()> {
///     comm.send((comm.rank() + 1) % comm.size(), 0, message)
/// }
///
/// comm::threads::run(3, |comm| {
///     send_to_next(&comm, &[1.5, comm.rank() as f64]).unwrap();
///     let (numbers, received) = comm.recv_vec::<f64>(comm::Source::Any, 0).unwrap();
///     assert_eq!(numbers, [1.5, received.source as f64]);
/// })?;
/// # Ok::<_, comm::Error>(())
/// ```
///
/// The compiler rejects other types, and lists those that are buffers:
///
/// ```compile_fail,E0277
/// fn send(comm: &comm_core::Comm) -> comm_core::Result<()> {
///     comm.send(1, 0, "not a buffer")
/// }
/// ```
///
/// ```compile_fail,E0277
/// fn send(comm: &comm_core::Comm, words: &[String]) -> comm_core::Result<()> {
///     comm.send(1, 0, words)
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that a call can read in memory `{M}`",
    label = "not a buffer in memory `{M}`",
    note = "buffers of the host are `T`, `[T]`, `[T; N]`, `Vec<T>`, `Box<[T]>`, `Box<[T; N]>` and `comm::Buffer<T>`, \
            where `T` is an element (`f32`, `u8`, ...), `HostView`, and ndarray's arrays with the feature `ndarray`",
    note = "buffers of a CUDA device are `DeviceBuffer<T>` and `DeviceSlice<T>`"
)]
pub trait AsView<M: Memory = Host> {
    /// The type of the elements, which must be the same for all buffers of a call. [`Erased`] if it
    /// is known only at run time.
    type Element;

    /// Returns the buffer as the backend sees it.
    ///
    /// # Errors
    /// [`Invalid::NotContiguous`](crate::Invalid::NotContiguous) if the elements are not contiguous
    /// in memory.
    fn as_view(&self) -> Result<M::View<'_>>;
}

/// A buffer that calls can write: the bound of every `buffer` and `recv` parameter.
///
/// These are the types of [`AsView`] that can be written. A function that accepts any buffer takes
/// it by mutable reference, and may pass it to several calls:
///
/// ```
/// use comm::{AsViewMut, Comm, ReduceOp, Result};
///
/// fn sum_then_share(comm: &Comm, buffer: &mut (impl AsViewMut + ?Sized)) -> Result<()> {
///     comm.reduce(0, buffer, ReduceOp::Sum)?;
///     comm.broadcast(0, buffer)
/// }
///
/// comm::threads::run(3, |comm| {
///     let mut buffer = vec![comm.rank(); 4];
///     sum_then_share(&comm, &mut buffer).unwrap();
///     assert_eq!(buffer, [3; 4]);
/// })?;
/// # Ok::<_, comm::Error>(())
/// ```
///
/// ```compile_fail,E0277
/// fn reduce(comm: &comm_core::Comm, words: &mut Vec<String>) -> comm_core::Result<()> {
///     comm.all_reduce(words, comm_core::ReduceOp::Sum)
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that a call can write in memory `{M}`",
    label = "not a buffer in memory `{M}`",
    note = "buffers of the host are `T`, `[T]`, `[T; N]`, `Vec<T>`, `Box<[T]>`, `Box<[T; N]>` and `comm::Buffer<T>`, \
            where `T` is an element (`f32`, `u8`, ...), `HostViewMut`, and ndarray's arrays with the feature `ndarray`",
    note = "buffers of a CUDA device are `DeviceBuffer<T>` and `DeviceSliceMut<T>`"
)]
pub trait AsViewMut<M: Memory = Host> {
    /// The type of the elements, which must be the same for all buffers of a call. [`Erased`] if it
    /// is known only at run time.
    type Element;

    /// Returns the buffer as the backend sees it.
    ///
    /// # Errors
    /// [`Invalid::NotContiguous`](crate::Invalid::NotContiguous) if the elements are not contiguous
    /// in memory.
    fn as_view_mut(&mut self) -> Result<M::ViewMut<'_>>;
}

/// The element type of buffers whose type is known only at run time; it is checked when the call is
/// made.
#[derive(Debug, Clone, Copy)]
pub enum Erased {}

impl AsView for HostView<'_> {
    type Element = Erased;

    #[inline]
    fn as_view(&self) -> Result<HostView<'_>> {
        Ok(*self)
    }
}

impl AsView for HostViewMut<'_> {
    type Element = Erased;

    #[inline]
    fn as_view(&self) -> Result<HostView<'_>> {
        Ok(self.as_view())
    }
}

impl AsViewMut for HostViewMut<'_> {
    type Element = Erased;

    #[inline]
    fn as_view_mut(&mut self) -> Result<HostViewMut<'_>> {
        Ok(self.reborrow())
    }
}

/// Implements the traits for types that hold a slice. The expression is a slice of the elements of
/// `buffer`.
macro_rules! host_buffers {
    ($( [$($param:tt)*] $buffer:ty ),+ $(,)?) => {
        $(
            impl<T: Element, $($param)*> AsView for $buffer {
                type Element = T;

                #[inline]
                fn as_view(&self) -> Result<HostView<'_>> {
                    Ok(HostView::new(&self[..]))
                }
            }

            impl<T: Element, $($param)*> AsViewMut for $buffer {
                type Element = T;

                #[inline]
                fn as_view_mut(&mut self) -> Result<HostViewMut<'_>> {
                    Ok(HostViewMut::new(&mut self[..]))
                }
            }
        )+
    };
}

host_buffers!(
    [] [T],
    [const N: usize] [T; N],
    [] Vec<T>,
    [] Box<[T]>,
    [const N: usize] Box<[T; N]>,
    [] Buffer<T>,
);

/// Implements the traits for single elements.
macro_rules! element_buffers {
    ($($element:ty),+ $(,)?) => {
        $(
            impl $crate::AsView for $element {
                type Element = Self;

                #[inline]
                fn as_view(&self) -> $crate::Result<$crate::HostView<'_>> {
                    Ok($crate::HostView::new(std::slice::from_ref(self)))
                }
            }

            impl $crate::AsViewMut for $element {
                type Element = Self;

                #[inline]
                fn as_view_mut(&mut self) -> $crate::Result<$crate::HostViewMut<'_>> {
                    Ok($crate::HostViewMut::new(std::slice::from_mut(self)))
                }
            }
        )+
    };
}

pub(crate) use element_buffers;

impl<M: Memory, B: AsView<M> + ?Sized> AsView<M> for &B {
    type Element = B::Element;

    #[inline]
    fn as_view(&self) -> Result<M::View<'_>> {
        (**self).as_view()
    }
}

impl<M: Memory, B: AsView<M> + ?Sized> AsView<M> for &mut B {
    type Element = B::Element;

    #[inline]
    fn as_view(&self) -> Result<M::View<'_>> {
        (**self).as_view()
    }
}

impl<M: Memory, B: AsViewMut<M> + ?Sized> AsViewMut<M> for &mut B {
    type Element = B::Element;

    #[inline]
    fn as_view_mut(&mut self) -> Result<M::ViewMut<'_>> {
        (**self).as_view_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn len(buffer: &mut (impl AsViewMut + AsView + ?Sized)) -> usize {
        assert_eq!(AsView::as_view(buffer).unwrap().len(), buffer.as_view_mut().unwrap().len());
        buffer.as_view_mut().unwrap().len()
    }

    #[test]
    fn everything_that_holds_a_slice_is_a_buffer() {
        let mut vec = vec![1.0_f32; 3];
        let mut boxed: Box<[u8]> = vec![0; 4].into();
        assert_eq!(len(&mut vec), 3);
        assert_eq!(len(&mut vec[1..]), 2);
        assert_eq!(len(&mut [0_i64; 5]), 5);
        assert_eq!(len(&mut boxed), 4);
        assert_eq!(len(&mut Box::new([0_u16; 6])), 6);
        let mut slice = &mut vec[..];
        assert_eq!(len(&mut slice), 3);
        assert_eq!(len(slice), 3);
        assert_eq!(len(&mut HostViewMut::new(slice)), 3);
    }

    #[test]
    fn a_single_element_is_a_buffer_of_one() {
        let mut loss = 1.5_f64;
        assert_eq!(len(&mut loss), 1);
        let view = loss.as_view_mut().unwrap();
        assert_eq!(view.dtype(), crate::DType::F64);
        view.into_bytes().copy_from_slice(&2.5_f64.to_ne_bytes());
        assert_eq!(loss.to_bits(), 2.5_f64.to_bits());
    }

    #[test]
    fn a_mutable_slice_can_be_passed_twice() {
        fn twice(buffer: &mut [f64]) -> usize {
            len(buffer) + len(buffer)
        }
        assert_eq!(twice(&mut [0.0; 3]), 6);
    }
}
