//! Chooses whether bytes are copied into a ring with ordinary or with non-temporal stores.
//!
//! Ordinary stores are faster if the two sides share a cache. If they do not, the faster choice
//! depends on the machine: writing cache lines that the other side holds is slow, and so is writing
//! to memory. It also depends on where the scheduler, or the host of a virtual machine, has placed
//! the two sides, and that may change at any time. So both are measured on a small fraction of the
//! copies.

use std::time::Duration;

/// The way in which one piece is copied into the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyMode {
    /// Along this path.
    Plain(CopyPath),
    /// Along this path, once the source is in the caches. The time is passed to
    /// [`PathSelector::record`].
    Measured(CopyPath),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyPath {
    /// With ordinary stores, through the caches.
    Cached,
    /// With non-temporal stores, which bypass the caches.
    NonTemporal,
}

/// Smaller pieces always go through the caches.
const PIECE_MIN: usize = 4096;
/// One piece in this many is measured.
const MEASURE_EVERY: u32 = 64;
/// The number of pieces until the next measurement if cached copies seem slow and the other path
/// has not been measured yet.
const MEASURE_SOON: u32 = 2;
/// The maximum picoseconds per byte of a copy through a shared cache. While copies are this fast,
/// the other path is not tried.
const SHARED_MAX: u64 = 90;

/// Chooses the path of each piece by measurements.
#[derive(Debug)]
pub(crate) struct PathSelector {
    path: CopyPath,
    /// Pieces until the next one that is measured.
    countdown: u32,
    /// The path of the next piece that is measured.
    measured: CopyPath,
    cached: CopyTimes,
    non_temporal: CopyTimes,
}

/// The times of the last two copies that were measured, in picoseconds per byte. One alone may have
/// been disturbed.
#[derive(Debug, Clone, Copy)]
struct CopyTimes([u64; 2]);

impl CopyTimes {
    const fn record(&mut self, picoseconds: u64) {
        self.0 = [picoseconds, self.0[0]];
    }

    /// Whether both were measured.
    const fn is_known(self) -> bool {
        self.0[1] != u64::MAX
    }

    /// The shorter one, which is less likely to have been disturbed.
    fn best(self) -> u64 {
        self.0[0].min(self.0[1])
    }
}

impl PathSelector {
    pub(crate) const fn new() -> Self {
        Self {
            path: CopyPath::Cached,
            countdown: MEASURE_EVERY,
            measured: CopyPath::Cached,
            cached: CopyTimes([0; 2]),
            non_temporal: CopyTimes([u64::MAX; 2]),
        }
    }

    /// Chooses the path of the next piece.
    pub(crate) const fn choose(&mut self, bytes: usize) -> CopyMode {
        if bytes < PIECE_MIN {
            return CopyMode::Plain(CopyPath::Cached);
        }
        self.countdown = self.countdown.saturating_sub(1);
        if self.countdown == 0 { CopyMode::Measured(self.measured) } else { CopyMode::Plain(self.path) }
    }

    /// Records the time of a measured copy.
    pub(crate) fn record(&mut self, bytes: usize, time: Duration) {
        let picoseconds = time.as_nanos() * 1000 / (bytes as u128).max(1);
        let picoseconds = u64::try_from(picoseconds).unwrap_or(u64::MAX);
        match self.measured {
            CopyPath::Cached => self.cached.record(picoseconds),
            CopyPath::NonTemporal => self.non_temporal.record(picoseconds),
        }
        let is_quick = self.cached.best() <= SHARED_MAX;
        let bypasses = !is_quick && self.is_non_temporal_faster();
        self.path = if bypasses { CopyPath::NonTemporal } else { CopyPath::Cached };
        self.measured = match self.measured {
            CopyPath::Cached if !is_quick => CopyPath::NonTemporal,
            _ => CopyPath::Cached,
        };
        let hurries = picoseconds > SHARED_MAX && !self.non_temporal.is_known();
        self.countdown = if hurries { MEASURE_SOON } else { MEASURE_EVERY };
    }

    /// Whether non-temporal stores save this side more time than it costs the other side to fetch
    /// the bytes from memory.
    fn is_non_temporal_faster(&self) -> bool {
        self.non_temporal.best().saturating_mul(3) < self.cached.best().saturating_mul(2)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    /// Copies pieces, reporting these picoseconds per byte for those that are measured. Returns the
    /// number of non-temporal copies.
    fn copy(selector: &mut PathSelector, pieces: usize, cached: u64, non_temporal: u64) -> usize {
        let mut copy = || match selector.choose(16_384) {
            CopyMode::Plain(path) => path,
            CopyMode::Measured(path) => {
                let picoseconds = if path == CopyPath::Cached { cached } else { non_temporal };
                selector.record(16_384, Duration::from_nanos(16_384 * picoseconds / 1000));
                path
            }
        };
        (0..pieces).filter(|_| copy() == CopyPath::NonTemporal).count()
    }

    #[test]
    fn non_temporal_stores_are_used_while_they_are_much_faster() {
        let mut selector = PathSelector::new();
        copy(&mut selector, 500, 430, 86);
        assert!(copy(&mut selector, 1000, 430, 86) > 980);
        copy(&mut selector, 300, 57, 86);
        assert_eq!(copy(&mut selector, 1000, 57, 86), 0);
        copy(&mut selector, 500, 430, 86);
        assert!(copy(&mut selector, 1000, 430, 86) > 980);
    }

    #[test]
    fn non_temporal_stores_are_rare_where_both_paths_are_slow() {
        let mut selector = PathSelector::new();
        assert!(copy(&mut selector, 10_000, 120, 190) < 100);
        assert!(copy(&mut selector, 10_000, 120, 100) < 100);
    }

    #[test]
    fn non_temporal_stores_are_never_tried_where_caches_are_shared() {
        assert_eq!(copy(&mut PathSelector::new(), 10_000, 60, 1), 0);
    }

    #[test]
    fn one_disturbed_measurement_changes_nothing() {
        let mut selector = PathSelector::new();
        while selector.choose(16_384) != CopyMode::Measured(CopyPath::Cached) {}
        selector.record(16_384, Duration::from_millis(4));
        assert_eq!(copy(&mut selector, 1000, 30, 10), 0);
    }

    #[test]
    fn small_pieces_are_never_measured() {
        let mut selector = PathSelector::new();
        assert!((0..1000).all(|_| selector.choose(100) == CopyMode::Plain(CopyPath::Cached)));
    }
}
