//! Settings of shared memory.

use comm_core::{ChannelKind, Error, Result};

use crate::cma;
use crate::fast_boxes::FastBoxes;

/// Settings of shared memory. The default suits most machines.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedMemoryConfig {
    /// The capacity of a ring in bytes: how far a sender can be ahead of its receiver. A power of
    /// two, from [`SharedMemoryConfig::RING_BYTES_MIN`] to [`SharedMemoryConfig::RING_BYTES_MAX`];
    /// at least one page is used. Each pair of ranks has two rings per channel, whose memory is
    /// allocated when it is used for the first time. A ring should not fit in the second-level
    /// cache of a processor: a line is written faster once the reader's caches have dropped it. To
    /// limit the memory, channels of more than four ranks have proportionally smaller rings, down
    /// to 64 KiB. If a host has more ranks of a channel than processors, its rings have at most
    /// an eighth of the capacity: such ranks run in turns, so all rings fill before they are read,
    /// and should fit in the cache. Control channels, which carry short frames, also have smaller
    /// ones.
    pub ring_bytes: usize,
    /// The minimum size in bytes of a buffer from [`Fabric::allocate`](comm_core::Fabric::allocate)
    /// that other ranks read in place; smaller ones are copied through the ring. `usize::MAX` means
    /// that no allocated memory is read in place, including the shared buffers of channels. Pieces
    /// of such a buffer are still copied if a collective sends less than 1/32 of this at a time, or
    /// a message less than this. Ranks may use different values.
    pub zero_copy_bytes: usize,
    /// The minimum size in bytes of a piece of any other memory that the receiver reads in place by
    /// cross-memory attach instead of through the ring. This applies to collectives that send the
    /// caller's buffer, if the system lets the receiver read the memory of this process as a
    /// debugger would. `None` means 32 KiB if a measurement, made once per process, shows that the
    /// kernel copies fast enough, and never otherwise. `usize::MAX` means never; a value below the
    /// page size means a page. Ranks may use different values.
    pub single_copy_bytes: Option<usize>,
    /// The largest number of ranks of a channel that connects all pairs of ranks when it is opened.
    /// In a larger channel of data, a pair is connected when one of the two first sends to the
    /// other or receives from it. All ranks need the same value.
    pub full_mesh_max: usize,
}

impl SharedMemoryConfig {
    /// The default of `full_mesh_max`.
    pub const FULL_MESH_MAX: usize = 16;
    /// The smallest capacity of a ring.
    pub const RING_BYTES_MIN: usize = 4096;
    /// The largest capacity of a ring.
    pub const RING_BYTES_MAX: usize = 1 << 30;
    /// The bytes of the memory for small messages that each ring has in addition, if pages have
    /// 4 KiB. It is allocated with the first such message.
    pub const FAST_BOX_BYTES: usize = size_of::<FastBoxes>().next_multiple_of(4096);
    /// The largest capacity of a ring of a control channel.
    const CONTROL_RING_BYTES: usize = 8192;
    /// The maximum number of ranks of a channel whose rings have the configured capacity.
    const RANKS_FULL: usize = 4;
    /// The least divisor of the capacity for ranks that share processors, and the additional one
    /// for many of them. With 256 KiB, an all-to-all of 4 to 8 ranks on two processors takes 0.6 to
    /// 0.9 times as long as with 1 MiB.
    const SHARED_PROCESSORS_DIVISORS: (usize, usize) = (8, 4);
    /// The smallest capacity to which rings are reduced in channels of many ranks.
    const REDUCED_RING_BYTES_MIN: usize = 64 * 1024;

    /// The maximum number of pieces of the smallest buffer read in place for which they are not
    /// copied.
    const PIECES: usize = 32;

    /// The minimum number of bytes for which one copy by the kernel is faster than two through a
    /// ring.
    const SINGLE_COPY_BYTES: usize = 32 << 10;

    /// The smallest piece of a shared buffer that is read in place; smaller ones are copied.
    pub(crate) const STAGED_PIECE_BYTES: usize = 32 << 10;

    /// The smallest piece that is read by cross-memory attach.
    pub(crate) fn cma_bytes_min(&self) -> usize {
        let default = || if cma::is_fast() { Self::SINGLE_COPY_BYTES } else { usize::MAX };
        self.single_copy_bytes.unwrap_or_else(default).max(rustix::param::page_size())
    }

    /// Whether other ranks read regions of this one in place.
    pub(crate) const fn has_regions(&self) -> bool {
        self.zero_copy_bytes != usize::MAX
    }

    /// The smallest piece of a region that is read in place.
    pub(crate) fn region_bytes_min(&self) -> usize {
        self.region_piece_bytes().min(Self::STAGED_PIECE_BYTES)
    }

    /// The smallest piece of an allocated buffer that is read in place.
    pub(crate) const fn region_piece_bytes(&self) -> usize {
        if self.zero_copy_bytes < Self::PIECES { 1 } else { self.zero_copy_bytes / Self::PIECES }
    }

    /// The smallest piece of the heap that is read in place. It takes longer to find than one of an
    /// allocated buffer.
    pub(crate) const fn heap_piece_bytes(&self) -> usize {
        if self.zero_copy_bytes < 2 { 1 } else { self.zero_copy_bytes / 2 }
    }

