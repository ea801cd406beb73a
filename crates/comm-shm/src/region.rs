//! Regions: memory of one rank that the others on the host read in place.
//!
//! A region is an anonymous file with a header page and the bytes of one buffer. It is sealed so
//! that its size is fixed and no page can be removed, and unless peers may write results into it,
//! no other process can map it for writing. So the buffer is ordinary memory to its owner, while a
//! reader sees bytes that may change at any time.
#![expect(unsafe_code, reason = "memory that another process can write has no other interface")]

use std::any::Any;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU8;

use comm_core::{Allocation, RecvBuf, copy_raw};
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::segment::create_file;
use crate::sync::{AtomicU32, Ordering};

/// No process may change the size, remove a page, or change the seals.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// The seal on which a peer depends.
const SEAL_NEEDED: SealFlags = SealFlags::SHRINK;

/// The use that peers may make of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerAccess {
    /// Read it. No other process can map it for writing.
    Read,
    /// Also write into the part of it that is a window.
    Write,
}

/// A file that is mapped as a whole, which begins with a header page.
#[derive(Debug)]
struct FileMapping {
    start: NonNull<c_void>,
    /// The length with the header page.
    len: usize,
    /// Whether its addresses stay reserved when it is unmapped.
    is_reserved: bool,
}

// SAFETY: a mapping belongs to the process, not to the thread that made it.
unsafe impl Send for FileMapping {}
// SAFETY: a shared reference gives access to an atomic integer, and to other bytes only by address.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    fn new(file: impl AsFd, len: usize, access: ProtFlags, flags: MapFlags) -> io::Result<Self> {
        // SAFETY: a mapping at an address that the kernel chooses replaces no other.
        let start = unsafe { rustix::mm::mmap(null_mut(), len, access, MapFlags::SHARED | flags, file, 0) }?;
        Ok(Self { start: NonNull::new(start).ok_or(Errno::NOMEM)?, len, is_reserved: false })
    }

    /// Maps the file in place of reserved addresses.
    ///
    /// # Safety
    /// `len` bytes from `start` are reserved, and no other code uses them until this is dropped.
    unsafe fn replace(file: impl AsFd, start: NonNull<c_void>, len: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the caller promises that no other code uses the addresses.
        unsafe { rustix::mm::mmap(start.as_ptr(), len, access, flags, file, 0) }?;
        Ok(Self { start, len, is_reserved: true })
    }

    /// Maps all pages, which are huge if possible. If the kernel cannot do so, pages are small and
    /// are mapped one by one.
    fn populate(&self) {
        for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateWrite] {
            // SAFETY: the range is a mapping of our own, and this advice changes none of its bytes.
            let _ = unsafe { rustix::mm::madvise(self.start.as_ptr(), self.len, advice) };
        }
    }

    /// The flag that is nonzero once the owner has dropped the buffer.
    fn retired(&self) -> &AtomicU32 {
        let word = self.start.as_ptr().cast_const().cast::<AtomicU32>();
        // SAFETY: it is at the start of a page that is mapped as long as `self` lives. Any bytes
        // are valid for it, and others may write to it. A reader, whose mapping is read-only, only
        // loads it.
        unsafe { &*word }
    }

    /// The number of bytes after the header page.
    fn len(&self) -> usize {
        self.len - rustix::param::page_size()
    }

    /// The first byte after the header page.
    fn bytes(&self) -> NonNull<u8> {
        let address = self.start.as_ptr().wrapping_byte_add(rustix::param::page_size()).cast();
        // It is within the mapping, and so never null.
        NonNull::new(address).unwrap_or(self.start.cast())
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        if self.is_reserved {
            // SAFETY: the range was mapped for `self`, and what borrows from it is gone. If this
            // fails, the next mapping at these addresses replaces this one.
            let _ = unsafe { reserve(self.start.as_ptr(), self.len, MapFlags::FIXED) };
            return;
        }
        // SAFETY: as above.
        if let Err(errno) = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) } {
            tracing::warn!(%errno, "cannot unmap a buffer");
        }
    }
}

