//! Enqueues plans, and tracks the calls in flight.
//!
//! One thread at a time uses NCCL's communicator, under the lock of [`State`] and only briefly: its
//! calls return immediately, and a thread that polls for completion releases the lock between
//! polls. So any thread can abort at any time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{CallOptions, During, Error, Group, Process, Result};

use super::control::{Announcements, ControlChannel};
use super::deadline::Deadline;
use super::state::{EnqueuedCall, PendingCall, State, timeout_error};
use crate::config::NcclConfig;
use crate::dtype::ReduceSupport;
use crate::handle::{CommInit, Handle, Progress, Setup};
use crate::health::{CallRecord, Health};
use crate::pause::Pause;
use crate::plan::{Pending, Plan};
use crate::stream::{Event, Stream};
use crate::sync::lock;
use crate::usage::Use;
use crate::{Device, Library};

/// The state that the threads of a communicator share.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) group: Group,
    pub(super) library: Library,
    pub(super) device: Device,
    pub(super) stream: Stream,
    abilities: ReduceSupport,
    pub(super) config: NcclConfig,
    pub(super) setup: Setup,
    pub(super) health: Arc<Health>,
    /// `None` if there is no other rank, or no communicator for the host.
    pub(super) control: Option<ControlChannel>,
    /// Serializes calls from several threads.
    turn: Mutex<()>,
    pub(super) state: Mutex<State>,
    /// Notifies the watchdog of new calls and of the end, and callers of an abort of NCCL.
    pub(super) changed: Condvar,
    /// The process that owns the threads and the device. A forked child must not use them.
    pub(super) process: Process,
}

/// The exclusive right to make the next call.
pub(super) struct Turn<'a>(#[allow(dead_code, reason = "it is held")] MutexGuard<'a, ()>);

/// The parts of an engine.
pub(super) struct Parts {
    pub(super) library: Library,
    pub(super) stream: Stream,
    pub(super) config: NcclConfig,
    pub(super) setup: Setup,
    pub(super) handle: Handle,
    pub(super) control: Option<ControlChannel>,
}

impl Engine {
    pub(super) fn new(parts: Parts) -> Result<Self> {
        let Parts { library, stream, config, setup, handle, control } = parts;
        let state = State::new(handle);
        let device = stream.device();
        let abilities =
            ReduceSupport { version: library.version(), capability: device.compute_capability()? };
        Ok(Self {
            group: config.group,
            library,
            device,
            stream,
            abilities,
            config,
            setup,
            health: Arc::default(),
            control,
            turn: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            process: Process::current(),
        })
    }

    /// Returns an empty plan.
    pub(super) fn plan<'a>(&self) -> Plan<'a> {
        Plan::new(self.group, self.abilities, &self.stream)
    }

