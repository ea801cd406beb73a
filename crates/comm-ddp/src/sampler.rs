//! The assignment of samples to ranks.

use comm_core::Group;

/// The treatment of samples whose number is not a multiple of the number of ranks. Every rank gets
/// the same number in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Remainder {
    /// The first samples of the epoch are repeated up to the next multiple: every sample is used.
    #[default]
    Wrap,
    /// The last samples of the epoch are dropped: no sample is used twice.
    Drop,
}

/// Assigns the samples of a data set to ranks, in another order every epoch.
///
/// It works as PyTorch's `DistributedSampler`: one permutation per epoch, equal on every rank, is
/// extended or cut to a multiple of the number of ranks, and rank `r` takes every `size`-th sample
/// from `r` on. So the n-th batches of all ranks together are the n-th batch of a single process
/// with the combined batch size.
///
/// The order is not PyTorch's. It is a Fisher-Yates shuffle from the last position down, which
/// swaps position `i` with `(r * (i + 1)) >> 64` where `r` runs through splitmix64 from the state
/// `seed + epoch`; it will not change.
///
/// ```
/// use comm_core::{Group, GroupId, Membership};
/// use comm_ddp::DistributedSampler;
///
/// # fn main() -> comm_core::Result<()> {
/// // In a program, the group is `comm.group()`.
/// let mut sampler = DistributedSampler::new(10, Group::new(GroupId::WORLD, Membership { rank: 1, size: 4 })?);
/// assert_eq!(sampler.indices(), [1, 5, 9]);
/// sampler = sampler.shuffle(7);
/// sampler.set_epoch(3);
/// assert_eq!(sampler.indices().len(), sampler.len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct DistributedSampler {
    samples: usize,
    group: Group,
    seed: Option<u64>,
    remainder: Remainder,
    epoch: u64,
}

impl DistributedSampler {
    /// Creates a sampler of `samples` samples for the ranks of `group`, without shuffling, with
    /// [`Remainder::Wrap`].
    #[must_use]
    pub const fn new(samples: usize, group: Group) -> Self {
        Self { samples, group, seed: None, remainder: Remainder::Wrap, epoch: 0 }
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

    /// Sets the epoch, which selects the order of the samples. Without this call every epoch has
    /// the order of epoch 0.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Returns the number of samples per rank and epoch.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.remainder {
            Remainder::Wrap => self.samples.div_ceil(self.group.size()),
            Remainder::Drop => self.samples / self.group.size(),
        }
    }

    /// Returns whether a rank gets no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the samples of this rank in this epoch, in order of use.
    #[must_use]
    pub fn indices(&self) -> Vec<usize> {
        let order = self.order();
        let (rank, size) = (self.group.rank(), self.group.size());
        let taken = (rank..self.len() * size).step_by(size);
        taken.map(|position| order[position % self.samples]).collect()
    }

    /// Returns all samples in the order of this epoch.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.samples).collect();
        if let Some(seed) = self.seed {
            let mut state = seed.wrapping_add(self.epoch);
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
            let sampler = seed.map_or_else(|| sampler.clone(), |seed| sampler.clone().shuffle(seed));
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
                    let shares = shares(samples, size, Remainder::Wrap, seed);
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
    fn without_shuffling_shares_interleave() {
        assert_eq!(shares(7, 3, Remainder::Wrap, None), [[0, 3, 6], [1, 4, 0], [2, 5, 1]]);
        assert_eq!(shares(7, 3, Remainder::Drop, None), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(shares(2, 5, Remainder::Wrap, None), [[0], [1], [0], [1], [0]]);
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
        assert_eq!(shares(10, 1, Remainder::Wrap, Some(42))[0], [8, 3, 6, 5, 4, 0, 9, 2, 1, 7]);
    }
}
