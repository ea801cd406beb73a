//! Waiting for bytes: spin, yield, sleep.
//!
//! A sleeping thread takes tens of microseconds to wake up, so a short wait is better spent
//! polling. But a thread that keeps polling takes the processor from the rank that it waits for. So
//! a wait has three phases: the thread spins, then yields between polls, then sleeps. It does not
//! spin if other threads ran during its previous yields, and the time for which it yields depends
//! on the length of past waits. Neither depends on the number of processors, because other programs
//! use them too. Time that other threads used is not counted: a thread that yields to one that
//! copies for a millisecond has lost nothing, and would lose more by sleeping. If there are no such
//! threads and all peers run on other processors, it yields for longer, because it takes nothing
//! from them.
//!
//! If those other threads belong to no rank, to yield is to give them a whole time slice. Then the
//! thread spins about as long as such a slice takes, in which a peer that was interrupted
//! continues, and leaves it to the scheduler to interrupt it.

mod contention;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::simulation::{self, SimulatedSystem};
use crate::{Error, Result};
use contention::{Contention, Measurement, Rivals};

pub(crate) use contention::run_in_background;

/// The action of a waiting thread before its next poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Execute a spin loop hint.
    Spin,
    /// Let another thread run between [`Waiter::begin_yield`] and [`Waiter::end_yield`].
    Yield,
    /// Sleep until something can move.
    Sleep,
}

/// The longest spin on an uncontended processor. It is longer than a yield that lets no other
/// thread run; otherwise two ranks that alternate in yielding would keep each other waiting.
const SPIN: Duration = Duration::from_micros(5);
/// The longest spin on a processor that foreign threads want, in time of this thread: schedulers
/// interrupt a thread for about as long.
const HOLD_MAX: Duration = Duration::from_millis(4);
/// The number of polls before the clock is read. With a pause in between they take less than a
/// microsecond, and on a contended processor most waits end once the other threads have run.
const POLLS: u32 = 4;
/// The number of polls before a wait begins, with no pause in between. If the message arrives
/// meanwhile, there is no wait to begin and to end.
const POLLS_AT_ONCE: u32 = 32;
/// The shortest time to yield, so that the waiter notices when waits become short again.
const YIELD_MIN: Duration = Duration::from_micros(10);
/// The longest time that a yield itself takes: during the rest of a longer yield, other threads
/// ran.
const CALL_MAX: Duration = Duration::from_micros(2);
/// The longest wait without sleep, however long other threads run: deadlines and failures are
/// checked before a sleep, and after this time the cost of waking up hardly matters.
const AWAKE_MAX: Duration = Duration::from_millis(10);
/// The factor by which a thread yields for longer if nobody else wants its processor and all peers
/// run on others: long enough for one of them to copy 16 MiB. A sleep would only save energy.
const ALONE: u32 = 5;
/// The time that waking up may add to a wait that would otherwise have been short.
const WAKE_UP: Duration = Duration::from_micros(120);

/// The state of the current wait of a thread, and statistics of past waits. It never sleeps itself.
#[derive(Debug)]
pub struct Waiter {
    yield_max: Duration,
    yield_for: Duration,
    contention: Contention,
    /// The number of polls in the current wait before it first read the clock.
    polls: u32,
    current: Option<Wait>,
}

/// A wait that has read the clock.
#[derive(Debug, Clone, Copy)]
struct Wait {
    since: Instant,
    /// The time up to which `waited` counts.
    last: Instant,
    /// The time waited, excluding the time during which other threads ran.
    waited: Duration,
    /// The threads that wanted the processor at the last poll.
    rivals: Rivals,
    /// Whether the thread has yielded to foreign threads.
    has_probed: bool,
    /// Whether nobody else wanted the processor and all peers ran on others when the thread would
    /// have slept.
    is_alone: bool,
}

/// A yield that has begun.
#[derive(Debug)]
#[must_use = "pass it to `end_yield` after the yield"]
pub struct Yielding(Option<Measurement>);

