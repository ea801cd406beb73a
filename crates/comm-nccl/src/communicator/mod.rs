//! Collectives that NCCL runs.

mod batch;
mod coalesced;
mod collectives;
mod control;
pub(crate) mod deadline;
mod engine;
mod groups;
mod notice;
mod registration;
mod shrink;
mod state;
mod survivors;
mod watch;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use comm_core::{CallOptions, Error, HostCommunicator, Result};

use crate::config::NcclConfig;
use crate::handle::{Handle, Progress, Setup};
use crate::plan::Plan;
use crate::view::{CudaView, CudaViewMut};
use crate::{Capabilities, Device, DeviceBuffer, Library, Stream, UniqueId};
use control::ControlChannel;
use deadline::Deadline;
use engine::{Engine, Parts, await_ready};

pub use batch::Batch;
pub use registration::Registration;
pub use shrink::ShrinkMode;

/// Runs collectives on device buffers with NCCL.
///
/// The rules of [`Communicator`](comm_core::Communicator) apply. On a device:
///
/// - Calls return as soon as they are enqueued on the communicator's own stream,
///   [`NcclCommunicator::stream`]. The stream first waits for the last use of each buffer, and the
///   next use of a buffer waits for the call: on the device, without the host. Copies to the host
///   wait on the host. [`NcclCommunicator::synchronize`] waits for all calls, and
///   [`Comm::barrier`](comm_core::Comm::barrier) for itself and all earlier calls.
/// - [`CallOptions::timeout`] is the time from the call to its end on the device. A watchdog aborts
///   the communicator if a call takes longer, or if NCCL reports an error. It is then poisoned, as
///   after any other fatal error; buffers of calls that had not ended return [`Error::Poisoned`]
///   instead of their contents. The remaining ranks can continue with [`NcclCommunicator::shrink`].
/// - NCCL has no bitwise operators, and does not reduce 16-bit integers: these return
///   [`Error::Invalid`] before anything is enqueued. It moves all types.
/// - Partial sums have the type of the elements: other values of [`CallOptions::accumulate`] are
///   errors.
/// - NCCL chooses the algorithm: [`CallOptions::algorithm`] may only be `nccl`. It guarantees no
///   order: [`ReduceOrder::Deterministic`](comm_core::ReduceOrder::Deterministic) is an error. The
///   effect of a NaN on a minimum or a maximum is unspecified.
/// - NCCL neither compares calls nor reports failures of other ranks. After
///   [`NcclCommunicator::connect`] the ranks do so over a host communicator: a rank that has waited
///   in a collective for a second announces it to at most 64 others, a rank that fails or aborts
///   sends the cause to all others, and while calls are in flight every rank checks for deaths. So
///   ranks in different collectives get [`Error::Desync`] after about a second, ranks whose peer
///   aborted get [`Error::Aborted`], ranks whose peer died get [`Error::PeerLost`], and a timeout
///   names the ranks that did not arrive. After [`NcclCommunicator::with_id`], calls end at their
///   deadlines. Messages are not compared.
///
/// Dropping it waits for enqueued work, for at most [`NcclConfig::close_timeout`], and then aborts.
#[derive(Debug)]
pub struct NcclCommunicator {
    engine: Arc<Engine>,
    /// `None` after `finalize`.
    watchdog: Option<JoinHandle<()>>,
    /// The element that a barrier sums.
    cell: std::sync::Mutex<DeviceBuffer<i32>>,
}

impl NcclCommunicator {
    /// Connects the ranks of a host communicator, each with its own device. Every rank calls this.
    /// The ranks compare their devices and NCCL versions in one all-gather, and get the
    /// [`UniqueId`] of rank 0 in a broadcast. From NCCL 2.30.3 on, ranks may share a device if
    /// `NCCL_MULTI_RANK_GPU_ENABLE=1` is set for all of them.
    ///
    /// The group of `host` replaces the group in `config`. The communicator uses a duplicate of
    /// `host`, so groups and failures of `host` stay separate.
    ///
    /// # Errors
    /// The errors of the calls on `host`; [`Error::BackendUnavailable`] on all ranks, with ranks
    /// and versions, if the versions differ;
    /// [`Invalid::SharedDevice`](comm_core::Invalid::SharedDevice) on all ranks, naming two of
    /// them, if they are on one device that cannot be shared; the failure or death of another rank
    /// as soon as it is known; otherwise as [`NcclCommunicator::with_id`].
    pub fn connect(
        library: &Library,
        device: &Device,
        host: &dyn HostCommunicator,
        mut config: NcclConfig,
    ) -> Result<Self> {
        let deadline = Deadline::after(config.timeout);
        let within = || CallOptions::default().timeout(deadline.left());
        config.group = host.group();
        Capabilities::of(library, device)?.exchange(host, &within())?;
        let id = UniqueId::share(library, host, &within())?;
        let control = ControlChannel::new(host.duplicate(&within())?, config.group);
        Self::join((library, device), &id, (config, deadline), control)
    }

    /// Connects ranks that got the same id in another way, such as in a message. Versions and
    /// devices are not compared; NCCL reports a mismatch as an error.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming all other ranks, because NCCL does not report which are missing;
    /// [`Error::Backend`] with NCCL's code.
    pub fn with_id(library: &Library, device: &Device, id: &UniqueId, config: NcclConfig) -> Result<Self> {
        let deadline = Deadline::after(config.timeout);
        Self::join((library, device), id, (config, deadline), None)
    }

