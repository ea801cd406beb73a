//! Cross-memory attach (CMA): reads the memory of another process with `process_vm_readv(2)`.
//!
//! The kernel copies from one process to the other if this one is allowed to trace the other, as a
//! debugger would be. Nothing is mapped, and no permission is granted: if the system does not let
//! processes of one user read each other's memory (`ptrace_scope`, namespaces, seccomp), bytes go
//! through the ring. The kernel reports the pid of the process at the other end of a socket. That
//! pid may be reused later, so each read also reads a random number that only the right process has
//! at its address.
#![expect(unsafe_code, reason = "rustix cannot read the memory of another process")]

use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::mm::{Advice, madvise};

use crate::credentials;

/// The size and number of the copies that are timed. A single one may be disturbed.
const TRIAL_BYTES: usize = 64 << 10;
const TRIALS: usize = 8;
/// The longest acceptable time of a copy by the kernel, as a multiple of an ordinary copy. A ring
/// takes two of those, but its sender does not wait for the second one.
const SLOWER_MAX: u32 = 2;

/// A random number and its address, which identify a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) address: u64,
    pub(crate) number: u64,
}

impl Proof {
    /// Returns the proof of this process, valid until the number is moved or dropped.
    pub(crate) fn of(number: &u64) -> Self {
        Self { address: address(number), number: *number }
    }
}

/// Whether the kernel can read this memory for another process, which it cannot for some memory,
/// such as memory of devices. Returns false on kernels before 5.14, which do not report it.
pub(crate) fn is_readable(bytes: &[u8]) -> bool {
    let page = rustix::param::page_size();
    // One page is enough, because an allocation is of one kind.
    let start = bytes.as_ptr().map_addr(|address| address / page * page).cast_mut().cast();
    // SAFETY: the page is mapped, and this advice changes none of its bytes.
    !bytes.is_empty() && unsafe { madvise(start, page, Advice::LinuxPopulateRead) }.is_ok()
}

/// A process whose memory can be read.
#[derive(Debug)]
pub(crate) struct CmaPeer {
    process: i32,
    proof: Proof,
}

impl CmaPeer {
    /// Returns this process, valid while the number lives.
    fn this(number: &u64) -> Self {
        Self { process: std::process::id().cast_signed(), proof: Proof::of(number) }
    }

    /// Opens the process at the other end of a socket, if it has the number of the proof.
    ///
    /// # Errors
    /// The error of the read if the memory of the process cannot be read.
    pub(crate) fn open(socket: impl AsFd, proof: Proof) -> io::Result<Self> {
        let peer = Self { process: credentials::process(socket)?, proof };
        peer.read(proof.address, &mut [0; size_of::<u64>()])?;
        Ok(peer)
    }

    /// Copies bytes from an address in the other process.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the process has exited; the error of the system if not all
    /// bytes can be read. The contents of `into` are then unspecified.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        let mut number = [0; size_of::<u64>()];
        let local = [local_iovec(into), local_iovec(&mut number)];
        let remote = [remote_iovec(address, into.len()), remote_iovec(self.proof.address, number.len())];
        // SAFETY: the kernel writes at most the lengths of `into` and `number`, for which any bytes
        // are valid, and reads only what is mapped in the other process.
        let copied =
            unsafe { libc::process_vm_readv(self.process, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
        let Ok(copied) = usize::try_from(copied) else {
            let error = io::Error::last_os_error();
            let is_gone = error.raw_os_error() == Some(libc::ESRCH);
            return Err(if is_gone { io::ErrorKind::NotFound.into() } else { error });
        };
        if copied < into.len() + number.len() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "not all of the memory is mapped"));
        }
        let is_same_process = u64::from_ne_bytes(number) == self.proof.number;
        if is_same_process { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }
}

fn address<T>(of: &T) -> u64 {
    (&raw const *of).addr() as u64
}

const fn local_iovec(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

fn remote_iovec(address: u64, len: usize) -> libc::iovec {
    let address = usize::try_from(address).unwrap_or(usize::MAX);
    libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: len }
}

/// Whether one copy by the kernel is faster than two through a ring. This is measured once per
/// process.
pub(crate) fn is_fast() -> bool {
    static IS_FAST: OnceLock<bool> = OnceLock::new();
    let measured = || {
        measure().inspect_err(|error| tracing::debug!(%error, "cannot read the memory of other processes"))
    };
    *IS_FAST.get_or_init(|| measured().unwrap_or(false))
}

