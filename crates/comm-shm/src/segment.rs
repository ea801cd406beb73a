//! The memory that two ranks share: two rings, one per direction, and their positions.
//!
//! A segment is an anonymous file, sealed so that no process can shrink it. Each ring is mapped
//! twice in a row, so that bytes that wrap around the end of the ring are contiguous. The memory of
//! a ring is allocated when it is first used, because most ranks exchange more than a few bytes
//! with few others.
//!
//! The other side can write to all of it at any time, so no reference to its bytes is ever made:
//! they are copied in and out by address, or returned as a [`RecvBuf`].
#![expect(unsafe_code, reason = "memory that another process can write has no other interface")]

mod copy;
mod layout;

use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::LazyLock;

use comm_core::RecvBuf;
use comm_rendezvous::random_bytes;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::cma::Proof;
use crate::config::SharedMemoryConfig;
use crate::copy_path::{CopyPath, PathSelector};
use crate::fast_boxes::{BoxPlace, BoxedMessage, FastBoxes};
use crate::positions::Control;
use crate::prefetch::{self, Intent};
use copy::{copy_along, copy_short_along};
use layout::Layout;

/// No process may change the size of the file, or the seals.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The unit in which the kernel counts the blocks of a file, on all file systems.
const BLOCK_BYTES: u64 = 512;

/// The first bytes of a ring, which are allocated together. Then the allocated part is doubled.
const ALLOCATED_BYTES_MIN: usize = 16 * 1024;

/// Names one of the two rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the rank that created the segment to the one that opened it.
    Out = 0,
    /// From the rank that opened it to the one that created it.
    Back = 1,
}

impl Direction {
    /// Returns the other ring.
    #[inline]
    pub(crate) const fn opposite(self) -> Self {
        match self {
            Self::Out => Self::Back,
            Self::Back => Self::Out,
        }
    }
}

/// The use of a part of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Two rings, mapped into this process.
#[derive(Debug)]
pub(crate) struct Segment {
    start: NonNull<c_void>,
    capacity: usize,
    /// Computed once: every message needs it.
    layout: Layout,
    /// The number of bytes of each ring, mapped twice, that this process can use without page
    /// faults.
    present: [usize; 2],
    /// A random number, which a process finds at its address only if it reads the memory of this
    /// one.
    proof: Box<u64>,
}

// SAFETY: a mapping belongs to the process, not to the thread that made it.
unsafe impl Send for Segment {}

