//! Chooses whether bytes are copied into a ring with ordinary or with non-temporal stores.
//!
//! Ordinary stores are faster if the two sides share a cache. If they do not, the faster choice
//! depends on the machine: writing cache lines that the other side holds is slow, and so is writing
//! to memory. It also depends on where the scheduler, or the host of a virtual machine, has placed
//! the two sides, and that may change at any time. So both are measured on a small fraction of the
//! copies.

use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// The way in which one piece is copied into the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyMode {
    /// Along this path.
    Plain(CopyPath),
    /// Along this path, once the source is in the caches, and with a look at the clock.
    Measured(CopyPath),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyPath {
    /// With ordinary stores, through the caches.
    Cached,
    /// With non-temporal stores, which bypass the caches.
    NonTemporal,
}

/// Pieces of similar lengths, for which one path is chosen.
#[derive(Debug)]
pub(crate) struct PieceClass {
    /// Smaller pieces always go through the caches.
    bytes_min: usize,
    /// One piece in this many is measured.
    measure_every: u32,
    /// The maximum picoseconds per byte of a copy through a shared cache. While copies are this
    /// fast, the other path is not tried.
    shared_max: u64,
    /// Whether a measurement ends when other processors can see the stores. Those of a short piece
    /// wait in the processor while the program goes on.
    includes_stores: bool,
}

impl PieceClass {
    /// The pieces of messages in boxes. Where two processors share a cache, a copy and
    /// its stores were measured to take 120 to 190 picoseconds per byte, and 460 to 730 otherwise.
    pub(crate) const SHORT: Self =
        Self { bytes_min: 1024, measure_every: 256, shared_max: 300, includes_stores: true };
    /// Longer pieces.
    pub(crate) const LONG: Self =
        Self { bytes_min: 4096, measure_every: 64, shared_max: 90, includes_stores: false };
}

/// The number of pieces until the next measurement if cached copies seem slow and the other path
/// has not been measured yet.
const MEASURE_SOON: u32 = 2;

/// Chooses the path of each piece by measurements.
#[derive(Debug)]
pub(crate) struct PathSelector {
    class: PieceClass,
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
    pub(crate) const fn new(class: PieceClass) -> Self {
        Self {
            countdown: class.measure_every,
            class,
            path: CopyPath::Cached,
            measured: CopyPath::Cached,
            cached: CopyTimes([0; 2]),
            non_temporal: CopyTimes([u64::MAX; 2]),
        }
    }

    /// Copies a piece along the path that is chosen for it.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: &[u8], copy: impl FnOnce(CopyPath)) {
        match self.choose(bytes.len()) {
            CopyMode::Plain(path) => copy(path),
            CopyMode::Measured(path) => self.copy_measured(bytes, || copy(path)),
        }
    }

    #[cold]
    fn copy_measured(&mut self, bytes: &[u8], copy: impl FnOnce()) {
        load_into_cache(bytes);
        let begin = Instant::now();
        copy();
        if self.class.includes_stores {
            fence(Ordering::SeqCst);
        }
        self.record(bytes.len(), begin.elapsed());
    }

    /// Returns whether pieces of this length go through the caches at present.
    pub(crate) fn is_cached(&self, bytes: usize) -> bool {
        bytes < self.class.bytes_min || self.path == CopyPath::Cached
    }

    /// Whether ordinary copies are as fast as where both sides share a cache, as far as is known.
    pub(crate) fn is_quick(&self) -> bool {
        self.cached.best() <= self.class.shared_max
    }

    /// Chooses the path of the next piece.
    const fn choose(&mut self, bytes: usize) -> CopyMode {
        if bytes < self.class.bytes_min {
            return CopyMode::Plain(CopyPath::Cached);
        }
        self.countdown = self.countdown.saturating_sub(1);
        if self.countdown == 0 { CopyMode::Measured(self.measured) } else { CopyMode::Plain(self.path) }
    }

    /// Records the time of a measured copy.
    fn record(&mut self, bytes: usize, time: Duration) {
        let picoseconds = time.as_nanos() * 1000 / (bytes as u128).max(1);
        let picoseconds = u64::try_from(picoseconds).unwrap_or(u64::MAX);
        match self.measured {
            CopyPath::Cached => self.cached.record(picoseconds),
            CopyPath::NonTemporal => self.non_temporal.record(picoseconds),
        }
        let is_quick = self.is_quick();
        let bypasses = !is_quick && self.is_non_temporal_faster();
        self.path = if bypasses { CopyPath::NonTemporal } else { CopyPath::Cached };
        self.measured = match self.measured {
            CopyPath::Cached if !is_quick => CopyPath::NonTemporal,
            _ => CopyPath::Cached,
        };
        let hurries = picoseconds > self.class.shared_max && !self.non_temporal.is_known();
        self.countdown = if hurries { MEASURE_SOON } else { self.class.measure_every };
    }

    /// Whether non-temporal stores save this side more time than it costs the other side to fetch
    /// the bytes from memory.
    fn is_non_temporal_faster(&self) -> bool {
        self.non_temporal.best().saturating_mul(3) < self.cached.best().saturating_mul(2)
    }
}

