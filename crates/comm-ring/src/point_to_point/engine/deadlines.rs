//! The deadlines of operations.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::RequestId;

/// The number of stale entries that are kept before all entries are looked through.
const STALE_MAX: usize = 64;

/// The deadline of an operation whose timeout is so long that the clock cannot show its end.
const NEVER: Duration = Duration::from_secs(1 << 32);

/// The deadlines of operations. Almost all operations end before, so that must cost little: there
/// is a queue per timeout, in which deadlines are sorted because they were set in this order. An
/// operation that ends leaves a stale entry behind; no more than half of all entries and
/// [`STALE_MAX`] are stale.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Operations with their timeouts whose deadlines are not set yet.
    new: Vec<(Duration, RequestId)>,
    queues: BTreeMap<Duration, VecDeque<(Instant, RequestId)>>,
    len: usize,
    stale: usize,
    /// No entry of a queue is earlier; `None` if there is none.
    earliest: Option<Instant>,
}

impl Deadlines {
    /// Adds an operation with this timeout.
    #[inline]
    pub(super) fn add(&mut self, timeout: Duration, request: RequestId) {
        self.new.push((timeout, request));
        self.len += 1;
    }

    /// Sets the deadlines of the operations that were added since the last call.
    pub(super) fn set(&mut self, now: Instant) {
        for together in self.new.chunk_by(|(timeout, _), (next, _)| timeout == next) {
            let timeout = together[0].0;
            let deadline = now.checked_add(timeout).unwrap_or_else(|| now + NEVER);
            self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
            let requests = together.iter().map(|(_, request)| (deadline, *request));
            self.queues.entry(timeout).or_default().extend(requests);
        }
        self.new.clear();
    }

    /// Notes that the entry of an operation has become stale.
    #[inline]
    pub(super) fn forget(&mut self, is_pending: impl Fn(RequestId) -> bool) {
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
        self.new.clear();
        (self.len, self.stale, self.earliest) = (0, 0, None);
    }

    #[cold]
    fn remove_stale(&mut self, is_pending: impl Fn(RequestId) -> bool) {
        self.new.retain(|(_, request)| is_pending(*request));
        self.queues.retain(|_, queue| {
            queue.retain(|(_, request)| is_pending(*request));
            !queue.is_empty()
        });
        let queued: usize = self.queues.values().map(VecDeque::len).sum();
        (self.len, self.stale) = (self.new.len() + queued, 0);
    }

    /// Takes an operation whose deadline has passed.
    #[inline]
    pub(super) fn take_expired(
        &mut self,
        now: Instant,
        is_pending: impl Fn(RequestId) -> bool,
    ) -> Option<RequestId> {
        if self.earliest? <= now { self.take_over(now, is_pending) } else { None }
    }

    #[cold]
    fn take_over(&mut self, now: Instant, is_pending: impl Fn(RequestId) -> bool) -> Option<RequestId> {
        let is_over = |queue: &VecDeque<(Instant, RequestId)>| {
            queue.front().is_some_and(|(deadline, _)| *deadline <= now)
        };
        while let Some(queue) = self.queues.values_mut().find(|queue| is_over(queue)) {
            let (_, request) = queue.pop_front()?;
            self.len -= 1;
            if is_pending(request) {
                return Some(request);
            }
            self.stale -= 1;
        }
        self.first(is_pending);
        None
    }

    /// Returns the earliest deadline of an operation that has not ended.
    pub(super) fn first(&mut self, is_pending: impl Fn(RequestId) -> bool) -> Option<Instant> {
        for queue in self.queues.values_mut() {
            while queue.pop_front_if(|(_, request)| !is_pending(*request)).is_some() {
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

    /// Returns the number of entries, and the number of stale ones.
    #[cfg(test)]
    pub(super) const fn len(&self) -> (usize, usize) {
        (self.len, self.stale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn operations_expire_in_time_whatever_their_timeouts_and_those_that_ended_never() {
        let start = Instant::now();
        let mut deadlines = Deadlines::default();
        for (request, timeout) in
            [(1, LONG), (2, SHORT), (4, SHORT), (5, SHORT), (6, LONG), (7, Duration::MAX)]
        {
            deadlines.add(timeout, request);
            if request != 4 {
                deadlines.set(start + Duration::from_nanos(request));
            }
        }
        deadlines.forget(|request| request != 4);
        let mut expired = |now| -> Vec<RequestId> {
            std::iter::from_fn(|| deadlines.take_expired(now, |request| request != 4)).collect()
        };
        assert_eq!(expired(start + SHORT), []);
        assert_eq!(expired(start + SHORT * 2), [2, 5]);
        assert_eq!(expired(start + LONG * 2), [1, 6]);
        assert_eq!(deadlines.len(), (1, 0));
    }

    #[test]
    fn the_first_deadline_is_that_of_a_pending_operation() {
        let start = Instant::now();
        let mut deadlines = Deadlines::default();
        deadlines.add(LONG, 1);
        deadlines.add(SHORT, 2);
        deadlines.set(start);
        assert_eq!(deadlines.first(|_| true), Some(start + SHORT));
        deadlines.forget(|request| request != 2);
        assert_eq!(deadlines.first(|request| request != 2), Some(start + LONG));
        deadlines.forget(|_| false);
        assert_eq!(deadlines.first(|_| false), None);
        assert_eq!(deadlines.len(), (0, 0));
    }

    #[test]
    fn entries_of_ended_operations_do_not_pile_up() {
        let cases = [(false, 1), (false, 100_000), (true, 1), (true, 100_000)];
        for ((is_one_pending, timeouts), set_every) in
            cases.into_iter().flat_map(|case| [(case, 1), (case, 99)])
        {
            let start = Instant::now();
            let mut deadlines = Deadlines::default();
            let is_pending = |request| is_one_pending && request == 0;
            if is_one_pending {
                deadlines.add(LONG, 0);
            }
            for request in 1..100_000 {
                deadlines.add(LONG + Duration::from_nanos(request % timeouts), request);
                if request % set_every == 0 {
                    deadlines.set(start);
                }
                deadlines.forget(is_pending);
                let (len, queues) = (deadlines.len().0, deadlines.queues());
                assert!(len.max(queues) <= 2 * STALE_MAX + 4, "{len} {queues}");
            }
            assert_eq!(deadlines.take_expired(start + 2 * LONG, is_pending), is_one_pending.then_some(0));
        }
    }
}
