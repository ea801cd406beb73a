//! Which way bytes go into a ring: through the caches, or around them.
//!
//! Through the caches is faster where the two sides share one, and slower where they do not. Which it is
//! depends on where the scheduler, and in a virtual machine the host, has put the two, and may change at any time. So
//! it is measured, on a small part of the copies that are to be made anyway.

use std::time::Duration;

/// How a piece goes into the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Through the caches.
    Through,
    /// Around the caches.
    Around,
    /// Through the caches, once the source is in them, and [`Router::took`] is told how long it took.
    Measured,
}

/// Pieces smaller than this always go through the caches.
const PIECE_MIN: usize = 4096;
/// One piece in so many is measured.
const MEASURE_EVERY: u32 = 64;
/// How long a copy through a shared cache takes at most, in picoseconds per byte.
const SHARED_MAX: u128 = 90;

/// Chooses the way.
#[derive(Debug)]
pub(crate) struct Router {
    around: bool,
    /// Pieces until the next one that is measured.
    countdown: u32,
    /// Whether the last measurement spoke against the way that is taken. One alone may have been disturbed.
    doubted: bool,
}

impl Router {
    pub(crate) const fn new() -> Self {
        Self { around: false, countdown: MEASURE_EVERY, doubted: false }
    }

    /// The way of the next piece.
    pub(crate) const fn route(&mut self, bytes: usize) -> Route {
        if bytes < PIECE_MIN {
            return Route::Through;
        }
        self.countdown = self.countdown.saturating_sub(1);
        match (self.countdown, self.around) {
            (0, _) => Route::Measured,
            (_, true) => Route::Around,
            (_, false) => Route::Through,
        }
    }

    /// Learns how long it took to copy a piece that was to be measured.
    pub(crate) const fn took(&mut self, bytes: usize, time: Duration) {
        let slow = time.as_nanos() * 1000 > bytes as u128 * SHARED_MAX;
        let doubted = slow != self.around;
        if doubted && self.doubted {
            (self.around, self.doubted) = (slow, false);
        } else {
            self.doubted = doubted;
        }
        self.countdown = if self.doubted { 2 } else { MEASURE_EVERY };
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    /// Lets so many pieces go, all of which take so long if measured. Returns the ways they took.
    fn go(router: &mut Router, pieces: usize, picoseconds: u64) -> Vec<Route> {
        let time = Duration::from_nanos(16_384 * picoseconds / 1000);
        let mut go = || {
            let route = router.route(16_384);
            if route == Route::Measured {
                router.took(16_384, time);
            }
            route
        };
        (0..pieces).map(|_| go()).collect()
    }

    #[test]
    fn slow_copies_go_around_the_caches_and_fast_ones_through_them() {
        let mut router = Router::new();
        assert!(!go(&mut router, 1000, 30).contains(&Route::Around));
        go(&mut router, 70, 300);
        let routes = go(&mut router, 1000, 300);
        assert!(!routes.contains(&Route::Through));
        assert!(routes.iter().filter(|route| **route == Route::Measured).count() < 20);
        go(&mut router, 70, 30);
        assert!(!go(&mut router, 1000, 30).contains(&Route::Around));
    }

    #[test]
    fn one_disturbed_measurement_changes_nothing() {
        let mut router = Router::new();
        while router.route(16_384) != Route::Measured {}
        router.took(16_384, Duration::from_millis(4));
        assert!(!go(&mut router, 1000, 30).contains(&Route::Around));
    }

    #[test]
    fn small_pieces_are_never_measured() {
        let mut router = Router::new();
        assert!((0..1000).all(|_| router.route(100) == Route::Through));
    }
}
