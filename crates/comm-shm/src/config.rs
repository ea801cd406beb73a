//! How the rings of lanes are set up.

use comm_core::{Error, LaneKind, Result};

use crate::remote;

/// How the rings of lanes are set up. The default suits most machines.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedMemoryConfig {
    /// The capacity of a ring in bytes: how far one rank can be ahead of another that it sends to. A power of two,
    /// from [`SharedMemoryConfig::RING_BYTES_MIN`] to [`SharedMemoryConfig::RING_BYTES_MAX`]; at least a page of
    /// memory is used. Each pair of ranks has two rings per lane, whose memory is there from the start, so a lane of
    /// more than eight ranks has smaller ones, in proportion, down to 64 KiB. So has a control lane, which carries
    /// short frames only.
    pub ring_bytes: usize,
    /// From how many bytes on a buffer from [`Lanes::allocate`](comm_core::Lanes::allocate) lies where the other ranks
    /// read it in place, in collectives, instead of being copied through the ring; `usize::MAX` means never, nor from memory that lanes stage. Of such a
    /// buffer, pieces of less than one part in 32 of this are still copied. It may differ from rank to rank.
    pub lend_bytes: usize,
    /// From how many bytes on a piece of any other memory is read by the other rank where it lies, instead of being copied through
    /// the ring: in collectives that send what the caller gave them, where the system lets that rank read the memory of this
    /// one, as it does for debuggers. `None` means 32 KiB if the kernel copies quickly enough, as is measured once, and else
    /// never. `usize::MAX` means never too, and less than a page means a page. It may differ from rank to rank.
    pub single_copy_bytes: Option<usize>,
}

impl SharedMemoryConfig {
    /// The smallest capacity of a ring.
    pub const RING_BYTES_MIN: usize = 4096;
    /// The largest capacity of a ring.
    pub const RING_BYTES_MAX: usize = 1 << 30;
    /// The most that a ring of a control lane holds.
    const CONTROL_RING_BYTES: usize = 8192;
    /// Up to this many ranks, rings have the capacity that was asked for.
    const RANKS_FULL: usize = 8;
    /// However many ranks there are, rings are not made smaller than this on their account.
    const CROWDED_RING_BYTES: usize = 64 * 1024;

    /// Into how many pieces the smallest buffer that is lent may be cut before its pieces are copied all the same.
    const PIECES: usize = 32;

    /// From how many bytes on one copy by the kernel is quicker than two through a ring.
    const SINGLE_COPY_BYTES: usize = 32 << 10;

    /// The smallest piece of what is staged that is lent; smaller ones are copied.
    pub(crate) const STAGED_PIECE_BYTES: usize = 8 << 10;

    /// The smallest piece that another rank reads in memory of this one which it has not mapped.
    pub(crate) fn shown_bytes_min(&self) -> usize {
        let found = || if remote::pays() { Self::SINGLE_COPY_BYTES } else { usize::MAX };
        self.single_copy_bytes.unwrap_or_else(found).max(rustix::param::page_size())
    }

    /// Whether anything is lent.
    pub(crate) const fn lends(&self) -> bool {
        self.lend_bytes != usize::MAX
    }

    /// The smallest piece that is lent, wherever it lies.
    pub(crate) fn lent_bytes_min(&self) -> usize {
        self.lend_piece_bytes().min(Self::STAGED_PIECE_BYTES)
    }

    /// The smallest piece of a buffer that is lent.
    pub(crate) const fn lend_piece_bytes(&self) -> usize {
        if self.lend_bytes < Self::PIECES { 1 } else { self.lend_bytes / Self::PIECES }
    }

    /// Refuses what cannot be used.
    pub(crate) fn check(&self) -> Result<()> {
        if self.ring_bytes.is_power_of_two()
            && (Self::RING_BYTES_MIN..=Self::RING_BYTES_MAX).contains(&self.ring_bytes)
        {
            return Ok(());
        }
        let reason = format_args!(
            "the capacity of a ring is a power of two from {} to {}",
            Self::RING_BYTES_MIN,
            Self::RING_BYTES_MAX
        );
        Err(Error::setting("ring_bytes", self.ring_bytes.to_string(), reason))
    }