impl Wait {
    const fn new(now: Instant) -> Self {
        Self {
            since: now,
            last: now,
            waited: Duration::ZERO,
            rivals: Rivals::None,
            has_probed: false,
            is_alone: false,
        }
    }

    /// Counts the time until now, up to `at_most`: during the rest, other threads ran.
    fn count(&mut self, now: Instant, at_most: Duration) {
        self.waited += now.saturating_duration_since(self.last).min(at_most);
        self.last = now;
    }

    /// Counts the time since the last poll.
    fn count_poll(&mut self, now: Instant) {
        // Foreign threads interrupt one that never yields to them.
        let at_most = if self.rivals == Rivals::Foreign { CALL_MAX } else { Duration::MAX };
        self.count(now, at_most);
    }
}

impl Waiter {
    /// Creates the state of a thread that yields for at most `yield_max` before it sleeps, or five
    /// times as long while nobody else wants its processor and all peers run on others.
    #[must_use]
    pub const fn new(yield_max: Duration) -> Self {
        let contention = Contention::new();
        Self { yield_max, yield_for: yield_max, contention, polls: 0, current: None }
    }

    /// Returns the action to take after a poll that moved nothing. The first polls of a wait do not
    /// read the clock `now`. `peers_run_elsewhere` is
    /// [`Transport::peers_run_elsewhere`](crate::Transport::peers_run_elsewhere).
    #[inline]
    pub fn idle(&mut self, now: impl FnOnce() -> Instant, peers_run_elsewhere: impl Fn() -> bool) -> Idle {
        let rivals = self.contention.rivals(&peers_run_elsewhere);
        let spins = rivals != Rivals::Own;
        if self.polls < POLLS && (spins || !self.yield_max.is_zero()) {
            self.polls += 1;
            return if spins { Idle::Spin } else { Idle::Yield };
        }
        let now = now();
        let wait = self.current.get_or_insert(Wait::new(now));
        wait.rivals = rivals;
        wait.count_poll(now);
        let is_short = now.saturating_duration_since(wait.since) < AWAKE_MAX;
        if is_short && wait.waited < spin_max(rivals, self.yield_for, self.yield_max) {
            return Idle::Spin;
        }
        if rivals == Rivals::Foreign && !wait.has_probed {
            // They may be gone. During a wait of this length, a time slice hardly matters.
            wait.has_probed = true;
            self.contention.measure_next();
            return Idle::Yield;
        }
        let is_undisturbed = rivals == Rivals::None && !contention::is_in_background();
        wait.is_alone = wait.waited >= self.yield_for && is_undisturbed && peers_run_elsewhere();
        let yield_for = if wait.is_alone { self.yield_for * ALONE } else { self.yield_for };
        if is_short && wait.waited < yield_for { Idle::Yield } else { Idle::Sleep }
    }

    /// Returns the number of polls, without a pause, before the first call of [`idle`](Self::idle):
    /// only once if another thread probably wants the processor.
    #[inline]
    #[must_use]
    pub const fn polls(&self) -> u32 {
        if self.contention.is_likely() || self.yield_max.is_zero() { 1 } else { POLLS_AT_ONCE }
    }

    /// Returns when the current wait began, if it has read the clock.
    #[inline]
    #[must_use]
    pub fn since(&self) -> Option<Instant> {
        self.current.map(|wait| wait.since)
    }

    /// Begins to let another thread run, and occasionally to measure whether one does.
    pub fn begin_yield(&mut self, now: impl FnOnce() -> Instant) -> Yielding {
        Yielding(self.contention.begin_yield(now))
    }

    /// Records that the thread yielded since the last poll.
    pub fn end_yield(&mut self, yielding: Yielding, now: impl Fn() -> Instant) {
        if let Some(measurement) = yielding.0 {
            self.contention.end_yield(measurement, now());
        }
        if let Some(wait) = &mut self.current {
            wait.count(now(), CALL_MAX);
        }
    }

    /// Ends the current wait without learning from it.
    pub const fn reset(&mut self) {
        (self.polls, self.current) = (0, None);
        self.contention.end_wait();
    }

