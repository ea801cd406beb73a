#![allow(unsafe_code, reason = "a fork, and descriptors by number")]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, WaitOptions, waitpid};

use super::*;
use crate::region::PeerRegion;

/// A fork in one test would make the blocks of another one private.
static SERIAL: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forks, and waits for the child, which runs `body`.
fn in_child(body: impl FnOnce()) {
    // SAFETY: the child uses no lock that another thread may hold, except those of the heap and of
    // the allocator of glibc, which their handlers release.
    match unsafe { libc::fork() } {
        0 => {
            body();
            // SAFETY: exits immediately, without handlers.
            unsafe { libc::_exit(0) }
        }
        child => {
            let (_, status) = waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().unwrap();
            assert_eq!(status.exit_status(), Some(0));
        }
    }
}

fn location(block: usize, len: usize) -> Option<segments::HeapLocation> {
    large::find(block..block + len)
}

fn map_as_peer(location: segments::HeapLocation) -> PeerRegion {
    // SAFETY: the block, which has not been freed, keeps the file open.
    let file = unsafe { BorrowedFd::borrow_raw(location.file) };
    let file: OwnedFd = file.try_clone_to_owned().unwrap();
    PeerRegion::open(&file).unwrap()
}

/// A descriptor may be published after a fork, so the peer must not unmap the segment before its
/// last block is freed, and not because a child frees its copy.
#[test]
fn a_segment_is_retired_when_its_last_block_is_freed_in_its_own_process() {
    let _alone = alone();
    let layout = Layout::from_size_align(300 << 20, 8).unwrap();
    let block = large::allocate(layout).unwrap().start;
    let found = location(block, layout.size()).unwrap();
    let peer = map_as_peer(found);
    in_child(|| large::free(block));
    assert!(location(block, layout.size()).is_none(), "it is private");
    assert!(!peer.is_retired());
    assert_eq!(peer.fill_buf(found.offset, layout.size()).len(), layout.size());
    large::free(block);
    assert!(peer.is_retired());
}

#[test]
fn a_segment_that_is_released_is_retired() {
    let _alone = alone();
    // It is larger than the segments that are kept.
    let layout = Layout::from_size_align(300 << 20, 8).unwrap();
    let block = large::allocate(layout).unwrap().start;
    let peer = map_as_peer(location(block, 1).unwrap());
    assert!(!peer.is_retired());
    large::free(block);
    assert!(peer.is_retired());
}

#[test]
fn ranges_that_are_not_wholly_in_a_segment_are_not_found() {
    let _alone = alone();
    let layout = Layout::from_size_align(1 << 20, 8).unwrap();
    let block = large::allocate(layout).unwrap().start;
    assert_eq!(location(block, layout.size()).map(|found| found.offset % 4096), Some(0));
    assert!(location(block, 1 << 40).is_none() && location(1 << 12, 1).is_none());
    large::free(block);
}
