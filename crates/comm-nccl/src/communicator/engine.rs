//! Carries plans out, and knows what is under way.
//!
//! NCCL's communicator is used by one thread at a time, under the lock of [`State`], and never for long: its calls return at
//! once, and whoever waits for them lets go of the lock between questions. So somebody can always abort.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use comm_core::{CallOptions, During, Error, Group, Result};

use super::pause::Pause;
use crate::config::NcclConfig;
use crate::handle::{Birth, Handle, Progress, Setup};
use crate::health::{Health, Ticket};
use crate::plan::{Plan, Subject};
use crate::stream::{Event, Stream};
use crate::sync::lock;
use crate::usage::Use;
use crate::{Device, Library};

/// What the threads of a communicator share.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) group: Group,
    pub(super) library: Library,
    pub(super) device: Device,
    pub(super) stream: Stream,
    pub(super) config: NcclConfig,
    pub(super) setup: Setup,
    pub(super) health: Arc<Health>,
    /// Whose call it is: calls from several threads queue here.
    turn: Mutex<()>,
    state: Mutex<State>,
    /// Tells the watchdog that there is something to watch, or that it may go.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// None once the communicator has ended, in one way or another.
    handle: Option<Handle>,
    /// The number of the last call.
    sequence: u64,
    /// Calls that are on the device, oldest first.
    pending: VecDeque<Pending>,
    closing: bool,
}

/// A call that was enqueued and has not ended, as far as anybody looked.
#[derive(Debug)]
struct Pending {
    sequence: u64,
    done: Event,
    deadline: Deadline,
    subject: Option<Subject>,
}

/// By when something must be done, and how long it was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Option<Instant>,
    after: Duration,
}

impl Deadline {
    pub(super) fn after(after: Duration) -> Self {
        // What is too far away for the clock never comes.
        Self { at: Instant::now().checked_add(after), after }
    }

    fn has_passed(&self) -> bool {
        self.at.is_some_and(|at| Instant::now() >= at)
    }

    /// The error at the deadline. NCCL does not tell which ranks are missing: any other may be.
    fn missed(&self, group: Group, during: During) -> Error {
        Error::Timeout { waiting_for: group.peers().collect(), after: self.after, during }
    }
}

/// The right to make the next call.
pub(super) struct Turn<'a>(#[allow(dead_code, reason = "it is held")] MutexGuard<'a, ()>);

/// The parts of an engine.
pub(super) struct Parts {
    pub(super) library: Library,
    pub(super) stream: Stream,
    pub(super) config: NcclConfig,
    pub(super) setup: Setup,
    pub(super) handle: Handle,
}

impl Engine {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { library, stream, config, setup, handle } = parts;
        let state = State { handle: Some(handle), ..State::default() };
        Self {
            group: config.group,
            library,
            device: stream.device(),
            stream,
            config,
            setup,
            health: Arc::default(),
            turn: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Waits for the calls of other threads, and refuses to go on after a failure.
    pub(super) fn turn(&self) -> Result<Turn<'_>> {
        let turn = Turn(lock(&self.turn));
        self.health.usable()?;
        self.device.bind()?;
        Ok(turn)
    }

    /// Enqueues calls and returns the number under which they go.
    pub(super) fn enqueue(&self, _turn: &Turn<'_>, plan: Plan<'_>, options: &CallOptions) -> Result<u64> {
        let deadline = Deadline::after(options.timeout);
        let sequence = self.number();
        let subject = plan.subject().cloned();
        let launched = self.launch(&plan, sequence, deadline);
        // Whatever happened, work on the memory may be on the device.
        let marked = self.mark(&plan, sequence);
        match launched.and(marked) {
            Ok(done) => {
                lock(&self.state).pending.push_back(Pending { sequence, done, deadline, subject });
                self.changed.notify_one();
                Ok(sequence)
            }
            Err(error) => Err(self.fail(error, Some(sequence))),
        }
    }

    fn launch(&self, plan: &Plan<'_>, sequence: u64, deadline: Deadline) -> Result<()> {
        plan.before()?;
        if plan.ops().is_empty() {
            return Ok(());
        }
        let (operators, progress) = {
            let state = lock(&self.state);
            let handle = state.handle.as_ref().ok_or_else(|| self.ended())?;
            handle.carry_out(plan, &self.stream)?
        };
        if progress == Progress::Busy {
            let during =
                || plan.subject().map_or(During::Other("enqueueing a call"), |it| it.during(sequence));
            self.settle(deadline, during)?;
        }
        self.with_handle(|handle| handle.forget(operators))
    }

    /// Lets whoever uses the memory of a plan next wait for what was enqueued, and know whether it was lost.
    fn mark(&self, plan: &Plan<'_>, sequence: u64) -> Result<Event> {
        let done = self.stream.record()?;
        let ticket = Some(Ticket::new(Arc::clone(&self.health), sequence));
        plan.after(&Use { stream: self.stream.clone(), done: done.clone(), ticket })?;
        Ok(done)
    }

    /// Asks until the last call of NCCL is through.
    pub(super) fn settle(&self, deadline: Deadline, during: impl Fn() -> During) -> Result<()> {
        let mut pause = Pause::default();
        while self.with_handle(Handle::progress)? == Progress::Busy {
            if deadline.has_passed() {
                return Err(deadline.missed(self.group, during()));
            }
            pause.wait();
        }
        Ok(())
    }

    /// Uses NCCL's communicator for a moment.
    pub(super) fn with_handle<R>(&self, what: impl FnOnce(&Handle) -> Result<R>) -> Result<R> {
        let state = lock(&self.state);
        state.handle.as_ref().ok_or_else(|| self.ended()).and_then(what)
    }