    /// The capacity of the rings of a lane between so many ranks. Rings are mapped in whole pages.
    pub(crate) fn capacity(&self, kind: LaneKind, ranks: usize) -> usize {
        let crowd = ranks.div_ceil(Self::RANKS_FULL).next_power_of_two();
        let most = match kind {
            LaneKind::Control => Self::CONTROL_RING_BYTES,
            _ => (self.ring_bytes / crowd).max(Self::CROWDED_RING_BYTES),
        };
        self.ring_bytes.min(most).max(rustix::param::page_size())
    }
}

impl Default for SharedMemoryConfig {
    fn default() -> Self {
        Self { ring_bytes: 1 << 20, lend_bytes: 2 << 20, single_copy_bytes: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_that_cannot_be_are_refused() {
        for ring_bytes in [0, 1, 4095, 2048, 4097, 12_288, (1 << 30) + 1, 1 << 31] {
            assert!(SharedMemoryConfig { ring_bytes, ..Default::default() }.check().is_err(), "{ring_bytes}");
        }
        for ring_bytes in [4096, 8192, 1 << 18, 1 << 30] {
            assert!(SharedMemoryConfig { ring_bytes, ..Default::default() }.check().is_ok(), "{ring_bytes}");
        }
        assert!(SharedMemoryConfig::default().check().is_ok());
    }

    #[test]
    fn pieces_of_a_buffer_that_is_lent_are_lent_down_to_a_thirty_second_of_the_smallest() {
        for (lend_bytes, piece) in [(0, 1), (1, 1), (31, 1), (32, 1), (64, 2), (2 << 20, 64 << 10)] {
            let config = SharedMemoryConfig { lend_bytes, ..SharedMemoryConfig::default() };
            assert_eq!(config.lend_piece_bytes(), piece, "{lend_bytes}");
        }
    }

    #[test]
    fn headers_and_other_small_pieces_are_always_copied() {
        let shown = |single_copy_bytes| {
            SharedMemoryConfig { single_copy_bytes, ..Default::default() }.shown_bytes_min()
        };
        for bytes in [0, 1, 100, rustix::param::page_size()] {
            assert_eq!(shown(Some(bytes)), rustix::param::page_size());
        }
        assert_eq!((shown(Some(1 << 20)), shown(Some(usize::MAX))), (1 << 20, usize::MAX));
        assert!([SharedMemoryConfig::SINGLE_COPY_BYTES, usize::MAX].contains(&shown(None)));
    }

    #[test]
    fn control_lanes_have_small_rings() {
        let config = SharedMemoryConfig::default();
        assert_eq!(config.capacity(LaneKind::Control, 1000), config.capacity(LaneKind::Control, 2));
        assert!(config.capacity(LaneKind::Control, 2) < config.capacity(LaneKind::Collective, 1000));
        let tiny = SharedMemoryConfig { ring_bytes: SharedMemoryConfig::RING_BYTES_MIN, ..config.clone() };
        assert!(tiny.capacity(LaneKind::Control, 2) < config.capacity(LaneKind::Control, 2));
    }

    #[test]
    fn memory_grows_with_the_ranks_and_not_with_their_pairs() {
        let config = SharedMemoryConfig::default();
        for kind in [LaneKind::Collective, LaneKind::PointToPoint] {
            let capacities =
                [1, 2, 8, 9, 16, 17, 64, 128, 1000].map(|ranks| config.capacity(kind, ranks) >> 10);
            assert_eq!(capacities, [1024, 1024, 1024, 512, 512, 256, 128, 64, 64]);
        }
        for ring_bytes in [4096, 8192, 1 << 18] {
            let config = SharedMemoryConfig { ring_bytes, ..Default::default() };
            for ranks in 1..300 {
                let capacity = config.capacity(LaneKind::Collective, ranks);
                assert!(capacity.is_power_of_two() && capacity >= rustix::param::page_size());
                assert!(capacity <= ring_bytes.max(rustix::param::page_size()), "{ring_bytes} {ranks}");
            }
        }
    }
}
