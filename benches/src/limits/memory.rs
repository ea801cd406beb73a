//! Measures the speed of copies and sums in memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::Limit;

const SIZES: [(usize, &str); 3] = [(64 << 10, "64 KiB"), (1 << 20, "1 MiB"), (64 << 20, "64 MiB")];
/// The numbers of threads, as far as there are as many cores; two are measured everywhere.
const THREADS: [usize; 4] = [1, 2, 4, 8];
const TRIES: usize = 7;
const QUICK_TRIES: usize = 5;
/// The minimum duration of a try.
const LEAST: Duration = Duration::from_millis(20);

type Pass = fn(&mut [f32], &[f32], &[f32]);

/// A pass over arrays, with the number of arrays whose bytes count.
type CountedPass = (&'static str, Pass, usize);

/// As in STREAM.
const TRIAD: CountedPass = ("triad (f32)", triad, 3);
const PASSES: [CountedPass; 3] = [
    ("memcpy", |to, from, _| to.copy_from_slice(from), 1),
    ("a += b (f32)", |to, from, _| add(to, from), 1),
    TRIAD,
];

/// The compiler vectorizes this loop.
fn triad(to: &mut [f32], left: &[f32], right: &[f32]) {
    to.iter_mut().zip(left).zip(right).for_each(|((a, b), c)| *a = *b + 3.0 * *c);
}

/// The compiler vectorizes this loop.
fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
}

/// Measures the bytes of the counted arrays per second, summed over all threads.
pub(crate) fn limits() -> Vec<Limit> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut limits = Vec::new();
    for pass in PASSES {
        for threads in THREADS.into_iter().filter(|threads| *threads <= cores.max(2)) {
            // The triad shows the bandwidth of memory.
            for size in SIZES.into_iter().skip(if pass.2 > 1 { 2 } else { 0 }) {
                limits.push(limit(pass, size, threads, TRIES));
            }
        }
    }
    limits
}

/// Measures the bandwidth of memory that a number of threads have together.
pub(crate) fn quick_triad(threads: usize) -> Limit {
    limit(TRIAD, SIZES[2], threads, QUICK_TRIES)
}

fn limit(pass: CountedPass, size: (usize, &str), threads: usize, tries: usize) -> Limit {
    let ((name, pass, arrays), (bytes, size)) = (pass, size);
    let seconds = (0..tries).map(|_| seconds(pass, bytes, threads)).fold(f64::INFINITY, f64::min);
    let detail = format!("{size}, {threads} thread{}", if threads > 1 { "s" } else { "" });
    Limit::speed(name, detail, bytes * threads * arrays, seconds)
}

/// Returns the seconds of a pass over an array while other threads do the same.
fn seconds(pass: Pass, bytes: usize, threads: usize) -> f64 {
    let start = Barrier::new(threads);
    let run = || {
        let mut to = vec![1.0_f32; bytes / size_of::<f32>()];
        let [from, other] = [1e-30_f32, 2e-30].map(|value| vec![value; to.len()]);
        pass(&mut to, &from, &other);
        start.wait();
        let (began, mut passes) = (Instant::now(), 0_u32);
        while began.elapsed() < LEAST || passes == 0 {
            pass(black_box(&mut to), black_box(&from), black_box(&other));
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
