//! Compares [`comm::Heap`] with the allocator of the system by the benchmark of Larson and
//! Krishnan.
//!
//! P. Larson and M. Krishnan, "Memory allocation for long-running server applications", ISMM 1998.
//! Each thread has blocks of random sizes. It frees one of them at random and allocates another
//! one in its place, again and again. From time to time it passes all of them to a new thread,
//! which goes on with them, so that blocks are freed by other threads than have allocated them.
//! The first and the last byte of each block are written.
#![allow(unsafe_code, reason = "allocators are called directly")]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use comm::Heap;

/// The number of times that the blocks of a thread are passed on in a run.
const GENERATIONS: usize = 10;
/// The number of times before the measured ones: at first, the memory of the process grows.
const WARMUP: usize = 3;
const ALIGN: usize = 8;

/// The sizes of the blocks of a run.
#[derive(Clone, Copy)]
struct Mix {
    name: &'static str,
    blocks: usize,
    size_max: usize,
    replacements: usize,
}

const MIXES: [Mix; 3] = [
    Mix { name: "8 B to 1 KiB", blocks: 1000, size_max: 1 << 10, replacements: 100_000 },
    Mix { name: "8 B to 64 KiB", blocks: 1000, size_max: 64 << 10, replacements: 20_000 },
    Mix { name: "8 B to 4 MiB", blocks: 64, size_max: 4 << 20, replacements: 10_000 },
];

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Blocks of an allocator, which are freed when they are dropped.
struct Blocks<A: GlobalAlloc + 'static> {
    allocator: &'static A,
    list: Vec<(*mut u8, Layout)>,
    mix: Mix,
    random: Random,
}

// SAFETY: blocks may be used and freed in any thread.
unsafe impl<A: GlobalAlloc + Sync> Send for Blocks<A> {}

impl<A: GlobalAlloc + Sync> Blocks<A> {
    fn new(allocator: &'static A, mix: Mix, seed: u64) -> Self {
        let mut blocks = Self { allocator, list: Vec::new(), mix, random: Random(seed) };
        for _ in 0..mix.blocks {
            let block = blocks.allocate();
            blocks.list.push(block);
        }
        blocks
    }

    fn allocate(&mut self) -> (*mut u8, Layout) {
        let size = 8 + self.random.below(self.mix.size_max - 7);
        let layout = Layout::from_size_align(size, ALIGN).unwrap();
        // SAFETY: the size is not zero.
        let start = unsafe { self.allocator.alloc(layout) };
        assert!(!start.is_null());
        // SAFETY: the block has this byte.
        unsafe { start.write(1) };
        // SAFETY: as above.
        let last = unsafe { start.add(size - 1) };
        // SAFETY: as above.
        unsafe { last.write(1) };
        (start, layout)
    }

    fn replace(&mut self) {
        let at = self.random.below(self.list.len());
        let (start, layout) = self.list[at];
        // SAFETY: the block was allocated with this layout, and is replaced below.
        unsafe { self.allocator.dealloc(start, layout) };
        self.list[at] = self.allocate();
    }

    /// Replaces blocks, and passes them to a new thread that does the same.
    fn run(mut self, generations: usize) -> Self {
        for _ in 0..self.mix.replacements {
            self.replace();
        }
        if generations == 1 { self } else { thread::spawn(move || self.run(generations - 1)).join().unwrap() }
    }
}

impl<A: GlobalAlloc> Drop for Blocks<A> {
    fn drop(&mut self) {
        for &(start, layout) in &self.list {
            // SAFETY: the block was allocated with this layout, and is freed once.
            unsafe { self.allocator.dealloc(start, layout) };
        }
    }
}

/// Returns the time of a run, in which every thread begins with its own blocks, without the time to
/// allocate all of them, to replace them at first, and to free them.
fn time<A: GlobalAlloc + Sync>(allocator: &'static A, mix: Mix, threads: usize) -> Duration {
    let (begin, end) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    thread::scope(|scope| {
        for thread in 0..threads {
            let (begin, end) = (&begin, &end);
            scope.spawn(move || {
                let blocks = Blocks::new(allocator, mix, thread as u64 + 1).run(WARMUP);
                begin.wait();
                let blocks = blocks.run(GENERATIONS);
                end.wait();
                drop(blocks);
            });
        }
        begin.wait();
        let begin = Instant::now();
        end.wait();
        begin.elapsed()
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    static SYSTEM: System = System;
    static HEAP: Heap = Heap::new();
    let is_test = std::env::args().any(|argument| argument == "--test");
    let rounds = if is_test { 1 } else { 9 };
    // Only the mixes whose name contains the first argument.
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let is_selected = |mix: &Mix| filter.as_ref().is_none_or(|filter| mix.name.contains(filter.as_str()));
    for mix in MIXES.into_iter().filter(is_selected) {
        for threads in [1, 2, 4] {
            let count = (threads * GENERATIONS * mix.replacements) as f64;
            let (mut times, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
            for round in 0..rounds {
                let system = || time(&SYSTEM, mix, threads);
                // In turns also within a round.
                let round = if round % 2 == 0 {
                    let system = system();
                    [system, time(&HEAP, mix, threads)]
                } else {
                    let heap = time(&HEAP, mix, threads);
                    [system(), heap]
                };
                let round = round.map(|time| time.as_secs_f64() * 1e9 / count);
                times.iter_mut().zip(round).for_each(|(times, time)| times.push(time));
                ratios.push(round[1] / round[0]);
            }
            let [system, heap] = times.map(median);
            let (name, ratio) = (mix.name, median(ratios));
            println!("{name}, {threads} threads: system {system:.0} ns, heap {heap:.0} ns, ratio {ratio:.2}");
        }
    }
    println!("{:?}", Heap::usage());
}