/// Copies as a ring does, and so without the slow instruction that an ordinary copy may meet (see
/// [`comm_core::copy`]). The kernel may meet it, too, but not between these two buffers.
fn measure() -> io::Result<bool> {
    let number = 0;
    let this = CmaPeer::this(&number);
    let mut memory = vec![1_u8; 2 * TRIAL_BYTES];
    let (from, into) = memory.split_at_mut(TRIAL_BYTES);
    let (mut by_kernel, mut plain) = (Duration::MAX, Duration::MAX);
    for _ in 0..TRIALS {
        let began = Instant::now();
        this.read(address(&from[0]), into)?;
        by_kernel = by_kernel.min(began.elapsed());
        let began = Instant::now();
        comm_core::copy(black_box(into), black_box(from));
        plain = plain.min(began.elapsed());
    }
    tracing::debug!(?by_kernel, ?plain, bytes = TRIAL_BYTES, "copies of memory");
    Ok(by_kernel <= plain * SLOWER_MAX)
}

/// Returns memory that the kernel does not read for other processes, or `None` if it has no such
/// memory.
#[cfg(test)]
pub(crate) fn secret() -> Option<&'static [u8]> {
    use std::os::fd::{FromRawFd, OwnedFd};

    use rustix::mm::{MapFlags, ProtFlags};

    // SAFETY: the call takes no address.
    let file = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) };
    let file = i32::try_from(file).ok().filter(|file| *file >= 0)?;
    // SAFETY: it was just opened, and nothing else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let page = rustix::param::page_size();
    rustix::fs::ftruncate(&file, page as u64).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping at an address that the kernel chooses replaces no other.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), page, access, MapFlags::SHARED, file, 0) };
    // SAFETY: a page is mapped there and never unmapped, and no other code has its address.
    Some(unsafe { std::slice::from_raw_parts(start.unwrap().cast(), page) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn this_process(number: &u64) -> CmaPeer {
        let (near, _far) = UnixStream::pair().unwrap();
        CmaPeer { process: credentials::process(near).unwrap(), proof: Proof::of(number) }
    }

    #[test]
    fn every_byte_of_mapped_memory_is_read() {
        let number = 5;
        let cma = this_process(&number);
        let bytes: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
        for (start, len) in [(0, 100_000), (1, 1), (4095, 4097), (99_999, 1), (7, 0)] {
            let mut read = vec![0; len];
            cma.read(address(&bytes[start]), &mut read).unwrap();
            assert_eq!(read, bytes[start..start + len]);
        }
    }

    #[test]
    fn reading_unmapped_memory_is_an_error() {
        let number = 5;
        for address in [0, 8, u64::MAX - 100, u64::MAX] {
            let error = this_process(&number).read(address, &mut [0; 100]).unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::NotFound, "{address}: {error}");
        }
        // A mapped page that is followed by an unmapped one.
        let page = rustix::param::page_size();
        let access = rustix::mm::ProtFlags::READ;
        let flags = rustix::mm::MapFlags::PRIVATE;
        // SAFETY: a mapping at an address that the kernel chooses replaces no other.
        let pages =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * page, access, flags) }.unwrap();
        // SAFETY: the second page was just mapped, and nothing else uses it.
        unsafe { rustix::mm::munmap(pages.wrapping_byte_add(page), page) }.unwrap();
        let end = (pages.addr() + page) as u64;
        this_process(&number).read(end - 10, &mut [0; 10]).unwrap();
        assert!(this_process(&number).read(end - 10, &mut [0; 11]).is_err());
    }

    #[test]
    fn memory_that_the_kernel_cannot_read_is_detected() {
        assert!(is_readable(&[1, 2, 3]) && !is_readable(&[]));
        assert!(secret().is_none_or(|secret| !is_readable(secret)));
    }

    #[test]
    fn a_process_that_has_exited_is_detected_and_so_is_another_one_with_its_pid() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = child.id().cast_signed();
        child.wait().unwrap();
        let number = 5;
        let proof = Proof::of(&number);
        let bytes = [1_u8; 8];
        let read = |cma: CmaPeer| cma.read(address(&bytes), &mut [0; 8]).map_err(|error| error.kind());
        assert_eq!(read(CmaPeer { process, proof }), Err(io::ErrorKind::NotFound));
        assert_eq!(read(this_process(&number)), Ok(()));
        let other = CmaPeer { proof: Proof { number: 6, ..proof }, ..this_process(&number) };
        assert_eq!(read(other), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn a_process_without_the_number_is_not_opened() {
        let (near, _far) = UnixStream::pair().unwrap();
        let number = 77;
        let proof = Proof::of(&number);
        let kind = |proof| CmaPeer::open(&near, proof).map_err(|error| error.kind()).err();
        assert_eq!(kind(Proof { number: 78, ..proof }), Some(io::ErrorKind::NotFound));
        assert!(kind(Proof { address: 0, ..proof }).is_some());
        assert_eq!(kind(proof), None);
    }
}
