//! How bytes come from a peer that lie in its memory and are not mapped here: copied by the kernel.

use std::io;

use comm_core::{During, Lent, Loss, Result};

use super::Peer;
use super::receiving::ELEMENT_BYTES_MAX;
use crate::loans::{Loan, SHOWN_BYTES_MAX};

const DURING: During = During::Receiving;
/// The most bytes that are copied to be lent: they are still in the cache when they are combined.
const AHEAD_BYTES: usize = 64 << 10;

/// Bytes of the stream that were copied, and not released yet.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    bytes: Box<[u8]>,
    /// The position of the first.
    start: u64,
    len: usize,
}

impl Fetched {
    /// No more than `len` of the bytes from a position on, none if they are not here.
    pub(super) fn from(&self, position: u64, len: usize) -> Lent<'_> {
        let there = self.there(position).min(len);
        let at = self.len - self.there(position);
        Lent::from_slice(&self.bytes[at..at + there])
    }

    /// How many bytes are here from a position on.
    fn there(&self, position: u64) -> usize {
        let gone = position.checked_sub(self.start).and_then(|gone| usize::try_from(gone).ok());
        gone.map_or(0, |gone| self.len.saturating_sub(gone))
    }
}

impl Peer {
    /// Copies what comes next, which lies at an address of the peer's, and gives it back.
    pub(super) fn fetch(&mut self, address: u64, into: &mut [u8]) -> Result<()> {
        let mut at = address;
        for part in into.chunks_mut(SHOWN_BYTES_MAX) {
            self.read(at, part)?;
            at = at.saturating_add(part.len() as u64);
            self.release(part.len())?;
        }
        Ok(())
    }

    /// Copies the start of what comes next, if not enough of it is here. Returns how much of it can be lent.
    pub(super) fn fetch_ahead(&mut self, loan: Loan, at_most: usize) -> Result<usize> {
        let there = self.fetched.there(loan.start).min(at_most);
        if there >= at_most.min(ELEMENT_BYTES_MAX) {
            return Ok(there);
        }
        let mut bytes = std::mem::take(&mut self.fetched.bytes);
        if bytes.is_empty() {
            bytes = vec![0; AHEAD_BYTES].into_boxed_slice();
        }
        let len = at_most.min(AHEAD_BYTES);
        let read = self.read(loan.offset, &mut bytes[..len]);
        self.fetched = Fetched { bytes, start: loan.start, len: if read.is_ok() { len } else { 0 } };
        read.map(|()| len)
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<()> {
        let Some(remote) = &self.remote else {
            return Err(self.garble(DURING, "a loan of memory that cannot be read from here"));
        };
        remote.read(address, into).map_err(|error| self.unread(error))
    }

    /// Why memory of the peer's could not be read.
    fn unread(&mut self, error: io::Error) -> comm_core::Error {
        if let Err(revoked) = self.check_revoked() {
            return revoked;
        }
        match error.kind() {
            io::ErrorKind::NotFound => self.give_up(DURING, Loss::Closed),
            _ => self.garble(DURING, error),
        }
    }
}
