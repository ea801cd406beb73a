//! How bytes come from a peer: out of the ring, or from where they are lent.

use comm_core::{During, Error, Lent, Result};

use super::{Peer, revocation};
use crate::loans::Loan;
use crate::socket;

/// The largest element in bytes: with that many bytes there is a whole one, whatever the type.
pub(super) const ELEMENT_BYTES_MAX: usize = 8;
/// The most bytes of a loan that are read before one looks whether it was taken back.
const LOAN_STRIDE_BYTES_MAX: usize = 1 << 20;
/// How many packets are taken from a socket in search of a descriptor that must be there: more than one holds.
const PACKETS_MAX: usize = 4096;

/// Bytes that were taken out of the stream and not received yet: the start of an element of which one part is in the
/// ring and another is lent, or both are lent apart.
#[derive(Debug, Default)]
pub(super) struct Carry {
    bytes: [u8; ELEMENT_BYTES_MAX],
    len: usize,
}

impl Carry {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Forgets the first `len` bytes, of which there are so many.
    fn consume(&mut self, len: usize) {
        self.bytes.copy_within(len..self.len, 0);
        self.len -= len;
    }
}

impl Peer {
    pub(crate) fn try_recv(&mut self, into: &mut [u8]) -> Result<usize> {
        let mut taken = self.carry.len.min(into.len());
        into[..taken].copy_from_slice(&self.carry.bytes[..taken]);
        self.carry.consume(taken);
        while taken < into.len() {
            match self.take(&mut into[taken..]) {
                Ok(0) => break,
                Ok(more) => taken += more,
                // Told the next time: what came before counts.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if taken > 0 {
            self.left = 0;
        } else if !into.is_empty() {
            self.check_end(0)?;
        }
        Ok(taken)
    }

    /// Copies bytes out that lie in one piece.
    fn take(&mut self, into: &mut [u8]) -> Result<usize> {
        if self.reader.available() < into.len() {
            self.look_for_bytes()?;
        }
        let taken = self.reader.available().min(into.len());
        if let Some(loan) = self.reader.loan().filter(Loan::is_anywhere) {
            self.fetch(loan.offset, &mut into[..taken])?;
            return Ok(taken);
        }
        self.reach()?;
        let stride = if self.reader.loan().is_some() { LOAN_STRIDE_BYTES_MAX } else { self.stride };
        for part in into[..taken].chunks_mut(stride) {
            self.show(part.len()).copy_to(part);
            self.release(part.len())?;
        }
        Ok(taken)
    }

    /// Bytes where they lie, no more than are available and can be reached.
    #[inline]
    fn show(&self, len: usize) -> Lent<'_> {
        match self.reader.loan() {
            Some(loan) if loan.is_anywhere() => self.fetched.from(loan.start, len),
            Some(loan) => self.borrower.lend(&loan, len),
            None => match self.heard.from(self.reader.position(), len) {
                Some(heard) => Lent::from_slice(heard),
                None => self.connection.segment.lend(self.incoming(), self.reader.ring_position(), len),
            },
        }
    }

    /// Makes bytes ready to be lent, and returns how many: of a ring no more than a stride, so that the other side gets
    /// room back in time.
    #[inline]
    pub(crate) fn prepare(&mut self, at_most: usize) -> Result<usize> {
        // What most looks of a rank that waits come to.
        if self.carry.len == 0 && self.reader.promised() == 0 && self.end.is_none() {
            let control = self.connection.segment.control(self.incoming());
            if self.reader.is_drained(control) {
                self.tell();
                return Ok(0);
            }
            if self.reader.listen(control, &mut self.heard) && self.reader.available() >= ELEMENT_BYTES_MAX {
                self.left = 0;
                return Ok(self.reader.available().min(at_most));
            }
        }
        if self.reader.available() < at_most.min(self.stride) {
            self.look_for_bytes()?;
        }
        self.check_end(self.left)?;
        self.carry_over(at_most)?;
        let there = self.there();
        self.left = if there < ELEMENT_BYTES_MAX as u64 { there } else { 0 };
        if self.carry.len > 0 {
            return Ok(self.carry.len.min(at_most));
        }
        if let Some(loan) = self.reader.loan().filter(Loan::is_anywhere) {
            return self.fetch_ahead(loan, self.reader.available().min(at_most));
        }
        self.reach()?;
        let stride = if self.reader.loan().is_some() { LOAN_STRIDE_BYTES_MAX } else { self.stride };
        Ok(self.reader.available().min(at_most).min(stride))
    }

