//! The deadlines of operations.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::RequestId;

/// The number of stale entries that are kept before all entries are looked through.
const STALE_MAX: usize = 64;

/// A deadline of an operation.
pub(super) type Deadline = (Instant, RequestId);

/// The deadlines of operations. Almost all operations end before, so that must cost little: there
/// is a queue per timeout, in which deadlines are sorted because they were set in this order. An
/// operation that ends leaves a stale entry behind; no more than half of all entries and
/// [`STALE_MAX`] are stale.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    queues: BTreeMap<Duration, VecDeque<Deadline>>,
    len: usize,
    stale: usize,
    /// No entry is earlier; `None` if there is none.
    earliest: Option<Instant>,
}

impl Deadlines {
    /// Adds the deadline of an operation with this timeout, no earlier than those added before.
    #[inline]
    pub(super) fn add(&mut self, timeout: Duration, deadline: Deadline) {
        self.queues.entry(timeout).or_default().push_back(deadline);
        self.len += 1;
        self.earliest = Some(self.earliest.map_or(deadline.0, |earliest| earliest.min(deadline.0)));
    }

    /// Notes that the entry of an operation has become stale.
    #[inline]
    pub(super) fn forget(&mut self, is_pending: impl Fn(Deadline) -> bool) {
        self.stale += 1;
        if self.stale == self.len {
            self.clear();
        } else if self.stale > STALE_MAX + self.len / 2 {
            self.remove_stale(is_pending);
        }
    }

    /// Removes all entries. The queue remains if there is one, because the next operations have
    /// probably the same timeout.
    fn clear(&mut self) {
        match self.queues.len() {
            1 => self.queues.values_mut().for_each(VecDeque::clear),
            _ => self.queues.clear(),
        }
        (self.len, self.stale, self.earliest) = (0, 0, None);
    }

    #[cold]
    fn remove_stale(&mut self, is_pending: impl Fn(Deadline) -> bool) {
        self.queues.retain(|_, queue| {
            queue.retain(|deadline| is_pending(*deadline));
            !queue.is_empty()
        });
        (self.len, self.stale) = (self.queues.values().map(VecDeque::len).sum(), 0);
    }

    /// Takes an operation whose deadline has passed.
    #[inline]
    pub(super) fn take_expired(
        &mut self,
        now: Instant,
        is_pending: impl Fn(Deadline) -> bool,
    ) -> Option<RequestId> {
        if self.earliest? <= now { self.take_over(now, is_pending) } else { None }
    }

    #[cold]
    fn take_over(&mut self, now: Instant, is_pending: impl Fn(Deadline) -> bool) -> Option<RequestId> {
        let is_over =
            |queue: &VecDeque<Deadline>| queue.front().is_some_and(|(deadline, _)| *deadline <= now);
        while let Some(queue) = self.queues.values_mut().find(|queue| is_over(queue)) {
            let first = queue.pop_front()?;
            self.len -= 1;
            if is_pending(first) {
                return Some(first.1);
            }
            self.stale -= 1;
        }
        self.first(is_pending);
        None
    }

    /// Returns the earliest deadline of an operation that has not ended.
    pub(super) fn first(&mut self, is_pending: impl Fn(Deadline) -> bool) -> Option<Instant> {
        for queue in self.queues.values_mut() {
            while queue.pop_front_if(|first| !is_pending(*first)).is_some() {
                (self.len, self.stale) = (self.len - 1, self.stale - 1);
            }
        }
        self.earliest = self.queues.values().filter_map(VecDeque::front).map(|(deadline, _)| *deadline).min();
        self.earliest
    }

    /// Returns the number of queues.
    #[cfg(test)]
    fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Returns the number of entries, and how many of them are stale.
    #[cfg(test)]
    pub(super) const fn len(&self) -> (usize, usize) {
        (self.len, self.stale)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn operations_expire_in_time_whatever_their_timeouts_and_those_that_ended_never() {
        let start = Instant::now();
        let mut deadlines = Deadlines::default();
        let mut pending = BTreeSet::new();
        for (request, timeout) in [(1, LONG), (2, SHORT), (4, SHORT), (5, SHORT), (6, LONG)] {
            let deadline = (start + timeout + Duration::from_nanos(request), request);
            deadlines.add(timeout, deadline);
            pending.insert(deadline);
        }
        let ended = *pending.iter().find(|(_, request)| *request == 4).unwrap();
        pending.remove(&ended);
        deadlines.forget(|deadline| pending.contains(&deadline));
        let mut expired = |now| -> Vec<RequestId> {
            let next = || deadlines.take_expired(now, |deadline| pending.contains(&deadline));
            std::iter::from_fn(next).collect()
        };
        assert_eq!(expired(start + SHORT), []);
        assert_eq!(expired(start + SHORT * 2), [2, 5]);
        assert_eq!(expired(start + LONG * 2), [1, 6]);
        assert_eq!(deadlines.len(), (0, 0));
    }

    #[test]
    fn the_first_deadline_is_that_of_a_pending_operation() {
        let start = Instant::now();
        let mut deadlines = Deadlines::default();
        deadlines.add(LONG, (start + LONG, 1));
        deadlines.add(SHORT, (start + SHORT, 2));
        assert_eq!(deadlines.first(|_| true), Some(start + SHORT));
        deadlines.forget(|(_, request)| request != 2);
        assert_eq!(deadlines.first(|(_, request)| request != 2), Some(start + LONG));
        deadlines.forget(|_| false);
        assert_eq!(deadlines.first(|_| false), None);
        assert_eq!(deadlines.len(), (0, 0));
    }

    #[test]
    fn entries_of_ended_operations_do_not_pile_up() {
        for (is_one_pending, timeouts) in [(false, 1), (false, 100_000), (true, 1), (true, 100_000)] {
            let start = Instant::now();
            let mut deadlines = Deadlines::default();
            let is_pending = |(_, request)| is_one_pending && request == 0;
            if is_one_pending {
                deadlines.add(LONG, (start + LONG, 0));
            }
            for request in 1..100_000 {
                let timeout = LONG + Duration::from_nanos(request % timeouts);
                deadlines.add(timeout, (start + timeout, request));
                deadlines.forget(is_pending);
                let (len, queues) = (deadlines.len().0, deadlines.queues());
                assert!(len.max(queues) <= 2 * STALE_MAX + 4, "{len} {queues}");
            }
            assert_eq!(deadlines.take_expired(start + 2 * LONG, is_pending), is_one_pending.then_some(0));
        }
    }
}