/// Reserves addresses, without memory, in place of everything that was there.
///
/// # Safety
/// With [`MapFlags::FIXED`], no other code uses the addresses.
pub(crate) unsafe fn reserve(
    start: *mut c_void,
    len: usize,
    flags: MapFlags,
) -> rustix::io::Result<*mut c_void> {
    let flags = flags | MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the caller promises it for fixed addresses; others replace no mapping.
    unsafe { rustix::mm::mmap_anonymous(start, len, ProtFlags::empty(), flags) }
}

/// Returns an error for a file that is longer than this process may make one: trying it would end
/// the process with a signal.
fn check_file_size(len: usize) -> io::Result<()> {
    let is_too_long = getrlimit(Resource::Fsize).current.is_some_and(|max| max < len as u64);
    if is_too_long { Err(Errno::FBIG.into()) } else { Ok(()) }
}

/// Returns an error for more memory than the system can commit. Allocating a file does not check
/// that, and would end in the OOM killer.
fn check_commit(len: usize) -> io::Result<()> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping at an address that the kernel chooses replaces no other.
    let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE) }?;
    // SAFETY: it was just mapped, and no other code has its address.
    unsafe { rustix::mm::munmap(start, len) }?;
    Ok(())
}

/// Creates a file of allocated memory.
fn allocate_file(len: usize) -> io::Result<OwnedFd> {
    check_file_size(len)?;
    check_commit(len)?;
    let file = create_file()?;
    rustix::fs::ftruncate(&file, len as u64)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64)?;
    Ok(file)
}

/// A region of this rank.
#[derive(Debug)]
pub(crate) struct Region {
    /// The id under which peers know it.
    id: u64,
    access: PeerAccess,
    /// Nonzero once a part of it is no longer in the file.
    is_detached: AtomicU32,
    mapped: FileMapping,
    file: OwnedFd,
}

