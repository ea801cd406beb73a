//! The order of the collectives of a group: one at a time, as they were called.
//!
//! A thread of the group runs those that are queued. A thread that waits for one runs those that
//! have not begun itself, because to wake two threads takes longer than a small call. Callbacks run
//! on the thread that has run their collective, and may wait for later ones in ways that this crate
//! does not see, so another thread, an assistant, runs those meanwhile.

use std::collections::VecDeque;
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use comm::{Invalid, Result};

use crate::members::Caller;
use crate::operation::Completion;
use crate::pending::Pending;
use crate::request::Request;

/// The queued collectives of a group.
pub(crate) struct Queue {
    state: Mutex<Turns>,
    turn_ended: Condvar,
    /// Wakes an assistant.
    called: Condvar,
    /// The process that has the threads of the group.
    process: u32,
}

/// The collectives that wait for their turn, and the one that has it.
#[derive(Default)]
struct Turns {
    waiting: VecDeque<Job>,
    /// Whether a collective runs.
    running: bool,
    /// The number of threads that wait for the end of a turn.
    sleeping: usize,
    /// The threads of the group that run callbacks, of its own thread and the assistants.
    in_callbacks: usize,
    /// The assistants that have been started, that have nothing to do, and that were called.
    assistants: Vec<JoinHandle<()>>,
    idle: usize,
    calls: usize,
    is_closed: bool,
}

/// A queued collective.
pub(crate) struct Job {
    pub(crate) caller: Arc<Caller>,
    pub(crate) request: Request,
    pub(crate) timeout: Duration,
    pub(crate) completion: Completion,
    pub(crate) pending: Pending,
    /// Whether only the thread of the group may run it.
    pub(crate) in_background: bool,
}

/// The right to run a collective, until it is dropped or its callbacks run.
pub(crate) struct Turn<'a> {
    queue: &'a Arc<Queue>,
    /// Whether a thread of the group has it, and not one that waits.
    is_served: bool,
    runs_callbacks: bool,
}

impl Queue {
    pub(crate) fn new() -> Self {
        let state = Mutex::default();
        Self { state, turn_ended: Condvar::new(), called: Condvar::new(), process: process::id() }
    }

    /// No operation leaves the state inconsistent, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error in a forked child, in which nothing runs the queue, and another thread of
    /// the parent may have locked the state for ever.
    pub(crate) fn check_process(&self) -> Result<()> {
        match (self.process, process::id()) {
            (owner, process) if owner == process => Ok(()),
            (owner, process) => Err(Invalid::Forked { owner, process }.into()),
        }
    }

    /// Queues a collective. The caller must let a thread call [`Queue::run_next`] afterwards.
    pub(crate) fn push(self: &Arc<Self>, job: Job) {
        let mut state = self.lock();
        state.waiting.push_back(job);
        self.call_assistant(&mut state);
    }

    /// Returns the turn of a collective that is not queued, if nothing runs or is queued.
    pub(crate) fn try_begin(self: &Arc<Self>) -> Option<Turn<'_>> {
        let mut state = self.state.try_lock().ok()?;
        if state.running || !state.waiting.is_empty() {
            return None;
        }
        Some(self.begin(&mut state, false))
    }

    fn begin(self: &Arc<Self>, state: &mut Turns, is_served: bool) -> Turn<'_> {
        state.running = true;
        Turn { queue: self, is_served, runs_callbacks: false }
    }

    /// Runs the first collective that has not begun, after the one that runs. Returns false if
    /// there is none.
    pub(crate) fn run_next(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        while state.running {
            state.sleeping += 1;
            state = self.turn_ended.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        }
        self.run_first(state, true)
    }

    /// Runs collectives that have not begun until the condition holds, or until another thread runs
    /// one or has to. Returns whether it holds.
    pub(crate) fn run_until(self: &Arc<Self>, condition: impl Fn() -> bool) -> bool {
        loop {
            let state = self.lock();
            if condition() {
                return true;
            }
            if state.waiting.front().is_some_and(|job| job.in_background) || !self.run_first(state, false) {
                return false;
            }
        }
    }

    /// Runs the first collective that has not begun. Returns false if there is none, or if another
    /// one runs.
    fn run_first(self: &Arc<Self>, mut state: MutexGuard<'_, Turns>, is_served: bool) -> bool {
        if state.running {
            return false;
        }
        let Some(job) = state.waiting.pop_front() else { return false };
        let turn = self.begin(&mut state, is_served);
        drop(state);
        job.run(turn);
        true
    }

    /// Lets an assistant run the queue, if all threads of the group run callbacks.
    fn call_assistant(self: &Arc<Self>, state: &mut Turns) {
        let threads = 1 + state.assistants.len();
        if state.waiting.is_empty() || state.is_closed || state.in_callbacks + state.idle < threads {
            return;
        }
        if state.idle > 0 {
            (state.idle, state.calls) = (state.idle - 1, state.calls + 1);
            self.called.notify_one();
            return;
        }
        let queue = Arc::clone(self);
        let spawned = thread::Builder::new().name("comm assistant".into()).spawn(move || queue.assist());
        // Without it, a callback that waits for a later collective waits until the timeout of that.
        state.assistants.extend(spawned.ok());
    }

    /// Runs the queue whenever this thread is called.
    fn assist(self: &Arc<Self>) {
        loop {
            while self.run_next() {}
            let mut state = self.lock();
            state.idle += 1;
            // It may have been queued in the meantime.
            self.call_assistant(&mut state);
            while state.calls == 0 && !state.is_closed {
                state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.calls == 0 {
                return;
            }
            state.calls -= 1;
        }
    }

    /// Ends the assistants, once nothing is queued any more.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let assistants = std::mem::take(&mut state.assistants);
        drop(state);
        self.called.notify_all();
        let current = thread::current().id();
        for assistant in assistants.into_iter().filter(|assistant| assistant.thread().id() != current) {
            // A panic was reported when it happened.
            drop(assistant.join());
        }
    }
}

impl Job {
    fn run(self, turn: Turn<'_>) {
        let Self { caller, request, timeout, mut completion, pending, in_background: _ } = self;
        completion.begin();
        let outcome = caller.run(&request, timeout);
        drop((caller, pending));
        completion.complete(outcome.map(|()| None), Some(turn));
    }
}

impl Turn<'_> {
    /// Lets the callbacks of the collective run, on this thread, and others run the next one.
    pub(crate) fn begin_callbacks(&mut self) {
        let mut state = self.queue.lock();
        state.running = false;
        self.runs_callbacks = true;
        state.in_callbacks += usize::from(self.is_served);
        self.queue.call_assistant(&mut state);
        self.queue.end_turn(state);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if self.runs_callbacks {
            state.in_callbacks -= usize::from(self.is_served);
        } else {
            state.running = false;
            self.queue.end_turn(state);
        }
    }
}

impl Queue {
    /// Wakes those that wait for the end of a turn.
    fn end_turn(&self, state: MutexGuard<'_, Turns>) {
        let is_awaited = state.sleeping > 0;
        drop(state);
        if is_awaited {
            self.turn_ended.notify_all();
        }
    }
}