/// Brings bytes into the cache, so that the time to fetch them from memory is not measured.
fn load_into_cache(bytes: &[u8]) {
    let lines = bytes.iter().step_by(64);
    black_box(lines.fold(0_u8, |sum, byte| sum ^ *byte));
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 16_384;

    /// Copies pieces of this length, reporting these picoseconds per byte for those that are
    /// measured. Returns the number of non-temporal copies.
    fn copy_pieces(selector: &mut PathSelector, len: usize, count: usize, ps: [u64; 2]) -> usize {
        let mut copy = || match selector.choose(len) {
            CopyMode::Plain(path) => path,
            CopyMode::Measured(path) => {
                let picoseconds = ps[usize::from(path == CopyPath::NonTemporal)];
                selector.record(len, Duration::from_nanos(len as u64 * picoseconds / 1000));
                path
            }
        };
        (0..count).filter(|_| copy() == CopyPath::NonTemporal).count()
    }

    /// Copies long pieces.
    fn copy(selector: &mut PathSelector, pieces: usize, cached: u64, non_temporal: u64) -> usize {
        copy_pieces(selector, LONG, pieces, [cached, non_temporal])
    }

    #[test]
    fn non_temporal_stores_are_used_while_they_are_much_faster() {
        let mut selector = PathSelector::new(PieceClass::LONG);
        copy(&mut selector, 500, 430, 86);
        assert!(copy(&mut selector, 1000, 430, 86) > 980);
        copy(&mut selector, 300, 57, 86);
        assert_eq!(copy(&mut selector, 1000, 57, 86), 0);
        copy(&mut selector, 500, 430, 86);
        assert!(copy(&mut selector, 1000, 430, 86) > 980);
    }

    #[test]
    fn non_temporal_stores_are_rare_where_both_paths_are_slow() {
        let mut selector = PathSelector::new(PieceClass::LONG);
        assert!(copy(&mut selector, 10_000, 120, 190) < 100);
        assert!(copy(&mut selector, 10_000, 120, 100) < 100);
    }

    #[test]
    fn non_temporal_stores_are_never_tried_where_caches_are_shared() {
        let mut selector = PathSelector::new(PieceClass::LONG);
        assert_eq!(copy(&mut selector, 10_000, 60, 1), 0);
        assert!(selector.is_quick());
    }

    #[test]
    fn copies_are_quick_until_two_were_slow() {
        let mut selector = PathSelector::new(PieceClass::LONG);
        copy(&mut selector, 64, 430, 86);
        assert!(selector.is_quick(), "one alone may have been disturbed");
        copy(&mut selector, 64, 430, 86);
        assert!(!selector.is_quick());
        copy(&mut selector, 300, 60, 86);
        assert!(selector.is_quick());
    }

    #[test]
    fn one_disturbed_measurement_changes_nothing() {
        let mut selector = PathSelector::new(PieceClass::LONG);
        while selector.choose(LONG) != CopyMode::Measured(CopyPath::Cached) {}
        selector.record(LONG, Duration::from_millis(4));
        assert_eq!(copy(&mut selector, 1000, 30, 10), 0);
    }

    #[test]
    fn small_pieces_are_never_measured() {
        let mut selector = PathSelector::new(PieceClass::LONG);
        assert!((0..1000).all(|_| selector.choose(100) == CopyMode::Plain(CopyPath::Cached)));
    }

    #[test]
    fn short_pieces_bypass_the_caches_if_their_stores_take_long() {
        // Measured between processors with and without a common cache.
        for (len, common, none) in [(1024, [185, 360], [730, 360]), (4096, [122, 76], [460, 80])] {
            let mut selector = PathSelector::new(PieceClass::SHORT);
            assert_eq!(copy_pieces(&mut selector, len, 10_000, common), 0);
            copy_pieces(&mut selector, len, 2000, none);
            assert!(!selector.is_cached(len) && selector.is_cached(1023));
            assert!(copy_pieces(&mut selector, len, 1000, none) > 980);
            copy_pieces(&mut selector, len, 2000, common);
            assert_eq!(copy_pieces(&mut selector, len, 1000, common), 0);
        }
    }

    #[test]
    fn measured_pieces_are_copied_once() {
        let mut selector = PathSelector::new(PieceClass::SHORT);
        let mut copies = 0;
        (0..1000).for_each(|_| selector.copy(&[1; 2000], |_| copies += 1));
        assert_eq!(copies, 1000);
    }
}
