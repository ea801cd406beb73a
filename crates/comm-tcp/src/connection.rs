//! One socket of a lane, and what is known of its readiness.

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::Socket;

/// The most bytes that are read from a peer only to be thrown away.
const DISCARDED_BYTES_MAX: usize = 16 << 20;

/// What was not known before of the end of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// The peer sends nothing more.
    pub(crate) ended: bool,
    /// It broke, in both directions.
    pub(crate) broke: bool,
}

/// One socket of a lane.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    /// Whether a read or a write may move something. Set by epoll, cleared when one moved less than it could.
    readable: bool,
    writable: bool,
    /// The last read or write moved less than it could. Whoever asks in a loop until nothing moves asks once more at
    /// once, and is answered without a system call.
    just_read_all: bool,
    just_filled: bool,
    /// The stream from the peer has ended or broken: there will be no further event, so it stays readable.
    hung_up: bool,
    broken: bool,
}

impl Connection {
    pub(crate) const fn new(socket: Socket) -> Self {
        Self {
            socket,
            readable: false,
            writable: false,
            just_read_all: false,
            just_filled: false,
            hung_up: false,
            broken: false,
        }
    }

    /// Takes note of what epoll saw.
    pub(crate) fn note(&mut self, events: EventFlags) -> News {
        let broken = events.intersects(EventFlags::HUP | EventFlags::ERR);
        let ended = broken || events.contains(EventFlags::RDHUP);
        let news = News { ended: ended && !self.hung_up, broke: broken && !self.broken };
        self.hung_up |= ended;
        self.broken |= broken;
        self.readable |= self.hung_up || events.contains(EventFlags::IN);
        self.writable |= broken || events.contains(EventFlags::OUT);
        self.just_read_all &= !self.readable;
        self.just_filled &= !self.writable;
        news
    }

    /// Whether a read would move bytes or fail, as far as is known.
    pub(crate) const fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether a write would move bytes or fail, as far as is known.
    pub(crate) const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether there is nothing to read, as the read just before this question has found.
    pub(crate) const fn takes_read_all(&mut self) -> bool {
        std::mem::replace(&mut self.just_read_all, false)
    }

    /// Writes as much of the pieces as goes, which hold `offered` bytes, at least one.
    pub(crate) fn write(&mut self, pieces: &[IoSlice<'_>], offered: usize) -> rustix::io::Result<usize> {
        if std::mem::take(&mut self.just_filled) {
            return Ok(0);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(&self.socket, pieces, &mut SendAncillaryBuffer::default(), flags) {
            Ok(sent) => {
                self.writable = sent == offered;
                self.just_filled = !self.writable;
                Ok(sent)
            }
            Err(Errno::AGAIN) => {
                self.writable = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => {
                (self.hung_up, self.broken, self.readable) = (true, true, true);
                Err(errno)
            }
        }
    }

    /// Reads into two pieces of memory, one behind the other, of which the first may be empty. `None` if nothing has
    /// arrived; zero is the end of the stream.
    pub(crate) fn read(&mut self, first: &mut [u8], second: &mut [u8]) -> rustix::io::Result<Option<usize>> {
        let capacity = first.len() + second.len();
        match read_vectored(&self.socket, first, second) {
            Ok(read) => {
                self.readable = read == capacity || self.hung_up;
                self.just_read_all = read > 0 && !self.readable;
                Ok(Some(read))
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(None)
            }
            Err(Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Says that nothing more will be sent, if anybody still listens. A write fails from here on.
    pub(crate) fn end_sending(&mut self) {
        (self.writable, self.just_filled) = (true, false);
        // Fails only where the connection is no more.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Throws away what has arrived, by way of some memory: closing a socket with unread bytes resets the connection,
    /// and a reset can overtake bytes that are still on their way to the peer.
    pub(crate) fn discard(&self, room: &mut [u8]) {
        let mut discarded = 0;
        while discarded < DISCARDED_BYTES_MAX {
            match rustix::net::recv(&self.socket, &mut *room, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, more @ 1..)) => discarded += more,
                _ => return,
            }
        }
    }
}

/// One read into two pieces of memory, the first of which may be empty.
fn read_vectored(socket: &Socket, first: &mut [u8], second: &mut [u8]) -> rustix::io::Result<usize> {
    if first.is_empty() {
        return rustix::io::read(socket, second);
    }
    if second.is_empty() {
        return rustix::io::read(socket, first);
    }
    rustix::io::readv(socket, &mut [IoSliceMut::new(first), IoSliceMut::new(second)])
}
