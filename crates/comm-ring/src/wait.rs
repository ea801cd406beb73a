//! How a rank waits when nothing can move.
//!
//! Sleeping in the kernel costs the sleeper tens of microseconds on the way back, so a short wait is better spent
//! looking again; but a rank that keeps looking takes the processor from the rank it waits for. So a wait goes through
//! three phases: it spins, then yields the processor between looks, then sleeps. It does not spin if others ran when it
//! yielded before, and how long it yields follows from how long past waits were; neither follows from the number of
//! processors, which says nothing of who else wants them. Time that others used does not count: a rank that yields to
//! one that copies for a millisecond has lost nothing, and would lose more if it had to be woken.

mod crowd;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use comm_core::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crowd::Crowd;

/// What to do before looking again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Nothing but a hint to the processor.
    Spin,
    /// Let another thread run.
    Yield,
    /// Sleep until something can move.
    Sleep,
}

/// How long to spin where nobody else wants the processor. Longer than a call to yield takes that lets nobody run: else
/// two ranks that yield in turn keep each other waiting.
const SPIN: Duration = Duration::from_micros(5);
/// So many looks need no clock: with nothing but a pause in between they take less than a microsecond, and where others want the
/// processor most waits are over once those have run.
const LOOKS: u32 = 4;
/// The shortest time to yield, so that waits which became short are noticed.
const YIELD_MIN: Duration = Duration::from_micros(10);
/// What a call to yield takes of this rank at most: what is longer, others ran for.
const CALL_MAX: Duration = Duration::from_micros(2);
/// Others may take their time, but not for ever: who sleeps hears of deadlines and failures, and after so long a wait it
/// matters little how long it takes to wake up.
const PATIENCE: Duration = Duration::from_millis(10);
/// What a sleep may add to a wait that would have been short.
const WAKE_UP: Duration = Duration::from_micros(120);

/// The state of the wait under way, and what past waits taught.
#[derive(Debug)]
pub(crate) struct Waiter {
    yield_max: Duration,
    yield_for: Duration,
    crowd: Crowd,
    /// How often the wait under way has looked before it asked for the time.
    looks: u32,
    under_way: Option<Wait>,
}

/// A wait that has not only just begun.
#[derive(Debug, Clone, Copy)]
struct Wait {
    since: Instant,
    /// Until when the time is counted.
    last: Instant,
    /// How long the rank has waited, without the time in which it let others run.
    waited: Duration,
}

impl Wait {
    const fn new(now: Instant) -> Self {
        Self { since: now, last: now, waited: Duration::ZERO }
    }

    /// Counts the time until now, up to this much: what others made of the rest was not lost with waiting.
    fn count(&mut self, now: Instant, at_most: Duration) {
        self.waited += now.saturating_duration_since(self.last).min(at_most);
        self.last = now;
    }
}

impl Waiter {
    pub(crate) const fn new(yield_max: Duration) -> Self {
        Self { yield_max, yield_for: yield_max, crowd: Crowd::new(), looks: 0, under_way: None }
    }

    /// Nothing could move. `now` is asked unless the wait has only just begun.
    #[inline]
    pub(crate) fn idle(&mut self, now: impl FnOnce() -> Instant) -> Idle {
        let spins = !self.crowd.is_there();
        if self.looks < LOOKS && (spins || !self.yield_max.is_zero()) {
            self.looks += 1;
            return if spins { Idle::Spin } else { Idle::Yield };
        }
        let now = now();
        let wait = self.under_way.get_or_insert(Wait::new(now));
        wait.count(now, Duration::MAX);
        if spins && wait.waited < SPIN.min(self.yield_max) {
            Idle::Spin
        } else if wait.waited < self.yield_for && now.saturating_duration_since(wait.since) < PATIENCE {
            Idle::Yield
        } else {
            Idle::Sleep
        }
    }

    /// When the wait under way began, if that is known: not of one that has only just begun.
    #[inline]
    pub(crate) fn since(&self) -> Option<Instant> {
        self.under_way.map(|wait| wait.since)
    }

    /// Lets another thread run, and now and then looks whether one did.
    pub(crate) fn give_way(&mut self, now: impl Fn() -> Instant) {
        self.crowd.give_way(&now);
        self.yielded(now);
    }

    /// Another thread may have run since this one looked.
    pub(crate) fn yielded(&mut self, now: impl FnOnce() -> Instant) {
        if let Some(wait) = &mut self.under_way {
            wait.count(now(), CALL_MAX);
        }
    }

    /// Whatever was waited for is no longer, and teaches nothing.
    pub(crate) const fn forget(&mut self) {
        (self.looks, self.under_way) = (0, None);
    }

    /// Something moved. `now` is asked only if this ends a wait that was not very short.
    #[inline]
    pub(crate) fn moved(&mut self, now: impl FnOnce() -> Instant) {
        self.looks = 0;
        if let Some(mut wait) = self.under_way.take() {
            wait.count(now(), Duration::MAX);
            self.learn(wait.waited);
        }
    }

