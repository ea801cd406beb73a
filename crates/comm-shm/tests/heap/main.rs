//! Programs whose global allocator is the heap that peers read in place.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod block;
mod blocks;
mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod fork;
mod messages;
mod process;

use comm_shm::Heap;

#[global_allocator]
static HEAP: Heap = Heap::new();
