//! Reads the memory of another process where it lies.
//!
//! The kernel copies straight from one process to the other, if this one might trace the other as a debugger does. Nothing is
//! mapped, and no right is given to anybody: where the system does not let processes of one user read each other
//! (`ptrace_scope`, namespaces, seccomp), bytes go through the ring. Which process it is, the kernel says of the other end of a socket. As
//! its number may be that of another process later, each read takes along a random number that lies in the memory of the right one.
#![expect(unsafe_code, reason = "rustix cannot read the memory of another process")]

use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::mm::{Advice, madvise};

use crate::credentials;

/// With how many bytes it is measured whether reading memory of others pays, and how often: once may have been disturbed.
const TRIAL_BYTES: usize = 64 << 10;
const TRIALS: usize = 8;
/// How much longer than an ordinary copy the kernel's takes at most: a ring takes two, of lines that lie in another processor's
/// caches.
const SLOWER_MAX: u32 = 4;

/// A number, and where it lies in the memory of the process that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) address: u64,
    pub(crate) number: u64,
}

impl Proof {
    /// That of this process, as long as the number lives and is not moved.
    pub(crate) fn of(number: &u64) -> Self {
        Self { address: address(number), number: *number }
    }
}

/// Whether the kernel can read this memory of this process for another one. Some it cannot, such as that of devices. Kernels older
/// than 5.14 do not tell.
pub(crate) fn is_readable(bytes: &[u8]) -> bool {
    let page = rustix::param::page_size();
    // It is all of one kind, as it was allocated at once.
    let start = bytes.as_ptr().map_addr(|address| address / page * page).cast_mut().cast();
    // SAFETY: advice on a page that is mapped, of a kind that changes no byte of it.
    !bytes.is_empty() && unsafe { madvise(start, page, Advice::LinuxPopulateRead) }.is_ok()
}

/// A process whose memory can be read.
#[derive(Debug)]
pub(crate) struct Remote {
    process: i32,
    proof: Proof,
}

impl Remote {
    /// This process, as long as the number lives.
    fn this(number: &u64) -> Self {
        Self { process: std::process::id().cast_signed(), proof: Proof::of(number) }
    }

    /// The process at the other end of a socket, if it is the one that is meant.
    ///
    /// # Errors
    /// If its memory cannot be read.
    pub(crate) fn find(socket: impl AsFd, proof: Proof) -> io::Result<Self> {
        let remote = Self { process: credentials::process(socket)?, proof };
        remote.read(proof.address, &mut [0; size_of::<u64>()])?;
        Ok(remote)
    }

    /// Copies from an address of the other process.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the process has ended; what the system says, if not all of it can be read. What was copied
    /// is nothing then.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        let mut number = [0; size_of::<u64>()];
        let local = [here(into), here(&mut number)];
        let remote = [there(address, into.len()), there(self.proof.address, number.len())];
        // SAFETY: the kernel writes no more to `into` and `number` than they have, where any bytes are valid, and reads from the
        // other process only what is mapped there.
        let copied =
            unsafe { libc::process_vm_readv(self.process, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
        let Ok(copied) = usize::try_from(copied) else {
            let error = io::Error::last_os_error();
            let is_gone = error.raw_os_error() == Some(libc::ESRCH);
            return Err(if is_gone { io::ErrorKind::NotFound.into() } else { error });
        };
        if copied < into.len() + number.len() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "not all of it is there"));
        }
        let is_it = u64::from_ne_bytes(number) == self.proof.number;
        if is_it { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }
}

fn address<T>(of: &T) -> u64 {
    (&raw const *of).addr() as u64
}

const fn here(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

fn there(address: u64, len: usize) -> libc::iovec {
    let address = usize::try_from(address).unwrap_or(usize::MAX);
    libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: len }
}

/// Whether the kernel copies so quickly that one copy of its is better than the two through a ring. Measured once, in this process.
pub(crate) fn pays() -> bool {
    static PAYS: OnceLock<bool> = OnceLock::new();
    let found = || measure().inspect_err(|error| tracing::debug!(%error, "memory of others cannot be read"));
    *PAYS.get_or_init(|| found().unwrap_or(false))
}

