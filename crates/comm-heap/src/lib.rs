//! `libcomm_heap.so`: [`comm_shm::Heap`] for programs that are not written in Rust.
//!
//! With `LD_PRELOAD=libcomm_heap.so`, the functions of `malloc(3)` are those of this library. It
//! allocates large blocks in segments that other ranks read in place, and passes all other calls to
//! the C library. The transport for shared memory finds the segments by
//! `comm_heap_find_v1`. The C library must be glibc.
//!
//! | question | file |
//! |---|---|
//! | which functions are replaced | `malloc.rs` |
//! | where is the rest | `glibc.rs` |
//! | how does the transport find a segment | `find.rs` |
#![deny(unsafe_code)]

mod find;
mod glibc;
mod malloc;

/// The allocator of this library itself, which must not call the functions that it replaces.
#[global_allocator]
static GLIBC: glibc::Glibc = glibc::Glibc;