    /// Waits for the calls of other threads, and returns an error after a failure.
    pub(super) fn turn(&self) -> Result<Turn<'_>> {
        self.process.check()?;
        let turn = Turn(lock(&self.turn));
        self.health.failure.usable()?;
        self.device.bind()?;
        Ok(turn)
    }

    /// Enqueues the calls of a plan, and returns the number of the call.
    pub(super) fn enqueue(&self, _turn: &Turn<'_>, plan: Plan<'_>, options: &CallOptions) -> Result<u64> {
        let call = self.enter(plan.pending(), options);
        let number = call.number;
        let launched = self.launch(&plan, &call).map_err(|error| self.give_up(error, number));
        // Even after an error, work on the memory may be on the device.
        let marked = self.mark(&plan, number);
        let mut state = lock(&self.state);
        state.entering = None;
        match launched.and(marked) {
            Ok(done) => {
                let was_idle = state.enqueued.is_empty();
                state.enqueued.push_back(EnqueuedCall { call, done });
                drop(state);
                self.wake(was_idle);
                Ok(number)
            }
            Err(error) => {
                drop(state);
                Err(self.fail(error, Some(number)))
            }
        }
    }

    /// Fails the communicator because of a call that was only partly enqueued, whose work NCCL may
    /// still put on the stream. Returns when NCCL has been aborted, by any thread: after that, an
    /// event on the stream shows when the memory of the call is no longer used.
    fn give_up(&self, error: Error, number: u64) -> Error {
        let cause = self.fail(error, Some(number));
        let aborting = |state: &mut State| state.aborting;
        drop(self.changed.wait_while(lock(&self.state), aborting).unwrap_or_else(PoisonError::into_inner));
        cause
    }

    fn enter(&self, pending: Pending, options: &CallOptions) -> PendingCall {
        let mut state = lock(&self.state);
        let was_idle = state.oldest().is_none();
        let call = state.enter(pending, Deadline::after(options.timeout));
        drop(state);
        // If the call cannot be enqueued, the watchdog finds out why.
        self.wake(was_idle && self.control.is_some());
        call
    }

    /// Notifies the threads. They poll unless they are idle.
    fn wake(&self, was_idle: bool) {
        if was_idle {
            self.changed.notify_all();
        }
    }

    fn launch(&self, plan: &Plan<'_>, call: &PendingCall) -> Result<()> {
        plan.before()?;
        if plan.ops().is_empty() {
            return Ok(());
        }
        let (operators, progress) = self.with_handle(|handle| handle.launch_ops(plan, &self.stream))?;
        if progress == Progress::Busy {
            let timeout = || timeout_error(self.group, call, &self.announced());
            self.wait_until_complete(call.deadline, timeout, || Ok(()))?;
        }
        self.with_handle(|handle| handle.forget(operators))
    }

    /// Makes the next use of a plan's memory wait for the enqueued work, and records the call so
    /// that its loss is detected.
    fn mark(&self, plan: &Plan<'_>, number: u64) -> Result<Event> {
        let done = self.stream.record()?;
        let call_record = Some(CallRecord::new(Arc::clone(&self.health), number));
        plan.after(&Use { stream: self.stream.clone(), done: done.clone(), call_record })?;
        Ok(done)
    }

    /// Polls until the last NCCL call has completed, `alive` fails, or the deadline has passed.
    fn wait_until_complete(
        &self,
        deadline: Deadline,
        timeout: impl Fn() -> Error,
        alive: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut pause = Pause::default();
        while self.with_handle(Handle::progress)? == Progress::Busy {
            alive()?;
            if deadline.has_passed() {
                return Err(timeout());
            }
            pause.wait();
        }
        Ok(())
    }

    /// Returns the last announcement of each rank that made one.
    pub(super) fn announced(&self) -> Announcements {
        self.control.as_ref().map(|control| control.announced().clone()).unwrap_or_default()
    }

    /// Returns the timeout error of an operation other than a call.
    fn late(&self, deadline: Deadline, during: During) -> Error {
        timeout(self.group, deadline, during)
    }

    /// Calls `what` with NCCL's communicator, under the lock.
    pub(super) fn with_handle<R>(&self, what: impl FnOnce(&Handle) -> Result<R>) -> Result<R> {
        let state = lock(&self.state);
        state.handle.as_ref().ok_or_else(|| self.ended()).and_then(what)
    }

    /// Returns the error with which the communicator ended.
    fn ended(&self) -> Error {
        let cause = self.health.failure.cause().map(Arc::unwrap_or_clone);
        cause.unwrap_or_else(|| Error::Internal("the communicator has ended".into()))
    }

    /// Creates another communicator from this one in a call that all members make. If the members
    /// cannot be connected, this one stays usable, unless it fails in the meantime.
    pub(super) fn divide(
        &self,
        _turn: &Turn<'_>,
        deadline: Deadline,
        begin: impl FnOnce(&Handle) -> Result<CommInit>,
    ) -> Result<Option<Handle>> {
        let init = self.with_handle(begin)?;
        // The watchdog is idle while no call is in flight.
        let number = lock(&self.state).collectives;
        let alive = || match self.health.failure.cause() {
            None => self.check_control(number).map_err(|error| self.fail(error, None)),
            Some(cause) => Err(Arc::unwrap_or_clone(cause)),
        };
        self.wait_until_complete(deadline, || self.late(deadline, During::NewGroup), alive)?;
        let child = init.finish();
        if let Some(child) = &child {
            let ready = await_ready(child, deadline, self.group, alive);
            ready.map_err(|error| match self.health.failure.cause() {
                None => Error::NotConnected(Arc::new(error)),
                Some(cause) => Arc::unwrap_or_clone(cause),
            })?;
        }
        Ok(child)
    }

    /// Waits on the host until this call and all earlier ones have ended, the watchdog fails them,
    /// or `deadline` has passed.
    pub(super) fn wait(&self, number: u64, deadline: Option<Deadline>) -> Result<()> {
        let mut pause = Pause::default();
        loop {
            {
                let mut state = lock(&self.state);
                if let Some(cause) = self.health.failure.cause() {
                    return Err(Arc::unwrap_or_clone(cause));
                }
                if let Err(error) = state.reap() {
                    drop(state);
                    return Err(self.fail(error, None));
                }
                if state.enqueued.front().is_none_or(|enqueued| enqueued.call.number > number) {
                    return Ok(());
                }
            }
            if let Some(passed) = deadline.filter(Deadline::has_passed) {
                return Err(self.fail(self.late(passed, During::Device), None));
            }
            pause.wait();
        }
    }

    /// Numbers an operation that all ranks make together.
    pub(super) fn common_number(&self) -> u64 {
        let mut state = lock(&self.state);
        state.collectives += 1;
        state.collectives
    }

    /// Counts the shrinks to these members, and returns the count. Ranks that are left out do not
    /// count them.
    pub(super) fn count_shrunk(&self, members: &[usize]) -> u64 {
        let mut state = lock(&self.state);
        let count = state.shrunk.entry(members.to_vec()).or_default();
        *count += 1;
        *count
    }

    /// Numbers a new attempt to shrink the group after a failure.
    pub(super) fn count_attempt(&self) -> u64 {
        let mut state = lock(&self.state);
        state.attempts += 1;
        state.attempts
    }

    /// Returns the number of the last call.
    pub(super) fn last(&self) -> u64 {
        lock(&self.state).calls
    }

    /// Poisons the communicator and aborts the work on the device. `lost` is a call that was only
    /// partly enqueued. Returns the cause of the first failure, which may be an earlier one.
    pub(super) fn fail(&self, error: Error, lost: Option<u64>) -> Error {
        if !self.process.is_current() {
            return error;
        }
        let mut state = lock(&self.state);
        // Calls that have ended by now are not lost.
        let _unknown = state.reap();
        let pending = state.enqueued.front().map(|enqueued| enqueued.call.number);
        let entering = state.entering.as_ref().map(|entering| entering.number);
        let first_lost = pending.or(lost).or(entering).unwrap_or(state.calls + 1);
        let last = state.collectives + u64::from(lost.is_none());
        let sequence = state.oldest().map_or(last, PendingCall::needs);
        let cause = self.health.fail(error, first_lost);
        state.enqueued.clear();
        if state.handle.is_some() {
            self.changed.notify_all();
        }
        let handle = state.handle.take();
        state.aborting |= handle.is_some();
        drop(state);
        if let Some(handle) = handle {
            if let Some(control) = &self.control {
                control.announce_failure(sequence, &cause);
            }
            self.health.failure.notify();
            tracing::warn!(rank = self.group.rank(), error = %cause, "aborting an NCCL communicator");
            if let Err(error) = self.device.bind() {
                tracing::warn!(%error, "could not bind the device to abort on it");
            }
            handle.abort();
            lock(&self.state).aborting = false;
            self.changed.notify_all();
        }
        cause
    }

    /// Stops the threads.
    pub(super) fn dismiss(&self) {
        lock(&self.state).closing = true;
        self.changed.notify_all();
    }

    /// Closes the communicator after all enqueued work, or aborts it if the work does not end in
    /// time.
    pub(super) fn close(&self, timeout: Duration) -> Result<()> {
        let _turn = self.turn()?;
        let deadline = Deadline::after(timeout);
        self.wait(self.last(), Some(deadline))?;
        let closed = self.with_handle(Handle::finalize).and_then(|progress| match progress {
            Progress::Ready => Ok(()),
            Progress::Busy => self.wait_until_complete(
                deadline,
                || self.late(deadline, During::Close),
                || self.check_control(0),
            ),
        });
        if let Err(error) = closed {
            return Err(self.fail(error, None));
        }
        let handle = {
            let mut state = lock(&self.state);
            let first_lost = state.calls + 1;
            // Later calls return an error; earlier ones have ended.
            self.health
                .fail(Error::Aborted { by: self.group.rank(), reason: "it was closed".into() }, first_lost);
            state.enqueued.clear();
            state.closed = true;
            state.handle.take()
        };
        handle.map_or(Ok(()), Handle::destroy)
    }
}

/// Waits until a new communicator is connected, or `alive` fails.
pub(super) fn await_ready(
    handle: &Handle,
    deadline: Deadline,
    group: Group,
    alive: impl Fn() -> Result<()>,
) -> Result<()> {
    let mut pause = Pause::default();
    while handle.progress()? == Progress::Busy {
        alive()?;
        if deadline.has_passed() {
            return Err(timeout(group, deadline, During::Rendezvous));
        }
        pause.wait();
    }
    Ok(())
}

/// Returns a timeout that names all other ranks, because NCCL does not report which are missing.
fn timeout(group: Group, deadline: Deadline, during: During) -> Error {
    Error::Timeout { waiting_for: group.peers().collect(), after: deadline.after, during }
}
