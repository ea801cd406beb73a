//! One socket of a channel, and its readiness.

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use comm_core::Corruption;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::Socket;

use crate::keepalive::Keepalive;
use crate::protection::{Established, ProtectedReceiver, ProtectedSender, Protection, Read, RecvError};
use crate::socket::stays_on_this_machine;
use crate::tcp_info::TcpInfo;
use crate::tls::TlsSession;

/// The maximum number of bytes that are read from a peer only to be discarded.
const DISCARDED_BYTES_MAX: usize = 16 << 20;

/// The number of bytes that are discarded at a time.
const DISCARD_CHUNK_BYTES: usize = 16 << 10;

/// Changes of the state of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StateChange {
    /// The stream from the peer has ended.
    pub(crate) ended: bool,
    /// The connection is broken in both directions.
    pub(crate) broke: bool,
}

/// The maximum number of bytes that a protected connection reads before it knows the length of a
/// frame.
const PROTECTED_READ_AHEAD: usize = 16 * 1024;

/// One socket of a channel.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    /// The layer that checks the bytes, if there is one.
    layer: Option<Layer>,
    /// Whether a read or a write may move bytes. Set by epoll, cleared by a read or write that
    /// moved less than it could.
    readable: bool,
    writable: bool,
    /// Whether the last read or write moved less than it could, so that a caller that loops until
    /// nothing moves needs no further system call.
    just_read_all: bool,
    just_filled: bool,
    /// Whether the stream from the peer has ended or broken. No further event will follow, so it
    /// stays readable.
    ended: bool,
    broken: bool,
}

/// A layer that checks the bytes of both directions.
#[derive(Debug)]
enum Layer {
    Frames(Box<Frames>),
    Tls(Box<TlsSession>),
}

/// The frames of both directions.
#[derive(Debug)]
struct Frames {
    sender: ProtectedSender,
    receiver: ProtectedReceiver,
}

impl Layer {
    fn frames(protection: Protection, read_ahead: usize) -> Self {
        let sender = ProtectedSender::new(protection.sending);
        let receiver = ProtectedReceiver::new(protection.receiving, read_ahead.min(PROTECTED_READ_AHEAD));
        Self::Frames(Box::new(Frames { sender, receiver }))
    }

