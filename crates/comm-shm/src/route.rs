//! Which way bytes go into a ring: through the caches, or around them.
//!
//! Through the caches is faster where the two sides share one. Where they do not, it depends on the machine: lines that lie in
//! the other side's cache are slow to write, and so is memory. It also depends on where the scheduler, and in a virtual
//! machine the host, has put the two, and may change at any time. So both are measured, on a small part of the copies that
//! are to be made anyway.

use std::time::Duration;

/// How a piece goes into the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Its way.
    Plain(Way),
    /// Its way, once the source is in the caches, and [`Router::took`] is told how long it took.
    Measured(Way),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the caches.
    Through,
    /// Around the caches.
    Around,
}

/// Pieces smaller than this always go through the caches.
const PIECE_MIN: usize = 4096;
/// One piece in so many is measured.
const MEASURE_EVERY: u32 = 64;
/// The next one, where copies through the caches seem slow and the other way is not known yet.
const MEASURE_SOON: u32 = 2;
/// How long a copy through a shared cache takes at most, in picoseconds per byte: where it is as fast, no other way is tried.
const SHARED_MAX: u64 = 90;

/// Chooses the way.
#[derive(Debug)]
pub(crate) struct Router {
    way: Way,
    /// Pieces until the next one that is measured.
    countdown: u32,
    /// Which way that one goes.
    measured: Way,
    through: Pace,
    around: Pace,
}

/// How long the last two copies that were measured took, in picoseconds per byte. One alone may have been disturbed.
#[derive(Debug, Clone, Copy)]
struct Pace([u64; 2]);

impl Pace {
    const fn learn(&mut self, picoseconds: u64) {
        self.0 = [picoseconds, self.0[0]];
    }

    /// Whether both were measured.
    const fn is_known(self) -> bool {
        self.0[1] != u64::MAX
    }

    /// The one that was not disturbed.
    fn best(self) -> u64 {
        self.0[0].min(self.0[1])
    }
}

impl Router {
    pub(crate) const fn new() -> Self {
        Self {
            way: Way::Through,
            countdown: MEASURE_EVERY,
            measured: Way::Through,
            through: Pace([0; 2]),
            around: Pace([u64::MAX; 2]),
        }
    }

    /// The way of the next piece.
    pub(crate) const fn route(&mut self, bytes: usize) -> Route {
        if bytes < PIECE_MIN {
            return Route::Plain(Way::Through);
        }
        self.countdown = self.countdown.saturating_sub(1);
        if self.countdown == 0 { Route::Measured(self.measured) } else { Route::Plain(self.way) }
    }

    /// Learns how long it took to copy a piece that was to be measured.
    pub(crate) fn took(&mut self, bytes: usize, time: Duration) {
        let picoseconds = time.as_nanos() * 1000 / (bytes as u128).max(1);
        let picoseconds = u64::try_from(picoseconds).unwrap_or(u64::MAX);
        match self.measured {
            Way::Through => self.through.learn(picoseconds),
            Way::Around => self.around.learn(picoseconds),
        }
        let is_quick = self.through.best() <= SHARED_MAX;
        self.way = if is_quick || !self.around_pays() { Way::Through } else { Way::Around };
        self.measured = match self.measured {
            Way::Through if !is_quick => Way::Around,
            _ => Way::Through,
        };
        let hurries = picoseconds > SHARED_MAX && !self.around.is_known();
        self.countdown = if hurries { MEASURE_SOON } else { MEASURE_EVERY };
    }

    /// Whether the way around is so much faster for this side that it makes up for what the other side then fetches from
    /// memory.
    fn around_pays(&self) -> bool {
        self.around.best().saturating_mul(3) < self.through.best().saturating_mul(2)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    /// Lets so many pieces go, of which those that are measured take so long, in picoseconds per byte, either way. Returns how
    /// many went around the caches.
    fn go(router: &mut Router, pieces: usize, through: u64, around: u64) -> usize {
        let mut go = || match router.route(16_384) {
            Route::Plain(way) => way,
            Route::Measured(way) => {
                let picoseconds = if way == Way::Through { through } else { around };
                router.took(16_384, Duration::from_nanos(16_384 * picoseconds / 1000));
                way
            }
        };
        (0..pieces).filter(|_| go() == Way::Around).count()
    }

    #[test]
    fn the_way_around_is_taken_where_it_is_much_faster_and_left_where_it_is_not() {
        let mut router = Router::new();
        go(&mut router, 500, 430, 86);
        assert!(go(&mut router, 1000, 430, 86) > 980);
        go(&mut router, 300, 57, 86);
        assert_eq!(go(&mut router, 1000, 57, 86), 0);
        go(&mut router, 500, 430, 86);
        assert!(go(&mut router, 1000, 430, 86) > 980);
    }

    #[test]
    fn where_both_are_slow_the_way_around_is_hardly_tried() {
        let mut router = Router::new();
        assert!(go(&mut router, 10_000, 120, 190) < 100);
        assert!(go(&mut router, 10_000, 120, 100) < 100);
    }

    #[test]
    fn where_caches_are_shared_the_way_around_is_never_tried() {
        assert_eq!(go(&mut Router::new(), 10_000, 60, 1), 0);
    }

    #[test]
    fn one_disturbed_measurement_changes_nothing() {
        let mut router = Router::new();
        while router.route(16_384) != Route::Measured(Way::Through) {}
        router.took(16_384, Duration::from_millis(4));
        assert_eq!(go(&mut router, 1000, 30, 10), 0);
    }

    #[test]
    fn small_pieces_are_never_measured() {
        let mut router = Router::new();
        assert!((0..1000).all(|_| router.route(100) == Route::Plain(Way::Through)));
    }
}