    /// Returns an error if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        if self.ring_bytes.is_power_of_two()
            && (Self::RING_BYTES_MIN..=Self::RING_BYTES_MAX).contains(&self.ring_bytes)
        {
            return Ok(());
        }
        let reason = format_args!(
            "the capacity of a ring must be a power of two from {} to {}",
            Self::RING_BYTES_MIN,
            Self::RING_BYTES_MAX
        );
        Err(Error::setting("ring_bytes", self.ring_bytes.to_string(), reason))
    }

    /// Returns the capacity in bytes of a ring of a channel of data between `ranks` ranks of a host
    /// with this number of processors, at least a page.
    #[must_use]
    pub fn data_ring_bytes(&self, ranks: usize, processors: usize) -> usize {
        let by_ranks = ranks.div_ceil(Self::RANKS_FULL).next_power_of_two();
        let (least, additional) = Self::SHARED_PROCESSORS_DIVISORS;
        let divisor = if ranks > processors { least.max(by_ranks * additional) } else { by_ranks };
        let reduced = (self.ring_bytes / divisor).max(Self::REDUCED_RING_BYTES_MIN);
        self.ring_bytes.min(reduced).max(rustix::param::page_size())
    }

    /// Returns the capacity of the rings of a channel of any kind.
    pub(crate) fn capacity(&self, kind: ChannelKind, ranks: usize, processors: usize) -> usize {
        match kind {
            ChannelKind::Control => {
                self.ring_bytes.min(Self::CONTROL_RING_BYTES).max(rustix::param::page_size())
            }
            _ => self.data_ring_bytes(ranks, processors),
        }
    }
}

impl Default for SharedMemoryConfig {
    fn default() -> Self {
        Self {
            ring_bytes: 2 << 20,
            zero_copy_bytes: 128 << 10,
            single_copy_bytes: None,
            full_mesh_max: Self::FULL_MESH_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_capacities_are_refused() {
        for ring_bytes in [0, 1, 4095, 2048, 4097, 12_288, (1 << 30) + 1, 1 << 31] {
            assert!(SharedMemoryConfig { ring_bytes, ..Default::default() }.check().is_err(), "{ring_bytes}");
        }
        for ring_bytes in [4096, 8192, 1 << 18, 1 << 30] {
            assert!(SharedMemoryConfig { ring_bytes, ..Default::default() }.check().is_ok(), "{ring_bytes}");
        }
        assert!(SharedMemoryConfig::default().check().is_ok());
    }

    #[test]
    fn pieces_are_read_in_place_down_to_a_thirty_second_of_the_smallest_buffer() {
        for (zero_copy_bytes, piece) in [(0, 1), (1, 1), (31, 1), (32, 1), (64, 2), (128 << 10, 4 << 10)] {
            let config = SharedMemoryConfig { zero_copy_bytes, ..SharedMemoryConfig::default() };
            assert_eq!(config.region_piece_bytes(), piece, "{zero_copy_bytes}");
            assert_eq!(config.heap_piece_bytes(), (zero_copy_bytes / 2).max(1), "{zero_copy_bytes}");
        }
    }

    #[test]
    fn headers_and_other_small_pieces_are_always_copied() {
        let cma_bytes_min = |single_copy_bytes| {
            SharedMemoryConfig { single_copy_bytes, ..Default::default() }.cma_bytes_min()
        };
        for bytes in [0, 1, 100, rustix::param::page_size()] {
            assert_eq!(cma_bytes_min(Some(bytes)), rustix::param::page_size());
        }
        assert_eq!((cma_bytes_min(Some(1 << 20)), cma_bytes_min(Some(usize::MAX))), (1 << 20, usize::MAX));
        assert!([SharedMemoryConfig::SINGLE_COPY_BYTES, usize::MAX].contains(&cma_bytes_min(None)));
    }

    #[test]
    fn control_channels_have_small_rings() {
        let config = SharedMemoryConfig::default();
        let capacity = |kind, ranks| config.capacity(kind, ranks, usize::MAX);
        assert_eq!(capacity(ChannelKind::Control, 1000), capacity(ChannelKind::Control, 2));
        assert!(capacity(ChannelKind::Control, 2) < capacity(ChannelKind::Collective, 1000));
        let tiny = SharedMemoryConfig { ring_bytes: SharedMemoryConfig::RING_BYTES_MIN, ..config.clone() };
        assert!(tiny.capacity(ChannelKind::Control, 2, usize::MAX) < capacity(ChannelKind::Control, 2));
    }

    #[test]
    fn memory_grows_with_the_ranks_and_not_with_their_pairs() {
        let config = SharedMemoryConfig::default();
        for kind in [ChannelKind::Collective, ChannelKind::PointToPoint] {
            let capacities =
                [1, 2, 4, 5, 8, 9, 16, 17, 128, 1000].map(|ranks| config.capacity(kind, ranks, ranks) >> 10);
            assert_eq!(capacities, [2048, 2048, 2048, 1024, 1024, 512, 512, 256, 64, 64]);
        }
        for ring_bytes in [4096, 8192, 1 << 18] {
            let config = SharedMemoryConfig { ring_bytes, ..Default::default() };
            for (ranks, processors) in (1..300).flat_map(|ranks| [(ranks, ranks), (ranks, 2)]) {
                let capacity = config.capacity(ChannelKind::Collective, ranks, processors);
                assert!(capacity.is_power_of_two() && capacity >= rustix::param::page_size());
                assert!(capacity <= ring_bytes.max(rustix::param::page_size()), "{ring_bytes} {ranks}");
            }
        }
    }

    #[test]
    fn ranks_that_share_processors_have_smaller_rings() {
        let config = SharedMemoryConfig::default();
        let capacities = [(2, 2), (3, 2), (8, 2), (8, 8), (9, 8), (64, 63), (1000, 2)]
            .map(|(ranks, processors)| config.capacity(ChannelKind::Collective, ranks, processors) >> 10);
        assert_eq!(capacities, [2048, 256, 256, 1024, 128, 64, 64]);
    }
}
