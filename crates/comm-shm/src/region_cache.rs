//! The regions of one peer that this rank has mapped to read them in place.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use comm_core::RecvBuf;

use crate::descriptors::{DESCRIPTORS_MAX, Descriptor};
use crate::exporter::{REGIONS_MAX, RegionMessage};
use crate::region::PeerRegion;

/// The mapped regions of one peer, by the ids that it gave them. Regions that it has dropped stay
/// mapped until all descriptors in them have been read.
#[derive(Debug, Default)]
pub(crate) struct RegionCache(BTreeMap<u64, PeerRegion>);

impl RegionCache {
    /// Maps a region.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for a region that no correct peer sends; the error of
    /// `mmap(2)`.
    pub(crate) fn insert(&mut self, message: RegionMessage, file: &OwnedFd) -> io::Result<()> {
        self.0.remove(&message.evicted);
        if self.0.len() >= REGIONS_MAX + DESCRIPTORS_MAX || self.0.contains_key(&message.region) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it exports too many buffers"));
        }
        self.0.insert(message.region, PeerRegion::open(file)?);
        Ok(())
    }

    /// Unmaps regions that their owner has dropped, except those that are still to be read.
    pub(crate) fn evict(&mut self, is_unread: impl Fn(u64) -> bool) {
        if !self.0.is_empty() {
            self.0.retain(|id, region| !region.is_retired() || is_unread(*id));
        }
    }

    /// Whether all bytes of a descriptor can be read.
    pub(crate) fn contains(&self, descriptor: &Descriptor) -> bool {
        self.0
            .get(&descriptor.region)
            .is_some_and(|region| region.contains(descriptor.offset, descriptor.len))
    }

    /// Writes bytes at an offset in a region. Returns whether they could be written.
    pub(crate) fn write(&self, region: u64, offset: u64, bytes: &[u8]) -> bool {
        self.0.get(&region).is_some_and(|region| region.write(offset, bytes))
    }

    /// Whether a region is mapped.
    pub(crate) fn has(&self, region: u64) -> bool {
        self.0.contains_key(&region)
    }

    /// Returns the first bytes of a descriptor, or none if they cannot be read.
    pub(crate) fn fill_buf(&self, descriptor: &Descriptor, len: usize) -> RecvBuf<'_> {
        match self.0.get(&descriptor.region) {
            Some(region) => region.fill_buf(descriptor.offset, len),
            None => RecvBuf::from_slice(&[]),
        }
    }
}
