//! The turns of threads: one thread runs at a time, and time passes when all sleep.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comm_core::{Error, Result, Scheduler};

use super::world::World;
use super::{Incident, SharedWorld};
use crate::random::Random;

/// The average number of operations of a thread until another gets a turn.
const OPERATIONS_PER_TURN: usize = 6;
/// The virtual time after which threads that still sleep are considered deadlocked.
const LONGEST_RUN: Duration = Duration::from_secs(7 * 24 * 3600);

/// The turns of a run.
#[derive(Debug)]
pub(super) struct Turns {
    /// The thread that runs.
    current: Option<usize>,
    random: Random,
    /// The ranks that had not ended after [`LONGEST_RUN`].
    pub(super) deadlocked: Vec<usize>,
}

impl Turns {
    pub(super) fn new(seed: u64) -> Self {
        Self { current: None, random: Random::new(seed, 2), deadlocked: Vec::new() }
    }
}

/// A thread of a rank.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) rank: usize,
    pub(super) sleep: Sleep,
    finished: bool,
    /// Notified when the thread gets its turn.
    turn: Arc<Condvar>,
}

impl Thread {
    pub(super) fn new(rank: usize) -> Self {
        Self { rank, sleep: Sleep::default(), finished: false, turn: Arc::default() }
    }
}

thread_local! {
    /// The world and the number of the calling thread, if it belongs to a run.
    static CURRENT: RefCell<Option<(SharedWorld, usize)>> = const { RefCell::new(None) };
}

/// Returns the virtual time of the run to which the calling thread belongs, or the system time
/// outside of runs. It is the clock for code that takes a clock as a function.
#[must_use]
pub fn now() -> Instant {
    let current = CURRENT.with_borrow(Clone::clone);
    let Some((world, thread)) = current else { return Instant::now() };
    let world = world.lock();
    world.instant_of(world.threads[thread].rank)
}

/// An action of a rank before one of its operations.
pub(super) type Action = Box<dyn FnOnce() + Send>;

/// The operations of a rank on its transports.
#[derive(Default)]
pub(super) struct Operations {
    count: u64,
    /// Actions, and the numbers of the operations before which they run.
    pub(super) actions: Vec<(u64, Action)>,
}

impl Operations {
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    fn begin(&mut self) -> Vec<Action> {
        self.count += 1;
        let count = self.count;
        let due = self.actions.extract_if(.., |(operation, _)| *operation == count);
        due.map(|(_, action)| action).collect()
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operations({})", self.count)
    }
}

/// The sleep of a thread.
#[derive(Debug, Default)]
pub(super) struct Sleep {
    /// The time at which it ends, while the thread sleeps.
    until: Option<Duration>,
    /// Whether it waits for other threads of its rank.
    parked: bool,
    /// The channels that wake it.
    armed: Vec<usize>,
    /// Whether an armed channel was notified before the thread slept.
    notified: bool,
}

impl Sleep {
    /// Records the result of an `arm` on this channel.
    pub(super) fn arm(&mut self, channel: usize, ready: bool) {
        self.armed.retain(|&armed| armed != channel);
        if !ready {
            self.armed.push(channel);
        }
    }

    pub(super) fn notify(&mut self, channel: usize) {
        if self.armed.contains(&channel) {
            self.notified = true;
            self.until = None;
        }
    }

    pub(super) const fn wake(&mut self) {
        (self.until, self.parked) = (None, false);
    }
}

impl World {
    fn runnable(&self) -> Vec<usize> {
        let runs = |thread: &Thread| {
            !thread.finished && thread.sleep.until.is_none() && !self.is_stopped(thread.rank)
        };
        (0..self.threads.len()).filter(|&thread| runs(&self.threads[thread])).collect()
    }

