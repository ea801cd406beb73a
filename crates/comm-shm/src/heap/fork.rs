//! Forks of a process with a heap.
//!
//! Segments are shared with peers, and so would be shared with a forked child: what one of the two
//! writes, the other and its peers would read. Therefore, before a fork, each segment with blocks
//! is replaced, at the same address, by a private copy of its file that the kernel makes page by
//! page as it is written ([`Region::make_private`](crate::region::Region::make_private)). Then
//! `fork` treats the blocks as any other memory. No process writes to the file any more.
//!
//! Bytes that are being sent to peers stay right. A collective may run in another thread, whose
//! peers read its buffers in the file. It sends a piece in three steps: it writes the last bytes,
//! it looks for a segment that contains the piece, and it publishes a descriptor. The search and
//! the replacement of the mapping hold the same lock.
//!
//! - If the search comes first, all bytes of the piece were written before the replacement, and so
//!   they are in the file. This thread writes to them again only after the peer has read them. So
//!   the peer reads the right bytes, even if the descriptor is published, or read, after the fork.
//! - If the replacement comes first, no segment is found, and the piece is copied.
//!
//! The file stays open, and its header says that it is in use, until the last block is freed: so
//! the descriptor can be published, and the peer does not unmap the segment before it is. Blocks
//! that are received into are written through the mapping, whatever it is.
//!
//! Segments without blocks are not replaced. The child, which must not write to them, unmaps them.
//!
//! The handlers are registered when the program or the library is loaded. A fork runs only those
//! that were registered when it began: if the first segment were created during a fork of another
//! thread, and the handlers with it, the child would share the segment, and perhaps a lock that
//! nobody in it holds.
#![expect(unsafe_code, reason = "handlers of forks are C functions")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use super::large::{self, AllLocks};

/// The thread that is forking, or 0.
static FORKING: AtomicI32 = AtomicI32::new(0);
/// The locks that it holds.
static HELD: HeldLocks = HeldLocks(UnsafeCell::new(None));

struct HeldLocks(UnsafeCell<Option<AllLocks>>);

// SAFETY: only the thread that holds the locks accesses it, which also is the one that releases
// them: the other handlers run in the thread that ran `before_fork`, or in its copy in the child.
unsafe impl Sync for HeldLocks {}

/// Whether this thread is between the first and the last handler of a fork.
pub(super) fn is_in_handlers() -> bool {
    FORKING.load(Ordering::Relaxed) == thread_id()
}

fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether the handlers are registered: [`NO`], [`SOON`] or [`YES`].
static REGISTERED: AtomicU8 = AtomicU8::new(NO);
const NO: u8 = 0;
/// By another thread. A child that is forked meanwhile keeps this value.
const SOON: u8 = 1;
const YES: u8 = 2;

/// The loader calls this function before `main`, or before `dlopen` returns.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn at_start() {
    register();
}

/// Registers the handlers if they are not, as in constructors of libraries that run before
/// [`AT_START`]. Returns whether they are.
///
/// The thread must hold no lock of the heap, because the C library lets the registration wait for
/// the end of a fork.
pub(super) fn register() -> bool {
    match REGISTERED.compare_exchange(NO, SOON, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: the handlers are functions, which are unregistered before they are unloaded.
            let status = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
            REGISTERED.store(if status == 0 { YES } else { NO }, Ordering::Release);
            status == 0
        }
        Err(state) => state == YES,
    }
}

extern "C" fn before_fork() {
    let Some(mut held) = large::lock_all() else { return };
    FORKING.store(thread_id(), Ordering::Relaxed);
    held.1.iter_mut().for_each(|segments| segments.make_private());
    // SAFETY: this thread holds the locks.
    unsafe { *HELD.0.get() = Some(held) };
}

extern "C" fn after_fork() {
    FORKING.store(0, Ordering::Relaxed);
    // SAFETY: this thread holds the locks.
    drop(unsafe { (*HELD.0.get()).take() });
}

extern "C" fn in_child() {
    // SAFETY: this thread is the copy of the one that holds the locks, and the only one.
    if let Some((_, segments)) = unsafe { (*HELD.0.get()).as_mut() } {
        segments.iter_mut().for_each(|segments| segments.inherit());
    }
    after_fork();
}
