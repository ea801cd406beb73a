//! Detection of forks.
//!
//! A child created by `fork` has the sockets, the shared memory and the handles of its parent, but
//! none of its threads. The kernel zeroes a page in the child (`MADV_WIPEONFORK`), so that a check
//! is a single load. Unlike a handler of `pthread_atfork`, this also detects children of `clone`
//! and `_Fork`, and runs no code in unrelated forks.

use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::getpid;

use crate::{Invalid, Result};

/// The process that created a value, for values that must not be used in a forked child.
///
/// A check costs one load, or a system call on kernels older than 4.14.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    generation: u64,
    id: u32,
}

impl Process {
    /// Returns this process.
    #[must_use]
    pub fn current() -> Self {
        match identity() {
            Some(identity) => {
                let generation = identity.generation();
                Self { generation, id: identity.id.load(Ordering::Relaxed) }
            }
            None => Self { generation: own_id().into(), id: own_id() },
        }
    }

    /// Returns whether the code runs in this process, and not in one of its descendants.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        generation() == self.generation
    }

    /// Returns an error in a process that was forked from this one.
    ///
    /// # Errors
    /// [`Invalid::Forked`].
    #[inline]
    pub fn check(self) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(self) -> crate::Error {
        Invalid::Forked { owner: self.id, process: own_id() }.into()
    }
}

/// The highest generation so far. Unlike the page, it is copied to children, so that no child has
/// the generation of an ancestor.
static LATEST: AtomicU64 = AtomicU64::new(0);

/// Returns the generation of this process, which no ancestor has.
#[inline]
fn generation() -> u64 {
    identity().map_or_else(|| own_id().into(), Identity::generation)
}

/// The identity of this process. The kernel zeroes it in every new child.
#[derive(Debug)]
struct Identity {
    generation: AtomicU64,
    /// Written before the generation.
    id: AtomicU32,
}

impl Identity {
    #[inline]
    fn generation(&self) -> u64 {
        match self.generation.load(Ordering::Acquire) {
            0 => self.renew(),
            generation => generation,
        }
    }

    /// Assigns a generation to a process that has just been forked. If several threads do so
    /// concurrently, the first one wins.
    #[cold]
    fn renew(&self) -> u64 {
        self.id.store(own_id(), Ordering::Relaxed);
        let next = LATEST.fetch_add(1, Ordering::Relaxed) + 1;
        let assigned = self.generation.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
        assigned.err().unwrap_or(next)
    }
}

/// Returns the identity of this process, if the kernel can zero it in children.
#[inline]
fn identity() -> Option<&'static Identity> {
    static IDENTITY: OnceLock<Option<&'static Identity>> = OnceLock::new();
    *IDENTITY.get_or_init(map)
}

/// Maps memory that is zeroed in every new child, if the kernel supports that.
fn map() -> Option<&'static Identity> {
    let len = rustix::param::page_size();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory.
    let page = unsafe { mmap_anonymous(null_mut(), len, protection, flags) }.ok()?;
    // SAFETY: the advice affects only this mapping, and changes nothing in this process.
    if unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: no other code has the address.
        let _ = unsafe { munmap(page, len) };
        return None;
    }
    // SAFETY: the mapping is aligned, zeroed, written only by atomic operations and by the kernel
    // before a child runs, and is never unmapped.
    Some(unsafe { &*page.cast::<Identity>() })
}

fn own_id() -> u32 {
    getpid().as_raw_nonzero().get().unsigned_abs()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_thread_of_a_process_is_in_the_same_process() {
        let here = Process::current();
        let there = std::thread::spawn(move || (Process::current(), here.is_current())).join().unwrap();
        assert_eq!(there, (here, true));
        assert!(here.check().is_ok());
        assert_eq!(here.id, std::process::id());
    }

    #[test]
    fn another_process_is_refused_with_both_numbers() {
        let other = Process { generation: generation() + 1, id: 12 };
        let text = other.check().unwrap_err().to_string();
        assert!(text.contains("process 12") && text.contains(&std::process::id().to_string()), "{text}");
    }
}