    /// Lets time pass until a thread can run, and gives the turn to one that can. Returns `None` if
    /// all have ended.
    fn next_turn(&mut self, turns: &mut Turns) -> Option<usize> {
        loop {
            let runnable = self.runnable();
            if !runnable.is_empty() {
                turns.current = Some(runnable[turns.random.below(runnable.len())]);
                return turns.current;
            }
            let wakes = self.threads.iter().filter_map(|thread| thread.sleep.until).min();
            let waits = self.threads.iter().any(|thread| !thread.finished);
            let wakes = wakes.or_else(|| self.next_event().filter(|_| waits))?;
            if self.next_event().is_some_and(|event| event <= wakes) {
                self.advance(None);
            } else if wakes > LONGEST_RUN {
                self.give_up(turns);
            } else {
                self.set_time(wakes);
                let is_over = |thread: &&mut Thread| thread.sleep.until.is_some_and(|at| at <= wakes);
                self.threads.iter_mut().filter(is_over).for_each(|thread| thread.sleep.wake());
            }
        }
    }

    /// Ends a run whose ranks are deadlocked.
    fn give_up(&mut self, turns: &mut Turns) {
        let waiting = self.threads.iter().filter(|thread| !thread.finished);
        turns.deadlocked = waiting.map(|thread| thread.rank).collect();
        turns.deadlocked.sort_unstable();
        turns.deadlocked.dedup();
        (0..self.ranks.len()).for_each(|rank| self.die(rank));
        self.wake_all();
    }

    /// Wakes the parked threads of the same rank, so that they check their conditions.
    fn unpark_others(&mut self, thread: usize) {
        let rank = self.threads[thread].rank;
        let others = self.threads.iter_mut().enumerate().filter(|(other, _)| *other != thread);
        let parked = others.filter(|(_, other)| other.rank == rank && other.sleep.parked);
        parked.for_each(|(_, other)| other.sleep.wake());
    }
}

impl SharedWorld {
    /// Returns the number of the calling thread, which acts for this rank. Outside of a run, this
    /// is the first thread of the rank.
    pub(super) fn thread(&self, rank: usize) -> usize {
        let current = CURRENT.with_borrow(|current| {
            current.as_ref().filter(|(world, _)| Arc::ptr_eq(&world.0, &self.0)).map(|(_, thread)| *thread)
        });
        current.unwrap_or(rank)
    }

    /// Gives the turn to any thread, perhaps the same one, and waits for the next turn of this
    /// thread unless it has ended.
    fn pass_turn<'a>(&'a self, mut world: MutexGuard<'a, World>, thread: usize) -> MutexGuard<'a, World> {
        let Some(mut turns) = world.turns.take() else { return world };
        let next = world.next_turn(&mut turns);
        world.turns = Some(turns);
        if let Some(next) = next.filter(|&next| next != thread) {
            world.threads[next].turn.notify_one();
        }
        if world.threads[thread].finished { world } else { self.await_turn(world, thread) }
    }

    fn await_turn<'a>(&'a self, mut world: MutexGuard<'a, World>, thread: usize) -> MutexGuard<'a, World> {
        let turn = Arc::clone(&world.threads[thread].turn);
        while world.turns.as_ref().is_some_and(|turns| turns.current != Some(thread)) {
            world = turn.wait(world).unwrap_or_else(PoisonError::into_inner);
        }
        world
    }

    /// Waits for the first turn of the calling thread.
    pub(super) fn begin(&self, thread: usize) {
        CURRENT.set(Some((self.clone(), thread)));
        let world = self.lock();
        let is_first = world.turns.as_ref().is_some_and(|turns| turns.current.is_none());
        drop(if is_first { self.pass_turn(world, thread) } else { self.await_turn(world, thread) });
    }

    /// Ends the turns of a thread: the calling one, or one that did not start.
    pub(super) fn end(&self, thread: usize) {
        let mut world = self.lock();
        world.threads[thread].finished = true;
        world.threads[thread].sleep.wake();
        world.unpark_others(thread);
        if world.turns.as_ref().is_some_and(|turns| turns.current == Some(thread)) {
            world = self.pass_turn(world, thread);
        }
        drop(world);
        CURRENT.with_borrow_mut(|current| drop(current.take_if(|(_, current)| *current == thread)));
    }

