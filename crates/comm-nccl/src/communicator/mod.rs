//! Collectives by NCCL.

mod batch;
mod board;
mod coalesced;
mod collectives;
pub(crate) mod deadline;
mod engine;
mod groups;
pub(crate) mod pause;
mod registration;
mod shrink;
mod state;
mod watch;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use comm_core::{CallOptions, Error, HostCommunicator, ReduceOp, Result, Store};

use crate::config::NcclConfig;
use crate::handle::{Handle, Progress};
use crate::health::Ticket;
use crate::memory::DeviceCommunicator;
use crate::plan::Plan;
use crate::rendezvous::Rendezvous;
use crate::view::{CudaView, CudaViewMut};
use crate::{Capabilities, Device, DeviceBuffer, DeviceWork, Library, Stream, UniqueId};
use board::Board;
use deadline::Deadline;
use engine::{Engine, Parts, await_ready};

pub use batch::Batch;
pub use registration::Registration;
pub use shrink::ShrinkMode;

/// Runs collectives on buffers of a device, by NCCL.
///
/// What holds for all calls is written at [`Communicator`](comm_core::Communicator); this is what
/// is different on a device:
///
/// - Calls return when they are enqueued on the communicator's own stream,
///   [`NcclCommunicator::stream`]. It first waits for the last use of each buffer, and whoever uses
///   a buffer next waits for the call: on the device, without the host. Copies to the host wait for
///   it on the host. [`NcclCommunicator::synchronize`] waits for all calls, and
///   [`Comm::barrier`](comm_core::Comm::barrier) for itself and all before it.
/// - [`CallOptions::timeout`] is the time from the call until the device is through with it. A
///   watchdog ends what takes longer, and what NCCL reports as failed. The communicator is then
///   aborted and poisoned, as after any other fatal error; buffers that were to be written by calls
///   which had not ended give [`Error::Poisoned`] instead of their contents. Ranks that are left go
///   on with [`NcclCommunicator::shrink`].
/// - NCCL has no bitwise operators, and none on integers of 16 bits: [`Error::Invalid`], before
///   anything is enqueued. It moves all types.
/// - Partial sums are kept in the type of the elements: [`CallOptions::accumulate`] is refused
///   where it asks for another.
/// - NCCL chooses the algorithm: [`CallOptions::algorithm`] may only be `nccl`. It does not promise
///   an order: [`ReduceOrder::Deterministic`](comm_core::ReduceOrder::Deterministic) is refused.
///   What a NaN does to a minimum or a maximum is its choice too.
/// - NCCL neither compares calls nor tells ranks of each other's failures. With
///   [`NcclConfig::store`], the ranks do it through the store: a rank that waits in a collective
///   for a second writes it there and reads what others wrote, and a rank that fails or aborts
///   writes the cause. So ranks in different collectives get [`Error::Desync`], those whose peer
///   gave up [`Error::Aborted`], and a timeout names the ranks that did not come. It takes a second
///   or more, and compares with 64 others at most. Without a store, calls end at their deadlines.
///   Messages are not compared.
///
/// Dropped, it waits for what was enqueued, but no longer than [`NcclConfig::close_timeout`]; then
/// it aborts.
#[derive(Debug)]
pub struct NcclCommunicator {
    engine: Arc<Engine>,
    /// The watchdog, and the courier if there is a store.
    threads: Vec<JoinHandle<()>>,
    /// What a barrier sums.
    cell: std::sync::Mutex<DeviceBuffer<i32>>,
}

