//! Options of data parallel training.

use std::time::{Duration, Instant};

use crate::{BucketLimits, Clock};

/// Options of [`DataParallel`](crate::DataParallel). Except for the clock, all ranks use those of
/// rank 0.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Options {
    /// The sizes at which buckets are full.
    pub limits: BucketLimits,
    /// Whether buckets are rebuilt after the first step, in the order in which rank 0's gradients
    /// became ready in it. Otherwise, and until then, buckets use the reverse order of
    /// registration.
    pub follow_first_step: bool,
    /// The number by which the sum of gradients is divided.
    pub divisor: Divisor,
    /// The weight that a rank typically has in a step. It matters only in the first step and with
    /// 16-bit floats, whose products with large weights overflow.
    pub typical_weight: f64,
    /// The response to ranks with different numbers of batches.
    pub uneven: Uneven,
    /// Whether every rank checks its gradients before they are sent, so that all ranks detect
    /// infinities and NaN even if compression hides them.
    pub check_finite: bool,
    /// Whether each rank uses the same parameters in every step. Ranks then exchange the set of
    /// these parameters only in the first step, and a step that deviates fails with
    /// [`Error::GraphChanged`](crate::Error::GraphChanged) on every rank.
    pub static_graph: bool,
    /// Whether each rank also keeps a copy of the state of the rank before it, for
    /// [`ZeroOptimizer::rejoin`](crate::ZeroOptimizer::rejoin), which describes the cost. Only
    /// [`ZeroOptimizer`](crate::ZeroOptimizer) uses this.
    pub replicate_state: bool,
    /// The lateness from which [`Stragglers`](crate::Stragglers) counts a rank as late in a step.
    pub late_after: Duration,
    /// The clock of [`Timeline`](crate::Timeline) and of [`Stragglers`](crate::Stragglers).
    pub clock: Clock,
}

/// The number by which the sum of the gradients of all ranks is divided.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Divisor {
    /// The total weight: the number of ranks that have a batch if no weights are given, or for
    /// example the number of samples or tokens of all ranks.
    Weights,
    /// The number of ranks, including those without a batch.
    Ranks,
    /// This number.
    Number(f64),
}

/// The response when some ranks have no batch left while others have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uneven {
    /// The others continue, and all get their averages: see
    /// [`DataParallel::join`](crate::DataParallel::join).
    Continue,
    /// The step fails with [`Error::Exhausted`](crate::Error::Exhausted) on every rank.
    Refuse,
}

/// Setters, as in `Options::default().follow_first_step(false)`.
impl Options {
    /// Returns [`BucketLimits::DEFAULT`], buckets that follow the first step, division by the total
    /// weight, ranks that are late from 20 ms on, and the system clock.
    pub const DEFAULT: Self = Self {
        limits: BucketLimits::DEFAULT,
        follow_first_step: true,
        divisor: Divisor::Weights,
        typical_weight: 1.0,
        uneven: Uneven::Continue,
        check_finite: false,
        static_graph: false,
        replicate_state: false,
        late_after: Duration::from_millis(20),
        clock: Instant::now,
    };

    comm_core::setters!(
        limits: BucketLimits,
        follow_first_step: bool,
        divisor: Divisor,
        typical_weight: f64,
        uneven: Uneven,
        check_finite: bool,
        static_graph: bool,
        replicate_state: bool,
        late_after: Duration,
        clock: Clock
    );

    /// Encodes the options that all ranks must have in common.
    pub(crate) const fn to_words(self) -> [u64; 7] {
        let (divisor, number) = match self.divisor {
            Divisor::Weights => (0, 0.0),
            Divisor::Ranks => (1, 0.0),
            Divisor::Number(number) => (2, number),
        };
        let flags = self.follow_first_step as u64
            | (self.check_finite as u64) << 1
            | (matches!(self.uneven, Uneven::Refuse) as u64) << 2
            | (self.static_graph as u64) << 3
            | (self.replicate_state as u64) << 4;
        let BucketLimits { first_bytes, bytes } = self.limits;
        let late_after = self.late_after.as_nanos() as u64;
        let (number, typical_weight) = (number.to_bits(), self.typical_weight.to_bits());
        [first_bytes as u64, bytes as u64, flags, divisor, number, typical_weight, late_after]
    }

    /// Returns options with the values that another rank encoded.
    pub(crate) fn with_words(self, words: [u64; 7]) -> Self {
        let [first_bytes, bytes, flags, divisor, number, typical_weight, late_after] = words;
        // A limit that does not fit is larger than any bucket.
        let limit = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            limits: BucketLimits { first_bytes: limit(first_bytes), bytes: limit(bytes) },
            follow_first_step: flags & 1 != 0,
            divisor: match divisor {
                0 => Divisor::Weights,
                1 => Divisor::Ranks,
                _ => Divisor::Number(f64::from_bits(number)),
            },
            typical_weight: f64::from_bits(typical_weight),
            uneven: if flags & 4 == 0 { Uneven::Continue } else { Uneven::Refuse },
            check_finite: flags & 2 != 0,
            static_graph: flags & 8 != 0,
            replicate_state: flags & 16 != 0,
            late_after: Duration::from_nanos(late_after),
            ..self
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_another_rank_replace_all_but_the_clock() {
        let limits = BucketLimits { first_bytes: 5, bytes: 7 };
        let base = Options { limits, follow_first_step: false, typical_weight: 0.5, ..Options::DEFAULT };
        let options = [
            Options::DEFAULT,
            base,
            Options { divisor: Divisor::Number(3.5), check_finite: true, ..base },
            Options { divisor: Divisor::Ranks, uneven: Uneven::Refuse, ..Options::DEFAULT },
            Options { replicate_state: true, ..base },
            Options { static_graph: true, late_after: Duration::from_secs(3), ..Options::DEFAULT },
        ];
        for theirs in options {
            for ours in options {
                assert_eq!(ours.with_words(theirs.to_words()).to_words(), theirs.to_words());
            }
        }
    }
}