    /// Begins an operation of a rank in a run: sometimes lets other threads run, counts the
    /// operation, and runs the action that is due before it.
    pub(super) fn begin_operation(&self, rank: usize) {
        let mut world = self.lock();
        let Some(turns) = &mut world.turns else { return };
        let passes = turns.random.one_in(OPERATIONS_PER_TURN);
        let thread = self.thread(rank);
        let is_long = world.is_long();
        let time = world.ranks[rank].per_operation * OPERATIONS_PER_TURN as u32;
        if passes && !time.is_zero() && !is_long {
            world.ranks[rank].delayed += time;
            drop(world);
            self.pause(rank, time);
            world = self.lock();
        } else if passes {
            world.unpark_others(thread);
            world = self.pass_turn(world, thread);
        }
        let actions = world.ranks[rank].operations.begin();
        let (now, count) = (world.now(), world.ranks[rank].operations.count());
        world.log.mix(now, [rank, thread, count as usize, 0]);
        drop(world);
        actions.into_iter().for_each(|action| action());
    }

    /// Lets a fault happen now. If it stops `rank`, returns when that rank continues.
    pub(super) fn inject(&self, rank: usize, incident: Incident) {
        let mut world = self.lock();
        world.inject(incident);
        if world.is_stopped(rank) {
            let thread = self.thread(rank);
            drop(self.pass_turn(world, thread));
        }
    }

    /// Sleeps until an armed channel is notified, all threads are woken or the timeout expires.
    pub(super) fn sleep(&self, rank: usize, timeout: Duration) -> Result<()> {
        let thread = self.thread(rank);
        let mut world = self.lock();
        if world.turns.is_none() {
            return Err(Error::Internal("a rank sleeps outside of a run in virtual time".into()));
        }
        let now = world.now();
        let sleep = &mut world.threads[thread].sleep;
        if !sleep.notified {
            // Time passes in every sleep, so that a loop of sleeps ends.
            sleep.until = Some(now.saturating_add(timeout.max(Duration::from_nanos(1))));
            world.unpark_others(thread);
            world = self.pass_turn(world, thread);
        }
        world.threads[thread].sleep = Sleep::default();
        if world.is_dead(rank) {
            return Err(Error::Internal("a dead rank sleeps".into()));
        }
        Ok(())
    }

    /// Stops the calling thread for some time, regardless of armed channels, or until its rank
    /// dies.
    pub(super) fn pause(&self, rank: usize, duration: Duration) {
        let thread = self.thread(rank);
        let mut world = self.lock();
        let until = world.now().saturating_add(duration);
        let armed = std::mem::take(&mut world.threads[thread].sleep.armed);
        world.unpark_others(thread);
        while world.turns.is_some() && world.now() < until && !world.is_dead(rank) {
            world.threads[thread].sleep.until = Some(until);
            world = self.pass_turn(world, thread);
        }
        // It may have missed a notification.
        world.threads[thread].sleep =
            Sleep { until: None, parked: false, notified: !armed.is_empty(), armed };
    }
}

/// Schedules the threads of a rank.
#[derive(Debug)]
pub(super) struct NetworkScheduler {
    pub(super) rank: usize,
    pub(super) world: SharedWorld,
}

impl Scheduler for NetworkScheduler {
    fn add_thread(&self) -> usize {
        let mut world = self.world.lock();
        world.threads.push(Thread::new(self.rank));
        world.threads.len() - 1
    }

    fn begin(&self, thread: usize) {
        self.world.begin(thread);
    }

    fn end(&self, thread: usize) {
        self.world.end(thread);
    }

    fn wait_until(&self, condition: &mut dyn FnMut() -> bool) -> Result<()> {
        let mut is_first = true;
        while !condition() {
            let thread = self.world.thread(self.rank);
            let mut world = self.world.lock();
            if world.turns.as_ref().is_none_or(|turns| !turns.deadlocked.is_empty()) {
                return Err(Error::Internal("threads of a rank wait for each other".into()));
            }
            if std::mem::take(&mut is_first) {
                world.unpark_others(thread);
            }
            let sleep = &mut world.threads[thread].sleep;
            (sleep.until, sleep.parked) = (Some(Duration::MAX), true);
            drop(self.world.pass_turn(world, thread));
        }
        Ok(())
    }
}