    /// Why there is no communicator any more.
    fn ended(&self) -> Error {
        self.health.cause().unwrap_or_else(|| Error::Internal("the communicator has ended".into()))
    }

    /// Makes another communicator out of this one, by a call that all members make.
    pub(super) fn divide(
        &self,
        _turn: &Turn<'_>,
        deadline: Deadline,
        begin: impl FnOnce(&Handle) -> Result<(Birth, Progress)>,
    ) -> Result<Option<Handle>> {
        let (birth, progress) = self.with_handle(begin)?;
        if progress == Progress::Busy {
            self.settle(deadline, || During::Other("making a group"))?;
        }
        let child = birth.finish();
        if let Some(child) = &child {
            await_ready(child, deadline, self.group)?;
        }
        Ok(child)
    }

    /// Waits on the host until a call has ended, and all before it: until the watchdog finds that they do not, or until
    /// `deadline`.
    pub(super) fn wait(&self, sequence: u64, deadline: Option<Deadline>) -> Result<()> {
        let mut pause = Pause::default();
        loop {
            {
                let mut state = lock(&self.state);
                if let Some(cause) = self.health.cause() {
                    return Err(cause);
                }
                if let Err(error) = state.reap() {
                    drop(state);
                    return Err(self.fail(error, None));
                }
                if state.pending.front().is_none_or(|pending| pending.sequence > sequence) {
                    return Ok(());
                }
            }
            if let Some(missed) = deadline.filter(Deadline::has_passed) {
                let error = missed.missed(self.group, During::Other("waiting for the device"));
                return Err(self.fail(error, None));
            }
            pause.wait();
        }
    }

    /// A number for the next call.
    pub(super) fn number(&self) -> u64 {
        let mut state = lock(&self.state);
        state.sequence += 1;
        state.sequence
    }

    /// The number of the last call.
    pub(super) fn last(&self) -> u64 {
        lock(&self.state).sequence
    }

    /// Ends the communicator for good: poisons it, and aborts what is on the device. `lost` is a call that was not enqueued
    /// in whole. Returns the cause that counts, which may be another one.
    pub(super) fn fail(&self, error: Error, lost: Option<u64>) -> Error {
        let mut state = lock(&self.state);
        // What has ended by now is no loss.
        let _unknown = state.reap();
        let pending = state.pending.front().map(|pending| pending.sequence);
        let first_lost = pending.or(lost).unwrap_or(state.sequence + 1);
        let cause = self.health.fail(error, first_lost);
        state.pending.clear();
        let handle = state.handle.take();
        drop(state);
        if let Some(handle) = handle {
            tracing::warn!(rank = self.group.rank(), error = %cause, "aborting a communicator of NCCL");
            if let Err(error) = self.device.bind() {
                tracing::warn!(%error, "could not bind the device to abort on it");
            }
            handle.abort();
        }
        cause
    }

    /// What the watchdog does: notices what nobody waits for.
    pub(super) fn watch(&self, every: Duration) {
        let _unbound = self.device.bind();
        let mut state = lock(&self.state);
        while !state.closing {
            state = if state.pending.is_empty() {
                self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner)
            } else {
                let waited = self.changed.wait_timeout(state, every);
                waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
            };
            if let Err(error) = state.look(self.group) {
                drop(state);
                self.fail(error, None);
                state = lock(&self.state);
            }
        }
    }

    /// Tells the watchdog that it may go.
    pub(super) fn dismiss(&self) {
        lock(&self.state).closing = true;
        self.changed.notify_all();
    }

    /// Ends the communicator in order: after all that was enqueued, or, if that does not end in time, without regard to it.
    pub(super) fn close(&self, timeout: Duration) -> Result<()> {
        let _turn = self.turn()?;
        let deadline = Deadline::after(timeout);
        self.wait(self.last(), Some(deadline))?;
        let closed = self.with_handle(Handle::finalize).and_then(|progress| match progress {
            Progress::Ready => Ok(()),
            Progress::Busy => self.settle(deadline, || During::Other("closing the communicator")),
        });
        if let Err(error) = closed {
            return Err(self.fail(error, None));
        }
        let handle = {
            let mut state = lock(&self.state);
            let first_lost = state.sequence + 1;
            // Later calls are refused; those that were made have ended.
            self.health
                .fail(Error::Aborted { by: self.group.rank(), reason: "it was closed".into() }, first_lost);
            state.pending.clear();
            state.handle.take()
        };
        handle.map_or(Ok(()), Handle::destroy)
    }
}

impl State {
    /// Forgets calls that have ended.
    fn reap(&mut self) -> Result<()> {
        while let Some(oldest) = self.pending.front() {
            if !oldest.done.is_past()? {
                break;
            }
            self.pending.pop_front();
        }
        Ok(())
    }

    /// Looks for what nobody waits for: errors of NCCL, and calls that should have ended.
    fn look(&mut self, group: Group) -> Result<()> {
        self.reap()?;
        if let Some(handle) = &self.handle {
            handle.progress()?;
        }
        let overdue = self.pending.front().filter(|oldest| oldest.deadline.has_passed());
        overdue.map_or(Ok(()), |oldest| {
            let during = oldest.subject.as_ref().map(|subject| subject.during(oldest.sequence));
            Err(oldest.deadline.missed(group, during.unwrap_or(During::Other("calls of a batch"))))
        })
    }
}

/// Waits until a communicator that nobody else knows is made. It is aborted if that fails.
pub(super) fn await_ready(handle: &Handle, deadline: Deadline, group: Group) -> Result<()> {
    let mut pause = Pause::default();
    while handle.progress()? == Progress::Busy {
        if deadline.has_passed() {
            return Err(deadline.missed(group, During::Rendezvous));
        }
        pause.wait();
    }
    Ok(())
}
