//! The memory of one peer that this rank has mapped to read it in place.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use comm_core::Lent;

use crate::lender::{Packet, REGIONS_MAX};
use crate::loans::{LOANS_MAX, Loan};
use crate::region::Mapping;

/// The regions of one peer, by the numbers that it gave them. There are more than the peer counts if it has no more use
/// for some that are still to be read.
#[derive(Debug, Default)]
pub(crate) struct Borrower(BTreeMap<u64, Mapping>);

impl Borrower {
    /// Maps a region.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for what no correct peer sends; whatever the system says.
    pub(crate) fn take(&mut self, packet: Packet, file: &OwnedFd) -> io::Result<()> {
        self.0.remove(&packet.forget);
        if self.0.len() >= REGIONS_MAX + LOANS_MAX || self.0.contains_key(&packet.region) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a buffer too many"));
        }
        self.0.insert(packet.region, Mapping::open(file)?);
        Ok(())
    }

    /// Unmaps what its owner has no more use for, unless something in it was lent and is still to be read.
    pub(crate) fn tidy_up(&mut self, is_awaited: impl Fn(u64) -> bool) {
        if !self.0.is_empty() {
            self.0.retain(|id, mapping| !mapping.is_retired() || is_awaited(*id));
        }
    }

    /// Whether all bytes of a loan can be read.
    pub(crate) fn holds(&self, loan: &Loan) -> bool {
        self.0.get(&loan.region).is_some_and(|mapping| mapping.holds(loan.offset, loan.len))
    }

    /// The first bytes of a loan, or none if they cannot be read.
    pub(crate) fn lend(&self, loan: &Loan, len: usize) -> Lent<'_> {
        match self.0.get(&loan.region) {
            Some(mapping) => mapping.lend(loan.offset, len),
            None => Lent::from_slice(&[]),
        }
    }
}
