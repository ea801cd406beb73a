//! Measures the round trip of a word in shared memory between two cores.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::Limit;

const TRIPS: u32 = 20_000;
const TRIES: usize = 7;

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

pub(crate) fn limits() -> Vec<Limit> {
    let ways: [(&str, fn()); 2] = [("spinning", std::hint::spin_loop), ("sched_yield", thread::yield_now)];
    let limit = |(detail, idle): (&str, fn())| {
        let seconds = (0..TRIES).map(|_| round_trip(idle)).fold(f64::INFINITY, f64::min);
        Limit::round_trip("flag in memory, round trip", detail.to_owned(), seconds)
    };
    ways.into_iter().map(limit).collect()
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
