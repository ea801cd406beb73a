//! Received bytes that are still in the transport's memory.

use std::marker::PhantomData;

use crate::{copy_raw, copy_raw_non_temporal};

/// A view of received bytes in the transport's memory, which can be copied or reduced from there.
///
/// A `RecvBuf` cannot be viewed as a slice: the memory may be shared with another process, which
/// can write to it at any time. Its address may be unaligned. Reads that race with such a writer
/// return arbitrary values, but are never undefined behaviour: afterwards, the transport's
/// `consume` reports whether the values are valid.
#[derive(Debug, Clone, Copy)]
pub struct RecvBuf<'a> {
    start: *const u8,
    len: usize,
    owner: PhantomData<&'a [u8]>,
}

impl<'a> RecvBuf<'a> {
    /// Creates a buffer from bytes of this process, which do not change.
    #[must_use]
    #[inline]
    pub const fn from_slice(bytes: &'a [u8]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len(), owner: PhantomData }
    }

    /// Creates a buffer from memory that may be shared with another process.
    ///
    /// # Safety
    /// `len` bytes from `start` must stay mapped and readable for `'a`. During that time, no
    /// reference in this process may be used to write to them.
    #[must_use]
    #[inline]
    pub const unsafe fn from_raw(start: *const u8, len: usize) -> Self {
        Self { start, len, owner: PhantomData }
    }

    /// Returns the number of bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer is empty, which means that no byte has arrived.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address, for kernels that read it unaligned.
    #[must_use]
    #[inline]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// Returns the first `len` bytes, or all if there are fewer.
    #[must_use]
    #[inline]
    pub fn first(self, len: usize) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// Returns the bytes after the first `len`, or none if there are fewer.
    #[must_use]
    #[inline]
    pub fn skip(self, len: usize) -> Self {
        let len = self.len.min(len);
        Self { start: self.start.wrapping_add(len), len: self.len - len, ..self }
    }

    /// Returns the first `N` bytes, or `None` if there are fewer.
    #[inline]
    #[must_use]
    pub fn read<const N: usize>(&self) -> Option<[u8; N]> {
        if self.len < N {
            return None;
        }
        // SAFETY: `start` is readable for `N` bytes for the life of `self`, every bit pattern is a
        // valid array of bytes, and an array of bytes needs no alignment.
        Some(unsafe { self.start.cast::<[u8; N]>().read() })
    }

    /// Copies as many bytes as fit, and returns their number.
    #[inline]
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let len = self.len.min(into.len());
        // SAFETY: `start` is readable for `len` bytes for the life of `self`, `into` is writable
        // for them, and the two cannot overlap because `into` is borrowed mutably while `start` is
        // only read.
        unsafe { copy_raw(self.start, into.as_mut_ptr(), len) };
        len
    }

    /// Copies as many bytes as fit with stores that bypass the caches, and returns their number.
    pub fn copy_to_non_temporal(&self, into: &mut [u8]) -> usize {
        let len = self.len.min(into.len());
        // SAFETY: as in `copy_to`.
        unsafe { copy_raw_non_temporal(self.start, into.as_mut_ptr(), len) };
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_to_copies_as_many_bytes_as_fit() {
        let buffer = RecvBuf::from_slice(b"abcdef");
        let mut into = [0; 4];
        assert_eq!(buffer.copy_to(&mut into), 4);
        assert_eq!(&into, b"abcd");
        into = [0; 4];
        assert_eq!((buffer.copy_to_non_temporal(&mut into), &into), (4, b"abcd"));
        assert_eq!(buffer.first(2).copy_to(&mut into), 2);
        assert_eq!(buffer.first(9).len(), 6);
        assert!(buffer.first(0).is_empty());
        assert_eq!(buffer.read(), Some(*b"abc"));
        assert_eq!(buffer.skip(3).read(), Some(*b"def"));
        assert_eq!(buffer.skip(3).read::<4>(), None);
        assert_eq!(buffer.skip(2).copy_to(&mut into), 4);
        assert_eq!(&into, b"cdef");
        assert_eq!(buffer.skip(5).copy_to(&mut into), 1);
        assert_eq!(&into, b"fdef");
        assert!(buffer.skip(9).is_empty());
    }
}
