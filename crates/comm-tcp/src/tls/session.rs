//! One connection in TLS, over a socket that does not block.

use std::fmt;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::ops::{Range, RangeInclusive};
use std::os::fd::AsFd;

use comm_core::{Corruption, IntegrityCheck};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustls::{Connection, InvalidMessage};

use super::{BINDING_BYTES, Negotiation};
use crate::protection::{PIECES_MAX, Read, cut};

/// The bytes before the payload of a record: its type, a version, and the length.
const HEADER_BYTES: usize = 5;
/// The types of records, which are the first byte of each.
const RECORD_KINDS: RangeInclusive<u8> = 0x14..=0x17;
/// The longest payload of a record, with its authentication tag (RFC 8446, section 5.2).
const PAYLOAD_BYTES_MAX: usize = (1 << 14) + 256;
/// The most bytes that the other side may send in its TLS handshake. A chain of certificates has a
/// few thousand.
const HANDSHAKE_BYTES_MAX: usize = 16 * 1024;
/// The exporter of TLS whose output identifies a connection (`tls-exporter`, RFC 9266).
const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";
/// The number of bytes to read at a time, at first and after reads that filled the memory. It grows
/// once [`READ_BYTES_MAX`] were received, so a stranger or an idle connection needs little memory.
const READ_BYTES_MIN: usize = 2 * 1024;
const READ_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of bytes to encrypt before they are passed to the socket.
const SEND_BYTES_MAX: usize = 64 * 1024;

/// One connection in TLS.
///
/// Whole records are passed to rustls one at a time, and the next one only when the bytes of the
/// one before were delivered. So everything that was received is either ready or part of an
/// incomplete record.
pub(crate) struct TlsSession {
    connection: Connection,
    memory: Vec<u8>,
    /// The part of the memory that was received, and not passed to rustls yet.
    unprocessed: Range<usize>,
    /// The number of bytes to read at a time.
    read_bytes: usize,
    /// The number of decrypted bytes that wait to be delivered.
    decrypted: usize,
    /// The number of records that were received.
    records: u64,
    /// The number of bytes of those records.
    received: usize,
    failure: Option<rustls::Error>,
    /// Whether encrypted bytes are not sent any more, because the socket is broken.
    has_given_up: bool,
}

impl TlsSession {
    pub(super) fn new(connection: impl Into<Connection>) -> Self {
        let mut connection = connection.into();
        connection.set_buffer_limit(None);
        Self {
            connection,
            memory: Vec::new(),
            unprocessed: 0..0,
            read_bytes: READ_BYTES_MIN,
            decrypted: 0,
            records: 0,
            received: 0,
            failure: None,
            has_given_up: false,
        }
    }

