//! What one peer has been told of the memory that is lent to it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use crate::region::Region;
use crate::regions::Regions;
use crate::socket;

/// How many regions of one rank a peer keeps mapped on one lane. The one that was used least lately makes room.
pub(crate) const REGIONS_MAX: usize = 256;
/// The first byte of a packet with a region.
const REGION: u8 = 2;
/// The size of such a packet.
pub(crate) const PACKET_BYTES: usize = 24;

/// What may be lent.
#[derive(Debug, Clone)]
pub(crate) struct Lending {
    pub(crate) regions: Arc<Regions>,
    /// Pieces smaller than this are copied, wherever they lie.
    pub(crate) bytes_min: usize,
    /// Pieces of other memory from this size on are shown where the receiver can read them; `usize::MAX` means none.
    pub(crate) shown_min: usize,
}

impl Lending {
    /// The size of the longest piece that is copied.
    pub(crate) const fn copied_max(&self) -> usize {
        self.bytes_min.saturating_sub(1)
    }
}

/// What comes with the descriptor of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    /// What the sender calls the region.
    pub(crate) region: u64,
    /// Another one that makes room for it; zero, which is none, if there is room.
    pub(crate) forget: u64,
}

impl Packet {
    pub(crate) fn encode(self) -> [u8; PACKET_BYTES] {
        let mut bytes = [0; PACKET_BYTES];
        bytes[0] = REGION;
        bytes[8..16].copy_from_slice(&self.region.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.forget.to_le_bytes());
        bytes
    }

    /// `None` if it is anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let [kind, region, forget] = words else { return None };
        let kind_is_region = *kind == [REGION, 0, 0, 0, 0, 0, 0, 0];
        let packet = Self { region: u64::from_le_bytes(*region), forget: u64::from_le_bytes(*forget) };
        kind_is_region.then_some(packet)
    }
}

/// What one peer has been told.
#[derive(Debug)]
pub(crate) struct Lender {
    lending: Lending,
    told: BTreeMap<u64, Told>,
    /// Counts what is lent.
    clock: u64,
}

/// A region that the peer has.
#[derive(Debug)]
struct Told {
    region: Weak<Region>,
    /// When it was used last.
    used: u64,
}

impl Lender {
    pub(crate) const fn new(lending: Lending) -> Self {
        Self { lending, told: BTreeMap::new(), clock: 0 }
    }

    /// The smallest piece of memory in no region that is shown.
    pub(crate) const fn shown_min(&self) -> usize {
        self.lending.shown_min
    }

    /// The region in which a piece lies, and where, if it is to be lent.
    pub(crate) fn find(&self, piece: &[u8]) -> Option<(Arc<Region>, u64)> {
        if piece.len() <= self.lending.copied_max() { None } else { self.lending.regions.find(piece) }
    }

    /// Sees to it that the peer has a region. False if it cannot be sent now. `is_out` tells which are being read.
    pub(crate) fn tell(
        &mut self,
        region: &Arc<Region>,
        socket: impl AsFd,
        is_out: impl Fn(u64) -> bool,
    ) -> bool {
        self.clock += 1;
        if let Some(told) = self.told.get_mut(&region.id()) {
            told.used = self.clock;
            return true;
        }
        self.told.retain(|_, told| told.region.strong_count() > 0);
        let forget = match self.least_used(is_out) {
            _ if self.told.len() < REGIONS_MAX => 0,
            Some(least) => least,
            None => return false,
        };
        let packet = Packet { region: region.id(), forget };
        if let Err(error) = socket::send(socket, &packet.encode(), Some(region.file())) {
            tracing::debug!(%error, "a buffer is copied, as its descriptor could not be sent");
            return false;
        }
        self.told.remove(&forget);
        self.told.insert(region.id(), Told { region: Arc::downgrade(region), used: self.clock });
        true
    }

    fn least_used(&self, is_out: impl Fn(u64) -> bool) -> Option<u64> {
        let idle = self.told.iter().filter(|(id, _)| !is_out(**id));
        idle.min_by_key(|(_, told)| told.used).map(|(id, _)| *id)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_packet_are_those_of_the_format() {
        let packet = Packet { region: 0x0807_0605_0403_0201, forget: 9 };
        let mut expected = vec![2, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(packet.encode()[..], expected);
        assert_eq!(Packet::decode(&expected), Some(packet));
        assert_eq!(Packet::decode(&expected[..23]), None);
        expected.push(0);
        assert_eq!(Packet::decode(&expected), None);
        assert_eq!(Packet::decode(&[1]), None);
        expected.truncate(PACKET_BYTES);
        expected[7] = 1;
        assert_eq!(Packet::decode(&expected), None);
    }
}
