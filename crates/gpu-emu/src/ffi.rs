//! Addresses that a C caller passes, as types.
//!
//! Only a foreign caller creates these values: they appear only in the signatures of exported
//! functions. The requirements of CUDA's and NCCL's documentation on an address, to be NULL or to
//! be valid for the call, are promised by the C caller, and the functions here rely on them.

use std::ffi::{CStr, c_char, c_void};

/// The address for a result.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes `value`, and returns true, unless the address is NULL.
    #[must_use]
    pub(crate) fn put(&self, value: T) -> bool {
        if self.0.is_null() {
            return false;
        }
        // SAFETY: a foreign caller passed this address for an answer of this type.
        unsafe { self.0.write(value) };
        true
    }

    /// Writes the value with this index of an array that is long enough, as the caller promises.
    #[must_use]
    pub(crate) fn put_at(&self, index: usize, value: T) -> bool {
        if self.0.is_null() {
            return false;
        }
        // SAFETY: a foreign caller passed an array, and its length in another argument, which
        // `index` is below.
        let at = unsafe { self.0.add(index) };
        // SAFETY: as above.
        unsafe { at.write(value) };
        true
    }

    /// Returns the address with this index of an array that is long enough, as the caller promises.
    pub(crate) fn element(&self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// The address of values of the caller.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Returns a copy of the value with this index, or none if the address is NULL.
    pub(crate) fn get(&self, index: usize) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: a foreign caller says in another argument how many values lie here, and `index`
        // is below that.
        let at = unsafe { self.0.add(index) };
        // SAFETY: as above; the value may be unaligned, because C promises no more.
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
    /// Wraps a string of a struct that the caller promises to be readable.
    pub(crate) unsafe fn listed(address: *const c_char) -> Self {
        Self(address)
    }

    pub(crate) fn read(&self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: a foreign caller passed a string that ends with a NUL, and keeps it for the
        // length of the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        Some(text.to_string_lossy().into_owned())
    }
}

/// The address of host memory of a caller.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostMemory(*mut c_void);

// SAFETY: an address is a number; code that accesses it states why it is valid then.
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
        // SAFETY: the caller promises that the memory may be read, and `bytes` was made for it.
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
