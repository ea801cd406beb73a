//! Chooses the stores for results in memory that other processors read.
//!
//! Whether stores through the cache or copies of whole lines are faster depends on which caches the
//! processors share, and that may change while a program runs, as in a virtual machine. Both give
//! the same bytes, so each rank measures both, and uses the faster one.

use std::time::Duration;

use comm_core::{Reduction, Result, Transport};

/// Shorter pieces are not measured.
const PIECE_MIN: usize = 16 << 10;
/// One piece of this many is stored in the way that was slower, to see whether it still is.
const TRIAL_EVERY: u32 = 32;

/// The times of both ways.
#[derive(Debug, Default)]
pub(super) struct SharedStores {
    pieces: u32,
    /// The moving average of the time per byte in nanoseconds, by way; 0 before the first piece.
    direct: f64,
    in_blocks: f64,
}

impl SharedStores {
    /// Receives and combines a piece in one of the two ways, and takes its time into account.
    pub(super) fn time(
        &mut self,
        transport: &mut dyn Transport,
        reduction: &Reduction,
        receive: impl FnOnce(&mut dyn Transport, &Reduction) -> Result<usize>,
    ) -> Result<usize> {
        let (start, in_blocks) = (transport.now(), self.uses_blocks());
        let bytes = receive(transport, &reduction.into_shared(in_blocks))?;
        if bytes >= PIECE_MIN {
            self.record(in_blocks, bytes, transport.now().saturating_duration_since(start));
        }
        Ok(bytes)
    }

    /// Returns whether the next piece is stored in blocks of whole lines.
    fn uses_blocks(&self) -> bool {
        (self.in_blocks <= self.direct) != self.pieces.is_multiple_of(TRIAL_EVERY)
    }

    fn record(&mut self, in_blocks: bool, bytes: usize, time: Duration) {
        self.pieces = self.pieces.wrapping_add(1);
        let average = if in_blocks { &mut self.in_blocks } else { &mut self.direct };
        let sample = time.as_nanos() as f64 / bytes as f64;
        if *average == 0.0 {
            *average = sample;
        } else {
            // A rank may have lost its processor meanwhile, so that long times say little.
            let change = sample.min(2.0 * *average) - *average;
            *average += if change < 0.0 { change / 2.0 } else { change / 8.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores pieces that take this long per byte. Returns how many were stored in blocks.
    fn run(stores: &mut SharedStores, pieces: u32, [direct, in_blocks]: [u64; 2]) -> u32 {
        let mut chosen = 0;
        for _ in 0..pieces {
            let way = stores.uses_blocks();
            let nanos = if way { in_blocks } else { direct };
            stores.record(way, 100, Duration::from_nanos(100 * nanos));
            chosen += u32::from(way);
        }
        chosen
    }

    #[test]
    fn the_faster_way_is_used_for_nearly_all_pieces_and_again_when_it_changes() {
        let mut stores = SharedStores::default();
        let [few, most] = [320 / TRIAL_EVERY + 2, 320 - 320 / TRIAL_EVERY - 2];
        assert!(run(&mut stores, 320, [10, 20]) <= few);
        // The other way is found out to be faster by trials.
        run(&mut stores, 100 * TRIAL_EVERY, [20, 10]);
        assert!(run(&mut stores, 320, [20, 10]) >= most);
        run(&mut stores, 100 * TRIAL_EVERY, [10, 20]);
        assert!(run(&mut stores, 320, [10, 20]) <= few);
    }

    #[test]
    fn a_piece_during_which_the_rank_lost_its_processor_changes_little() {
        let mut stores = SharedStores::default();
        run(&mut stores, 320, [15, 10]);
        stores.record(true, 100, Duration::from_secs(1));
        assert!(run(&mut stores, 31, [15, 10]) >= 30);
        // Not even if it is the first one.
        let mut stores = SharedStores::default();
        stores.record(true, 100, Duration::from_secs(1));
        run(&mut stores, 30 * TRIAL_EVERY, [15, 10]);
        assert!(run(&mut stores, 320, [15, 10]) >= 320 - 320 / TRIAL_EVERY - 2);
    }
}
