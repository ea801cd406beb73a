//! Turns of threads: one rank runs at a time, and time passes when all sleep.

use std::fmt;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{Error, Result};

use super::SharedWorld;
use super::world::World;
use crate::random::Random;

/// The average number of operations between two turns of other ranks.
const OPERATIONS_PER_TURN: usize = 6;
/// The virtual time after which ranks that still sleep are considered deadlocked.
const LONGEST_RUN: Duration = Duration::from_secs(7 * 24 * 3600);

/// The turns of a run.
#[derive(Debug)]
pub(super) struct Turns {
    /// The rank that runs.
    current: Option<usize>,
    finished: Vec<bool>,
    random: Random,
    /// The ranks that had not ended after the longest run.
    pub(super) deadlocked: Vec<usize>,
}

impl Turns {
    pub(super) fn new(ranks: usize, seed: u64) -> Self {
        let random = Random::new(seed, 2);
        Self { current: None, finished: vec![false; ranks], random, deadlocked: Vec::new() }
    }
}

/// An action of a rank before one of its operations.
pub(super) type Action = Box<dyn FnOnce() + Send>;

/// The operations of a rank on its transports.
#[derive(Default)]
pub(super) struct Operations {
    count: u64,
    /// The operation before which the rank does something.
    pub(super) action: Option<(u64, Action)>,
}

impl Operations {
    fn begin(&mut self) -> Option<Action> {
        self.count += 1;
        self.action.take_if(|(operation, _)| *operation == self.count).map(|(_, action)| action)
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operations({})", self.count)
    }
}

/// The sleep of a rank.
#[derive(Debug, Default)]
pub(super) struct Sleep {
    /// The time at which it ends, while the rank sleeps.
    until: Option<Duration>,
    /// The channels that wake it.
    armed: Vec<usize>,
    /// Whether an armed channel was notified before the rank slept.
    notified: bool,
}

impl Sleep {
    /// Records the answer of an `arm` of this channel.
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
        self.until = None;
    }
}

impl World {
    fn runnable(&self, turns: &Turns) -> Vec<usize> {
        let runs = |&rank: &usize| !turns.finished[rank] && self.ranks[rank].sleep.until.is_none();
        (0..self.ranks.len()).filter(runs).collect()
    }

    /// Lets time pass until a rank can run, and gives one the turn. Returns `None` if all have
    /// ended.
    fn next_turn(&mut self, turns: &mut Turns) -> Option<usize> {
        loop {
            let runnable = self.runnable(turns);
            if !runnable.is_empty() {
                turns.current = Some(runnable[turns.random.below(runnable.len())]);
                return turns.current;
            }
            let wakes = self.ranks.iter().filter_map(|rank| rank.sleep.until).min()?;
            if self.next_event().is_some_and(|event| event <= wakes) {
                self.advance(None);
            } else if wakes > LONGEST_RUN {
                turns.deadlocked = (0..turns.finished.len()).filter(|&rank| !turns.finished[rank]).collect();
                (0..self.ranks.len()).for_each(|rank| self.die(rank));
            } else {
                self.set_time(wakes);
                let over =
                    self.ranks.iter_mut().filter(|rank| rank.sleep.until.is_some_and(|at| at <= wakes));
                over.for_each(|rank| rank.sleep.wake());
            }
        }
    }
}

impl SharedWorld {
    /// Gives another rank the turn, or the same, and waits for the next turn of this one unless it
    /// has ended.
    fn pass_turn<'a>(&'a self, mut world: MutexGuard<'a, World>, rank: usize) -> MutexGuard<'a, World> {
        let Some(mut turns) = world.turns.take() else { return world };
        let next = world.next_turn(&mut turns);
        let finished = turns.finished[rank];
        world.turns = Some(turns);
        if let Some(next) = next.filter(|&next| next != rank) {
            self.0.turns[next].notify_one();
        }
        if finished { world } else { self.await_turn(world, rank) }
    }

    fn await_turn<'a>(&'a self, mut world: MutexGuard<'a, World>, rank: usize) -> MutexGuard<'a, World> {
        while world.turns.as_ref().is_some_and(|turns| turns.current != Some(rank)) {
            world = self.0.turns[rank].wait(world).unwrap_or_else(PoisonError::into_inner);
        }
        world
    }

    /// Waits for the first turn of a rank.
    pub(super) fn begin(&self, rank: usize) {
        let world = self.lock();
        let is_first = world.turns.as_ref().is_some_and(|turns| turns.current.is_none());
        drop(if is_first { self.pass_turn(world, rank) } else { self.await_turn(world, rank) });
    }

    /// Ends the turns of a rank.
    pub(super) fn end(&self, rank: usize) {
        let mut world = self.lock();
        if let Some(turns) = &mut world.turns {
            turns.finished[rank] = true;
        }
        world.ranks[rank].sleep.wake();
        drop(self.pass_turn(world, rank));
    }

    /// Counts an operation of a rank, in a run, does what is to be done before it, and sometimes
    /// lets others run first.
    pub(super) fn begin_operation(&self, rank: usize) {
        let mut world = self.lock();
        let Some(turns) = &mut world.turns else { return };
        let passes = turns.random.one_in(OPERATIONS_PER_TURN);
        if passes {
            world = self.pass_turn(world, rank);
        }
        let action = world.ranks[rank].operations.begin();
        drop(world);
        if let Some(action) = action {
            action();
        }
    }

    /// Sleeps until an armed channel is notified, all are woken or the time is over.
    pub(super) fn sleep(&self, rank: usize, timeout: Duration) -> Result<()> {
        let mut world = self.lock();
        if world.turns.is_none() {
            return Err(Error::Internal("a rank sleeps outside of a run in virtual time".into()));
        }
        let now = world.now();
        let sleep = &mut world.ranks[rank].sleep;
        if !sleep.notified {
            // Time passes in every sleep, so that a loop of them ends.
            sleep.until = Some(now.saturating_add(timeout.max(Duration::from_nanos(1))));
            world = self.pass_turn(world, rank);
        }
        world.ranks[rank].sleep = Sleep::default();
        if world.is_dead(rank) {
            return Err(Error::Internal("a dead rank sleeps".into()));
        }
        Ok(())
    }

    /// Stops a rank for some time, whatever it has armed, unless it dies.
    pub(super) fn pause(&self, rank: usize, duration: Duration) {
        let mut world = self.lock();
        let until = world.now().saturating_add(duration);
        let armed = std::mem::take(&mut world.ranks[rank].sleep.armed);
        while world.turns.is_some() && world.now() < until && !world.is_dead(rank) {
            world.ranks[rank].sleep.until = Some(until);
            world = self.pass_turn(world, rank);
        }
        // It may have missed a notification.
        world.ranks[rank].sleep = Sleep { until: None, notified: !armed.is_empty(), armed };
    }
}
