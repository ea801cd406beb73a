//! The kernel's state of a connection (`TCP_INFO`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The length of the part of `struct tcp_info` that is used.
const BYTES: usize = 192;
/// The offsets of its fields, which never change: `tcpi_retransmits`, `tcpi_probes`,
/// `tcpi_last_data_recv`, `tcpi_last_ack_recv`, `tcpi_rtt`, `tcpi_bytes_acked`, `tcpi_busy_time`
/// and `tcpi_rwnd_limited`. An older kernel leaves the last ones zero.
const RETRANSMITS: usize = 2;
const PROBES: usize = 3;
const LAST_DATA_RECV: usize = 52;
const LAST_ACK_RECV: usize = 56;
const RTT: usize = 68;
const BYTES_ACKED: usize = 120;
const BUSY_TIME: usize = 168;
const RWND_LIMITED: usize = 176;

/// The number of bytes that were sent on a connection and are not acknowledged, and of those that
/// wait to be sent; zero if it is not known.
#[expect(unsafe_code, reason = "rustix and socket2 lack this request")]
pub(crate) fn queued(socket: impl AsFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one `int`, to which the pointer leads.
    let failed = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if failed == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

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

    /// The number of bytes that the peer has acknowledged.
    pub(crate) fn bytes_acked(&self) -> u64 {
        self.u64(BYTES_ACKED)
    }

    /// The time for which bytes were on their way to the peer.
    pub(crate) fn busy(&self) -> Duration {
        Duration::from_micros(self.u64(BUSY_TIME))
    }

    /// The part of that time in which the peer had no space for more bytes.
    pub(crate) fn window_limited(&self) -> Duration {
        Duration::from_micros(self.u64(RWND_LIMITED))
    }

    /// The smoothed time of a round trip.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.u32(RTT).into())
    }

    fn millis(&self, at: usize) -> Duration {
        Duration::from_millis(self.u32(at).into())
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..].first_chunk().copied().unwrap_or_default())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0[at..].first_chunk().copied().unwrap_or_default())
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

    #[test]
    fn bytes_are_queued_until_the_peer_has_acknowledged_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        // The peer does not read.
        while near.write(&[1; 65536]).is_ok() {}
        assert!(queued(&near) > 65536);
        let info = TcpInfo::of(&near).unwrap();
        assert!(info.bytes_acked() > 0 && info.busy() >= info.window_limited(), "{info:?}");
        assert_eq!(queued(&listener), 0);
    }
}
