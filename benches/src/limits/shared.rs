//! Measures the round trip of a word in shared memory between two cores.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::Limit;

const TRIPS: u32 = 20_000;
const TRIES: usize = 7;
const QUICK_TRIES: usize = 3;

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
    [SPINNING, ("sched_yield", thread::yield_now)].map(|wait| limit(wait, TRIES)).into()
}

/// Measures the round trip between threads that spin.
pub(crate) fn quick_flag() -> Limit {
    limit(SPINNING, QUICK_TRIES)
}

fn limit((detail, idle): Wait, tries: usize) -> Limit {
    let seconds = (0..tries).map(|_| round_trip(idle)).fold(f64::INFINITY, f64::min);
    Limit::round_trip("flag in memory, round trip", detail.to_owned(), seconds)
}

/// Measures between two threads, which share memory as two processes do.
fn round_trip(idle: fn()) -> f64 {
    let (there, back) = (Flag::default(), Flag::default());
    thread::scope(|scope| {
        scope.spawn(|| {
            for trip in 1..=TRIPS {
                there.wait_for(trip, idle);
                back.0.store(trip, Ordering::Release);
            }
        });
        let began = Instant::now();
        for trip in 1..=TRIPS {
            there.0.store(trip, Ordering::Release);
            back.wait_for(trip, idle);
        }
        began.elapsed().as_secs_f64() / f64::from(TRIPS)
    })
}
