//! The turns of threads: one thread runs at a time, and time passes when all sleep.
//!
//! The first thread of each rank is a coroutine of the thread that runs the simulation. The others
//! are threads of the system.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use comm_core::{Error, Result, Scheduler};

use super::world::World;
use super::{Incident, SharedWorld, coroutines};
use crate::random::Random;
use crate::threads::Job;

/// The average number of operations of a thread until another gets a turn.
const OPERATIONS_PER_TURN: usize = 6;
/// The virtual time after which threads that still sleep are considered deadlocked.
const LONGEST_RUN: Duration = Duration::from_secs(7 * 24 * 3600);

/// The turns of a run.
#[derive(Debug)]
pub(super) struct Turns {
    /// The thread that runs.
    current: Option<usize>,
    /// The thread of the system that runs the coroutines.
    carrier: Thread,
    /// The rank that unwinds after a panic. Until it has, its carrier counts as panicking, so no
    /// other coroutine may run.
    unwinding: Option<usize>,
    random: Random,
    /// The ranks that had not ended after [`LONGEST_RUN`].
    pub(super) deadlocked: Vec<usize>,
}

impl Turns {
    /// Creates the turns of a run whose ranks are coroutines of the calling thread.
    pub(super) fn new(seed: u64) -> Self {
        let (random, deadlocked) = (Random::new(seed, 2), Vec::new());
        Self { current: None, carrier: thread::current(), unwinding: None, random, deadlocked }
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
    world.instant_of(world.threads.rank_of(thread))
}

/// Calls a function with the world and the rank of the calling thread, if it belongs to a run.
pub(super) fn with_current<R>(f: impl FnOnce(&SharedWorld, usize) -> R) -> Option<R> {
    let (world, thread) = CURRENT.with_borrow(Clone::clone)?;
    let rank = world.lock().threads.rank_of(thread);
    Some(f(&world, rank))
}

/// Returns whether the calling thread belongs to a run.
pub(super) fn is_in_run() -> bool {
    CURRENT.with_borrow(Option::is_some)
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

impl World {
    /// Returns a random thread that can run.
    fn draw_runnable(&mut self) -> Option<usize> {
        let mut stopped = std::mem::take(&mut self.stopped);
        stopped.retain(|&rank| self.is_stopped(rank));
        self.stopped = stopped;
        let draw = |turns: &mut Turns, count| (count > 0).then(|| turns.random.below(count));
        let unwinding = self.turns.as_ref()?.unwinding;
        if self.stopped.is_empty() && unwinding.is_none() {
            let index = draw(self.turns.as_mut()?, self.threads.awake_count())?;
            return self.threads.nth_awake(index);
        }
        let runs = |thread: &usize| {
            let is_allowed = unwinding.is_none_or(|rank| *thread == rank || !self.is_coroutine(*thread));
            is_allowed && !self.stopped.contains(&self.threads.rank_of(*thread))
        };
        let runnable: Vec<usize> = self.threads.awake().filter(runs).collect();
        Some(runnable[draw(self.turns.as_mut()?, runnable.len())?])
    }

    /// Lets time pass until a thread can run, and gives the turn to one that can. Returns `None` if
    /// all have ended.
    fn next_turn(&mut self) -> Option<usize> {
        self.pump_sockets();
        loop {
            if let Some(thread) = self.draw_runnable() {
                self.turns.as_mut()?.current = Some(thread);
                return Some(thread);
            }
            let event = self.next_event();
            let waits = self.threads.has_unfinished();
            let wakes = self.threads.next_alarm().or_else(|| event.filter(|_| waits))?;
            if event.is_some_and(|event| event <= wakes) {
                self.advance(None);
            } else if wakes > LONGEST_RUN {
                self.give_up();
            } else {
                self.set_time(wakes);
                self.threads.wake_expired(wakes);
            }
        }
    }

    /// Returns whether a thread is the first one of its rank.
    const fn is_coroutine(&self, thread: usize) -> bool {
        thread < self.ranks.len()
    }

    /// Returns the thread of the system that runs this thread, if it has started.
    fn carrier_of(&self, thread: usize) -> Option<Thread> {
        if self.is_coroutine(thread) {
            return self.turns.as_ref().map(|turns| turns.carrier.clone());
        }
        self.threads.handle(thread)
    }

    /// Ends a run whose ranks are deadlocked.
    fn give_up(&mut self) {
        let deadlocked = self.threads.unfinished_ranks();
        if let Some(turns) = &mut self.turns {
            turns.deadlocked = deadlocked;
        }
        (0..self.ranks.len()).for_each(|rank| self.die(rank));
        self.threads.wake_all();
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

    /// Runs the jobs of all ranks, in turns.
    pub(super) fn run_ranks(&self, jobs: Vec<Job<'_>>) -> Vec<thread::Result<()>> {
        let outer = CURRENT.take();
        let results = coroutines::run(jobs, || self.next_coroutine());
        CURRENT.set(outer);
        results
    }

    /// Waits until a coroutine has the turn, and returns its number.
    fn next_coroutine(&self) -> Option<usize> {
        let mut world = self.lock();
        loop {
            let thread = match world.turns.as_ref()?.current {
                Some(thread) if !world.threads.is_finished(thread) => thread,
                _ => world.next_turn()?,
            };
            if world.is_coroutine(thread) {
                CURRENT.set(Some((self.clone(), thread)));
                return Some(thread);
            }
            // A thread that has not started looks for its turn when it does.
            let carrier = world.carrier_of(thread);
            drop(world);
            carrier.inspect(Thread::unpark);
            world = self.park();
        }
    }

    /// Gives the turn to any thread, perhaps the same one, and waits for the next turn of this
    /// thread unless it has ended.
    fn pass_turn<'a>(&'a self, mut world: MutexGuard<'a, World>, thread: usize) -> MutexGuard<'a, World> {
        let has_ended = world.threads.is_finished(thread);
        let is_coroutine = world.is_coroutine(thread);
        let Some(turns) = &mut world.turns else { return world };
        turns.unwinding = (is_coroutine && !has_ended && thread::panicking()).then_some(thread);
        let next = world.next_turn().filter(|&next| next != thread);
        if is_coroutine {
            if next.is_some() && !has_ended {
                drop(world);
                coroutines::suspend();
                world = self.lock();
            }
            return world;
        }
        if let Some(carrier) = next.and_then(|next| world.carrier_of(next)) {
            // It takes the lock at once, so it must not wait for this thread to release it.
            drop(world);
            carrier.unpark();
            world = if has_ended { self.lock() } else { self.park() };
        }
        if has_ended { world } else { self.await_turn(world, thread) }
    }

    /// Sleeps until another thread has passed the turn to this one, or for no reason.
    fn park(&self) -> MutexGuard<'_, World> {
        thread::park();
        self.lock()
    }

    fn await_turn<'a>(&'a self, mut world: MutexGuard<'a, World>, thread: usize) -> MutexGuard<'a, World> {
        while world.turns.as_ref().is_some_and(|turns| turns.current != Some(thread)) {
            drop(world);
            world = self.park();
        }
        world
    }

    /// Waits for the first turn of the calling thread, which is not the first one of its rank.
    fn begin(&self, thread: usize) {
        CURRENT.set(Some((self.clone(), thread)));
        let mut world = self.lock();
        world.threads.start(thread, thread::current());
        drop(self.await_turn(world, thread));
    }

    /// Ends the turns of a thread: the calling one, or one that did not start.
    pub(super) fn end(&self, thread: usize) {
        let mut world = self.lock();
        world.threads.finish(thread);
        world.threads.unpark_others(thread);
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
            world.threads.unpark_others(thread);
            world = self.pass_turn(world, thread);
        }
        world.operations += 1;
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
        if !world.threads.is_notified(thread) {
            // Time passes in every sleep, so that a loop of sleeps ends.
            world.threads.sleep(thread, now.saturating_add(timeout.max(Duration::from_nanos(1))));
            world.threads.unpark_others(thread);
            world = self.pass_turn(world, thread);
        }
        world.threads.reset(thread);
        if world.is_dead(rank) {
            return Err(Error::Internal("a dead rank sleeps".into()));
        }
        Ok(())
    }

    /// Sleeps until a descriptor of the process may be ready, or the timeout expires.
    pub(super) fn sleep_in_system(&self, rank: usize, timeout: Duration) -> Result<()> {
        let thread = self.thread(rank);
        let mut world = self.lock();
        if world.turns.is_none() {
            return Err(Error::Internal("a rank sleeps outside of a run in virtual time".into()));
        }
        let until = world.now().saturating_add(timeout.max(Duration::from_nanos(1)));
        world.threads.sleep_in_system(thread, until);
        world.threads.unpark_others(thread);
        world = self.pass_turn(world, thread);
        world.threads.reset(thread);
        if world.is_dead(rank) {
            return Err(Error::Internal("a dead rank sleeps".into()));
        }
        drop(world);
        self.begin_operation(rank);
        Ok(())
    }

    /// Stops the calling thread for some time, regardless of armed channels, or until its rank
    /// dies.
    pub(super) fn pause(&self, rank: usize, duration: Duration) {
        let thread = self.thread(rank);
        let mut world = self.lock();
        let until = world.now().saturating_add(duration);
        let armed = world.threads.disarm(thread);
        world.threads.unpark_others(thread);
        while world.turns.is_some() && world.now() < until && !world.is_dead(rank) {
            world.threads.sleep(thread, until);
            world = self.pass_turn(world, thread);
        }
        world.threads.rearm(thread, armed);
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
        self.world.lock().threads.add(self.rank)
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
                world.threads.unpark_others(thread);
            }
            world.threads.park(thread);
            drop(self.world.pass_turn(world, thread));
        }
        Ok(())
    }
}