impl Segment {
    /// Creates a segment with two rings of this capacity, which is a power of two and at least a
    /// page. The file is for the other side. Only the positions are allocated yet.
    pub(crate) fn create(capacity: usize) -> io::Result<(Self, OwnedFd)> {
        let file = create_file()?;
        rustix::fs::ftruncate(&file, Layout::new(capacity).file_bytes())?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, allocated_bytes(capacity))?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let segment = Self::map(&file, capacity)?;
        segment.announce(Direction::Out);
        Ok((segment, file))
    }

    /// Whether a capacity that another process offers is valid for a ring.
    pub(crate) fn can_hold(capacity: u64) -> bool {
        let max = SharedMemoryConfig::RING_BYTES_MAX.max(rustix::param::page_size());
        let min = rustix::param::page_size();
        capacity.is_power_of_two() && (min as u64..=max as u64).contains(&capacity)
    }

    /// Maps the segment that another rank has created.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] unless the file is a sealed segment of this size whose
    /// positions are allocated.
    pub(crate) fn open(file: &OwnedFd, capacity: usize) -> io::Result<Self> {
        let refuse = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        if !Self::can_hold(capacity as u64) {
            return refuse("a peer offers rings of an invalid capacity");
        }
        if !rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
            return refuse("a peer offers memory that is not sealed");
        }
        let stat = rustix::fs::fstat(file)?;
        if u64::try_from(stat.st_size) != Ok(Layout::new(capacity).file_bytes()) {
            return refuse("a peer offers memory whose size does not match its rings");
        }
        // Mapping it would allocate the missing memory on behalf of this process.
        if u64::try_from(stat.st_blocks).unwrap_or(0) < allocated_bytes(capacity) / BLOCK_BYTES {
            return refuse("a peer offers memory that it has not allocated");
        }
        let segment = Self::map(file, capacity)?;
        segment.announce(Direction::Back);
        Ok(segment)
    }

    /// Announces the fence that this side makes before it sleeps, and the proof of its process.
    /// This side writes to the ring `outgoing`.
    fn announce(&self, outgoing: Direction) {
        self.control(outgoing).writer().announce_membarrier();
        self.control(outgoing.opposite()).reader().announce_membarrier();
        self.control(outgoing).prove(Proof::of(&self.proof));
    }

    fn map(file: &OwnedFd, capacity: usize) -> io::Result<Self> {
        let layout = Layout::new(capacity);
        // SAFETY: a mapping at an address that the kernel chooses replaces no other.
        let start = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(null_mut(), layout.mapped_bytes(), ProtFlags::empty(), flags)
        }?;
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        let proof = Box::new(u64::from_ne_bytes(random_bytes()?));
        let segment = Self { start, capacity, layout, present: [0; 2], proof };
        let rings = layout.rings_offset();
        segment.place(file, 0, rings, 0)?;
        for ring in 0..2 {
            for copy in 0..2 {
                let at = rings + (2 * ring + copy) * capacity;
                segment.place(file, at, capacity, rings + ring * capacity)?;
            }
        }
        Ok(segment)
    }

    /// Maps a part of the file at `at` bytes from the start of the mapping.
    fn place(&self, file: &OwnedFd, at: usize, len: usize, offset: usize) -> io::Result<()> {
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let address = self.start.as_ptr().wrapping_byte_add(at);
        // SAFETY: `at + len` is within the address range that `map` has reserved for this segment,
        // and that nothing else uses.
        unsafe { rustix::mm::mmap(address, len, access, flags, file.as_fd(), offset as u64) }?;
        Ok(())
    }

    /// Prepares bytes from a position of a ring, at most its capacity, to be read or written
    /// without page faults. The first writer of bytes allocates their memory: here, so that a
    /// shortage is an error and kills no process.
    ///
    /// The prepared part of a ring ends at a power of two. So a reader, which needs no byte before
    /// it was written, never allocates memory that a correct writer has not.
    #[inline]
    pub(crate) fn prepare(
        &mut self,
        direction: Direction,
        position: u64,
        len: usize,
        access: Access,
    ) -> io::Result<()> {
        let end = self.within(position) + len.min(self.capacity);
        if end <= self.present[direction as usize] { Ok(()) } else { self.populate(direction, end, access) }
    }

    #[cold]
    fn populate(&mut self, direction: Direction, end: usize, access: Access) -> io::Result<()> {
        let whole = 2 * self.capacity;
        let end = end.next_power_of_two().clamp(ALLOCATED_BYTES_MIN.min(whole), whole);
        let begin = self.present[direction as usize];
        let at = self.layout.ring_offset(direction) + begin;
        self.populate_range(at, end - begin, access)?;
        self.present[direction as usize] = end;
        Ok(())
    }

    /// Allocates the boxes of the direction into which this side writes.
    pub(crate) fn allocate_boxes(&self, direction: Direction) -> io::Result<()> {
        self.populate_range(self.layout.boxes_offset(direction), self.layout.boxes_bytes(), Access::Write)
    }

    fn populate_range(&self, at: usize, len: usize, access: Access) -> io::Result<()> {
        let advice = match access {
            Access::Read => Advice::LinuxPopulateRead,
            Access::Write => Advice::LinuxPopulateWrite,
        };
        if *CAN_POPULATE {
            let address = self.start.as_ptr().wrapping_byte_add(at);
            // SAFETY: the range is mapped for this segment; populating pages does not change bytes.
            unsafe { rustix::mm::madvise(address, len, advice) }?;
        }
        Ok(())
    }

    /// The capacity of each ring in bytes.
    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The positions and flags of a ring.
    #[inline]
    pub(crate) fn control(&self, direction: Direction) -> &Control {
        let at = direction as usize * Control::BYTES;
        let control = self.start.as_ptr().wrapping_byte_add(at).cast_const().cast::<Control>();
        // SAFETY: it lies on the first page of the mapping, which lives as long as `self`, at a
        // multiple of its alignment; it consists of atomic integers, for which any bytes are valid
        // and which others may write to.
        unsafe { &*control }
    }

    /// The fast boxes of a direction. Their memory exists once their writer has allocated it.
    #[inline]
    pub(crate) fn boxes(&self, direction: Direction) -> &FastBoxes {
        let boxes = self.start.as_ptr().wrapping_byte_add(self.layout.boxes_offset(direction)).cast_const();
        // SAFETY: they are mapped there, as long as `self` lives, at a multiple of their alignment,
        // and consist of atomic integers, like the positions.
        unsafe { &*boxes.cast::<FastBoxes>() }
    }

    /// The address of a position in a ring. At least the capacity of the ring is mapped from there.
    #[inline]
    fn address(&self, direction: Direction, position: u64) -> *mut u8 {
        self.ring(direction).wrapping_byte_add(self.within(position))
    }

    #[inline]
    fn ring(&self, direction: Direction) -> *mut u8 {
        self.start.as_ptr().wrapping_byte_add(self.layout.ring_offset(direction)).cast()
    }

    #[inline]
    const fn within(&self, position: u64) -> usize {
        (position as usize) & (self.capacity - 1)
    }

    /// Lets the processor fetch bytes of a ring, at most its capacity.
    #[inline]
    pub(crate) fn prefetch(&self, direction: Direction, position: u64, len: usize) {
        prefetch::lines(self.address(direction, position), len, Intent::Read);
    }

    /// Copies bytes to a position of a ring, at most its capacity.
    #[inline]
    pub(crate) fn copy_in(&self, path: CopyPath, direction: Direction, position: u64, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.capacity)];
        // SAFETY: the ring is mapped for these bytes. They do not overlap with it, because the
        // mapping belongs to `self`, which never makes a slice of it.
        unsafe { copy_along(path, bytes, self.address(direction, position)) };
    }

    /// Copies the pieces of a message into a box. What would exceed the box is cut off.
    #[inline]
    pub(crate) fn copy_into_box(
        &self,
        direction: Direction,
        place: BoxPlace,
        pieces: &[IoSlice<'_>],
        path: &mut PathSelector,
    ) {
        let (memory, capacity) = self.boxes(direction).memory(place);
        let mut offset = 0;
        for piece in pieces {
            let bytes = &piece[..piece.len().min(capacity - offset)];
            let into = memory.wrapping_byte_add(offset).cast_mut();
            // SAFETY: the box has room for these bytes, which do not overlap with it, as in
            // `copy_in`.
            path.copy(bytes, |path| unsafe { copy_short_along(path, bytes, into) });
            offset += bytes.len();
        }
    }

    /// Returns bytes of a message in a box from a position of the stream, at most to its end.
    #[inline]
    pub(crate) fn fill_box(
        &self,
        direction: Direction,
        message: &BoxedMessage,
        position: u64,
        len: usize,
    ) -> RecvBuf<'_> {
        let (memory, capacity) = self.boxes(direction).memory(message.place);
        let offset = usize::try_from(position - message.start).unwrap_or(usize::MAX).min(capacity);
        let bytes = memory.wrapping_byte_add(offset).cast_mut();
        // SAFETY: that many bytes are mapped as long as `self` lives, and are atomic integers.
        unsafe { RecvBuf::from_raw(bytes, len.min(capacity - offset)) }
    }

    /// Returns bytes from a position of a ring, at most its capacity.
    #[inline]
    pub(crate) fn fill_buf(&self, direction: Direction, position: u64, len: usize) -> RecvBuf<'_> {
        let len = len.min(self.capacity);
        // SAFETY: that many bytes are mapped as long as `self` lives, and nothing makes a reference
        // to them.
        unsafe { RecvBuf::from_raw(self.address(direction, position), len) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` for this segment, and what borrows from `self` is
        // gone.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.layout.mapped_bytes()) };
        if let Err(errno) = unmapped {
            tracing::warn!(%errno, "cannot unmap a segment");
        }
    }
}

/// Creates an anonymous file that can be sealed. Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`.
pub(crate) fn create_file() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create("comm-shm", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create("comm-shm", flags)?),
        created => Ok(created?),
    }
}

