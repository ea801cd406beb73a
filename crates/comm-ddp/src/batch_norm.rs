//! Statistics of batch normalization over the batches of all ranks.

use comm_core::Comm;

use crate::{Error, Result};

/// Count, mean and sum of squared differences from the mean (M2) of each channel.
///
/// Statistics of parts are merged without cancellation (Chan, Golub and LeVeque, Updating Formulae
/// and a Pairwise Algorithm for Computing Sample Variances, 1979), so a large mean costs no digits
/// of the variance. The parts may have any size, including zero.
///
/// ```
/// use comm_ddp::BatchStatistics;
///
/// comm::threads::run(2, |comm| {
///     // Rank 0 has two samples of two channels, rank 1 has one.
///     let samples: &[f32] = if comm.rank() == 0 { &[1.0, 10.0, 2.0, 20.0] } else { &[6.0, 60.0] };
///     let mut statistics = BatchStatistics::new(2);
///     statistics.add(samples, 1).unwrap();
///     let all = statistics.all_reduce(&comm).unwrap();
///     assert_eq!((all.count(), all.mean()), (3, &[3.0, 30.0][..]));
///     assert_eq!(all.variance(), [14.0 / 3.0, 1400.0 / 3.0]);
/// })?;
/// # Ok::<_, comm::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BatchStatistics {
    count: u64,
    mean: Vec<f64>,
    m2: Vec<f64>,
}

impl BatchStatistics {
    /// Creates the statistics of no values.
    #[must_use]
    pub fn new(channels: usize) -> Self {
        Self { count: 0, mean: vec![0.0; channels], m2: vec![0.0; channels] }
    }

    /// Adds values of shape `[samples, channels, inner]` in row-major order. `inner` is the number
    /// of values of a channel in one sample: 1 for a matrix, height times width for images.
    ///
    /// # Errors
    /// [`Error::Length`] if the values are not whole samples.
    pub fn add<T: Copy + Into<f64>>(&mut self, values: &[T], inner: usize) -> Result<()> {
        let sample = self.mean.len() * inner;
        if sample == 0 || !values.len().is_multiple_of(sample) {
            let expected = values.len().div_ceil(sample.max(1)) * sample;
            return Err(Error::Length { name: "batch".into(), expected, got: values.len() });
        }
        let samples = values.len() / sample;
        let mut added = Self::new(self.mean.len());
        added.count = (samples * inner) as u64;
        if added.count == 0 {
            return Ok(());
        }
        for (channel, (mean, m2)) in added.mean.iter_mut().zip(&mut added.m2).enumerate() {
            let of_sample = |sample_values: &[T]| sample_values[channel * inner..][..inner].to_vec();
            let channel = || values.chunks_exact(sample).flat_map(of_sample).map(Into::<f64>::into);
            *mean = channel().sum::<f64>() / added.count as f64;
            *m2 = channel().map(|value| (value - *mean).powi(2)).sum();
        }
        self.merge(&added);
        Ok(())
    }

    /// Merges the statistics of other values of the same channels.
    fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        let (ours, theirs) = (self.count as f64, other.count as f64);
        let all = ours + theirs;
        for (channel, (mean, m2)) in self.mean.iter_mut().zip(&mut self.m2).enumerate() {
            let difference = other.mean[channel] - *mean;
            *mean += difference * theirs / all;
            *m2 += other.m2[channel] + difference * difference * ours * theirs / all;
        }
        self.count += other.count;
    }

    /// Returns the statistics of all ranks together, with the same bits on every rank. This is a
    /// collective: one all-gather. Every rank passes the same number of channels.
    ///
    /// # Errors
    /// [`Error::Comm`].
    pub fn all_reduce(&self, comm: &Comm) -> Result<Self> {
        let channels = self.mean.len();
        let width = 1 + 2 * channels;
        let own = [&[f64::from_bits(self.count)][..], &self.mean, &self.m2].concat();
        let mut gathered = vec![0.0; comm.size() * width];
        comm.all_gather(&own, &mut gathered)?;
        let mut all = Self::new(channels);
        for part in gathered.chunks_exact(width) {
            let (mean, m2) = part[1..].split_at(channels);
            all.merge(&Self { count: part[0].to_bits(), mean: mean.to_vec(), m2: m2.to_vec() });
        }
        Ok(all)
    }

    /// Returns the number of values per channel.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean of each channel, 0 without values.
    #[must_use]
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Returns the variance of each channel: M2 divided by the count, with which batches are
    /// normalized. 0 without values.
    #[must_use]
    pub fn variance(&self) -> Vec<f64> {
        self.m2_over(self.count)
    }

    /// Returns the unbiased estimate of the variance of each channel: M2 divided by the count minus
    /// one, for running statistics. 0 for fewer than two values.
    #[must_use]
    pub fn unbiased_variance(&self) -> Vec<f64> {
        self.m2_over(self.count.saturating_sub(1))
    }

    fn m2_over(&self, count: u64) -> Vec<f64> {
        self.m2.iter().map(|m2| if count == 0 { 0.0 } else { m2 / count as f64 }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_mean_does_not_cancel_the_variance() {
        // The values 1e4 + k / 8 are exact in f32.
        let values: Vec<f32> = (0..4096).map(|at| 1e4 + (at % 16) as f32 / 8.0).collect();
        let mut whole = BatchStatistics::new(1);
        whole.add(&values, 1).unwrap();
        let mut parts = BatchStatistics::new(1);
        for part in [&values[..1000], &values[1000..1001], &[], &values[1001..]] {
            parts.add(part, 1).unwrap();
        }
        let exact = (16.0 * 16.0 - 1.0) / 12.0 / 64.0;
        for statistics in [&whole, &parts] {
            assert!((statistics.variance()[0] / exact - 1.0).abs() < 1e-9, "{statistics:?}");
            assert!((statistics.mean()[0] - 10_000.937_5).abs() < 1e-9);
        }
        assert!((whole.unbiased_variance()[0] / whole.variance()[0] - 4096.0 / 4095.0).abs() < 1e-12);
    }

    #[test]
    fn the_shape_is_samples_channels_inner() {
        // Two samples of two channels of three values.
        let values: Vec<f64> =
            [[1, 2, 3], [10, 20, 30], [4, 5, 6], [40, 50, 60]].concat().into_iter().map(f64::from).collect();
        let mut statistics = BatchStatistics::new(2);
        statistics.add(&values, 3).unwrap();
        assert_eq!((statistics.count(), statistics.mean()), (6, &[3.5, 35.0][..]));
        assert!(matches!(statistics.add(&values[..7], 3), Err(Error::Length { expected: 12, got: 7, .. })));
        assert_eq!(BatchStatistics::new(2).variance(), [0.0; 2]);
    }
}