impl Region {
    /// Creates a region of `bytes` zeros. All memory is allocated up front, so that a later
    /// shortage kills no process.
    ///
    /// # Errors
    /// If there is too little memory, or the kernel is older than 5.1 and has no seal against
    /// writing.
    pub(crate) fn create(id: u64, bytes: usize, peers: PeerAccess) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len = bytes.checked_next_multiple_of(page).and_then(|len| len.checked_add(page));
        let len = len.filter(|len| isize::try_from(*len).is_ok()).ok_or_else(too_much)?;
        let file = allocate_file(len)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Self::seal(id, peers, FileMapping::new(&file, len, access, MapFlags::empty())?, file)
    }

    /// Creates a region in place of reserved addresses, which peers can only read.
    ///
    /// # Errors
    /// As [`Region::create`].
    ///
    /// # Safety
    /// `len` bytes from `start`, in whole pages, are reserved, and no other code uses them until
    /// the region is dropped. After that they are reserved again.
    pub(crate) unsafe fn create_at(id: u64, start: NonNull<c_void>, len: usize) -> io::Result<Self> {
        let file = allocate_file(len)?;
        // SAFETY: the caller promises it.
        let mapped = unsafe { FileMapping::replace(&file, start, len) }?;
        Self::seal(id, PeerAccess::Read, mapped, file)
    }

    fn seal(id: u64, access: PeerAccess, mapped: FileMapping, file: OwnedFd) -> io::Result<Self> {
        mapped.populate();
        let unwritable = match access {
            PeerAccess::Read => SealFlags::FUTURE_WRITE,
            PeerAccess::Write => SealFlags::empty(),
        };
        rustix::fs::fcntl_add_seals(&file, SEALS | unwritable)?;
        Ok(Self { id, access, is_detached: AtomicU32::new(0), mapped, file })
    }

    /// Replaces all bytes by a private copy of the file, which the kernel makes as they are
    /// written. From now on this process does not change the file. The header page stays shared.
    ///
    /// # Errors
    /// If there is no memory for it; then nothing has changed.
    pub(crate) fn make_private(&self) -> io::Result<()> {
        self.make_pages_private(0..self.len())
    }

    /// Replaces whole pages by a copy, so that a peer that is still writing to them does not change
    /// the memory that this process has there. From now on peers cannot use the region any more.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn detach(&self, pages: Range<usize>) -> io::Result<()> {
        self.is_detached.store(1, Ordering::Relaxed);
        self.make_pages_private(pages.clone())?;
        // Until a private page is written, it is that of the file.
        let start = self.mapped.bytes().as_ptr().wrapping_add(pages.start);
        // SAFETY: the pages are mapped by this region, and populating them changes no bytes.
        let populated = unsafe { rustix::mm::madvise(start.cast(), pages.len(), Advice::LinuxPopulateWrite) };
        match populated {
            // The kernel is older than 5.14.
            Err(Errno::INVAL) => self.touch(pages),
            populated => populated?,
        }
        Ok(())
    }

    /// Writes to pages without changing them.
    fn touch(&self, pages: Range<usize>) {
        for at in pages.step_by(rustix::param::page_size()) {
            let byte = self.mapped.bytes().as_ptr().wrapping_add(at).cast::<AtomicU8>();
            // SAFETY: it is on a page of this region, and any byte is valid for it.
            let byte = unsafe { &*byte };
            let value = byte.load(Ordering::Relaxed);
            // Compilers turn a `fetch_or` of zero into a load. If the exchange fails, another
            // thread has written to the page.
            let _ = byte.compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether peers can use none of it any more.
    pub(crate) fn is_detached(&self) -> bool {
        self.is_detached.load(Ordering::Relaxed) != 0
    }

    /// Whether peers may write into a part of it that is a window.
    pub(crate) fn is_writable(&self) -> bool {
        self.access == PeerAccess::Write && !self.is_detached()
    }

    fn make_pages_private(&self, pages: Range<usize>) -> io::Result<()> {
        let (offset, len) = ((rustix::param::page_size() + pages.start) as u64, pages.len());
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // Mapped elsewhere first, because the kernel removes the old mapping before it finds out
        // that a new one at its place is impossible.
        // SAFETY: a mapping at an address that the kernel chooses replaces no other.
        let copy = unsafe { rustix::mm::mmap(null_mut(), len, access, flags, &self.file, offset) }?;
        let bytes = self.mapped.bytes().as_ptr().wrapping_add(pages.start).cast();
        // SAFETY: the range that is replaced has the same bytes before and after this, and threads
        // that access it meanwhile wait for the kernel. No other code has the address of the copy.
        let moved = unsafe { rustix::mm::mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, bytes) };
        if moved.is_err() {
            // SAFETY: no other code has its address.
            let _ = unsafe { rustix::mm::munmap(copy, len) };
        }
        Ok(moved.map(drop)?)
    }

    /// Leaves the bytes out of forked children, where an access to them ends the process.
    pub(crate) fn exclude_from_children(&self) -> io::Result<()> {
        let bytes = self.mapped.bytes().as_ptr().cast();
        // SAFETY: this changes nothing in this process.
        Ok(unsafe { rustix::mm::madvise(bytes, self.len(), Advice::LinuxDontFork) }?)
    }

    /// The id under which peers know it.
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// The file that is sent to peers.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> usize {
        self.mapped.bytes().addr().get()
    }

    /// The number of bytes, in whole pages.
    pub(crate) fn len(&self) -> usize {
        self.mapped.len()
    }

    /// Returns bytes at an offset, if it contains them.
    pub(crate) fn fill_buf(&self, offset: usize, len: usize) -> Option<RecvBuf<'_>> {
        offset.checked_add(len).filter(|end| *end <= self.len())?;
        let address = self.mapped.bytes().as_ptr().wrapping_add(offset);
        // SAFETY: that many bytes are mapped as long as `self` lives. The caller does not use them
        // while it has a reference to them.
        Some(unsafe { RecvBuf::from_raw(address, len) })
    }

    /// Marks it as dropped by its owner, so that peers unmap it.
    pub(crate) fn retire(&self) {
        self.mapped.retired().store(1, Ordering::Release);
    }

    /// Returns an allocation of the first `len` bytes. `owner` keeps the region alive. It must be
    /// called at most once.
    pub(crate) fn allocation(&self, len: usize, owner: Box<dyn Any + Send + Sync>) -> Allocation {
        let len = len.min(self.len());
        // SAFETY: the mapping has that many bytes on whole pages and lives as long as the region,
        // which `owner` holds. Other processes cannot write to it, or write only to a window, of
        // which a call holds the only reference. In this process only the allocation has their
        // address.
        unsafe { Allocation::from_raw(self.mapped.bytes(), len, owner) }
    }
}