impl NcclCommunicator {
    /// Connects the ranks of a communicator for the host, each with a device of its own. Every rank
    /// calls this. The ranks compare their devices and versions of NCCL by one all-gather, and get
    /// the [`UniqueId`] of rank 0 by a broadcast. From NCCL 2.30.3 on, ranks may share a device if
    /// `NCCL_MULTI_RANK_GPU_ENABLE=1` is set for all of them.
    ///
    /// The group of `config` is replaced by that of `host`, which is not used any more afterwards.
    ///
    /// # Errors
    /// The errors of the two calls on `host`; [`Error::BackendUnavailable`] on all ranks, with
    /// ranks and versions, if the versions differ;
    /// [`Invalid::SharedDevice`](comm_core::Invalid::SharedDevice) on all ranks, with two ranks
    /// that are on one device, if it cannot be shared; otherwise as [`NcclCommunicator::with_id`].
    pub fn connect(
        library: &Library,
        device: &Device,
        host: &dyn HostCommunicator,
        mut config: NcclConfig,
    ) -> Result<Self> {
        let deadline = Deadline::after(config.timeout);
        let within = || CallOptions::default().timeout(deadline.left());
        Capabilities::of(library, device)?.exchange(host, &within())?;
        let id = UniqueId::share(library, host, &within())?;
        config.group = host.group();
        Self::join(library, device, &id, (config, deadline))
    }

    /// Connects all ranks that share a store, for programs without a communicator for the host:
    /// otherwise as [`NcclCommunicator::connect`]. The store becomes [`NcclConfig::store`].
    ///
    /// Groups that meet in one store at the same time need a
    /// [`PrefixStore`](comm_core::PrefixStore) each. Keys that an earlier run left in the store are
    /// not taken for those of this run.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the missing ranks, as far as they are known; the cause of
    /// [`NcclConfig::failure`] as soon as there is one; the errors of the store; otherwise as
    /// [`NcclCommunicator::connect`].
    pub fn connect_in_store(
        library: &Library,
        device: &Device,
        store: Arc<dyn Store>,
        mut config: NcclConfig,
    ) -> Result<Self> {
        let deadline = Deadline::after(config.timeout);
        let members: Vec<usize> = (0..config.group.size()).collect();
        let rendezvous = Rendezvous {
            store: &*store,
            place: "nccl".into(),
            group: config.group,
            members: &members,
            deadline,
            failure: config.failure.as_deref(),
        };
        let id = rendezvous.run(library, device)?;
        config.store = Some(store);
        Self::join(library, device, &id, (config, deadline))
    }

    /// Connects all ranks that were given the same id in another way, such as a message. Versions
    /// and devices are not compared; the error of a mismatch is NCCL's.
    ///
    /// # Errors
    /// [`Error::Timeout`], in which any other rank may be missing, because NCCL does not tell which
    /// are; the cause of [`NcclConfig::failure`] as soon as there is one; [`Error::Backend`] with
    /// NCCL's code.
    pub fn with_id(library: &Library, device: &Device, id: &UniqueId, config: NcclConfig) -> Result<Self> {
        let deadline = Deadline::after(config.timeout);
        Self::join(library, device, id, (config, deadline))
    }

    fn join(
        library: &Library,
        device: &Device,
        id: &UniqueId,
        (mut config, deadline): (NcclConfig, Deadline),
    ) -> Result<Self> {
        let setup = config.setup()?;
        device.bind()?;
        let stream = device.new_stream()?;
        let (handle, progress) = Handle::init(library.nccl(), id, config.group, setup.clone())?;
        if progress == Progress::Busy {
            await_ready(&handle, deadline, config.group, config.failure.as_deref())?;
        }
        config.failure = None;
        let store = config.store.clone().filter(|_| config.group.size() > 1);
        let board = store.map(|store| Board::new(store, id, config.group));
        Self::over(Parts { library: library.clone(), stream, config, setup, handle, board })
    }

    /// The communicator of ranks that are connected.
    fn over(parts: Parts) -> Result<Self> {
        let cell = DeviceBuffer::zeros(&parts.stream, 1)?.into();
        let engine = Arc::new(Engine::new(parts)?);
        let mut communicator = Self { engine, threads: Vec::new(), cell };
        communicator.start("comm-nccl watchdog", |engine| engine.watch())?;
        if let Some(board) = communicator.engine.board.clone() {
            communicator.start("comm-nccl courier", move |engine| engine.run_courier(&board))?;
        }
        Ok(communicator)
    }

    fn start(&mut self, name: &str, body: impl FnOnce(&Engine) + Send + 'static) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || body(&engine));
        self.threads.push(thread.map_err(|error| Error::io(format!("start the thread {name:?}"), error))?);
        Ok(())
    }

