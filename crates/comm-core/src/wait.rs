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
//! A thread that yields to ranks may wait for peers that run at the same time on other processors,
//! and are about to send. Then it polls a few times before each yield.
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
/// The number of polls before each yield to other ranks while all awaited peers run. Then ranks
/// take their turns on all processors at the same time, and what is sent in a turn is received in
/// it. With 4 polls, most of that was lost, and with 64 nothing more was gained.
const POLLS_IN_TURN: u32 = 16;
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
    /// The number of polls up to the next yield to other ranks, if it has been determined.
    polls_of_turn: Option<u32>,
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
        Self { yield_max, yield_for: yield_max, contention, polls: 0, polls_of_turn: None, current: None }
    }

    /// Returns the action to take after a poll that moved nothing. The first polls of a wait do not
    /// read the clock `now`. `peers_run_elsewhere` is
    /// [`Transport::peers_run_elsewhere`](crate::Transport::peers_run_elsewhere), and
    /// `awaited_run_now` is [`Transport::run_now`](crate::Transport::run_now) of
    /// the peers that this thread waits for.
    #[inline]
    pub fn idle(
        &mut self,
        now: impl FnOnce() -> Instant,
        peers_run_elsewhere: impl Fn() -> bool,
        awaited_run_now: impl FnOnce() -> bool,
    ) -> Idle {
        let rivals = self.contention.rivals(&peers_run_elsewhere);
        let spins = rivals != Rivals::Own;
        if !spins && self.polls_in_turn(awaited_run_now) {
            return Idle::Spin;
        }
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

    /// Counts a poll between two yields to other ranks, and returns whether another one follows.
    fn polls_in_turn(&mut self, awaited_run_now: impl FnOnce() -> bool) -> bool {
        let may_spin = !self.yield_max.is_zero() && !contention::is_in_background();
        let polls = || if may_spin && awaited_run_now() { POLLS_IN_TURN } else { 0 };
        let left = self.polls_of_turn.get_or_insert_with(polls);
        let polls = *left > 0;
        *left = left.saturating_sub(1);
        polls
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
        self.polls_of_turn = None;
        if let Some(measurement) = yielding.0 {
            self.contention.end_yield(measurement, now());
        }
        if let Some(wait) = &mut self.current {
            wait.count(now(), CALL_MAX);
        }
    }

    /// Ends the current wait without learning from it.
    pub const fn reset(&mut self) {
        (self.polls, self.polls_of_turn, self.current) = (0, None, None);
        self.contention.end_wait();
    }

    /// Ends the current wait, because something moved. Reads the clock only if the wait already
    /// has.
    #[inline]
    pub fn moved(&mut self, now: impl FnOnce() -> Instant) {
        (self.polls, self.polls_of_turn) = (0, None);
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
mod tests;
