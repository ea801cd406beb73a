//! Exports regions of this rank to one peer, which maps them.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use comm_core::wire;

use crate::region::Region;
use crate::regions::{FoundRegion, Regions};
use crate::socket;

/// The maximum number of regions of one rank that a peer keeps mapped on one channel. The least
/// recently used one is evicted.
pub(crate) const REGIONS_MAX: usize = 256;
/// The first field of a message that exports a region.
const REGION: u64 = 2;
/// The size of that message.
pub(crate) const REGION_MESSAGE_BYTES: usize = 24;

/// The memory that peers may read in place.
#[derive(Debug, Clone)]
pub(crate) struct ExportConfig {
    pub(crate) regions: Arc<Regions>,
    /// Smaller pieces are copied, wherever they lie.
    pub(crate) bytes_min: usize,
    /// Pieces of other memory of at least this size are read by cross-memory attach if the receiver
    /// can do so; `usize::MAX` means none.
    pub(crate) cma_bytes_min: usize,
}

impl ExportConfig {
    /// Whether this rank and its peers read each other's memory by cross-memory attach.
    pub(crate) const fn uses_cma(&self) -> bool {
        self.cma_bytes_min < usize::MAX
    }

    /// The size of the longest piece that is copied.
    pub(crate) const fn copied_max(&self) -> usize {
        self.bytes_min.saturating_sub(1)
    }
}

/// The message with the file descriptor of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionMessage {
    /// The id that the sender gives the region.
    pub(crate) region: u64,
    /// The region that is evicted in its favour, or zero.
    pub(crate) evicted: u64,
}

impl RegionMessage {
    pub(crate) fn encode(self) -> [u8; REGION_MESSAGE_BYTES] {
        wire::words([REGION, self.region, self.evicted])
    }

    /// Returns `None` for any other bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let [kind, region, evicted] = wire::read_words::<3, REGION_MESSAGE_BYTES>(bytes.try_into().ok()?);
        (kind == REGION).then_some(Self { region, evicted })
    }
}

/// The regions that were exported to one peer.
#[derive(Debug)]
pub(crate) struct RegionExporter {
    export: ExportConfig,
    exported: BTreeMap<u64, Exported>,
    /// The number of uses so far, which orders regions by their last use.
    clock: u64,
}

/// A region that the peer has mapped.
#[derive(Debug)]
struct Exported {
    /// The region, unless it is a segment of the heap. Segments that were dropped are evicted, as
    /// they are not used again.
    owner: Option<Weak<Region>>,
    /// The clock at the last use.
    used: u64,
}

impl RegionExporter {
    pub(crate) const fn new(export: ExportConfig) -> Self {
        Self { export, exported: BTreeMap::new(), clock: 0 }
    }

    /// The smallest piece outside all regions that is read by cross-memory attach.
    pub(crate) const fn cma_bytes_min(&self) -> usize {
        self.export.cma_bytes_min
    }

    /// Returns the region that contains a piece and the offset of the piece in it, if the piece is
    /// to be read in place.
    pub(crate) fn find<'piece>(&self, piece: &'piece [u8]) -> Option<(FoundRegion<'piece>, u64)> {
        if piece.len() <= self.export.copied_max() { None } else { self.export.regions.find(piece) }
    }

    /// Sends the peer a region unless the peer already has it. Returns false if it cannot be sent
    /// now. `is_out` returns whether a region has outstanding descriptors.
    pub(crate) fn export(
        &mut self,
        region: &FoundRegion<'_>,
        socket: impl AsFd,
        is_out: impl Fn(u64) -> bool,
    ) -> bool {
        self.clock += 1;
        if let Some(exported) = self.exported.get_mut(&region.id()) {
            exported.used = self.clock;
            return true;
        }
        let is_dropped = |owner: &Weak<Region>| owner.strong_count() == 0;
        self.exported.retain(|_, exported| !exported.owner.as_ref().is_some_and(is_dropped));
        let evicted = match self.least_used(is_out) {
            _ if self.exported.len() < REGIONS_MAX => 0,
            Some(least) => least,
            None => return false,
        };
        let message = RegionMessage { region: region.id(), evicted };
        if let Err(error) = socket::send(socket, &message.encode(), Some(region.as_fd())) {
            tracing::debug!(%error, "copying a buffer because its file descriptor could not be sent");
            return false;
        }
        self.exported.remove(&evicted);
        self.exported.insert(region.id(), Exported { owner: region.owner(), used: self.clock });
        true
    }

    fn least_used(&self, is_out: impl Fn(u64) -> bool) -> Option<u64> {
        let idle = self.exported.iter().filter(|(id, _)| !is_out(**id));
        idle.min_by_key(|(_, exported)| exported.used).map(|(id, _)| *id)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_bytes_of_the_format() {
        let message = RegionMessage { region: 0x0807_0605_0403_0201, evicted: 9 };
        let expected = [2, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(message.encode(), expected);
    }

    comm_sim::hostile_bytes!(messages_are_read_as_they_were_written: [RegionMessage { region: 3, evicted: 0 }],
        |message| message.encode().to_vec(), RegionMessage::decode);
}