fn measure() -> io::Result<bool> {
    let number = 0;
    let this = Remote::this(&number);
    let (from, mut into) = (vec![1_u8; TRIAL_BYTES], vec![0_u8; TRIAL_BYTES]);
    let (mut by_kernel, mut plain) = (Duration::MAX, Duration::MAX);
    for _ in 0..TRIALS {
        let began = Instant::now();
        this.read(address(&from[0]), &mut into)?;
        by_kernel = by_kernel.min(began.elapsed());
        let began = Instant::now();
        black_box(&mut into).copy_from_slice(black_box(&from));
        plain = plain.min(began.elapsed());
    }
    tracing::debug!(?by_kernel, ?plain, bytes = TRIAL_BYTES, "copies of memory");
    Ok(by_kernel <= plain * SLOWER_MAX)
}

/// Memory that the kernel reads for nobody; `None` where there is none.
#[cfg(test)]
pub(crate) fn secret() -> Option<&'static [u8]> {
    use std::os::fd::{FromRawFd, OwnedFd};

    use rustix::mm::{MapFlags, ProtFlags};

    // SAFETY: the call takes no address.
    let file = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) };
    let file = i32::try_from(file).ok().filter(|file| *file >= 0)?;
    // SAFETY: it was opened just now, and nobody else knows of it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let page = rustix::param::page_size();
    rustix::fs::ftruncate(&file, page as u64).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping at an address that the kernel chooses takes the place of nothing.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), page, access, MapFlags::SHARED, file, 0) };
    // SAFETY: a page is mapped there for good, and nobody else has its address.
    Some(unsafe { std::slice::from_raw_parts(start.unwrap().cast(), page) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn this_process(number: &u64) -> Remote {
        let (near, _far) = UnixStream::pair().unwrap();
        Remote { process: credentials::process(near).unwrap(), proof: Proof::of(number) }
    }

    #[test]
    fn every_byte_of_what_is_there_is_read() {
        let number = 5;
        let remote = this_process(&number);
        let bytes: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
        for (start, len) in [(0, 100_000), (1, 1), (4095, 4097), (99_999, 1), (7, 0)] {
            let mut read = vec![0; len];
            remote.read(address(&bytes[start]), &mut read).unwrap();
            assert_eq!(read, bytes[start..start + len]);
        }
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let number = 5;
        for address in [0, 8, u64::MAX - 100, u64::MAX] {
            let error = this_process(&number).read(address, &mut [0; 100]).unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::NotFound, "{address}: {error}");
        }
        // A page of this process with none behind it.
        let page = rustix::param::page_size();
        let access = rustix::mm::ProtFlags::READ;
        let flags = rustix::mm::MapFlags::PRIVATE;
        // SAFETY: a mapping at an address that the kernel chooses takes the place of nothing.
        let pages =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * page, access, flags) }.unwrap();
        // SAFETY: the second page was mapped just now, and nobody else knows of it.
        unsafe { rustix::mm::munmap(pages.wrapping_byte_add(page), page) }.unwrap();
        let end = (pages.addr() + page) as u64;
        this_process(&number).read(end - 10, &mut [0; 10]).unwrap();
        assert!(this_process(&number).read(end - 10, &mut [0; 11]).is_err());
    }

    #[test]
    fn memory_that_the_kernel_cannot_read_is_found_out() {
        assert!(is_readable(&[1, 2, 3]) && !is_readable(&[]));
        assert!(secret().is_none_or(|secret| !is_readable(secret)));
    }

    #[test]
    fn a_process_that_has_ended_is_told_and_so_is_another_one_in_its_place() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = child.id().cast_signed();
        child.wait().unwrap();
        let number = 5;
        let proof = Proof::of(&number);
        let bytes = [1_u8; 8];
        let read = |remote: Remote| remote.read(address(&bytes), &mut [0; 8]).map_err(|error| error.kind());
        assert_eq!(read(Remote { process, proof }), Err(io::ErrorKind::NotFound));
        assert_eq!(read(this_process(&number)), Ok(()));
        let other = Remote { proof: Proof { number: 6, ..proof }, ..this_process(&number) };
        assert_eq!(read(other), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn only_who_finds_the_number_has_found_the_process() {
        let (near, _far) = UnixStream::pair().unwrap();
        let number = 77;
        let proof = Proof::of(&number);
        let kind = |proof| Remote::find(&near, proof).map_err(|error| error.kind()).err();
        assert_eq!(kind(Proof { number: 78, ..proof }), Some(io::ErrorKind::NotFound));
        assert!(kind(Proof { address: 0, ..proof }).is_some());
        assert_eq!(kind(proof), None);
    }
}
