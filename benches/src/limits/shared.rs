//! Measures the round trip of a word in shared memory between two cores.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Limit;

/// The trips of a try. It takes less than a slice of the scheduler, and there are many tries, so
/// that some are undisturbed also if another process runs now and then.
const TRIPS: u32 = 2_000;
const TRIES: usize = 100;
/// The tries of threads that are bound to cores, and are not moved.
const PINNED_TRIES: usize = 20;

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

/// Measures the round trip between the first two cores that this process may use. Returns nothing
/// if there is only one.
pub(crate) fn first_cores() -> Option<Limit> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let cores = (cores.next()?, cores.next()?);
    let trip = || round_trip(SPINNING.1, Some(cores));
    // In a thread of its own, because it remains bound.
    let best = || (0..PINNED_TRIES).map(|_| trip()).fold(f64::INFINITY, f64::min);
    let seconds = thread::scope(|scope| scope.spawn(best).join()).ok()?;
    Some(Limit::time("flag between cores, round trip", format!("{} and {}", cores.0, cores.1), seconds))
}

/// Binds this thread to a core. Where that is forbidden, it stays where the system puts it.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

fn limit((detail, idle): Wait) -> Limit {
    let seconds = (0..TRIES).map(|_| round_trip(idle, None)).fold(f64::INFINITY, f64::min);
    Limit::time("flag in memory, round trip", detail.to_owned(), seconds)
}

/// Measures between two threads, which share memory as two processes do, perhaps on these cores.
fn round_trip(idle: fn(), cores: Option<(usize, usize)>) -> f64 {
    let (there, back) = (Flag::default(), Flag::default());
    cores.into_iter().for_each(|(core, _)| pin(core));
    thread::scope(|scope| {
        scope.spawn(|| {
            cores.into_iter().for_each(|(_, core)| pin(core));
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
