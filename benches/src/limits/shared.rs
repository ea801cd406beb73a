//! Measures the round trip of a word in shared memory between two cores.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::Limit;

/// The trips of a try. It takes less than a slice of the scheduler, and there are many tries, so
/// that some are undisturbed also if another process runs now and then.
const TRIPS: u32 = 2_000;
const TRIES: usize = 100;

/// A word on its own cache line.
#[repr(align(128))]
#[derive(Default)]
struct Flag(AtomicU32);

impl Flag {
    fn wait_for(&self, value: u32, idle: fn()) {
        while self.0.load(Ordering::Acquire) != value {
            idle();
        }
    }
}

/// A way to wait, with its name.
type Wait = (&'static str, fn());

const SPINNING: Wait = ("spinning", std::hint::spin_loop);

pub(crate) fn limits() -> Vec<Limit> {
    [SPINNING, ("sched_yield", thread::yield_now)].map(limit).into()
}

/// Measures the round trip between threads that spin.
pub(crate) fn quick_flag() -> Limit {
    limit(SPINNING)
}

fn limit((detail, idle): Wait) -> Limit {
    let seconds = (0..TRIES).map(|_| round_trip(idle)).fold(f64::INFINITY, f64::min);
    Limit::time("flag in memory, round trip", detail.to_owned(), seconds)
}

/// Measures between two threads, which share memory as two processes do.
fn round_trip(idle: fn()) -> f64 {
    let (there, back) = (Flag::default(), Flag::default());
    thread::scope(|scope| {
        scope.spawn(|| {
            for trip in 1..=TRIPS + 1 {
                there.wait_for(trip, idle);
                back.0.store(trip, Ordering::Release);
            }
        });
        let go = |trip| {
            there.0.store(trip, Ordering::Release);
            back.wait_for(trip, idle);
        };
        // The first trip waits until the other thread has started.
        go(1);
        let began = Instant::now();
        (2..=TRIPS + 1).for_each(go);
        began.elapsed().as_secs_f64() / f64::from(TRIPS)
    })
}
