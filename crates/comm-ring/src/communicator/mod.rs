//! Collectives over any transport.

mod absence;
mod agreement;
mod checked_call;
mod clock;
mod dyn_fabric;
mod engine;
mod failure;
mod group_context;
mod groups;
mod last_call;
mod leave;
mod messages;
mod nan;
mod patience;
mod program;
mod recording;
mod registration;
mod scratch;
mod session;
mod shrink;
mod unexpected;
mod wide;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use comm_core::{
    AbortHandle, Allocate, Allocation, Call, CallOptions, Communicator, Error, Fabric, FlightRecord, Group,
    LinkModel, Metrics, Observe, Process, Result, Scheduler, is_unwinding,
};

use crate::history::CallLog;
use crate::point_to_point::Messenger;
use crate::{RingConfig, Tuning};
use engine::Engine;
use group_context::{Connected, GroupContext};

/// Runs collectives as schedules over a data and a control channel, and sends messages over a
/// third.
///
/// [`Communicator`] documents its calls, and [`Groups`](comm_core::Groups) the groups created from
/// it, each of which has its own channels. Dropping it announces an orderly exit to the other
/// ranks, so that a rank that finishes first is not mistaken for one that died.
///
/// It belongs to the process that created it. In a child created by `fork`, every call returns
/// [`Invalid::Forked`](comm_core::Invalid::Forked), [`Communicator::abort`] does nothing, and
/// dropping it only closes the child's copies of the descriptors.
pub struct RingCommunicator {
    group: Group,
    /// The settings on which the members agreed.
    tuning: Tuning,
    context: GroupContext,
    engine: Arc<Mutex<Engine>>,
    abort: Arc<dyn AbortHandle>,
    messenger: Arc<Messenger>,
    /// The members and the last calls.
    log: Arc<CallLog>,
    /// The process that owns the streams.
    process: Process,
    /// The scheduler of the threads of a simulated rank.
    scheduler: Option<Arc<dyn Scheduler>>,
}

impl RingCommunicator {
    /// Opens the channels of the group of all ranks, and agrees on rank 0's settings. Every rank
    /// calls this, and waits for the others for at most `timeout`. The channels stay open as long
    /// as any group that is created from this one.
    ///
    /// # Errors
    /// As [`Fabric::open`]; [`Error::Invalid`] on every rank if rank 0 has unusable settings,
    /// [`Error::Handshake`] if rank 0 has a different version.
    pub fn new(fabric: impl Fabric + 'static, config: RingConfig, timeout: Duration) -> Result<Self> {
        let (context, connected) = GroupContext::world(Arc::new(fabric), config, timeout)?;
        Ok(Self::over(context, connected))
    }

    /// Creates the communicator of connected ranks.
    fn over(context: GroupContext, connected: Connected) -> Self {
        let Connected { engine, messenger } = connected;
        let (group, tuning, abort) =
            (engine.session().group, *engine.tuning(), engine.session().data.abort_handle());
        let log = Arc::clone(engine.session().history.log());
        context.register(&log);
        let (process, scheduler) = (Process::current(), context.scheduler());
        let engine = Arc::new(Mutex::new(engine));
        let weak = Arc::downgrade(&engine);
        messenger.explain_losses_by(move |error| match weak.upgrade() {
            Some(engine) => messages::cause_of_loss(&engine, error),
            None => error,
        });
        Self { group, tuning, context, engine, abort, messenger, log, process, scheduler }
    }

