//! The functions of `malloc(3)`.
//!
//! A block that is freed or resized is recognized by its address, which costs two loads.
#![expect(unsafe_code, reason = "exports C functions that handle memory by address")]

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use comm_shm::{Heap, preload};

use crate::glibc::{
    __libc_calloc, __libc_free, __libc_malloc, __libc_memalign, __libc_realloc, ALIGN, usable_size,
};

/// The alignment of `valloc`.
const PAGE: usize = 4096;

/// Restores `errno` when it is dropped: `free` must not change it.
struct SavedErrno(c_int);

impl SavedErrno {
    fn new() -> Self {
        // SAFETY: the address is that of a variable of this thread.
        Self(unsafe { *errno() })
    }
}

impl Drop for SavedErrno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

fn errno() -> *mut c_int {
    // SAFETY: this function has no requirements.
    unsafe { libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: the address is that of a variable of this thread.
    unsafe { *errno() = value };
}

#[cold]
fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    null_mut()
}

/// Whether a block comes from glibc. The functions for all others are separate, so that those that
/// are called need no stack.
#[inline]
const fn is_small(size: usize) -> bool {
    size < Heap::LARGE_BYTES_MIN
}

/// Allocates a block in a segment, if it is large and there is a segment for it.
fn large(size: usize, align: usize) -> Option<preload::PreloadBlock> {
    if is_small(size) {
        return None;
    }
    let _errno = SavedErrno::new();
    preload::allocate(Layout::from_size_align(size, align).ok()?)
}

#[cold]
fn malloc_large(size: usize) -> *mut c_void {
    match large(size, ALIGN) {
        Some(block) => block.start.cast(),
        // SAFETY: any size is valid.
        None => unsafe { __libc_malloc(size) },
    }
}

#[cold]
fn calloc_large(size: usize) -> *mut c_void {
    let Some(block) = large(size, ALIGN) else {
        // SAFETY: any size is valid.
        return unsafe { __libc_calloc(1, size) };
    };
    // SAFETY: the block has this many bytes.
    unsafe { block.start.write_bytes(0, block.dirty) };
    block.start.cast()
}

#[cold]
fn free_large(block: usize) {
    let _errno = SavedErrno::new();
    preload::free(block);
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: any size is valid.
    if is_small(size) { unsafe { __libc_malloc(size) } } else { malloc_large(size) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: any size is valid.
        Some(bytes) if is_small(bytes) => unsafe { __libc_calloc(1, bytes) },
        Some(bytes) => calloc_large(bytes),
        None => no_memory(),
    }
}

/// # Safety
/// `start` is null or a block that was allocated by one of these functions, and is given up.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(start: *mut c_void) {
    if preload::contains(start.addr()) {
        free_large(start.addr());
    } else {
        // SAFETY: the block was allocated by glibc.
        unsafe { __libc_free(start) };
    }
}

/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
unsafe extern "C" fn free_sized(start: *mut c_void, _size: usize) {
    // SAFETY: the caller promises it.
    unsafe { free(start) };
}

/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
unsafe extern "C" fn free_aligned_sized(start: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: the caller promises it.
    unsafe { free(start) };
}

/// # Safety
/// As [`free`], if it does not fail.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(start: *mut c_void, size: usize) -> *mut c_void {
    if start.is_null() {
        return malloc(size);
    }
    if is_small(size) && !preload::contains(start.addr()) {
        // SAFETY: the block was allocated by glibc, and the caller gives it up.
        return unsafe { __libc_realloc(start, size) };
    }
    // SAFETY: the caller promises it.
    unsafe { realloc_large(start, size) }
}

/// Resizes a block that is large before or after.
///
/// # Safety
/// As [`realloc`].
#[cold]
unsafe fn realloc_large(start: *mut c_void, size: usize) -> *mut c_void {
    let is_large = preload::contains(start.addr());
    if is_large && size == 0 {
        // SAFETY: the caller gives up the block.
        unsafe { free(start) };
        return null_mut();
    }
    if is_large && !is_small(size) && preload::resize(start.addr(), size) {
        return start;
    }
    // SAFETY: the caller promises it.
    unsafe { move_block(start, is_large, size) }
}

/// Moves a block into a new one of another size.
///
/// # Safety
/// As [`realloc`].
unsafe fn move_block(start: *mut c_void, is_large: bool, size: usize) -> *mut c_void {
    // SAFETY: a block that is not in a segment was allocated by glibc.
    let old = if is_large { preload::len_of(start.addr()) } else { unsafe { usable_size(start) } };
    let new = match large(size, ALIGN) {
        Some(block) => block.start.cast(),
        // SAFETY: the block was allocated by glibc, and the caller gives it up.
        None if !is_large => return unsafe { __libc_realloc(start, size) },
        // SAFETY: any size is valid.
        None => unsafe { __libc_malloc(size) },
    };
    if !new.is_null() {
        // SAFETY: both blocks have this many bytes, and they are disjoint.
        unsafe { start.copy_to_nonoverlapping(new, old.min(size)) };
        // SAFETY: the caller gives up the block.
        unsafe { free(start) };
    }
    new
}

/// # Safety
/// As [`realloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(start: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller promises it.
        Some(bytes) => unsafe { realloc(start, bytes) },
        None => no_memory(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two().and_then(|align| large(size, align.max(ALIGN))) {
        Some(block) => block.start.cast(),
        // SAFETY: any size and alignment is valid.
        None => unsafe { __libc_memalign(align, size) },
    }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// # Safety
/// `block` is valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(block: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    let errno = SavedErrno::new();
    let start = memalign(align, size);
    drop(errno);
    if start.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller promises it.
    unsafe { block.write(start) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(PAGE, size)
}

#[unsafe(no_mangle)]
extern "C" fn pvalloc(size: usize) -> *mut c_void {
    size.checked_next_multiple_of(PAGE).map_or_else(no_memory, |size| valloc(size))
}

/// # Safety
/// `start` is null or a block that was allocated by one of these functions.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(start: *mut c_void) -> usize {
    if preload::contains(start.addr()) {
        return preload::len_of(start.addr());
    }
    // SAFETY: the block was allocated by glibc.
    unsafe { usable_size(start) }
}
