//! Buffers in memory that a communicator allocated.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::allocation::no_memory;
use crate::{Allocate, Allocation, Element, Result};

/// A slice of elements in memory that a communicator allocated: see
/// [`Comm::alloc`](crate::Comm::alloc).
///
/// It dereferences to a slice, can be passed to calls like a vector, and has a fixed length.
pub struct Buffer<T> {
    allocation: Allocation,
    elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Creates a buffer of `len` zeros, in memory from `source`.
    ///
    /// # Errors
    /// Same as [`Allocate::allocate`].
    pub fn zeroed(source: &(impl Allocate + ?Sized), len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| no_memory(usize::MAX))?;
        Ok(Self { allocation: source.allocate(bytes)?, elements: PhantomData })
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.allocation.bytes())
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.allocation.bytes_mut())
    }
}

impl<T: Element> AsRef<[T]> for Buffer<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: Element> AsMut<[T]> for Buffer<T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffer").field(&self.allocation).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AsView, AsViewMut, Shape};

    struct SliceAllocator;

    impl Allocate for SliceAllocator {}

    #[test]
    fn a_buffer_is_accepted_wherever_a_slice_is() {
        for len in [0, 1, 1000] {
            let mut buffer: Buffer<f64> = Buffer::zeroed(&SliceAllocator, len).unwrap();
            assert!(buffer.iter().all(|element| element.to_bits() == 0) && buffer.len() == len);
            buffer.fill(2.5);
            assert_eq!(buffer[..], vec![2.5; len]);
            assert_eq!(buffer.as_view().unwrap().len(), len);
            assert_eq!(buffer.as_view_mut().unwrap().len(), len);
        }
        assert!(Buffer::<f64>::zeroed(&SliceAllocator, usize::MAX / 4).is_err());
    }
}
