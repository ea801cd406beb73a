//! The threads of a run, and which of them can run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::thread::Thread;
use std::time::Duration;

/// The threads of all ranks. The first ones are one per rank, with the number of the rank.
///
/// All methods that a turn needs take about the same time with six threads and with thousands.
#[derive(Debug, Default)]
pub(super) struct ThreadTable {
    threads: Vec<RankThread>,
    /// The numbers of the threads of each rank, in ascending order.
    of_rank: Vec<Vec<usize>>,
    /// One bit per thread that neither sleeps nor has ended.
    awake: Vec<u64>,
    awake_count: usize,
    /// The ends of sleeps, also of threads that were woken before.
    alarms: BinaryHeap<Reverse<(Duration, usize)>>,
    unfinished: usize,
}

/// A thread of a rank.
#[derive(Debug)]
struct RankThread {
    rank: usize,
    sleep: Sleep,
    finished: bool,
    /// Its handle, once it has started.
    handle: Option<Thread>,
}

/// The sleep of a thread.
#[derive(Debug, Default)]
struct Sleep {
    /// The time at which it ends, while the thread sleeps.
    until: Option<Duration>,
    /// Whether it waits for other threads of its rank.
    parked: bool,
    /// Whether it waits for descriptors of its process.
    in_system: bool,
    /// The channels that wake it.
    armed: Vec<usize>,
    /// Whether an armed channel was notified before the thread slept.
    notified: bool,
}

const BITS: usize = u64::BITS as usize;

impl ThreadTable {
    pub(super) fn new(ranks: usize) -> Self {
        let mut table = Self::default();
        for rank in 0..ranks {
            table.add(rank);
        }
        table
    }

    /// Adds a thread of a rank, and returns its number.
    pub(super) fn add(&mut self, rank: usize) -> usize {
        let thread = self.threads.len();
        self.threads.push(RankThread { rank, sleep: Sleep::default(), finished: false, handle: None });
        self.of_rank.resize_with(self.of_rank.len().max(rank + 1), Vec::new);
        self.of_rank[rank].push(thread);
        self.awake.resize(thread / BITS + 1, 0);
        self.unfinished += 1;
        self.set_awake(thread);
        thread
    }

    fn set_awake(&mut self, thread: usize) {
        let (word, bit) = (&mut self.awake[thread / BITS], 1 << (thread % BITS));
        self.awake_count += usize::from(*word & bit == 0);
        *word |= bit;
    }

    fn set_asleep(&mut self, thread: usize) {
        let (word, bit) = (&mut self.awake[thread / BITS], 1 << (thread % BITS));
        self.awake_count -= usize::from(*word & bit != 0);
        *word &= !bit;
    }

    pub(super) fn rank_of(&self, thread: usize) -> usize {
        self.threads[thread].rank
    }

    /// Records the handle of a thread that has started.
    pub(super) fn start(&mut self, thread: usize, handle: Thread) {
        self.threads[thread].handle = Some(handle);
    }

    pub(super) fn handle(&self, thread: usize) -> Option<Thread> {
        self.threads[thread].handle.clone()
    }

    pub(super) fn finish(&mut self, thread: usize) {
        self.wake(thread);
        self.set_asleep(thread);
        self.unfinished -= usize::from(!std::mem::replace(&mut self.threads[thread].finished, true));
    }

    pub(super) fn is_finished(&self, thread: usize) -> bool {
        self.threads[thread].finished
    }