    /// Locks the engine, or returns an error if no calls can be made.
    ///
    /// It is inlined, because to return the guard through memory takes a measurable part of the
    /// time of a small call.
    #[inline(always)]
    fn engine(&self) -> Result<MutexGuard<'_, Engine>> {
        // Checked before locking: in a forked child, the lock may be held by a thread that does not
        // exist.
        self.process.check()?;
        self.await_engine()?;
        let engine = match self.engine.lock() {
            Ok(engine) => engine,
            Err(poisoned) => after_panic(poisoned),
        };
        engine.session().usable()?;
        Ok(engine)
    }

    /// Ends all calls and messages with this cause, unless the group has failed already.
    fn end(&self, cause: Error) -> Result<MutexGuard<'_, Engine>> {
        self.abort.abort(cause.clone());
        self.messenger.abort(cause.clone());
        // A thread that holds the lock ends its call immediately, finds the cause and reports it.
        // If there is none, this thread reports it.
        self.await_engine()?;
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if engine.session().usable().is_ok() {
            engine.session_mut().give_up_idle(cause);
        }
        Ok(engine)
    }

    /// Lets the thread that holds the lock continue in a simulation, where one thread runs at a
    /// time.
    #[inline]
    fn await_engine(&self) -> Result<()> {
        let Some(scheduler) = &self.scheduler else { return Ok(()) };
        scheduler.wait_until(&mut || !matches!(self.engine.try_lock(), Err(TryLockError::WouldBlock)))
    }
}

/// Returns the engine that a panic has left in the middle of a call, so that nothing may run on it.
#[cold]
fn after_panic(poisoned: PoisonError<MutexGuard<'_, Engine>>) -> MutexGuard<'_, Engine> {
    let mut engine = poisoned.into_inner();
    engine.session_mut().poison(&Error::Internal("a call panicked".into()));
    engine
}

impl Communicator for RingCommunicator {
    fn group(&self) -> Group {
        self.group
    }

    fn links(&self) -> Option<LinkModel> {
        Some(self.tuning.links)
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        self.scheduler.clone()
    }

    fn flight_record(&self) -> Option<FlightRecord> {
        self.process.is_current().then(|| self.log.flight_record())
    }

    fn metrics(&self) -> Option<Metrics> {
        self.process.is_current().then(|| self.log.metrics())
    }

    fn check(&self) -> Result<()> {
        self.process.check()?;
        match self.engine.try_lock() {
            // Another thread is in a call, and detects failures itself.
            Err(TryLockError::WouldBlock) => Ok(()),
            Ok(mut engine) => engine.session_mut().check_between_calls(),
            Err(TryLockError::Poisoned(_)) => self.engine().map(drop),
        }
    }

    fn departed(&self) -> Vec<usize> {
        if self.process.check().and_then(|()| self.await_engine()).is_err() {
            return Vec::new();
        }
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).session_mut().departed()
    }

    fn leave(&self) {
        if let Ok(mut engine) = self.engine() {
            engine.session_mut().leave_for_good();
        }
    }

    fn run(&self, call: Call<'_>, options: &CallOptions) -> Result<()> {
        let mut engine = self.engine()?;
        if matches!(call, Call::Finalize) {
            return engine.session_mut().finalize(options.timeout, self.messenger.lost_host());
        }
        engine.prepare(&call, options)?;
        engine.call(call, options.timeout)
    }

    fn abort(&self, reason: &str) {
        if let Err(error) = self.process.check() {
            tracing::warn!(%error, reason, "not aborted");
            return;
        }
        let cause = Error::Aborted { by: self.group.rank(), reason: reason.into() };
        if let Err(error) = self.end(cause) {
            tracing::debug!(%error, reason, "not reported");
        }
    }
}

/// Allocates from the channels, for every group that is created over them.
impl Allocate for RingCommunicator {
    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        self.context.allocate(bytes)
    }
}

impl Drop for RingCommunicator {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The streams belong to the parent: nothing may be sent on them here.
            return;
        }
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if is_unwinding() && engine.session().usable().is_ok() {
            let (by, reason) = (self.group.rank(), "its thread panicked".into());
            engine.session_mut().give_up_idle(Error::Aborted { by, reason });
        }
        engine.session_mut().close(self.messenger.lost_host());
        if let Some(Error::PeerLost { peer, loss, .. }) = engine.session().poison.as_deref() {
            self.messenger.report_death(*peer, loss);
        }
    }
}

impl std::fmt::Debug for RingCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingCommunicator").field("group", &self.group).finish_non_exhaustive()
    }
}