    fn send(&mut self, socket: &Socket, pieces: &[IoSlice<'_>], offered: usize) -> rustix::io::Result<usize> {
        match self {
            Self::Frames(frames) => frames.sender.send(socket, pieces, offered),
            Self::Tls(tls) => tls.send(socket, pieces, offered),
        }
    }

    /// Whether bytes that were accepted wait until the socket accepts them.
    fn holds_bytes(&self) -> bool {
        match self {
            Self::Frames(frames) => frames.sender.holds_frame(),
            Self::Tls(tls) => tls.holds_bytes(),
        }
    }

    fn flush(&mut self, socket: &Socket) -> rustix::io::Result<bool> {
        match self {
            Self::Frames(frames) => frames.sender.flush(socket),
            Self::Tls(tls) => tls.flush(socket),
        }
    }

    /// Drops the bytes that wait to be sent, because the connection is broken.
    fn give_up(&mut self) {
        match self {
            Self::Frames(frames) => frames.sender.give_up(),
            Self::Tls(tls) => tls.give_up(),
        }
    }

    /// Returns the corruption of received bytes, if nothing can be sent because of it.
    fn corruption(&self) -> Option<Corruption> {
        match self {
            Self::Frames(_) => None,
            Self::Tls(tls) => tls.corruption(),
        }
    }

    /// Whether bytes that were read from the socket wait for the caller.
    fn is_ready(&self) -> bool {
        match self {
            Self::Frames(frames) => frames.receiver.is_ready(),
            Self::Tls(tls) => tls.is_ready(),
        }
    }

    fn deliver(&mut self, into: &mut [u8]) -> Result<usize, Corruption> {
        match self {
            Self::Frames(frames) => frames.receiver.deliver(into),
            Self::Tls(tls) => tls.deliver(into),
        }
    }

    fn read(&mut self, socket: &Socket) -> rustix::io::Result<Read> {
        match self {
            Self::Frames(frames) => frames.receiver.read(socket),
            Self::Tls(tls) => tls.read(socket),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    pub(crate) fn new(established: Established, read_ahead: usize) -> Self {
        let Established { socket, protection, tls } = established;
        let frames = protection.map(|protection| Layer::frames(protection, read_ahead));
        Self {
            socket,
            layer: tls.map(Layer::Tls).or(frames),
            readable: false,
            writable: false,
            just_read_all: false,
            just_filled: false,
            ended: false,
            broken: false,
        }
    }

    /// Handles an event of epoll.
    pub(crate) fn handle_event(&mut self, events: EventFlags) -> StateChange {
        let broken = events.intersects(EventFlags::HUP | EventFlags::ERR);
        let ended = broken || events.contains(EventFlags::RDHUP);
        let change = StateChange { ended: ended && !self.ended, broke: broken && !self.broken };
        self.ended |= ended;
        self.broken |= broken;
        self.readable |= self.ended || events.contains(EventFlags::IN);
        self.writable |= broken || events.contains(EventFlags::OUT);
        self.just_read_all &= !self.readable;
        self.just_filled &= !self.writable;
        change
    }

    /// Makes it known that the connection may be readable and writable, before the first event.
    pub(crate) const fn assume_ready(mut self) -> Self {
        (self.readable, self.writable) = (true, true);
        self
    }

    /// The kernel's state of the connection.
    pub(crate) fn info(&self) -> Option<TcpInfo> {
        TcpInfo::of(&self.socket).ok()
    }

    /// Limits the bytes that the kernel has accepted but not sent, so that they do not wait for
    /// this connection while another one could send them.
    pub(crate) fn limit_unsent(&self, bytes: u32) {
        if let Err(error) = self.socket.set_tcp_notsent_lowat(bytes) {
            tracing::debug!(%error, "cannot limit the unsent bytes of a socket");
        }
    }

    /// Whether its packets stay on this machine.
    pub(crate) fn stays_on_this_machine(&self) -> bool {
        stays_on_this_machine(&self.socket)
    }

    /// Whether the host of the peer has left bytes unanswered for too long.
    pub(crate) fn has_lost_host(&self, keepalive: Keepalive) -> bool {
        // A connection without state is broken, which epoll reports.
        !self.broken && TcpInfo::of(&self.socket).is_ok_and(|info| keepalive.is_lost(&info))
    }

    /// Whether the host of the peer had not answered for this time when the connection broke.
    pub(crate) fn broke_after_silence(&self, silence: Duration) -> bool {
        TcpInfo::of(&self.socket).is_ok_and(|info| info.since_answer() >= silence)
    }

    /// Whether a read would move bytes or fail, as far as is known.
    pub(crate) fn is_readable(&self) -> bool {
        self.readable || self.has_received()
    }

    /// Checks, without memory for them, whether there are bytes to read. If there are none, and no
    /// end either, then the next event of epoll reports the first ones.
    ///
    /// # Errors
    /// The error of the socket, which the kernel reports only once: a later read would find the end
    /// of the stream instead.
    pub(crate) fn is_silent(&mut self) -> rustix::io::Result<bool> {
        if self.ended || self.has_received() {
            return Ok(false);
        }
        match rustix::net::recv(&self.socket, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(true)
            }
            Ok(_) | Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the corruption of received bytes, if nothing can be sent because of it.
    pub(crate) fn corruption(&self) -> Option<Corruption> {
        self.layer.as_ref().and_then(Layer::corruption)
    }

    /// Whether bytes that were read from the socket wait for the caller.
    fn has_received(&self) -> bool {
        self.layer.as_ref().is_some_and(Layer::is_ready)
    }

    /// Whether the connection is broken in both directions.
    pub(crate) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether a write would move bytes or fail, as far as is known.
    pub(crate) const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the read immediately before this call found that there is nothing more to read.
    pub(crate) fn take_just_read_all(&mut self) -> bool {
        !self.has_received() && std::mem::take(&mut self.just_read_all)
    }

    /// Writes as much of the pieces as possible. `offered` is their total length, at least one
    /// byte.
    pub(crate) fn write(&mut self, pieces: &[IoSlice<'_>], offered: usize) -> rustix::io::Result<usize> {
        if std::mem::take(&mut self.just_filled) {
            return Ok(0);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = match &mut self.layer {
            None => rustix::net::sendmsg(&self.socket, pieces, &mut SendAncillaryBuffer::default(), flags),
            Some(layer) => layer.send(&self.socket, pieces, offered),
        };
        match sent {
            Ok(sent) => {
                self.writable = sent == offered && !self.holds_bytes();
                self.just_filled = !self.writable;
                Ok(sent)
            }
            Err(Errno::AGAIN) => {
                self.writable = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(self.fail_sending(errno)),
        }
    }

    fn fail_sending(&mut self, errno: Errno) -> Errno {
        (self.ended, self.broken, self.readable) = (true, true, true);
        if let Some(layer) = &mut self.layer {
            layer.give_up();
        }
        errno
    }

    /// Whether bytes that were accepted, such as a part of a frame, wait until the socket accepts
    /// them.
    pub(crate) fn holds_bytes(&self) -> bool {
        self.layer.as_ref().is_some_and(Layer::holds_bytes)
    }

    /// Sends bytes that wait, if the socket may accept them.
    pub(crate) fn flush(&mut self) -> rustix::io::Result<()> {
        let Some(layer) = self.layer.as_mut().filter(|layer| layer.holds_bytes()) else {
            return Ok(());
        };
        if self.writable {
            self.writable = layer.flush(&self.socket).map_err(|errno| self.fail_sending(errno))?;
        }
        Ok(())
    }

    /// Reads into the first piece of memory and then the second; the first may be empty. Returns
    /// `None` if nothing has arrived, and zero at the end of the stream.
    pub(crate) fn read(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<Option<usize>, RecvError> {
        if self.layer.is_some() {
            return self.read_checked(first, second);
        }
        let capacity = first.len() + second.len();
        match read_vectored(&self.socket, first, second) {
            Ok(read) => {
                self.readable = read == capacity || self.ended;
                self.just_read_all = read > 0 && !self.readable;
                Ok(Some(read))
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(None)
            }
            Err(Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads as [`Connection::read`] does, through the layer that checks the bytes.
    fn read_checked(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<Option<usize>, RecvError> {
        let Some(layer) = &mut self.layer else { return Ok(None) };
        loop {
            if layer.is_ready() {
                let mut delivered = layer.deliver(first).map_err(RecvError::Corrupted)?;
                if delivered == first.len() {
                    // A failure after the first bytes is returned by the next call.
                    delivered += match layer.deliver(second) {
                        Err(corruption) if delivered == 0 => return Err(RecvError::Corrupted(corruption)),
                        second => second.unwrap_or(0),
                    };
                }
                return Ok(Some(delivered));
            }
            match layer.read(&self.socket) {
                Ok(Read::End) => return Ok(Some(0)),
                Ok(Read::More) => self.readable = true,
                Ok(Read::All) => {
                    self.readable = self.ended;
                    self.just_read_all = !self.readable;
                    if !layer.is_ready() {
                        return Ok(None);
                    }
                }
                Ok(Read::Nothing) => {
                    self.readable = false;
                    return Ok(None);
                }
                Err(Errno::INTR) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Gives up a connection whose host does not answer. Bytes that have arrived can still be read.
    pub(crate) fn give_up(&mut self) {
        (self.ended, self.broken, self.readable, self.just_read_all) = (true, true, true, false);
        self.end_sending();
    }

    /// Ends the stream to the peer. A later write fails.
    pub(crate) fn end_sending(&mut self) {
        (self.writable, self.just_filled) = (true, false);
        // It fails only if the connection is closed already.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Discards the bytes that have arrived: closing a socket with unread bytes resets the
    /// connection, and a reset can overtake bytes that are still being sent.
    pub(crate) fn discard(&self) {
        let (mut discarded, mut buffer) = (0, [0; DISCARD_CHUNK_BYTES]);
        while discarded < DISCARDED_BYTES_MAX {
            match rustix::net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, more @ 1..)) => discarded += more,
                _ => return,
            }
        }
    }
}

/// One read into two pieces of memory; the first may be empty.
fn read_vectored(socket: &Socket, first: &mut [u8], second: &mut [u8]) -> rustix::io::Result<usize> {
    if first.is_empty() {
        return rustix::io::read(socket, second);
    }
    if second.is_empty() {
        return rustix::io::read(socket, first);
    }
    rustix::io::readv(socket, &mut [IoSliceMut::new(first), IoSliceMut::new(second)])
}