    fn join(
        (library, device): (&Library, &Device),
        id: &UniqueId,
        (config, deadline): (NcclConfig, Deadline),
        control: Option<ControlChannel>,
    ) -> Result<Self> {
        let joined = Self::init((library, device), id, (&config, deadline), control.as_ref());
        if let (Err(error), Some(control)) = (&joined, &control) {
            control.announce_failure(0, error);
        }
        let (stream, setup, handle) = joined?;
        Self::over(Parts { library: library.clone(), stream, config, setup, handle, control })
    }

    /// Connects the ranks, unless one of them fails in the meantime.
    fn init(
        (library, device): (&Library, &Device),
        id: &UniqueId,
        (config, deadline): (&NcclConfig, Deadline),
        control: Option<&ControlChannel>,
    ) -> Result<(Stream, Setup, Handle)> {
        let setup = config.setup()?;
        device.bind()?;
        let stream = device.new_stream()?;
        let (handle, progress) = Handle::init(library.nccl(), id, config.group, setup.clone())?;
        let alive = || control.map_or(Ok(()), ControlChannel::check_connecting);
        if progress == Progress::Busy {
            let ready = await_ready(&handle, deadline, config.group, alive);
            ready.map_err(|error| match control {
                Some(control) => control.cause_of(error),
                None => error,
            })?;
        }
        Ok((stream, setup, handle))
    }

    /// Returns the communicator of connected ranks.
    fn over(parts: Parts) -> Result<Self> {
        let cell = DeviceBuffer::zeros(&parts.stream, 1)?.into();
        let engine = Arc::new(Engine::new(parts)?);
        let watched = Arc::clone(&engine);
        let watchdog = std::thread::Builder::new().name("comm-nccl watchdog".into());
        let watchdog = watchdog.spawn(move || watched.watch());
        let watchdog = watchdog.map_err(|error| Error::io("start the thread of a watchdog", error))?;
        Ok(Self { engine, watchdog: Some(watchdog), cell })
    }

    /// Returns the device of this rank.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.engine.device
    }

    /// Returns the stream of the calls. Work that is enqueued there runs after all earlier calls.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.engine.stream
    }

    /// Waits on the host until all calls so far have ended on the device.
    ///
    /// # Errors
    /// The cause of the communicator's failure, if it has failed.
    pub fn synchronize(&self) -> Result<()> {
        self.engine.wait(self.engine.last(), None)
    }

    /// Sends a message to rank `to`, whose `recv` passes a buffer of the same length and type.
    /// Messages between two ranks arrive in order. Two ranks that both send before they receive
    /// wait until their deadlines; use a [`Batch`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send(&self, to: usize, message: CudaView<'_>, options: &CallOptions) -> Result<()> {
        self.carry_out(options, |plan| plan.send(to, message)).map(drop)
    }

    /// Receives a message from rank `from`, of the length and type of the buffer. NCCL does not
    /// compare them.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv(&self, from: usize, buffer: CudaViewMut<'_>, options: &CallOptions) -> Result<()> {
        self.carry_out(options, |plan| plan.recv(from, buffer)).map(drop)
    }

    /// Closes the communicator after all calls have ended, like dropping it, and returns the
    /// result.
    ///
    /// # Errors
    /// [`Error::Timeout`] if they do not end in time; the communicator is then aborted.
    pub fn finalize(mut self, timeout: Duration) -> Result<()> {
        self.end(timeout)
    }

    fn end(&mut self, timeout: Duration) -> Result<()> {
        let closed = self.engine.close(timeout);
        self.engine.dismiss();
        match self.watchdog.take().map(JoinHandle::join) {
            Some(Err(_)) => closed.and(Err(Error::Internal("the watchdog panicked".into()))),
            _ => closed,
        }
    }

    /// Aborts the communicator like [`Communicator::abort`](comm_core::Communicator::abort), with a
    /// cause from elsewhere. Later calls return the cause, and other ranks receive it.
    pub fn fail(&self, cause: Error) {
        self.engine.fail(cause, None);
    }

    /// Calls `observer` once with the cause when the communicator fails or is aborted. It runs on
    /// the thread that detects the failure, before NCCL is aborted, so it must not block. If the
    /// communicator has already failed, it runs immediately. Closing the communicator is not a
    /// failure.
    pub fn on_failure(&self, observer: impl FnOnce(&Error) + Send + 'static) {
        self.engine.health.failure.observe(observer);
    }

    /// Plans and enqueues one call. Returns its number.
    fn carry_out<'a>(
        &self,
        options: &CallOptions,
        plan: impl FnOnce(&mut Plan<'a>) -> Result<()>,
    ) -> Result<u64> {
        let mut calls = self.engine.plan();
        let turn = self.engine.turn()?;
        self.checked(plan(&mut calls))?;
        self.engine.enqueue(&turn, calls, options)
    }

    /// Fails the communicator on all ranks if the error is fatal, because the others would wait for
    /// this rank.
    fn checked<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| if error.is_fatal() { self.engine.fail(error, None) } else { error })
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        if !self.engine.process.is_current() {
            // A forked child has neither the thread nor the device.
            std::mem::forget(self.watchdog.take());
            return;
        }
        if self.watchdog.is_none() {
            // `finalize` has closed it.
            return;
        }
        let timeout = self.engine.config.close_timeout;
        match self.end(timeout) {
            Ok(()) | Err(Error::Poisoned(_)) => {}
            Err(error) => tracing::warn!(%error, "an NCCL communicator did not close cleanly"),
        }
    }
}
