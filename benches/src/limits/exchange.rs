//! Measures the least times of small calls between two cores: what two threads take that only write
//! and read bytes in memory that they share.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::Limit;

/// The bytes of payload. Beyond them, a processor copies faster than word by word.
const SIZES: [usize; 8] = [0, 4, 8, 16, 32, 64, 128, 256];
/// The calls of a try, which takes less than a slice of the scheduler, and the tries.
const CALLS: u64 = 2_000;
const TRIES: usize = 20;

const WORD: usize = size_of::<u64>();
const LINE_WORDS: usize = 64 / WORD;
/// The number of cache lines of a message: the payload, next to a word that announces it.
const LINES: usize = 256 / 64 + 1;

/// A message whose first word is the number of the call.
#[derive(Default)]
#[repr(align(128))]
struct Slot([[AtomicU64; LINE_WORDS]; LINES]);

/// The messages of one thread. It may write one while the other thread reads the one before.
#[derive(Default)]
struct Side([Slot; 2]);

impl Side {
    fn write(&self, call: u64, words: usize) {
        let slot = &self.0[call as usize % 2];
        slot.words().skip(1).take(words).for_each(|word| word.store(call, Ordering::Relaxed));
        slot.announcement().store(call, Ordering::Release);
    }

    fn read(&self, call: u64, words: usize) {
        let slot = &self.0[call as usize % 2];
        while slot.announcement().load(Ordering::Acquire) != call {
            spin_loop();
        }
        let sum = slot.words().skip(1).take(words).map(|word| word.load(Ordering::Relaxed)).sum::<u64>();
        assert_eq!(black_box(sum), call * words as u64, "the message of another call");
    }
}

impl Slot {
    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.0.iter().flatten()
    }

    const fn announcement(&self) -> &AtomicU64 {
        &self.0[0][0]
    }
}

/// A call of one of the two threads, by its number.
type Call = fn(&Side, &Side, u64, usize);

/// Measures calls in which both threads send a message and wait for the other's.
pub(crate) fn exchanges() -> Vec<Limit> {
    let exchange: Call = |ours, theirs, call, words| {
        ours.write(call, words);
        theirs.read(call, words);
    };
    limits("exchange in memory", [exchange, exchange], 1.0)
}

/// Measures messages: half the time of one there and one back.
pub(crate) fn messages() -> Vec<Limit> {
    let ping: Call = |ours, theirs, call, words| {
        ours.write(call, words);
        theirs.read(call, words);
    };
    let pong: Call = |ours, theirs, call, words| {
        theirs.read(call, words);
        ours.write(call, words);
    };
    limits("message in memory", [ping, pong], 0.5)
}

fn limits(name: &'static str, calls: [Call; 2], part: f64) -> Vec<Limit> {
    let limit = |bytes: usize| {
        let words = bytes.div_ceil(WORD);
        let seconds = (0..TRIES).map(|_| seconds_per_call(calls, words)).fold(f64::INFINITY, f64::min);
        Limit::time(name, format!("{bytes} B"), part * seconds)
    };
    SIZES.map(limit).into()
}

fn seconds_per_call([first, second]: [Call; 2], words: usize) -> f64 {
    let (ours, theirs) = (Side::default(), Side::default());
    thread::scope(|scope| {
        scope.spawn(|| (1..=CALLS + 1).for_each(|call| second(&theirs, &ours, call, words)));
        // The first call waits until the other thread has started.
        first(&ours, &theirs, 1, words);
        let began = Instant::now();
        (2..=CALLS + 1).for_each(|call| first(&ours, &theirs, call, words));
        began.elapsed().as_secs_f64() / CALLS as f64
    })
}