    /// Ends the current wait, because something moved. Reads the clock only if the wait already
    /// has.
    #[inline]
    pub fn moved(&mut self, now: impl FnOnce() -> Instant) {
        self.polls = 0;
        self.contention.end_wait();
        if let Some(wait) = self.current.take() {
            self.record(wait, now());
        }
    }

    fn record(&mut self, mut wait: Wait, now: Instant) {
        wait.count_poll(now);
        // Staying awake pays off if it covers the whole wait.
        let covered = match wait.rivals {
            Rivals::Foreign => HOLD_MAX,
            _ if wait.is_alone => self.yield_max * ALONE + WAKE_UP,
            _ => self.yield_max + WAKE_UP,
        };
        let pays = wait.waited < covered;
        let next = if pays { self.yield_for * 2 } else { self.yield_for / 2 };
        self.yield_for = next.clamp(YIELD_MIN.min(self.yield_max), self.yield_max);
    }
}

/// Returns the time to spin of a thread that otherwise yields for `yield_for`.
fn spin_max(rivals: Rivals, yield_for: Duration, yield_max: Duration) -> Duration {
    match rivals {
        Rivals::None => SPIN.min(yield_max),
        Rivals::Own => Duration::ZERO,
        Rivals::Foreign if yield_max.is_zero() => Duration::ZERO,
        // After long waits, it is shorter by the same factor.
        Rivals::Foreign => HOLD_MAX.mul_f64(yield_for.as_secs_f64() / yield_max.as_secs_f64()),
    }
}

/// Lets another thread run: the default of [`Transport::yield_now`](crate::Transport::yield_now).
pub(crate) fn yield_now() {
    rustix::thread::sched_yield();
}

/// Sleeps until a descriptor is readable or the timeout expires: the default of
/// [`Transport::sleep`](crate::Transport::sleep).
pub(crate) fn sleep(first: BorrowedFd<'_>, also: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<()> {
    if let Some(system) = simulation::simulated() {
        return sleep_in_virtual_time(first, also, timeout, system);
    }
    // At least a millisecond: the kernel would round a shorter time down to zero, and the caller
    // would spin.
    let timeout = Timespec::try_from(timeout.max(Duration::from_millis(1))).ok();
    let mut polled = [first, also.unwrap_or(first)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut polled[..1 + usize::from(also.is_some())], timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::io("wait for other ranks", errno.into())),
    }
}

