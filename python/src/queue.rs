//! The order of the collectives of a group: one at a time, as they were called.
//!
//! A thread of the group runs those that are queued. A thread that waits for one runs those that
//! have not begun itself, because to wake two threads takes longer than a small call.

use std::collections::VecDeque;
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use comm::{CallOptions, HostCommunicator, Invalid, Result};

use crate::operation::Completion;
use crate::pending::Pending;
use crate::request::Request;

/// The queued collectives of a group.
pub(crate) struct Queue {
    state: Mutex<Turns>,
    turn_ended: Condvar,
    /// The process that has the threads of the group.
    process: u32,
}

/// The collectives that wait for their turn, and the one that has it.
#[derive(Default)]
struct Turns {
    waiting: VecDeque<Job>,
    /// Whether a collective runs.
    running: bool,
    /// The thread on which callbacks of a queued collective run. They may make calls, but other
    /// threads run no other queued one, so that all end in order.
    in_callbacks: Option<ThreadId>,
    /// The number of threads that wait for the end of a turn.
    sleeping: usize,
}

/// A queued collective.
pub(crate) struct Job {
    pub(crate) communicator: Arc<dyn HostCommunicator>,
    pub(crate) request: Request,
    pub(crate) timeout: Duration,
    pub(crate) completion: Completion,
    pub(crate) pending: Pending,
    /// Whether only the thread of the group may run it.
    pub(crate) in_background: bool,
}

/// The right to run a collective, and then its callbacks, until it is dropped.
pub(crate) struct Turn<'a> {
    queue: &'a Queue,
    /// Once its callbacks run: the thread on which others did before, which is this one.
    callbacks: Option<Option<ThreadId>>,
}

/// Runs a request as a collective.
pub(crate) fn run(communicator: &dyn HostCommunicator, request: &Request, timeout: Duration) -> Result<()> {
    communicator.run(request.call()?, &CallOptions::default().timeout(timeout))
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default(), turn_ended: Condvar::new(), process: process::id() }
    }

    /// No operation leaves the state inconsistent, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error in a forked child, in which nothing runs what is queued, and another thread
    /// of the parent may have locked the state for ever.
    pub(crate) fn check_process(&self) -> Result<()> {
        match (self.process, process::id()) {
            (owner, process) if owner == process => Ok(()),
            (owner, process) => Err(Invalid::Forked { owner, process }.into()),
        }
    }

    /// Queues a collective. The caller must let a thread call [`Queue::run_next`] afterwards.
    pub(crate) fn push(&self, job: Job) {
        self.lock().waiting.push_back(job);
    }

    /// Returns the turn of a collective that is not queued, if nothing runs or is queued.
    pub(crate) fn try_begin(&self) -> Option<Turn<'_>> {
        let mut state = self.state.try_lock().ok()?;
        if state.running || !state.waiting.is_empty() {
            return None;
        }
        Some(self.begin(&mut state))
    }

    fn begin(&self, state: &mut Turns) -> Turn<'_> {
        state.running = true;
        Turn { queue: self, callbacks: None }
    }

    /// Runs the first collective that has not begun, if any, after the one that runs.
    pub(crate) fn run_next(&self) {
        let mut state = self.lock();
        while !state.may_run_first() {
            state.sleeping += 1;
            state = self.turn_ended.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        }
        self.run_first(state);
    }

    /// Runs collectives that have not begun until the condition holds, or until another thread runs
    /// one or has to. Returns whether it holds.
    pub(crate) fn run_until(&self, condition: impl Fn() -> bool) -> bool {
        loop {
            let state = self.lock();
            if condition() {
                return true;
            }
            if state.waiting.front().is_some_and(|job| job.in_background) || !self.run_first(state) {
                return false;
            }
        }
    }

    /// Runs the first collective that has not begun. Returns false if there is none, or if another
    /// one runs.
    fn run_first(&self, mut state: MutexGuard<'_, Turns>) -> bool {
        if !state.may_run_first() {
            return false;
        }
        let Some(job) = state.waiting.pop_front() else { return false };
        let turn = self.begin(&mut state);
        drop(state);
        job.run(turn);
        true
    }
}

impl Turns {
    /// Returns whether this thread may run the first queued collective.
    fn may_run_first(&self) -> bool {
        !self.running && self.in_callbacks.is_none_or(|thread| thread == thread::current().id())
    }
}

impl Job {
    fn run(self, turn: Turn<'_>) {
        let Self { communicator, request, timeout, completion, pending, in_background: _ } = self;
        let outcome = run(&*communicator, &request, timeout);
        drop((communicator, pending));
        completion.complete(outcome.map(|()| None), Some(turn));
    }
}

impl Turn<'_> {
    /// Lets the callbacks of the collective run, on this thread.
    pub(crate) fn begin_callbacks(&mut self) {
        let mut state = self.queue.lock();
        state.running = false;
        self.callbacks = Some(state.in_callbacks.replace(thread::current().id()));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        match self.callbacks {
            None => state.running = false,
            Some(before) => state.in_callbacks = before,
        }
        let is_awaited = state.sleeping > 0;
        drop(state);
        if is_awaited {
            self.queue.turn_ended.notify_all();
        }
    }
}
