//! The kernel's state of a connection (`TCP_INFO`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The length of the part of `struct tcp_info` that is used.
const BYTES: usize = 60;
/// The offsets of its fields, which never change: `tcpi_retransmits`, `tcpi_probes`,
/// `tcpi_last_data_recv` and `tcpi_last_ack_recv`.
const RETRANSMITS: usize = 2;
const PROBES: usize = 3;
const LAST_DATA_RECV: usize = 52;
const LAST_ACK_RECV: usize = 56;

/// The kernel's state of a connection.
#[derive(Debug)]
pub(crate) struct TcpInfo([u8; BYTES]);

impl TcpInfo {
    #[expect(unsafe_code, reason = "rustix and socket2 lack this option")]
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut info = [0; BYTES];
        let mut len = BYTES as libc::socklen_t;
        let (socket, into) = (socket.as_fd().as_raw_fd(), (&raw mut info).cast());
        // SAFETY: the kernel writes at most `len` bytes to `info`, which has that many and for
        // which any bytes are valid.
        let failed =
            unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut len) };
        if failed == 0 { Ok(Self(info)) } else { Err(io::Error::last_os_error()) }
    }

    /// Whether bytes were sent again because they were not acknowledged, or a second probe of a
    /// closed window because the first one was not. (The first one may only just have been sent.)
    pub(crate) const fn has_retransmitted(&self) -> bool {
        self.0[RETRANSMITS] > 0 || self.0[PROBES] > 1
    }

    /// The time since anything was received from the host.
    pub(crate) fn since_answer(&self) -> Duration {
        self.millis(LAST_DATA_RECV).min(self.millis(LAST_ACK_RECV))
    }

    fn millis(&self, at: usize) -> Duration {
        let field = self.0[at..].first_chunk().copied().unwrap_or_default();
        Duration::from_millis(u32::from_ne_bytes(field).into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    #[test]
    fn the_time_since_the_last_answer_is_known() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        thread::sleep(Duration::from_millis(300));
        let silent = TcpInfo::of(&near).unwrap();
        assert!(silent.since_answer() >= Duration::from_millis(250), "{:?}", silent.since_answer());
        // Another thread may use the processor between two lines.
        let is_fresh = (0..100).any(|_| {
            far.write_all(&[1]).unwrap();
            near.read_exact(&mut [0]).unwrap();
            let answered = TcpInfo::of(&near).unwrap();
            !answered.has_retransmitted() && answered.since_answer() < Duration::from_millis(100)
        });
        assert!(is_fresh);
        assert!(TcpInfo::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