/// Whether the kernel can allocate memory of a mapping and report a shortage. Linux can since 5.14.
static CAN_POPULATE: LazyLock<bool> = LazyLock::new(|| {
    let page = rustix::param::page_size() as *mut c_void;
    // SAFETY: no memory is accessed. The kernel checks the advice before the length.
    unsafe { rustix::mm::madvise(page, 0, Advice::LinuxPopulateWrite) }.is_ok()
});

/// The bytes that are allocated when a segment is created: the page of the positions, or all if
/// the rings cannot be allocated later.
fn allocated_bytes(capacity: usize) -> u64 {
    if *CAN_POPULATE { rustix::param::page_size() as u64 } else { Layout::new(capacity).file_bytes() }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    /// Two mappings of one segment, as two ranks have them.
    fn pair(capacity: usize) -> (Segment, Segment) {
        let (near, file) = Segment::create(capacity).unwrap();
        let far = Segment::open(&file, capacity).unwrap();
        (near, far)
    }

    #[test]
    fn bytes_arrive_at_every_position_also_across_the_end_of_the_ring() {
        let (near, far) = pair(4096);
        let paths = [CopyPath::Cached, CopyPath::NonTemporal];
        let ends = [(Direction::Out, &near, &far), (Direction::Back, &far, &near)];
        let positions = [0, 1, 4095, 4096, 5000, (1 << 40) + 4090, u64::MAX - 3];
        let mut first = 0;
        for ((path, (direction, from, to)), position) in paths
            .into_iter()
            .flat_map(|path| ends.map(|ends| (path, ends)))
            .flat_map(|it| positions.map(|at| (it, at)))
        {
            for len in [0, 1, 7, 4095, 4096] {
                // Other bytes than the ones that are there.
                first += 1;
                let bytes: Vec<u8> = (0..len).map(|at| ((first + at) % 251) as u8).collect();
                from.copy_in(path, direction, position, &bytes);
                let mut copied = vec![0; len];
                assert_eq!(to.fill_buf(direction, position, len).copy_to(&mut copied), len);
                assert_eq!(copied, bytes);
            }
        }
    }

    #[test]
    fn rings_and_positions_do_not_overlap() {
        let (near, far) = pair(4096);
        near.copy_in(CopyPath::Cached, Direction::Out, 0, &[1; 4096]);
        near.copy_in(CopyPath::Cached, Direction::Back, 0, &[2; 4096]);
        near.control(Direction::Out).overwrite(Some(u64::MAX), Some(u64::MAX));
        near.control(Direction::Back).overwrite(Some(u64::MAX), Some(u64::MAX));
        for (direction, value) in [(Direction::Out, 1), (Direction::Back, 2)] {
            let mut copied = [0; 4096];
            far.fill_buf(direction, 0, copied.len()).copy_to(&mut copied);
            assert_eq!(copied, [value; 4096]);
            assert!(!far.control(direction).reader().is_set() && !far.control(direction).writer().is_set());
        }
    }

    #[test]
    fn more_than_a_ring_holds_is_cut_off() {
        let (near, far) = pair(4096);
        near.copy_in(CopyPath::Cached, Direction::Out, 1, &[7; 10_000]);
        let mut copied = [0; 10_000];
        far.fill_buf(Direction::Out, 0, copied.len()).copy_to(&mut copied);
        assert!(copied[..4096].iter().all(|&byte| byte == 7) && copied[4096..].iter().all(|&byte| byte == 0));
        assert_eq!(far.fill_buf(Direction::Out, 3, 10_000).len(), 4096);
    }

    #[test]
    fn no_process_can_shrink_a_segment() {
        let (_near, file) = Segment::create(4096).unwrap();
        for len in [0, 4096, 1 << 20] {
            assert_eq!(rustix::fs::ftruncate(&file, len), Err(Errno::PERM));
        }
        assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE), Err(Errno::PERM));
    }

    #[test]
    fn memory_that_was_not_allocated_is_refused() {
        let file = create_file().unwrap();
        rustix::fs::ftruncate(&file, Layout::new(1 << 30).file_bytes()).unwrap();
        rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
        assert_eq!(Segment::open(&file, 1 << 30).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0, "opening it allocates nothing");
    }

    #[test]
    fn memory_is_allocated_by_the_first_writer_and_never_by_a_reader() {
        const CAPACITY: usize = 1 << 20;
        let (mut near, file) = Segment::create(CAPACITY).unwrap();
        let mut far = Segment::open(&file, CAPACITY).unwrap();
        let page = rustix::param::page_size();
        let allocated = || rustix::fs::fstat(&file).unwrap().st_blocks as usize * BLOCK_BYTES as usize - page;
        assert_eq!(allocated(), 0);
        let mut position = 0;
        for (len, expected) in [(1, 1 << 14), (16_383, 1 << 14), (70_000, 1 << 17), (900_000, CAPACITY)] {
            near.prepare(Direction::Out, position, len, Access::Write).unwrap();
            assert_eq!(allocated(), expected);
            for part in 1..=8 {
                far.prepare(Direction::Out, position, len * part / 8, Access::Read).unwrap();
            }
            assert_eq!(allocated(), expected, "the reader needs no more");
            position += len as u64;
        }
        // The second mapping has the pages of the first.
        near.prepare(Direction::Out, CAPACITY as u64 - 1, CAPACITY, Access::Write).unwrap();
        far.prepare(Direction::Out, u64::MAX, usize::MAX, Access::Read).unwrap();
        assert_eq!(allocated(), CAPACITY);
        far.prepare(Direction::Back, 0, 1, Access::Write).unwrap();
        assert_eq!(allocated(), CAPACITY + (1 << 14), "the other ring is not in use yet");
    }

    #[test]
    fn anything_but_a_sealed_segment_of_the_size_is_refused() {
        let (_near, file) = Segment::create(8192).unwrap();
        for capacity in [0, 1, 4096, 5000, 12_288, 16_384, 1 << 31, 1 << 62, 1 << 63, usize::MAX] {
            assert_eq!(Segment::open(&file, capacity).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        assert!(Segment::open(&file, 8192).is_ok());
        let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, Layout::new(4096).file_bytes()).unwrap();
        assert_eq!(Segment::open(&unsealed, 4096).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let device = std::fs::File::open("/dev/null").unwrap().into();
        assert!(Segment::open(&device, 4096).is_err());
    }
}
