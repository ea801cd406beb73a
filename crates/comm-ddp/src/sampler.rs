//! The assignment of samples to ranks.

use comm_core::Group;

use crate::{Error, Result};

/// The treatment of samples whose number is not a multiple of the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Remainder {
    /// The first samples of the epoch are repeated up to the next multiple: every sample is used,
    /// and every rank gets the same number.
    #[default]
    Pad,
    /// The last samples of the epoch are dropped: no sample is used twice, and every rank gets the
    /// same number.
    Drop,
    /// Every sample is used once, and the first ranks may get one more than the others.
    Uneven,
}

/// The position of a sampler within a run. It is equal on all ranks, and does not depend on their
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SamplerState {
    /// The epoch.
    pub epoch: u64,
    /// The number of samples that all ranks together have used in this epoch.
    pub consumed: usize,
}

/// Assigns the samples of a data set to ranks, in a different order in every epoch.
///
/// It works as PyTorch's `DistributedSampler`: one permutation per epoch, equal on every rank, is
/// extended or cut to a multiple of the number of ranks, and rank `r` takes every `size`-th sample
/// from `r` on. So the n-th batches of all ranks together are the n-th batch of a single process
/// with the combined batch size.
///
/// A run can be resumed at another number of ranks: [`DistributedSampler::state`] counts the
/// samples that all ranks together have used, and the others are divided among the new ranks.
///
/// The order is not PyTorch's. It is a Fisher-Yates shuffle from the last position down, which
/// swaps position `i` with `(r * (i + 1)) >> 64` where `r` runs through splitmix64 from the state
/// `seed + epoch`. This algorithm will not change.
///
/// ```
/// use comm_core::{Group, GroupId, Membership};
/// use comm_ddp::{DistributedSampler, Remainder};
///
/// # fn main() -> comm_ddp::Result<()> {
/// // In a program, the group is `comm.group()`.
/// let group = |rank, size| Group::new(GroupId::WORLD, Membership { rank, size });
/// let mut sampler = DistributedSampler::new(10, group(1, 4)?);
/// assert_eq!(sampler.indices(), [1, 5, 9]);
/// assert_eq!(sampler.next_batch(1), [1]);
///
/// // The first batch of four ranks had four samples; two ranks share the other six.
/// let mut resumed = DistributedSampler::new(10, group(1, 2)?);
/// resumed.restore(sampler.state())?;
/// assert_eq!(resumed.indices(), [5, 7, 9]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct DistributedSampler {
    samples: usize,
    group: Group,
    seed: Option<u64>,
    remainder: Remainder,
    state: SamplerState,
    /// The order of the samples in this epoch, empty before it is needed.
    order: Vec<usize>,
}

impl DistributedSampler {
    /// Creates a sampler of `samples` samples for the ranks of `group`, without shuffling, with
    /// [`Remainder::Pad`].
    #[must_use]
    pub const fn new(samples: usize, group: Group) -> Self {
        let state = SamplerState { epoch: 0, consumed: 0 };
        Self { samples, group, seed: None, remainder: Remainder::Pad, state, order: Vec::new() }
    }

    /// Shuffles every epoch. The seed must be the same on every rank.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the treatment of the remainder.
    #[must_use]
    pub fn remainder(mut self, remainder: Remainder) -> Self {
        self.remainder = remainder;
        self
    }

