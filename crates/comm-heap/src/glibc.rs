//! The allocator of glibc, by the names that no other library replaces.
#![expect(unsafe_code, reason = "calls C functions")]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    pub(crate) fn __libc_malloc(size: usize) -> *mut c_void;
    pub(crate) fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    pub(crate) fn __libc_realloc(start: *mut c_void, size: usize) -> *mut c_void;
    pub(crate) fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
    pub(crate) fn __libc_free(start: *mut c_void);
}

/// The alignment of every block of glibc.
pub(crate) const ALIGN: usize = 2 * size_of::<usize>();

/// Returns the usable size of a block of glibc.
///
/// # Safety
/// glibc has allocated the block.
pub(crate) unsafe fn usable_size(start: *mut c_void) -> usize {
    static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut function = FUNCTION.load(Ordering::Relaxed);
    if function.is_null() {
        // SAFETY: the name ends with a zero.
        function = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) };
        if function.is_null() {
            return 0;
        }
        FUNCTION.store(function, Ordering::Relaxed);
    }
    // SAFETY: this is the type of the function.
    let function: unsafe extern "C" fn(*mut c_void) -> usize = unsafe { std::mem::transmute(function) };
    // SAFETY: the caller promises it.
    unsafe { function(start) }
}

/// glibc as the allocator of a Rust library.
pub(crate) struct Glibc;

// SAFETY: glibc fulfils the requirements.
unsafe impl GlobalAlloc for Glibc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = if layout.align() <= ALIGN {
            // SAFETY: any size is valid.
            unsafe { __libc_malloc(layout.size()) }
        } else {
            // SAFETY: as above.
            unsafe { __libc_memalign(layout.align(), layout.size()) }
        };
        start.cast()
    }

    unsafe fn dealloc(&self, start: *mut u8, _layout: Layout) {
        // SAFETY: the caller gives up a block that was allocated above.
        unsafe { __libc_free(start.cast()) };
    }
}