    fn learn(&mut self, waited: Duration) {
        // Yielding pays if all of the wait fits into it.
        let pays = waited < self.yield_max + WAKE_UP;
        let next = if pays { self.yield_for * 2 } else { self.yield_for / 2 };
        self.yield_for = next.clamp(YIELD_MIN.min(self.yield_max), self.yield_max);
    }
}

/// Waits until one of the descriptors is readable or the time is over.
pub(crate) fn wait_for<const N: usize>(descriptors: [BorrowedFd<'_>; N], timeout: Duration) -> Result<()> {
    // A millisecond at least, so that a time that has almost come does not spin.
    let timeout = timeout.max(Duration::from_millis(1));
    let timeout = Timespec::try_from(timeout).ok();
    let mut polled = descriptors.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::io("wait for other ranks", errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The looks without a clock, if there are any.
    fn look(waiter: &mut Waiter) {
        while !waiter.crowd.is_there() && waiter.looks < LOOKS {
            assert_eq!(waiter.idle(|| unreachable!()), Idle::Spin);
        }
    }

    fn wait(waiter: &mut Waiter, start: Instant, micros: u64) -> Idle {
        look(waiter);
        waiter.idle(|| start);
        let end = start + Duration::from_micros(micros);
        let last = waiter.idle(|| end);
        waiter.moved(|| end);
        last
    }

    #[test]
    fn a_wait_spins_then_yields_then_sleeps() {
        let mut waiter = Waiter::new(Duration::from_micros(100));
        let start = Instant::now();
        look(&mut waiter);
        assert_eq!(waiter.idle(|| start), Idle::Spin);
        assert_eq!(waiter.idle(|| start + Duration::from_micros(99)), Idle::Yield);
        assert_eq!(waiter.idle(|| start + Duration::from_micros(100)), Idle::Sleep);
    }

    /// Yields until it is time to sleep, where a call to yield takes so long, and a look as well. Returns how often.
    fn yields(call: u64, looks: u64) -> usize {
        let mut waiter = Waiter::new(Duration::from_micros(100));
        let now = Cell::new(Instant::now());
        let pass = |micros| now.set(now.get() + Duration::from_micros(micros));
        look(&mut waiter);
        let mut yields = 0;
        loop {
            match waiter.idle(|| now.get()) {
                Idle::Spin => {}
                Idle::Sleep => return yields,
                Idle::Yield => {
                    yields += 1;
                    // It is not this call that passes the time of the test.
                    pass(call);
                    waiter.give_way(|| now.get());
                }
            }
            pass(looks);
        }
    }

    #[test]
    fn time_in_which_others_ran_is_not_lost() {
        assert!((90..=100).contains(&yields(0, 1)), "{}", yields(0, 1));
        assert!((45..=50).contains(&yields(1, 1)), "{}", yields(1, 1));
        // A long call lets others run; a long look does not.
        assert!((30..=35).contains(&yields(250, 1)), "{}", yields(250, 1));
        assert_eq!(yields(3000, 1), 4);
        assert_eq!(yields(0, 50), 1);
    }

    /// A waiter that has seen others run whenever it yielded.
    fn crowded(yield_max: Duration) -> Waiter {
        let mut waiter = Waiter::new(yield_max);
        let now = Cell::new(Instant::now());
        while !waiter.crowd.is_there() {
            waiter.give_way(|| {
                now.set(now.get() + Duration::from_millis(1));
                now.get()
            });
        }
        waiter
    }

    #[test]
    fn where_others_want_the_processor_it_yields_before_it_asks_for_the_time() {
        let mut waiter = crowded(Duration::from_micros(100));
        for _ in 0..LOOKS {
            assert_eq!(waiter.idle(|| unreachable!()), Idle::Yield);
            waiter.yielded(|| unreachable!());
        }
        let start = Instant::now();
        assert_eq!(waiter.idle(|| start), Idle::Yield);
        assert_eq!(waiter.since(), Some(start));
        assert_eq!(waiter.idle(|| start + Duration::from_micros(100)), Idle::Sleep);
        waiter.moved(|| start + Duration::from_micros(100));
        assert_eq!(waiter.idle(|| unreachable!()), Idle::Yield, "the next wait begins anew");
        assert_eq!(crowded(Duration::ZERO).idle(Instant::now), Idle::Sleep);
    }

    #[test]
    fn who_must_not_yield_sleeps_at_once() {
        let mut waiter = Waiter::new(Duration::ZERO);
        look(&mut waiter);
        assert_eq!(waiter.idle(Instant::now), Idle::Sleep);
    }

    #[test]
    fn long_waits_teach_to_sleep_early_and_short_ones_to_yield_again() {
        let mut waiter = Waiter::new(Duration::from_micros(100));
        let start = Instant::now();
        for _ in 0..8 {
            wait(&mut waiter, start, 10_000);
        }
        assert_eq!(wait(&mut waiter, start, 50), Idle::Sleep);
        for _ in 0..8 {
            wait(&mut waiter, start, 50);
        }
        assert_eq!(wait(&mut waiter, start, 50), Idle::Yield);
    }
}
