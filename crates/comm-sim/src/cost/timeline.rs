//! The busy times of a port or a rank.

use std::collections::VecDeque;

/// A resource that does one thing at a time, and fills its idle times.
///
/// Requests come in program order, which need not be the order of time: a step that waits for a
/// late message may come before one that can start early. So idle times are kept, and a request
/// takes the earliest one that is long enough.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    /// The end of the last busy time; the resource is idle afterwards.
    end: f64,
    /// Idle times before `end`, in order: start and end.
    gaps: VecDeque<(f64, f64)>,
}

impl Timeline {
    /// Takes the first idle time of this length that starts at `ready` or later. Returns its start.
    /// Idle times that end before `horizon` are dropped: no later request starts earlier.
    pub(super) fn take(&mut self, ready: f64, length: f64, horizon: f64) -> f64 {
        if length == 0.0 {
            return ready;
        }
        if ready >= self.end {
            if ready > self.end {
                while self.gaps.front().is_some_and(|gap| gap.1 <= horizon) {
                    self.gaps.pop_front();
                }
                self.gaps.push_back((self.end, ready));
            }
            self.end = ready + length;
            return ready;
        }
        self.fill_gap(ready, length).unwrap_or_else(|| {
            let start = self.end;
            self.end += length;
            start
        })
    }

    fn fill_gap(&mut self, ready: f64, length: f64) -> Option<f64> {
        let late = self.gaps.iter().rev().take_while(|gap| gap.1 > ready).count();
        let first = self.gaps.len() - late;
        let fits = |&(start, end): &(f64, f64)| start.max(ready) + length <= end;
        let index = first + self.gaps.range(first..).position(fits)?;
        let (from, until) = self.gaps[index];
        let (start, end) = (from.max(ready), from.max(ready) + length);
        match (from < start, end < until) {
            (false, false) => drop(self.gaps.remove(index)),
            (true, false) => self.gaps[index].1 = start,
            (false, true) => self.gaps[index].0 = end,
            (true, true) => {
                self.gaps[index].1 = start;
                self.gaps.insert(index + 1, (end, until));
            }
        }
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_requests_fill_idle_times() {
        let mut port = Timeline::default();
        assert_eq!(port.take(10.0, 2.0, 0.0), 10.0);
        assert_eq!(port.take(1.0, 4.0, 0.0), 1.0);
        assert_eq!(port.take(0.0, 1.0, 0.0), 0.0);
        assert_eq!(port.take(0.0, 3.0, 0.0), 5.0);
        assert_eq!(port.take(0.0, 3.0, 0.0), 12.0);
        assert_eq!(port.take(0.0, 2.0, 0.0), 8.0);
        assert!(port.gaps.is_empty());
        assert_eq!(port.take(0.0, 0.5, 0.0), 15.0);
    }

    #[test]
    fn idle_times_before_the_horizon_are_dropped() {
        let mut port = Timeline::default();
        for at in 1..=1000 {
            port.take(f64::from(at), 0.5, f64::from(at - 10));
        }
        assert!(port.gaps.len() <= 11, "{}", port.gaps.len());
    }

    #[test]
    fn an_empty_request_takes_no_time() {
        let mut port = Timeline::default();
        port.take(0.0, 5.0, 0.0);
        assert_eq!(port.take(2.0, 0.0, 0.0), 2.0);
    }
}