fn sleep_in_virtual_time(
    first: BorrowedFd<'_>,
    also: Option<BorrowedFd<'_>>,
    timeout: Duration,
    system: &dyn SimulatedSystem,
) -> Result<()> {
    let mut polled = [first, also.unwrap_or(first)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let ready = poll(&mut polled, Some(&Timespec::default()));
    match ready.map_err(|errno| Error::io("wait for other ranks", errno.into()))? {
        0 => system.sleep(system.now().checked_add(timeout)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Polls while peers may want the processor.
    fn poll(waiter: &mut Waiter, now: impl FnOnce() -> Instant) -> Idle {
        waiter.idle(now, || false)
    }

    /// Polls while all peers run elsewhere.
    fn poll_alone(waiter: &mut Waiter, now: impl FnOnce() -> Instant) -> Idle {
        waiter.idle(now, || true)
    }

    /// Makes the polls that do not read the clock.
    fn poll_without_clock(waiter: &mut Waiter) {
        while waiter.polls < POLLS {
            assert_eq!(poll(waiter, || unreachable!()), Idle::Spin);
        }
    }

    /// Yields for a time.
    fn yield_for(waiter: &mut Waiter, now: &Cell<Instant>, time: Duration) {
        let yielding = waiter.begin_yield(|| now.get());
        now.set(now.get() + time);
        waiter.end_yield(yielding, || now.get());
    }

    fn wait(waiter: &mut Waiter, start: Instant, micros: u64) -> Idle {
        poll_without_clock(waiter);
        poll(waiter, || start);
        let end = start + Duration::from_micros(micros);
        let last = poll(waiter, || end);
        waiter.moved(|| end);
        last
    }

    #[test]
    fn only_a_thread_that_nobody_disturbs_polls_at_once() {
        let yield_max = Duration::from_micros(100);
        assert_eq!(Waiter::new(yield_max).polls(), POLLS_AT_ONCE);
        assert_eq!(contended(yield_max).polls(), 1);
        assert_eq!(Waiter::new(Duration::ZERO).polls(), 1);
    }

    #[test]
    fn a_wait_spins_then_yields_then_sleeps() {
        let mut waiter = Waiter::new(Duration::from_micros(100));
        let start = Instant::now();
        poll_without_clock(&mut waiter);
        assert_eq!(poll(&mut waiter, || start), Idle::Spin);
        assert_eq!(poll(&mut waiter, || start + Duration::from_micros(99)), Idle::Yield);
        assert_eq!(poll(&mut waiter, || start + Duration::from_micros(100)), Idle::Sleep);
    }

    /// Waits for a time without sleep, and returns the next action. All peers run elsewhere.
    fn wait_alone(waiter: &mut Waiter, micros: u64) -> Idle {
        let start = Instant::now();
        for _ in 0..=POLLS {
            assert_eq!(poll_alone(waiter, || start), Idle::Spin);
        }
        poll_alone(waiter, || start + Duration::from_micros(micros))
    }

    #[test]
    fn a_thread_that_disturbs_nobody_yields_for_longer() {
        let mut waiter = Waiter::new(Duration::from_micros(100));
        assert_eq!(wait_alone(&mut waiter, 499), Idle::Yield);
        waiter.reset();
        assert_eq!(wait_alone(&mut waiter, 500), Idle::Sleep);
        let in_background = || {
            run_in_background();
            wait_alone(&mut Waiter::new(Duration::from_micros(100)), 100)
        };
        assert_eq!(std::thread::spawn(in_background).join().unwrap(), Idle::Sleep);
    }

    #[test]
    fn a_thread_whose_processor_ranks_want_sleeps_soon_although_its_peers_run_elsewhere() {
        let mut waiter = Waiter::new(Duration::from_micros(100));
        // A short turn: that of a rank.
        yield_for(&mut waiter, &Cell::new(Instant::now()), Duration::from_micros(50));
        let start = Instant::now();
        for _ in 0..=POLLS {
            assert_eq!(poll_alone(&mut waiter, || start), Idle::Yield);
        }
        assert_eq!(poll_alone(&mut waiter, || start + Duration::from_micros(100)), Idle::Sleep);
    }

    #[test]
    fn a_wait_that_ends_while_the_thread_would_still_be_awake_is_a_short_one() {
        let mut waiter = Waiter::new(Duration::from_micros(100));
        for _ in 0..8 {
            let start = Instant::now();
            assert_eq!(wait_alone(&mut waiter, 450), Idle::Yield);
            waiter.moved(|| start + Duration::from_micros(450));
        }
        for _ in 0..8 {
            let start = Instant::now();
            wait_alone(&mut waiter, 5000);
            waiter.moved(|| start + Duration::from_micros(5000));
        }
        assert_eq!(wait_alone(&mut waiter, 200), Idle::Sleep);
    }

    /// Waits until it is time to sleep, if a yield takes `call` microseconds, and `between` pass
    /// before the next poll. Returns the number of yields.
    fn yields(call: u64, between: u64) -> usize {
        let mut waiter = Waiter::new(Duration::from_micros(100));
        let now = Cell::new(Instant::now());
        let pass = |micros| now.set(now.get() + Duration::from_micros(micros));
        poll_without_clock(&mut waiter);
        let mut yields = 0;
        loop {
            match poll(&mut waiter, || now.get()) {
                Idle::Spin => {}
                Idle::Sleep => return yields,
                Idle::Yield => {
                    yields += 1;
                    yield_for(&mut waiter, &now, Duration::from_micros(call));
                }
            }
            pass(between);
        }
    }

    #[test]
    fn time_in_which_others_ran_is_not_counted() {
        assert!((90..=100).contains(&yields(0, 1)), "{}", yields(0, 1));
        assert!((45..=50).contains(&yields(1, 1)), "{}", yields(1, 1));
        // Other threads run during a long yield, but not during a long poll.
        assert!((30..=35).contains(&yields(250, 1)), "{}", yields(250, 1));
        assert_eq!(yields(3000, 1), 4);
        assert_eq!(yields(0, 50), 1);
    }

    /// Returns a waiter that found other threads running when it yielded.
    fn contended(yield_max: Duration) -> Waiter {
        let mut waiter = Waiter::new(yield_max);
        yield_for(&mut waiter, &Cell::new(Instant::now()), Duration::from_millis(1));
        waiter
    }

    #[test]
    fn on_a_contended_processor_it_yields_before_it_reads_the_clock() {
        let mut waiter = contended(Duration::from_micros(100));
        for _ in 0..POLLS {
            assert_eq!(poll(&mut waiter, || unreachable!()), Idle::Yield);
        }
        let start = Instant::now();
        assert_eq!(poll(&mut waiter, || start), Idle::Yield);
        assert_eq!(waiter.since(), Some(start));
        assert_eq!(poll(&mut waiter, || start + Duration::from_micros(100)), Idle::Sleep);
        waiter.moved(|| start + Duration::from_micros(100));
        assert_eq!(poll(&mut waiter, || unreachable!()), Idle::Yield, "the next wait begins anew");
        assert_eq!(poll(&mut contended(Duration::ZERO), Instant::now), Idle::Sleep);
    }

    /// Polls every microsecond of this thread, which foreign threads interrupt after every
    /// 100 polls, until it would not spin. Returns the number of polls and the last action.
    fn spin_beside_foreign_threads(waiter: &mut Waiter, now: &Cell<Instant>) -> (usize, Idle) {
        for polls in 1.. {
            let idle = poll_alone(waiter, || now.get());
            if idle != Idle::Spin {
                return (polls, idle);
            }
            let interruption = if polls % 100 == 0 { Duration::from_micros(100) } else { Duration::ZERO };
            now.set(now.get() + Duration::from_micros(1) + interruption);
        }
        unreachable!()
    }

    #[test]
    fn it_keeps_a_processor_that_only_foreign_threads_want() {
        let mut waiter = contended(Duration::from_micros(100));
        let now = Cell::new(Instant::now());
        let (polls, idle) = spin_beside_foreign_threads(&mut waiter, &now);
        // An interruption counts as a poll of two microseconds.
        assert!((3_900..4_010).contains(&polls), "{polls}");
        assert_eq!(idle, Idle::Yield, "whether they are still there");
        yield_for(&mut waiter, &now, Duration::from_millis(1));
        assert_eq!(poll_alone(&mut waiter, || now.get()), Idle::Sleep);
        waiter.moved(|| now.get());
        let (shorter, _) = spin_beside_foreign_threads(&mut waiter, &now);
        assert!(shorter < polls * 2 / 3, "after a long wait: {shorter}");
        waiter.moved(|| now.get());
        let (longer, _) = spin_beside_foreign_threads(&mut waiter, &now);
        assert!(longer > shorter * 3 / 2, "after a short wait: {longer}");
    }

    #[test]
    fn it_notices_during_long_waits_that_foreign_threads_are_gone() {
        let mut waiter = contended(Duration::from_micros(100));
        let now = Cell::new(Instant::now());
        let (polls, idle) = spin_beside_foreign_threads(&mut waiter, &now);
        assert!(polls > 1000 && idle == Idle::Yield);
        yield_for(&mut waiter, &now, Duration::ZERO);
        waiter.moved(|| now.get());
        let (polls, _) = spin_beside_foreign_threads(&mut waiter, &now);
        assert!(polls < 20, "{polls}");
    }

    #[test]
    fn a_waiter_that_must_not_yield_sleeps_at_once() {
        let mut waiter = Waiter::new(Duration::ZERO);
        poll_without_clock(&mut waiter);
        assert_eq!(poll(&mut waiter, Instant::now), Idle::Sleep);
    }

    #[test]
    fn after_long_waits_it_sleeps_early_and_after_short_ones_it_yields_again() {
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
