//! Unix sockets that carry packets and file descriptors.
//!
//! They are bound to abstract names, not to files: a name is free again once its listener is
//! closed, however its process exits. A name has no permissions, so it is random, and each side
//! asks the kernel for the user of the other.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, recvmsg,
    sendmsg, socket_with,
};

/// The maximum number of connections that wait to be accepted: the default limit of the kernel.
const BACKLOG: i32 = 4096;
/// The packet that wakes a peer.
const NOTIFICATION: u8 = 1;
/// The maximum number of attempts to notify a peer while the system is out of memory.
const ATTEMPTS_MAX: usize = 1000;

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn address(name: u128) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("comm-shm-{name:032x}").as_bytes())?)
}

/// Listens under a name.
pub(crate) fn listen(name: u128) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    bind(&socket, &address(name)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to the listener of a name.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`] if there is none, [`io::ErrorKind::WouldBlock`] if its
/// backlog is full.
pub(crate) fn connect(name: u128) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::connect(&socket, &address(name)?)?;
    Ok(socket)
}

/// Accepts a connection if there is one.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sends a packet, with or without a file descriptor.
pub(crate) fn send(socket: impl AsFd, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut buffer = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut buffer);
    if !fd.as_slice().is_empty() && !control.push(SendAncillaryMessage::ScmRights(fd.as_slice())) {
        return Err(Errno::NOBUFS.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(packet)], &mut control, flags))?;
    if sent == packet.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// A received packet.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Its full length, even if it was truncated. Zero if the other side has closed the connection.
    pub(crate) len: usize,
    /// The file descriptor that came with it.
    pub(crate) fd: Option<OwnedFd>,
}

/// Receives a packet, if there is one. It keeps at most one of the file descriptors.
pub(crate) fn recv(socket: impl AsFd, into: &mut [u8]) -> io::Result<Option<Packet>> {
    let mut buffer = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut buffer);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
    let mut pieces = [IoSliceMut::new(into)];
    let received = loop {
        match recvmsg(&socket, &mut pieces, &mut control, flags) {
            Ok(received) => break received,
            Err(Errno::AGAIN) => return Ok(None),
            // A side that closes before it has read everything resets the connection. The kernel
            // reports that once, before the bytes that were sent.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(Some(Packet { len: received.bytes, fd: descriptors.flatten().next() }))
}

/// Wakes the other side, which sleeps until this socket is readable.
pub(crate) fn notify(socket: impl AsFd) {
    for _ in 0..ATTEMPTS_MAX {
        match rustix::net::send(&socket, &[NOTIFICATION], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => std::thread::yield_now(),
            // If the socket is full, the other side has been notified already. Receiving reports a
            // broken one.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let name = u128::from(fastrand::u64(..));
        let listener = listen(name).unwrap();
        let near = connect(name).unwrap();
        (near, accept(&listener).unwrap().unwrap())
    }

    #[test]
    fn packets_arrive_whole_with_their_file_descriptor() {
        let (near, far) = pair();
        let mut into = [0; 8];
        assert!(recv(&far, &mut into).unwrap().is_none());
        send(&near, b"with", Some(near.as_fd())).unwrap();
        send(&near, b"without", None).unwrap();
        send(&near, b"too long for it", None).unwrap();
        let packet = recv(&far, &mut into).unwrap().unwrap();
        assert_eq!((packet.len, &into[..4]), (4, &b"with"[..]));
        let fd = packet.fd.unwrap();
        assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        let packet = recv(&far, &mut into).unwrap().unwrap();
        assert_eq!((packet.len, &into[..7]), (7, &b"without"[..]));
        assert!(packet.fd.is_none());
        assert_eq!(recv(&far, &mut into).unwrap().unwrap().len, 15);
        drop((near, fd));
        assert_eq!(recv(&far, &mut into).unwrap().unwrap().len, 0);
    }

    #[test]
    fn packets_that_were_sent_before_a_reset_arrive() {
        let (near, far) = pair();
        send(&near, b"unread", None).unwrap();
        send(&far, b"last", Some(near.as_fd())).unwrap();
        drop(far);
        let packet = recv(&near, &mut [0; 8]).unwrap().unwrap();
        assert!(packet.len == 4 && packet.fd.is_some());
        assert_eq!(recv(&near, &mut [0; 8]).unwrap().unwrap().len, 0);
    }

    #[test]
    fn a_name_is_free_again_once_its_listener_is_closed() {
        let name = u128::from(fastrand::u64(..));
        let listener = listen(name).unwrap();
        assert_eq!(listen(name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert_eq!(connect(name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn notifying_never_blocks() {
        let (near, far) = pair();
        for _ in 0..10_000 {
            notify(&near);
        }
        while recv(&far, &mut [0; 8]).unwrap().is_some() {}
        drop(near);
        notify(&far);
    }
}
