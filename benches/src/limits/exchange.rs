//! Measures the least times of small calls between two cores: what two threads take that only write
//! and read bytes in memory that they share.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::Limit;
use crate::copies::{Copies, Stream};

/// The bytes of payload that are written and read word by word. Beyond them, a processor copies
/// faster.
const WORD_SIZES: [usize; 8] = [0, 4, 8, 16, 32, 64, 128, 256];
/// The bytes of payload that are copied: from the buffer of one thread into memory that both share,
/// and from there into the buffer of the other one.
const COPY_SIZES: [usize; 12] = {
    let mut sizes = [512; 12];
    let mut at = 1;
    while at < sizes.len() {
        sizes[at] = 2 * sizes[at - 1];
        at += 1;
    }
    sizes
};
/// The most calls of a try, which takes less than a slice of the scheduler, and the tries.
const CALLS_MAX: u64 = 2_000;
const TRIES: u64 = 20;
/// The tries before the measurement.
const SETTLE_TRIES: u64 = 200;
/// The polls of a wait before a thread yields: they take longer than a message between two cores.
const POLLS_MAX: u32 = 1_000;
/// The bytes of all calls of a try, if they need no more calls than that.
const TRY_BYTES: u64 = 16 << 20;

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
        wait_for(slot.announcement(), call);
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

/// Waits until a message is announced. On the same core, the other thread cannot announce it while
/// this one spins.
pub(crate) fn wait_for(announcement: &AtomicU64, call: u64) {
    let mut polls = 0;
    while announcement.load(Ordering::Acquire) != call {
        polls += 1;
        if polls < POLLS_MAX { spin_loop() } else { thread::yield_now() }
    }
}

/// One of the two threads.
pub(crate) trait End: Send {
    /// Writes a message to the other thread, by the number of the call.
    fn write(&mut self, call: u64);

    /// Waits for the message of the other thread, and reads it.
    fn read(&mut self, call: u64);
}

/// Writes and reads words.
struct Words {
    ours: Arc<Side>,
    theirs: Arc<Side>,
    words: usize,
}

impl End for Words {
    fn write(&mut self, call: u64) {
        self.ours.write(call, self.words);
    }

    fn read(&mut self, call: u64) {
        self.theirs.read(call, self.words);
    }
}

/// The calls of the two threads.
#[derive(Clone, Copy)]
enum Pattern {
    /// Both send a message, and wait for the other's.
    Exchange,
    /// The second one answers.
    RoundTrip,
}

impl Pattern {
    fn first(self, end: &mut dyn End, call: u64) {
        end.write(call);
        end.read(call);
    }

    fn second(self, end: &mut dyn End, call: u64) {
        match self {
            Self::Exchange => self.first(end, call),
            Self::RoundTrip => {
                end.read(call);
                end.write(call);
            }
        }
    }
}

/// Measures calls in which both threads send a message and wait for the other's.
pub(crate) fn exchanges() -> Vec<Limit> {
    limits("exchange in memory", Pattern::Exchange, 1.0)
}

/// Measures messages: half the time of one there and one back.
pub(crate) fn messages() -> Vec<Limit> {
    limits("message in memory", Pattern::RoundTrip, 0.5)
}

/// Calls with messages of one size.
struct Size {
    bytes: usize,
    /// The number of calls of a try.
    calls: u64,
    tries: u64,
    ends: [Box<dyn End>; 2],
}

impl Size {
    fn words(bytes: usize, tries: u64) -> Self {
        let sides = [(); 2].map(|()| Arc::<Side>::default());
        let end = |[ours, theirs]: [&Arc<Side>; 2]| -> Box<dyn End> {
            Box::new(Words {
                ours: Arc::clone(ours),
                theirs: Arc::clone(theirs),
                words: bytes.div_ceil(WORD),
            })
        };
        let [first, second] = &sides;
        Self { bytes, calls: CALLS_MAX, tries, ends: [end([first, second]), end([second, first])] }
    }

    fn copies(bytes: usize) -> Self {
        let streams = [(); 2].map(|()| Arc::new(Stream::new(bytes)));
        let end = |[ours, theirs]: [&Arc<Stream>; 2]| -> Box<dyn End> {
            Box::new(Copies::new(Arc::clone(ours), Arc::clone(theirs), bytes))
        };
        let [first, second] = &streams;
        let calls = (TRY_BYTES / bytes as u64).min(CALLS_MAX);
        Self { bytes, calls, tries: TRIES, ends: [end([first, second]), end([second, first])] }
    }
}

fn limits(name: &'static str, pattern: Pattern, part: f64) -> Vec<Limit> {
    // Meanwhile the scheduler moves the threads to different cores.
    let settle = Size::words(0, SETTLE_TRIES);
    let of_words = WORD_SIZES.into_iter().map(|bytes| Size::words(bytes, TRIES));
    let sizes = [settle].into_iter().chain(of_words).chain(COPY_SIZES.into_iter().map(Size::copies));
    let (here, there): (Vec<_>, Vec<_>) = sizes
        .map(|Size { bytes, calls, tries, ends: [first, second] }| {
            ((bytes, calls, tries, first), (calls * tries, second))
        })
        .unzip();
    thread::scope(|scope| {
        scope.spawn(|| {
            for (calls, mut end) in there {
                (1..=calls).for_each(|call| pattern.second(&mut *end, call));
            }
        });
        let best = |(bytes, calls, tries, mut end): (usize, u64, u64, Box<dyn End>)| {
            let seconds = (0..tries).map(|at| seconds_per_call(pattern, &mut *end, at * calls + 1, calls));
            Limit::time(name, format!("{bytes} B"), part * seconds.fold(f64::INFINITY, f64::min))
        };
        here.into_iter().map(best).skip(1).collect()
    })
}

fn seconds_per_call(pattern: Pattern, end: &mut dyn End, first: u64, calls: u64) -> f64 {
    let began = Instant::now();
    (first..first + calls).for_each(|call| pattern.first(end, call));
    began.elapsed().as_secs_f64() / calls as f64
}
