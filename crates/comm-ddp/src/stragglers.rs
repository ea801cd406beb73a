//! The ranks that arrive late at the end of backward.

use std::time::Duration;

/// The lateness of every rank, the same report on every rank.
///
/// In a step, each rank measures the time from the completion of the last collective of the
/// previous step to the moment at which backward hands over the last bucket: its time for the
/// optimizer, the batch, forward and backward. These times travel with the averages, without
/// another call. The lateness of a rank is the time by which it exceeds the lower median of the
/// ranks that have a batch.
///
/// No common clock is needed. That collective completes on no rank before all ranks have entered
/// it, and then on all within its own latency. So the ranks measure from the same event, and only
/// durations are compared. A rank does not become late by waiting, because backward does not wait
/// for any bucket. If the program itself makes all ranks wait for each other within a step, as
/// batch normalization over all ranks does, the time before that wait is hidden from this report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stragglers {
    late_after: Duration,
    steps: u64,
    ranks: Vec<Lateness>,
}

/// The lateness of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Lateness {
    /// The number of steps in which it was late by at least
    /// [`Options::late_after`](crate::Options::late_after).
    pub count: u64,
    /// Its lateness in the last step.
    pub last: Duration,
    /// Its greatest lateness in a step.
    pub greatest: Duration,
    /// The sum of its lateness in all steps.
    pub total: Duration,
}

impl Stragglers {
    pub(crate) fn new(ranks: usize, late_after: Duration) -> Self {
        Self { late_after, steps: 0, ranks: vec![Lateness::default(); ranks] }
    }

    /// Records the times of a step; `None` for ranks without a batch.
    pub(crate) fn record(&mut self, times: &[Option<Duration>]) {
        let mut sorted: Vec<Duration> = times.iter().copied().flatten().collect();
        sorted.sort_unstable();
        let Some(usual) = sorted.get(sorted.len().saturating_sub(1) / 2) else { return };
        self.steps += 1;
        for (rank, time) in self.ranks.iter_mut().zip(times) {
            rank.last = time.map_or(Duration::ZERO, |time| time.saturating_sub(*usual));
            rank.greatest = rank.greatest.max(rank.last);
            rank.total += rank.last;
            rank.count += u64::from(rank.last >= self.late_after);
        }
    }

    /// Returns the number of steps of the report.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the lateness of every rank, in rank order.
    #[must_use]
    pub fn ranks(&self) -> &[Lateness] {
        &self.ranks
    }

    /// Returns the ranks that were late in any step, the one with the greatest total first.
    #[must_use]
    pub fn late(&self) -> Vec<(usize, Lateness)> {
        let all = self.ranks.iter().copied().enumerate();
        let mut late: Vec<(usize, Lateness)> = all.filter(|(_, rank)| rank.count > 0).collect();
        late.sort_by_key(|(_, rank)| std::cmp::Reverse(rank.total));
        late
    }
}

/// Prints a line for each rank that was late.
impl std::fmt::Display for Stragglers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let late = self.late();
        if late.is_empty() {
            return write!(f, "no rank was late by {:?} in {} steps", self.late_after, self.steps);
        }
        for (at, (rank, lateness)) in late.into_iter().enumerate() {
            let Lateness { count, greatest, total, .. } = lateness;
            let end = if at == 0 { "" } else { "\n" };
            let steps = self.steps;
            write!(f, "{end}rank {rank} was late in {count} of {steps} steps, by {total:.1?} in total, ")?;
            write!(f, "{greatest:.1?} at most")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(report: &mut Stragglers, millis: &[Option<u64>]) -> Vec<u128> {
        let times: Vec<_> = millis.iter().map(|millis| millis.map(Duration::from_millis)).collect();
        report.record(&times);
        report.ranks().iter().map(|rank| rank.last.as_millis()).collect()
    }

    #[test]
    fn lateness_counts_from_the_lower_median_of_ranks_with_a_batch() {
        let mut report = Stragglers::new(4, Duration::from_millis(20));
        assert_eq!(record(&mut report, &[Some(100), Some(150), Some(101), Some(99)]), [0, 50, 1, 0]);
        assert_eq!(record(&mut report, &[Some(100), Some(150), Some(160), Some(101)]), [0, 49, 59, 0]);
        assert_eq!(record(&mut report, &[None, Some(100), Some(119), None]), [0, 0, 19, 0]);
        assert_eq!(record(&mut report, &[None; 4]), [0, 0, 19, 0]);
        assert_eq!(report.steps(), 3);
        let counts: Vec<(usize, u64)> =
            report.late().iter().map(|(rank, late)| (*rank, late.count)).collect();
        assert_eq!(counts, [(1, 2), (2, 1)]);
        let first = "rank 1 was late in 2 of 3 steps, by 99.0ms in total, 50.0ms at most";
        assert_eq!(report.to_string().lines().next(), Some(first));
        assert_eq!(report.to_string().lines().count(), 2);
    }

    #[test]
    fn a_single_rank_is_never_late() {
        let mut report = Stragglers::new(1, Duration::from_millis(10));
        assert_eq!(record(&mut report, &[Some(1000)]), [0]);
        assert_eq!(report.to_string(), "no rank was late by 10ms in 1 steps");
    }
}