    /// Continues the TLS handshake until the socket would block, or the handshake ends.
    ///
    /// # Errors
    /// The error of the socket; [`io::ErrorKind::UnexpectedEof`] if the other side closed it.
    pub(crate) fn negotiate(&mut self, socket: impl AsFd) -> io::Result<Negotiation> {
        loop {
            let is_sent = self.flush(&socket)?;
            if let Some(failure) = self.failure() {
                return Ok(Negotiation::Failed(failure));
            }
            if !self.connection.is_handshaking() {
                let failed = |error: rustls::Error| Negotiation::Failed(error.to_string());
                return Ok(self.binding().map_or_else(failed, Negotiation::Done));
            }
            if self.received + self.unprocessed.len() > HANDSHAKE_BYTES_MAX {
                return Ok(Negotiation::Failed("its handshake is too long".into()));
            }
            if !is_sent {
                return Ok(Negotiation::Pending);
            }
            match self.read(&socket) {
                Ok(Read::Nothing) => return Ok(Negotiation::Pending),
                Ok(Read::End) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(Read::More | Read::All) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns the value that identifies the connection, once the handshake is complete.
    fn binding(&self) -> Result<[u8; BINDING_BYTES], rustls::Error> {
        let output = [0; BINDING_BYTES];
        match &self.connection {
            Connection::Client(client) => client.export_keying_material(output, BINDING_LABEL, None),
            Connection::Server(server) => server.export_keying_material(output, BINDING_LABEL, None),
        }
    }

    /// Whether not even the first byte was received.
    pub(crate) const fn has_received_nothing(&self) -> bool {
        self.received == 0 && self.unprocessed.start == self.unprocessed.end
    }

    /// Whether a whole record was received.
    pub(crate) const fn has_received_record(&self) -> bool {
        self.records > 0
    }

    /// The number of records that were received.
    #[cfg(test)]
    pub(super) const fn records(&self) -> u64 {
        self.records
    }

    /// Changes the keys of this side, which sends a record without bytes.
    #[cfg(test)]
    pub(super) fn change_keys(&mut self) {
        self.connection.refresh_traffic_keys().unwrap();
    }

    #[cfg(test)]
    pub(super) fn into_connection(self) -> Connection {
        self.connection
    }

    /// The reason why nothing more can be received.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.as_ref().map(ToString::to_string)
    }

    /// Whether [`TlsSession::deliver`] delivers bytes or fails.
    pub(crate) const fn is_ready(&self) -> bool {
        self.decrypted > 0 || self.failure.is_some()
    }

    /// Delivers bytes that were decrypted, and returns their number.
    pub(crate) fn deliver(&mut self, into: &mut [u8]) -> Result<usize, Corruption> {
        let mut delivered = 0;
        while delivered < into.len() && self.decrypted > 0 {
            let Ok(more @ 1..) = self.connection.reader().read(&mut into[delivered..]) else { break };
            delivered += more;
            self.decrypted = self.decrypted.saturating_sub(more);
            self.process();
        }
        match self.corruption() {
            Some(corruption) if delivered == 0 && !into.is_empty() => Err(corruption),
            _ => Ok(delivered),
        }
    }

    /// Returns the record that is not as it was sent, if one has arrived. Nothing can be sent or
    /// received after it.
    pub(crate) fn corruption(&self) -> Option<Corruption> {
        // The record that failed is the last one that was counted.
        let last = self.records.saturating_sub(1);
        self.failure.as_ref().map(|_| Corruption::new(IntegrityCheck::TlsRecord, last))
    }

    /// Reads the socket once. Call it when nothing is ready.
    pub(crate) fn read(&mut self, socket: impl AsFd) -> rustix::io::Result<Read> {
        let capacity = self.read_bytes;
        let received = match rustix::net::recv(socket, self.spare(), RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Ok(Read::End),
            Ok((received, _)) => received,
            Err(Errno::AGAIN) => return Ok(Read::Nothing),
            Err(errno) => return Err(errno),
        };
        self.unprocessed.end += received;
        if received < capacity {
            self.process();
            return Ok(Read::All);
        }
        if self.received > READ_BYTES_MAX {
            self.read_bytes = (2 * self.read_bytes).min(READ_BYTES_MAX);
        }
        self.process();
        Ok(Read::More)
    }

    /// Returns memory for the next read.
    fn spare(&mut self) -> &mut [u8] {
        self.memory.copy_within(self.unprocessed.clone(), 0);
        self.unprocessed = 0..self.unprocessed.len();
        let end = self.unprocessed.end + self.read_bytes;
        if self.memory.len() < end {
            self.memory.resize(end, 0);
        }
        &mut self.memory[self.unprocessed.end..end]
    }

    /// Passes records to rustls until bytes are ready, or no whole record is left.
    fn process(&mut self) {
        while !self.is_ready() {
            match self.next_record() {
                Ok(Some(length)) => self.process_record(length),
                Ok(None) => return,
                Err(failure) => {
                    self.records += 1;
                    self.fail(failure);
                }
            }
        }
    }

    fn fail(&mut self, failure: rustls::Error) {
        self.failure = Some(failure);
        // In the handshake, the other side is told why it failed. Later it would take such a
        // message for the failure of its own receiver.
        self.has_given_up = !self.connection.is_handshaking();
    }

    /// Returns the length of the next record, if all of it was received.
    fn next_record(&self) -> Result<Option<usize>, rustls::Error> {
        let received = &self.memory[self.unprocessed.clone()];
        if received.first().is_some_and(|kind| !RECORD_KINDS.contains(kind)) {
            return Err(InvalidMessage::InvalidContentType.into());
        }
        let Some(&[_, _, _, high, low]) = received.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let payload = usize::from(high) << 8 | usize::from(low);
        if payload > PAYLOAD_BYTES_MAX {
            return Err(rustls::Error::PeerSentOversizedRecord);
        }
        let length = HEADER_BYTES + payload;
        Ok((received.len() >= length).then_some(length))
    }

    fn process_record(&mut self, length: usize) {
        let mut record = &self.memory[self.unprocessed.start..self.unprocessed.start + length];
        self.unprocessed.start += length;
        self.received = self.received.saturating_add(length);
        self.records += 1;
        while !record.is_empty() {
            // After the end that the other side has announced, nothing is read.
            if !matches!(self.connection.read_tls(&mut record), Ok(1..)) {
                return self.fail(rustls::Error::General("bytes after the end".into()));
            }
        }
        match self.connection.process_new_packets() {
            Ok(state) => self.decrypted = state.plaintext_bytes_to_read(),
            Err(failure) => self.fail(failure),
        }
    }

    /// Encrypts and sends as much of the pieces as possible: at most [`PIECES_MAX`], with `offered`
    /// bytes in total. Returns the number of accepted bytes, some of which may wait for
    /// [`TlsSession::flush`].
    pub(crate) fn send(
        &mut self,
        socket: impl AsFd,
        pieces: &[IoSlice<'_>],
        offered: usize,
    ) -> rustix::io::Result<usize> {
        if !self.flush(&socket)? {
            return Ok(0);
        }
        let mut accepted = 0;
        while accepted < offered && !self.holds_bytes() {
            let mut parts = [IoSlice::new(&[]); PIECES_MAX];
            let length = (offered - accepted).min(SEND_BYTES_MAX);
            let count = cut(pieces, accepted, length, &mut parts);
            match self.connection.writer().write_vectored(&parts[..count]) {
                Ok(more @ 1..) => accepted += more,
                // An earlier failure of this connection, after which nothing can be sent.
                Ok(0) | Err(_) => return Err(Errno::CONNABORTED),
            }
            self.flush(&socket)?;
        }
        Ok(accepted)
    }

    /// Whether encrypted bytes wait until the socket accepts them.
    pub(crate) fn holds_bytes(&self) -> bool {
        !self.has_given_up && self.connection.wants_write()
    }

    /// Sends encrypted bytes that wait. Returns whether none are left.
    pub(crate) fn flush(&mut self, socket: impl AsFd) -> rustix::io::Result<bool> {
        while self.holds_bytes() {
            match self.connection.write_tls(&mut Output(&socket)) {
                Ok(_) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => return Ok(false),
                    Some(Errno::INTR) => {}
                    errno => return Err(errno.unwrap_or(Errno::IO)),
                },
            }
        }
        Ok(true)
    }

    /// Drops the bytes that wait to be sent, because the socket is broken.
    pub(crate) const fn give_up(&mut self) {
        self.has_given_up = true;
    }
}

/// Hides the keys and the bytes.
impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, failure, .. } = self;
        f.debug_struct("TlsSession")
            .field("records", records)
            .field("failure", failure)
            .finish_non_exhaustive()
    }
}

/// The socket to which rustls writes.
struct Output<S>(S);

impl<S: AsFd> io::Write for Output<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(rustix::net::sendmsg(&self.0, pieces, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
