//! Bytes of a stream that are not in its ring: the reader is told where they lie in memory of the writer's.

use crate::sync::{AtomicU64, Ordering};

/// How many loans can be out at once in one direction.
#[cfg(not(loom))]
pub(crate) const LOANS_MAX: usize = 32;
#[cfg(loom)]
pub(crate) const LOANS_MAX: usize = 1;

/// How many loans of memory that is not mapped are out at once in one direction: so many that the reader always has one to
/// go on with, and so few that a writer who waits sees it go on.
pub(crate) const SHOWN_MAX: usize = 4;
/// The most bytes of such a loan.
pub(crate) const SHOWN_BYTES_MAX: usize = 256 << 10;

/// The region that is all memory of the writer's: where a loan begins in it is an address.
pub(crate) const ANYWHERE: u64 = 0;

/// Some bytes of a stream, and where they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loan {
    /// The position of the first of them in the stream.
    pub(crate) start: u64,
    /// How many there are.
    pub(crate) len: u64,
    /// The region of the writer's in which they lie.
    pub(crate) region: u64,
    /// Where they begin in it.
    pub(crate) offset: u64,
}

impl Loan {
    /// Whether it lies in no region that the reader could map.
    pub(crate) const fn is_anywhere(&self) -> bool {
        self.region == ANYWHERE
    }

    /// The position behind the last of them.
    pub(crate) const fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// The loans of one direction, written by its writer. Loan number `n` lies in the place with number `n` modulo
/// [`LOANS_MAX`]. All zeros is a board on which nothing was ever written.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Board([[AtomicU64; 4]; LOANS_MAX]);

impl Board {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Writes down a loan. That it is there is said elsewhere, and afterwards.
    pub(crate) fn put(&self, number: u64, loan: Loan) {
        let words = [loan.start, loan.len, loan.region, loan.offset];
        let place = &self.0[number as usize % LOANS_MAX];
        place.iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }

    /// Reads a loan: whatever lies there.
    pub(crate) fn get(&self, number: u64) -> Loan {
        let place = &self.0[number as usize % LOANS_MAX];
        let [start, len, region, offset] =
            [0, 1, 2, 3].map(|word: usize| place[word].load(Ordering::Relaxed));
        Loan { start, len, region, offset }
    }
}

/// What the writer remembers of loans that the reader may still read. It is its own memory, so that nobody else can
/// change it.
#[derive(Debug)]
pub(crate) struct Outstanding {
    loans: [Loan; LOANS_MAX],
    /// How many loans were ever made.
    made: u64,
    /// How many of them were read to the end.
    done: u64,
    /// How many bytes these had.
    done_bytes: u64,
}

impl Outstanding {
    pub(crate) const fn new() -> Self {
        let none = Loan { start: 0, len: 0, region: 0, offset: 0 };
        Self { loans: [none; LOANS_MAX], made: 0, done: 0, done_bytes: 0 }
    }

    /// How many loans were ever made.
    pub(crate) const fn made(&self) -> u64 {
        self.made
    }

    /// How many bytes the loans had that were read to the end.
    pub(crate) const fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.made - self.done >= LOANS_MAX as u64
    }

    /// Takes note of a loan behind all others. There must be a place.
    pub(crate) fn push(&mut self, loan: Loan) {
        self.loans[self.made as usize % LOANS_MAX] = loan;
        self.made += 1;
    }

    /// Forgets what lies below the position up to which the reader has read.
    pub(crate) fn settle(&mut self, head: u64) {
        while let Some(loan) = self.first().filter(|loan| loan.end() <= head) {
            self.done_bytes += loan.len;
            self.done += 1;
        }
    }

    /// The loan that is read next.
    pub(crate) fn first(&self) -> Option<Loan> {
        self.iter().next()
    }

    /// The loans that may still be read, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Loan> {
        (self.done..self.made).map(|number| self.loans[number as usize % LOANS_MAX])
    }
}