    /// The device on which it runs.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.engine.device
    }

    /// The stream on which it runs. Work that is enqueued there comes after the calls that were
    /// made before.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.engine.stream
    }

    /// Waits on the host until all calls that were made have ended on the device.
    ///
    /// # Errors
    /// What ended the communicator, if anything did.
    pub fn synchronize(&self) -> Result<()> {
        self.engine.wait(self.engine.last(), None)
    }

    /// Sends a message to rank `to`, whose `recv` gives a buffer of just this length and type.
    /// Messages between two ranks arrive in their order. Ranks that send to each other before they
    /// receive wait for ever; a [`Batch`] of both does not.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send(&self, to: usize, message: CudaView<'_>, options: &CallOptions) -> Result<()> {
        self.carry_out(options, |plan| plan.send(to, message)).map(drop)
    }

    /// Receives a message from rank `from`, of just the length and type of the buffer. NCCL does
    /// not compare them.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv(&self, from: usize, buffer: CudaViewMut<'_>, options: &CallOptions) -> Result<()> {
        self.carry_out(options, |plan| plan.recv(from, buffer)).map(drop)
    }

    /// Ends the communicator in order, when all calls have ended: as dropping it does, and tells
    /// how that went.
    ///
    /// # Errors
    /// [`Error::Timeout`] if they do not end in time: the communicator is aborted.
    pub fn finalize(mut self, timeout: Duration) -> Result<()> {
        self.end(timeout)
    }

    fn end(&mut self, timeout: Duration) -> Result<()> {
        let closed = self.engine.close(timeout);
        self.engine.dismiss();
        // All of them, also if one panicked.
        let panicked = self.threads.drain(..).filter_map(|thread| thread.join().err()).count();
        if panicked > 0 {
            return closed.and(Err(Error::Internal("a thread of the communicator panicked".into())));
        }
        closed
    }

    /// Ends the communicator as [`Communicator::abort`](comm_core::Communicator::abort) does, for a
    /// cause that is known from elsewhere: it is what later calls give, and what other ranks are
    /// told.
    pub fn fail(&self, cause: Error) {
        self.engine.fail(cause, None);
    }

    /// Has `observer` called once, with the cause, when the communicator fails or is aborted: on
    /// the thread that finds out, before NCCL is told, so that it should not take long. If that has
    /// happened already, it is called at once. Closing the communicator in order is no failure.
    pub fn on_failure(&self, observer: impl FnOnce(&Error) + Send + 'static) {
        self.engine.health.failure.observe(observer);
    }

    /// Plans one call, and enqueues it. Returns its number.
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

    /// What is fatal ends the communicator, here and on other ranks, which would wait for this one.
    fn checked<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| if error.is_fatal() { self.engine.fail(error, None) } else { error })
    }
}

impl DeviceCommunicator for NcclCommunicator {
    fn device(&self) -> &Device {
        self.device()
    }

    fn stream(&self) -> &Stream {
        self.stream()
    }

    fn work(&self) -> Result<DeviceWork> {
        let _turn = self.engine.turn()?;
        let last = Ticket::new(Arc::clone(&self.engine.health), self.engine.last());
        DeviceWork::until_call(&self.engine.stream, last)
    }

    fn synchronize(&self) -> Result<()> {
        self.synchronize()
    }

    fn all_reduce_coalesced(
        &self,
        buffers: Vec<CudaViewMut<'_>>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()> {
        self.all_reduce_each(buffers, op, options)
    }

    fn broadcast_coalesced(
        &self,
        root: usize,
        buffers: Vec<CudaViewMut<'_>>,
        options: &CallOptions,
    ) -> Result<()> {
        self.broadcast_each(root, buffers, options)
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        if !self.engine.process.is_current() {
            // A child that was forked has neither the threads nor a device.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        if self.threads.is_empty() {
            // It was finalized.
            return;
        }
        let timeout = self.engine.config.close_timeout;
        match self.end(timeout) {
            Ok(()) | Err(Error::Poisoned(_)) => {}
            Err(error) => tracing::warn!(%error, "a communicator of NCCL did not end in order"),
        }
    }
}