    /// Returns the ranks with threads that have not ended.
    pub(super) fn unfinished_ranks(&self) -> Vec<usize> {
        let mut ranks: Vec<usize> =
            self.threads.iter().filter(|thread| !thread.finished).map(|thread| thread.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    pub(super) const fn has_unfinished(&self) -> bool {
        self.unfinished > 0
    }

    /// Returns the number of threads that neither sleep nor have ended.
    pub(super) const fn awake_count(&self) -> usize {
        self.awake_count
    }

    /// Returns the threads that neither sleep nor have ended, in ascending order.
    pub(super) fn awake(&self) -> impl Iterator<Item = usize> {
        (0..self.threads.len()).filter(|thread| self.awake[thread / BITS] >> (thread % BITS) & 1 == 1)
    }

    /// Returns the thread at this index of [`ThreadTable::awake`].
    pub(super) fn nth_awake(&self, mut index: usize) -> Option<usize> {
        for (at, &word) in self.awake.iter().enumerate() {
            let count = word.count_ones() as usize;
            if index < count {
                let rest = (0..index).fold(word, |rest, _| rest & (rest - 1));
                return Some(at * BITS + rest.trailing_zeros() as usize);
            }
            index -= count;
        }
        None
    }

    /// Lets a thread sleep until a certain time.
    pub(super) fn sleep(&mut self, thread: usize, until: Duration) {
        self.threads[thread].sleep.until = Some(until);
        self.alarms.push(Reverse((until, thread)));
        self.set_asleep(thread);
    }

    /// Lets a thread sleep until another thread of its rank has run.
    pub(super) fn park(&mut self, thread: usize) {
        self.sleep(thread, Duration::MAX);
        self.threads[thread].sleep.parked = true;
    }

    /// Lets a thread sleep until a descriptor of its process may be ready.
    pub(super) fn sleep_in_system(&mut self, thread: usize, until: Duration) {
        self.sleep(thread, until);
        self.threads[thread].sleep.in_system = true;
    }

    /// Wakes the threads of a rank that wait for descriptors.
    pub(super) fn wake_system(&mut self, rank: usize) {
        for at in 0..self.of_rank[rank].len() {
            let thread = self.of_rank[rank][at];
            if self.threads[thread].sleep.in_system {
                self.wake(thread);
            }
        }
    }

    pub(super) fn wake(&mut self, thread: usize) {
        let RankThread { sleep, finished, .. } = &mut self.threads[thread];
        (sleep.until, sleep.parked) = (None, false);
        if !*finished {
            self.set_awake(thread);
        }
    }

    pub(super) fn wake_all(&mut self) {
        (0..self.threads.len()).for_each(|thread| self.wake(thread));
    }

    pub(super) fn wake_rank(&mut self, rank: usize) {
        for at in 0..self.of_rank[rank].len() {
            self.wake(self.of_rank[rank][at]);
        }
    }

    /// Wakes the parked threads of the same rank, so that they check their conditions.
    pub(super) fn unpark_others(&mut self, thread: usize) {
        let rank = self.threads[thread].rank;
        for at in 0..self.of_rank[rank].len() {
            let other = self.of_rank[rank][at];
            if other != thread && self.threads[other].sleep.parked {
                self.wake(other);
            }
        }
    }

    /// Records the result of an `arm` of a thread on this channel.
    pub(super) fn arm(&mut self, thread: usize, channel: usize, ready: bool) {
        let armed = &mut self.threads[thread].sleep.armed;
        armed.retain(|&armed| armed != channel);
        if !ready {
            armed.push(channel);
        }
    }

    /// Wakes the threads of a rank that sleep on the channel, or prevents them from going to sleep.
    pub(super) fn notify(&mut self, rank: usize, channel: usize) {
        for at in 0..self.of_rank[rank].len() {
            let thread = self.of_rank[rank][at];
            let RankThread { sleep, finished, .. } = &mut self.threads[thread];
            if sleep.armed.contains(&channel) {
                (sleep.notified, sleep.until) = (true, None);
                if !*finished {
                    self.set_awake(thread);
                }
            }
        }
    }

    /// Returns whether a channel on which the thread has armed was notified.
    pub(super) fn is_notified(&self, thread: usize) -> bool {
        self.threads[thread].sleep.notified
    }

    /// Forgets the sleep of a thread, and the channels that wake it.
    pub(super) fn reset(&mut self, thread: usize) {
        self.threads[thread].sleep = Sleep::default();
    }

    /// Forgets the channels that wake a thread, and returns them.
    pub(super) fn disarm(&mut self, thread: usize) -> Vec<usize> {
        std::mem::take(&mut self.threads[thread].sleep.armed)
    }

    /// Lets these channels wake a thread again. It may have missed a notification.
    pub(super) fn rearm(&mut self, thread: usize, armed: Vec<usize>) {
        self.threads[thread].sleep = Sleep { notified: !armed.is_empty(), armed, ..Sleep::default() };
    }

    /// Returns the earliest end of a sleep.
    pub(super) fn next_alarm(&mut self) -> Option<Duration> {
        while let Some(&Reverse((until, thread))) = self.alarms.peek() {
            if self.threads[thread].sleep.until == Some(until) {
                return Some(until);
            }
            let _ = self.alarms.pop();
        }
        None
    }

    /// Wakes the threads whose sleep ends by this time.
    pub(super) fn wake_expired(&mut self, now: Duration) {
        while self.next_alarm().is_some_and(|until| until <= now)
            && let Some(Reverse((_, thread))) = self.alarms.pop()
        {
            self.wake(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn threads_that_are_awake_are_found_by_their_index() {
        let mut table = ThreadTable::new(200);
        (0..200).filter(|thread| thread % 3 != 0).for_each(|thread| table.sleep(thread, at(1)));
        table.finish(0);
        let expected: Vec<usize> = (1..67).map(|at| 3 * at).collect();
        assert_eq!(table.awake().collect::<Vec<_>>(), expected);
        assert_eq!(table.awake_count(), expected.len());
        let found: Vec<usize> = (0..).map_while(|index| table.nth_awake(index)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_sleep_ends_at_its_time_or_when_the_thread_is_woken() {
        let mut table = ThreadTable::new(3);
        (0..3).for_each(|thread| table.sleep(thread, at(thread as u64 + 1)));
        table.wake(0);
        assert_eq!(table.next_alarm(), Some(at(2)));
        table.sleep(0, at(5));
        table.wake_expired(at(2));
        assert_eq!(table.awake().collect::<Vec<_>>(), [1]);
        table.wake_expired(at(5));
        assert_eq!((table.awake_count(), table.next_alarm()), (3, None));
    }

    #[test]
    fn a_notification_wakes_only_threads_that_have_armed() {
        let mut table = ThreadTable::new(2);
        let second = table.add(0);
        table.arm(0, 7, false);
        (0..3).for_each(|thread| table.sleep(thread, at(1)));
        table.notify(1, 7);
        assert_eq!(table.awake_count(), 0);
        table.notify(0, 7);
        assert_eq!((table.awake().collect::<Vec<_>>(), table.is_notified(0)), (vec![0], true));
        table.park(second);
        table.unpark_others(0);
        assert_eq!(table.awake().collect::<Vec<_>>(), [0, second]);
    }
}
