//! The processors that ranks may use.

use std::fmt;
use std::num::NonZero;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The bits of a word.
const BITS: usize = u64::BITS as usize;
/// The number of words for all processors of a [`CpuSet`].
const WORDS: usize = CpuSet::MAX_CPU / BITS;
/// The hexadecimal digits of a word.
const DIGITS: usize = BITS / 4;

/// The processors of a host that a rank may use. Launchers often bind each rank to its own, so no
/// rank alone knows how many its host has for all of them.
///
/// As text it is a hexadecimal number in which bit *n* stands for processor *n*; 0 if they are
/// unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Processors([u64; WORDS]);

impl Processors {
    /// Returns the processors that the calling thread may use: none if the system does not report
    /// them, or has more than 1024.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let mut words = [0; WORDS];
        if let Ok(allowed) = sched_getaffinity(None) {
            for processor in (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)) {
                words[processor / BITS] |= 1 << (processor % BITS);
            }
        }
        Self(words)
    }

    /// Returns the number of processors that ranks of this host, this one among them, may use
    /// together; `None` if the system does not report it.
    ///
    /// If the control group of the calling thread allows it less time than its processors have, or
    /// the processors of a rank are unknown, the number is that of the calling thread alone.
    pub fn count_together(ranks: impl IntoIterator<Item = Self>) -> Option<NonZero<usize>> {
        let own = thread::available_parallelism().ok();
        let is_limited = own.is_none_or(|own| own.get() < Self::of_this_thread().count());
        let mut all = Self::default();
        for rank in ranks {
            if is_limited || rank == Self::default() {
                return own;
            }
            all.0.iter_mut().zip(rank.0).for_each(|(all, word)| *all |= word);
        }
        NonZero::new(all.count()).or(own)
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Parses the text of a set. Returns `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = [0; WORDS];
        if text.len() > WORDS * DIGITS || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (word, digits) in words.iter_mut().zip(text.as_bytes().rchunks(DIGITS)) {
            *word = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        let parsed = Self(words);
        (parsed.to_string() == text).then_some(parsed)
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.iter().rposition(|word| *word != 0).unwrap_or(0);
        write!(f, "{:x}", self.0[last])?;
        self.0[..last].iter().rev().try_for_each(|word| write!(f, "{word:0DIGITS$x}"))
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_setaffinity;

    use super::*;

    fn set(processors: &[usize]) -> Processors {
        let mut words = [0; WORDS];
        processors.iter().for_each(|processor| words[processor / BITS] |= 1 << (processor % BITS));
        Processors(words)
    }

    #[test]
    fn a_set_has_the_text_of_the_format() {
        for (processors, text) in
            [(&[][..], "0"), (&[0, 1], "3"), (&[63], "8000000000000000"), (&[4, 64], "10000000000000010")]
        {
            assert_eq!(set(processors).to_string(), text);
            assert_eq!(Processors::parse(text), Some(set(processors)));
        }
        for written in [set(&[3, 64, 1023]), Processors([u64::MAX; WORDS])] {
            assert_eq!(Processors::parse(&written.to_string()), Some(written));
        }
        for other in ["", "03", "+3", "G", "A", " 3", "-1", &"1".repeat(257)] {
            assert_eq!(Processors::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn ranks_that_are_bound_to_their_own_processors_have_all_of_them_together() {
        let allowed = sched_getaffinity(None).unwrap();
        let allowed: Vec<usize> =
            (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect();
        let bound = |processor: usize| {
            thread::scope(|scope| {
                let bind = move || {
                    let mut only = CpuSet::new();
                    only.set(processor);
                    sched_setaffinity(None, &only).unwrap();
                    let count =
                        |sets: &[Processors]| Processors::count_together(sets.to_vec()).unwrap().get();
                    let own = Processors::of_this_thread();
                    assert_eq!((own, count(&[own])), (set(&[processor]), 1));
                    assert_eq!(
                        count(&[own, set(&[processor, 5, 900]), set(&[6])]),
                        set(&[processor, 5, 6, 900]).count()
                    );
                    assert_eq!(count(&[own, set(&[]), set(&[6, 7])]), 1, "one is unknown");
                };
                scope.spawn(bind).join().unwrap();
            });
        };
        allowed.into_iter().for_each(bound);
    }
}
