//! Measures the speed of copies and sums in memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::Limit;

const SIZES: [(usize, &str); 3] = [(64 << 10, "64 KiB"), (1 << 20, "1 MiB"), (64 << 20, "64 MiB")];
const THREADS: [usize; 2] = [1, 2];
const TRIES: usize = 7;
/// The minimum duration of a try.
const LEAST: Duration = Duration::from_millis(20);

type Pass = fn(&mut [f32], &[f32]);

const PASSES: [(&str, Pass); 2] = [("memcpy", |to, from| to.copy_from_slice(from)), ("a += b (f32)", add)];

/// The compiler vectorizes this loop.
fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
}

/// Measures the bytes of one array per second, summed over all threads.
pub(crate) fn limits() -> Vec<Limit> {
    let mut limits = Vec::new();
    for (name, pass) in PASSES {
        for threads in THREADS {
            for (bytes, size) in SIZES {
                let seconds = (0..TRIES).map(|_| seconds(pass, bytes, threads)).fold(f64::INFINITY, f64::min);
                let detail = format!("{size}, {threads} thread{}", if threads > 1 { "s" } else { "" });
                limits.push(Limit::speed(name, detail, bytes * threads, seconds));
            }
        }
    }
    limits
}

/// Returns the seconds of a pass over an array while other threads do the same.
fn seconds(pass: Pass, bytes: usize, threads: usize) -> f64 {
    let start = Barrier::new(threads);
    let run = || {
        let mut to = vec![1.0_f32; bytes / size_of::<f32>()];
        let from = vec![1e-30_f32; to.len()];
        pass(&mut to, &from);
        start.wait();
        let (began, mut passes) = (Instant::now(), 0_u32);
        while began.elapsed() < LEAST || passes == 0 {
            pass(black_box(&mut to), black_box(&from));
            passes += 1;
        }
        began.elapsed().as_secs_f64() / f64::from(passes)
    };
    thread::scope(|scope| {
        let runs: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        // A thread that panicked counts as the slowest.
        runs.into_iter().map(|run| run.join().unwrap_or(f64::INFINITY)).fold(0.0, f64::max)
    })
}
