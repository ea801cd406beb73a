//! A stream over several sockets.
//!
//! A stream begins on the socket with which its channel was opened, as plain bytes. If the network
//! limits the rate of that connection, the sender adds sockets ([`growth`](crate::growth)). From
//! then on it sends on these alone, in stripes: consecutive bytes of the stream, each after a
//! [`StripeHeader`] that states its position. Any stripe may use any added socket, so the sender
//! gives the next one to a socket that accepts it, and a slow connection gets fewer: no more than
//! arrive in about the time that those of the fastest one take.
//!
//! The receiver reads the stripe that begins where the one before it ended, and leaves all others
//! in the kernel, whose buffers limit how far a connection gets ahead. So it needs no memory but
//! one header per socket, and a peer cannot make it allocate any.

mod header;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::io::IoSlice;

use crate::connection::Connection;
use crate::protection::RecvError;
use crate::tcp_info;

pub(crate) use header::{HEADER_BYTES, StripeHeader};
pub(crate) use reader::{Fault, StripeReader};
pub(crate) use writer::StripeWriter;

/// One socket of a stream.
pub(crate) trait Flow {
    /// As [`Connection::is_readable`].
    fn is_readable(&self) -> bool;
    /// As [`Connection::read`].
    fn read(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<Option<usize>, RecvError>;
    /// As [`Connection::is_writable`].
    fn is_writable(&self) -> bool;
    /// As [`Connection::write`].
    fn write(&mut self, pieces: &[IoSlice<'_>], offered: usize) -> rustix::io::Result<usize>;
    /// The number of bytes that were written and have not arrived.
    fn queued(&self) -> usize;
    /// As [`Connection::holds_bytes`].
    fn holds_bytes(&self) -> bool;
    /// As [`Connection::flush`].
    fn flush(&mut self) -> rustix::io::Result<()>;
}

impl Flow for Connection {
    fn is_readable(&self) -> bool {
        self.is_readable()
    }

    fn read(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<Option<usize>, RecvError> {
        self.read(first, second)
    }

    fn is_writable(&self) -> bool {
        self.is_writable()
    }

    fn write(&mut self, pieces: &[IoSlice<'_>], offered: usize) -> rustix::io::Result<usize> {
        self.write(pieces, offered)
    }

    fn queued(&self) -> usize {
        tcp_info::queued(self)
    }

    fn holds_bytes(&self) -> bool {
        self.holds_bytes()
    }

    fn flush(&mut self) -> rustix::io::Result<()> {
        self.flush()
    }
}