/// A region of another rank.
#[derive(Debug)]
pub(crate) struct PeerRegion {
    mapped: FileMapping,
    is_writable: bool,
}

impl PeerRegion {
    /// Maps a region of another rank.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] unless the file is a sealed region whose pages are all
    /// allocated.
    pub(crate) fn open(file: &OwnedFd) -> io::Result<Self> {
        let refuse = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        let is_writable = match rustix::fs::fcntl_get_seals(file) {
            Ok(seals) if seals.contains(SEAL_NEEDED) => !seals.contains(SealFlags::FUTURE_WRITE),
            _ => return refuse("it exports a buffer that is not sealed"),
        };
        let status = rustix::fs::fstat(file)?;
        let (page, len) = (rustix::param::page_size(), usize::try_from(status.st_size).unwrap_or(0));
        if len <= page || !len.is_multiple_of(page) || isize::try_from(len).is_err() {
            return refuse("it exports a buffer of an invalid size");
        }
        // A process that reads a page which cannot be allocated is killed. The seals keep allocated
        // pages in place.
        if u64::try_from(status.st_blocks).unwrap_or(0).saturating_mul(512) < len as u64 {
            return refuse("it exports a buffer that is not allocated");
        }
        let access = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        Ok(Self { mapped: FileMapping::new(file, len, access, MapFlags::POPULATE)?, is_writable })
    }

    /// Whether its owner has dropped it.
    pub(crate) fn is_retired(&self) -> bool {
        // Only relaxed loads are sound in memory that is mapped for reading, and nothing is ordered
        // after this one.
        self.mapped.retired().load(Ordering::Relaxed) != 0
    }

    /// Whether the range lies within the region.
    pub(crate) fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.mapped.len() as u64)
    }

    /// Returns the bytes of a range, or none if it does not lie within the region.
    pub(crate) fn fill_buf(&self, offset: u64, len: usize) -> RecvBuf<'_> {
        if !self.contains(offset, len as u64) {
            return RecvBuf::from_slice(&[]);
        }
        let address = self.mapped.bytes().as_ptr().wrapping_add(offset as usize);
        // SAFETY: that many bytes are mapped as long as `self` lives, and nothing makes a reference
        // to them.
        unsafe { RecvBuf::from_raw(address, len) }
    }

    /// Writes bytes at an offset. Returns whether the region contains that range, and may be
    /// written.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        if !self.is_writable || !self.contains(offset, bytes.len() as u64) {
            return false;
        }
        let address = self.mapped.bytes().as_ptr().wrapping_add(offset as usize);
        // SAFETY: that many bytes are mapped as long as `self` lives, for writing. Nothing in this
        // process makes a reference to them, so they do not overlap `bytes`.
        unsafe { copy_raw(bytes.as_ptr(), address, bytes.len()) };
        true
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