    /// Starts an epoch. Its number selects the order of the samples.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.state = SamplerState { epoch, consumed: 0 };
        self.order = Vec::new();
    }

    /// Returns the position in the run, to be saved with a checkpoint.
    #[must_use]
    pub const fn state(&self) -> SamplerState {
        self.state
    }

    /// Continues at a position of a run over the same samples with the same seed, at any number of
    /// ranks.
    ///
    /// # Errors
    /// [`Error::Samples`] if more samples were used than there are.
    pub fn restore(&mut self, state: SamplerState) -> Result<()> {
        if state.consumed > self.samples {
            return Err(Error::Samples { consumed: state.consumed, samples: self.samples });
        }
        (self.state, self.order) = (state, Vec::new());
        Ok(())
    }

    /// Returns the number of samples that this rank has yet to use in this epoch.
    #[must_use]
    pub fn len(&self) -> usize {
        let (rank, size) = (self.group.rank(), self.group.size());
        let left = self.samples - self.state.consumed;
        match self.remainder {
            Remainder::Pad => left.div_ceil(size),
            Remainder::Drop => left / size,
            Remainder::Uneven => left.saturating_sub(rank).div_ceil(size),
        }
    }

    /// Returns whether this rank has used all of its samples in this epoch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the samples that this rank has yet to use in this epoch, in order of use, without
    /// using them.
    #[must_use]
    pub fn indices(&mut self) -> Vec<usize> {
        self.take(self.len())
    }

    /// Returns the next `samples` samples of this rank, fewer at the end of the epoch, and none
    /// after it. Every rank takes batches of the same size, so that the positions stay equal.
    pub fn next_batch(&mut self, samples: usize) -> Vec<usize> {
        let batch = self.take(samples.min(self.len()));
        let used = samples.saturating_mul(self.group.size()).min(self.available());
        self.state.consumed = self.samples.min(self.state.consumed + used);
        batch
    }

    /// Returns the number of samples, repetitions included, that all ranks have yet to use.
    fn available(&self) -> usize {
        let (left, size) = (self.samples - self.state.consumed, self.group.size());
        match self.remainder {
            Remainder::Pad => left.next_multiple_of(size),
            Remainder::Drop => left - left % size,
            Remainder::Uneven => left,
        }
    }

    /// Returns the next `count` samples of this rank, which must have that many left.
    fn take(&mut self, count: usize) -> Vec<usize> {
        if self.order.len() != self.samples {
            self.order = self.order();
        }
        let first = self.state.consumed + self.group.rank();
        let positions = (0..count).map(|at| first + at * self.group.size());
        positions.map(|position| self.order[position % self.samples]).collect()
    }

    /// Returns all samples in the order of this epoch.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.samples).collect();
        if let Some(seed) = self.seed {
            let mut state = seed.wrapping_add(self.state.epoch);
            for last in (1..order.len()).rev() {
                let choices = last as u128 + 1;
                order.swap(last, ((u128::from(splitmix64(&mut state)) * choices) >> 64) as usize);
            }
        }
        order
    }
}

/// Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
const fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use comm_core::{GroupId, Membership};

    use super::*;

    fn group(rank: usize, size: usize) -> Group {
        Group::new(GroupId::WORLD, Membership { rank, size }).unwrap()
    }

    fn shares(samples: usize, size: usize, remainder: Remainder, seed: Option<u64>) -> Vec<Vec<usize>> {
        let share = |rank| {
            let sampler = DistributedSampler::new(samples, group(rank, size)).remainder(remainder);
            let mut sampler = seed.map_or_else(|| sampler.clone(), |seed| sampler.clone().shuffle(seed));
            let indices = sampler.indices();
            assert_eq!(indices.len(), sampler.len());
            indices
        };
        (0..size).map(share).collect()
    }

    fn counts(samples: usize, shares: &[Vec<usize>]) -> Vec<usize> {
        let mut counts = vec![0; samples];
        shares.iter().flatten().for_each(|&index| counts[index] += 1);
        counts
    }

    #[test]
    fn wrapping_uses_every_sample_and_gives_equal_shares() {
        for samples in 0..30 {
            for size in [1, 2, 3, 5, 8, 13] {
                for seed in [None, Some(1)] {
                    let shares = shares(samples, size, Remainder::Pad, seed);
                    assert!(shares.iter().all(|share| share.len() == samples.div_ceil(size)));
                    assert!(counts(samples, &shares).iter().all(|&count| count >= 1));
                }
            }
        }
    }

    #[test]
    fn dropping_uses_no_sample_twice() {
        for samples in 0..30 {
            for size in [1, 2, 3, 5, 8, 13] {
                for seed in [None, Some(1)] {
                    let shares = shares(samples, size, Remainder::Drop, seed);
                    assert!(shares.iter().all(|share| share.len() == samples / size));
                    assert!(counts(samples, &shares).iter().all(|&count| count <= 1));
                }
            }
        }
    }

    #[test]
    fn uneven_shares_use_every_sample_once() {
        for samples in 0..30 {
            for size in [1, 2, 3, 5, 8, 13] {
                let shares = shares(samples, size, Remainder::Uneven, Some(1));
                assert_eq!(counts(samples, &shares), vec![1; samples]);
                let lengths = || shares.iter().map(Vec::len);
                assert!(lengths().max().unwrap_or(0) - lengths().min().unwrap_or(0) <= 1);
                assert!(lengths().is_sorted_by(|a, b| a >= b));
            }
        }
    }

    /// Runs an epoch in which the number of ranks changes after some batches. Returns how often
    /// each sample was used.
    fn epoch_of_changing_size(samples: usize, remainder: Remainder, sizes: &[usize]) -> Vec<usize> {
        let (mut state, mut counts) = (SamplerState { epoch: 4, consumed: 0 }, vec![0; samples]);
        for (run, &size) in sizes.iter().enumerate() {
            let ends = run + 1 == sizes.len();
            let states = (0..size).map(|rank| {
                let mut sampler =
                    DistributedSampler::new(samples, group(rank, size)).remainder(remainder).shuffle(3);
                sampler.restore(state).unwrap();
                let batches = if ends { usize::MAX } else { 2 };
                for _ in 0..batches {
                    let batch = sampler.next_batch(3);
                    batch.iter().for_each(|&index| counts[index] += 1);
                    if batch.is_empty() && sampler.is_empty() {
                        break;
                    }
                }
                sampler.state()
            });
            let states: Vec<SamplerState> = states.collect();
            assert!(states.iter().all(|other| *other == states[0]), "{states:?}");
            state = states[0];
        }
        counts
    }

    #[test]
    fn a_run_that_changes_its_size_uses_every_remaining_sample_once() {
        for samples in [0, 1, 7, 40, 101] {
            for sizes in [&[1][..], &[4, 2], &[2, 5, 3], &[3, 1, 8, 2]] {
                let uneven = epoch_of_changing_size(samples, Remainder::Uneven, sizes);
                assert_eq!(uneven, vec![1; samples], "{sizes:?}");
                let dropped = epoch_of_changing_size(samples, Remainder::Drop, sizes);
                let unused = dropped.iter().filter(|&&count| count == 0).count();
                assert!(dropped.iter().all(|&count| count <= 1) && unused < *sizes.last().unwrap());
                let padded = epoch_of_changing_size(samples, Remainder::Pad, sizes);
                assert!(padded.iter().all(|&count| count >= 1), "{padded:?}");
            }
        }
    }

    #[test]
    fn a_state_of_more_samples_is_refused() {
        let mut sampler = DistributedSampler::new(10, group(0, 2));
        let refused = sampler.restore(SamplerState { epoch: 0, consumed: 11 });
        assert!(matches!(refused, Err(Error::Samples { consumed: 11, samples: 10 })));
        assert_eq!(sampler.state(), SamplerState::default());
    }

    #[test]
    fn without_shuffling_shares_interleave() {
        assert_eq!(shares(7, 3, Remainder::Pad, None), [[0, 3, 6], [1, 4, 0], [2, 5, 1]]);
        assert_eq!(shares(7, 3, Remainder::Drop, None), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(shares(2, 5, Remainder::Pad, None), [[0], [1], [0], [1], [0]]);
    }

    #[test]
    fn batches_of_all_ranks_are_the_batch_of_one_process() {
        let alone = &shares(24, 1, Remainder::Drop, Some(9))[0];
        let shares = shares(24, 4, Remainder::Drop, Some(9));
        for (step, batch) in alone.chunks(8).enumerate() {
            let mut together: Vec<usize> =
                shares.iter().flat_map(|share| &share[2 * step..2 * step + 2]).copied().collect();
            let mut batch = batch.to_vec();
            together.sort_unstable();
            batch.sort_unstable();
            assert_eq!(together, batch);
        }
    }

    #[test]
    fn epochs_differ_and_repeat() {
        let mut sampler = DistributedSampler::new(100, group(0, 2)).shuffle(5);
        let first = sampler.indices();
        sampler.set_epoch(1);
        assert_ne!(sampler.indices(), first);
        sampler.set_epoch(0);
        assert_eq!(sampler.indices(), first);
    }

    /// Users resume runs in the middle: the order of an epoch is part of the interface.
    #[test]
    fn the_shuffle_is_pinned() {
        assert_eq!(shares(10, 1, Remainder::Pad, Some(42))[0], [8, 3, 6, 5, 4, 0, 9, 2, 1, 7]);
    }
}
