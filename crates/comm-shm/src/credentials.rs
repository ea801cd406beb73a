//! Asks the kernel for the process and user at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the user that connected the other end or listens on it, which cannot be forged.
pub(crate) fn user(socket: impl AsFd) -> io::Result<u32> {
    Ok(peer(socket)?.uid)
}

/// Returns the pid of the process that connected the other end or listens on it, or zero if it has
/// none in this PID namespace.
pub(crate) fn process(socket: impl AsFd) -> io::Result<i32> {
    Ok(peer(socket)?.pid)
}

#[expect(unsafe_code, reason = "rustix has no type for a peer in another PID namespace")]
fn peer(socket: impl AsFd) -> io::Result<libc::ucred> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (socket, into) = (socket.as_fd().as_raw_fd(), (&raw mut found).cast());
    // SAFETY: the kernel writes at most `len` bytes to `found`, which has that many and for which
    // any bytes are valid.
    let failed = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut len) };
    if failed == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

/// Returns the user of this process.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_an_own_socket_are_this_user() {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(user(&near).unwrap(), own_user());
        assert_eq!(user(&far).unwrap(), own_user());
        assert!(user(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
