//! Typed addresses that a C caller passes.
//!
//! Only foreign callers create these values: they appear only in the signatures of exported
//! functions. The documentation of CUDA and NCCL requires an address to be NULL or valid for the
//! call. The C caller promises this, and the functions here rely on it.

use std::ffi::{CStr, c_char, c_void};

/// The address for a result.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

// SAFETY: a foreign caller passed the address for a result that may be written by any thread.
unsafe impl<T> Send for Out<T> {}

impl<T> Out<T> {
    /// Writes `value`, and returns true, unless the address is NULL.
    #[must_use]
    pub(crate) fn put(&self, value: T) -> bool {
        if self.0.is_null() {
            return false;
        }
        // SAFETY: a foreign caller passed this address for a result of this type.
        unsafe { self.0.write(value) };
        true
    }

    /// Writes the element at this index of an array, which the caller promises to be long enough.
    #[must_use]
    pub(crate) fn put_at(&self, index: usize, value: T) -> bool {
        if self.0.is_null() {
            return false;
        }
        // SAFETY: a foreign caller passed an array, and in another argument its length; `index` is
        // below the length.
        let at = unsafe { self.0.add(index) };
        // SAFETY: as above.
        unsafe { at.write(value) };
        true
    }

    /// Returns the address of the element at this index of an array, which the caller promises to
    /// be long enough.
    pub(crate) fn element(&self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// The address of the caller's values.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Returns a copy of the value at this index, or `None` if the address is NULL.
    pub(crate) fn get(&self, index: usize) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: a foreign caller passed the number of values in another argument, and `index` is
        // below it.
        let at = unsafe { self.0.add(index) };
        // SAFETY: as above; the read is unaligned because the caller does not promise alignment.
        Some(unsafe { at.read_unaligned() })
    }

    /// Returns the same address for values of another type.
    pub(crate) fn cast<U>(&self) -> In<U> {
        In(self.0.cast())
    }
}

/// A string that ends with a NUL.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// Wraps a string in a struct, which the caller promises to be readable.
    pub(crate) unsafe fn listed(address: *const c_char) -> Self {
        Self(address)
    }

    pub(crate) fn read(&self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: a foreign caller passed a string that ends with a NUL and is valid for the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        Some(text.to_string_lossy().into_owned())
    }
}

/// The address of a caller's host memory.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostMemory(*mut c_void);

// SAFETY: an address is a number; code that dereferences it states why that is sound.
unsafe impl Send for HostMemory {}

impl HostMemory {
    pub(crate) fn at(address: usize) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(address))
    }

    pub(crate) fn address(self) -> usize {
        self.0.expose_provenance()
    }

    pub(crate) fn as_ptr(self) -> *mut c_void {
        self.0
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns a copy of `length` bytes, which the caller promises to be readable.
    pub(crate) unsafe fn read(self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: the caller promises that the memory is readable, and `bytes` has this length.
        unsafe { std::ptr::copy_nonoverlapping(self.0.cast::<u8>(), bytes.as_mut_ptr(), length) };
        bytes
    }

    /// Writes `bytes` to memory that the caller promises to be writable.
    pub(crate) unsafe fn write(self, bytes: &[u8]) {
        // SAFETY: the caller promises that the memory may be written, and that no reference to it
        // exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast::<u8>(), bytes.len()) };
    }
}