    /// Takes an element out of the stream that begins in one piece of it and ends in another: bytes that may belong to
    /// one are lent together.
    #[inline]
    fn carry_over(&mut self, at_most: usize) -> Result<()> {
        let available = self.reader.available();
        let is_cut = available < ELEMENT_BYTES_MAX && (available as u64) < self.reader.promised();
        if self.carry.len == 0 && !(is_cut && available < at_most && available > 0) {
            return Ok(());
        }
        while self.carry.len < ELEMENT_BYTES_MAX {
            let mut bytes = [0; ELEMENT_BYTES_MAX];
            let room = ELEMENT_BYTES_MAX - self.carry.len;
            let taken = self.take(&mut bytes[..room])?;
            if taken == 0 {
                break;
            }
            self.carry.bytes[self.carry.len..self.carry.len + taken].copy_from_slice(&bytes[..taken]);
            self.carry.len += taken;
        }
        Ok(())
    }

    /// Lends bytes that were made ready.
    #[inline]
    pub(crate) fn lend(&self, len: usize) -> Lent<'_> {
        if self.carry.len > 0 {
            return Lent::from_slice(self.carry.bytes()).first(len);
        }
        self.show(len.min(self.reader.available()))
    }

    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize) -> Result<()> {
        let lent = if self.carry.len > 0 { self.carry.len } else { self.reader.available() };
        if bytes > lent {
            return Err(too_much(bytes, lent, self.rank));
        }
        if bytes > 0 {
            self.left = 0;
        }
        if self.carry.len > 0 {
            self.carry.consume(bytes);
            return Ok(());
        }
        self.release(bytes)
    }

    /// Gives back bytes that were read.
    ///
    /// # Errors
    /// If their owner took them back meanwhile: what was read does not count.
    #[inline]
    pub(super) fn release(&mut self, bytes: usize) -> Result<()> {
        if self.reader.loan().is_some() {
            self.check_revoked()?;
        }
        let control = self.connection.segment.control(self.incoming());
        if self.reader.release(bytes, control) {
            socket::ring(&self.connection.socket);
        }
        Ok(())
    }

    /// Sees to it that the bytes that come next can be read, if they are lent.
    #[inline]
    fn reach(&mut self) -> Result<()> {
        let Some(loan) = self.reader.loan() else { return Ok(()) };
        if self.borrower.holds(&loan) {
            return Ok(());
        }
        self.check_revoked()?;
        // The descriptor was sent before the loan was made.
        for _ in 0..PACKETS_MAX {
            if !self.hear_packet() || self.borrower.holds(&loan) {
                break;
            }
        }
        match self.end.clone().filter(|_| self.garbled) {
            Some(end) => Err(end),
            None if self.borrower.holds(&loan) => Ok(()),
            None => Err(self.garble(During::Receiving, format_args!("{loan:?}, which is nowhere"))),
        }
    }

    /// Fails if the peer has taken back what it lends.
    pub(super) fn check_revoked(&mut self) -> Result<()> {
        if self.control_in().is_revoked() {
            Err(self.give_up(During::Receiving, revocation()))
        } else {
            Ok(())
        }
    }

    /// Fails if the peer is gone and no more than `left` bytes are there, which are of no use.
    #[inline]
    fn check_end(&mut self, left: u64) -> Result<()> {
        if self.end.is_none() {
            return Ok(());
        }
        self.look_for_bytes()?;
        let end = self.end.clone().filter(|_| self.there() <= left);
        end.map_or(Ok(()), Err)
    }

    /// How many bytes are there as far as is known.
    #[inline]
    const fn there(&self) -> u64 {
        self.carry.len as u64 + self.reader.promised()
    }

    /// Looks how many bytes are there by now.
    #[inline]
    fn look_for_bytes(&mut self) -> Result<()> {
        if let Some(end) = self.end.as_ref().filter(|_| self.garbled) {
            return Err(end.clone());
        }
        let control = self.connection.segment.control(self.incoming());
        self.reader.look(control).map_err(|impossible| self.garble(During::Receiving, impossible))?;
        if self.reader.promised() == 0 {
            self.tell();
        }
        Ok(())
    }

    /// Tells the peer of all room that there is.
    #[inline]
    fn tell(&mut self) {
        let control = self.connection.segment.control(self.incoming());
        if self.reader.tell(control) {
            socket::ring(&self.connection.socket);
        }
    }

    /// Whether a receive would move bytes or fail.
    pub(crate) fn can_recv(&mut self) -> bool {
        self.end.is_some() || self.look_for_bytes().is_err() || self.there() > self.left
    }
}

#[cold]
fn too_much(bytes: usize, lent: usize, rank: usize) -> Error {
    Error::Internal(format!("{bytes} bytes consumed of {lent} lent from rank {rank}"))
}
