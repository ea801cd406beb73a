//! The handle with which programs communicate.

// Declared first: rustdoc shows methods in the order of modules.
mod collectives;

mod alloc;
mod scan;
mod single;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::coalesced::Packing;
use crate::{
    CallOptions, Communicator, Error, FlightRecord, Host, HostCommunicator, LinkModel, Memory, Metrics,
    ReduceOrder, Result, Worker,
};

/// A handle on a group of ranks; all collectives are methods of it.
///
/// Clones are handles to the same communicator with their own options; the calls on all of them
/// form one sequence. Buffers are slices, vectors and arrays of [`Element`](crate::Element)s for
/// [`Host`], device buffers for other memories. [`Communicator`] documents the rules, errors and
/// thread-safety that all calls share. A call has a timeout of five minutes unless
/// [`Comm::with_timeout`] sets another.
///
/// | calls | memory |
/// |---|---|
/// | collectives, with counts per rank, in place, and in the background (`_async`); groups, `finalize` | any |
/// | `scan`, `exscan`, `all_gather_scalar` and similar calls, `_coalesced`, `monitored_barrier`, `alloc` | [`Host`] |
/// | `send`, `recv`, `probe`, also in the background, and Cartesian groups | [`Host`] |
/// | `device`, `stream`, `work`, `synchronize`, `_coalesced`: the trait `DeviceComm` of comm-nccl | CUDA devices |
///
/// A communicator belongs to the process that created it. In a child that is created by `fork` and
/// does not call `exec`, every call fails with [`Invalid::Forked`](crate::Invalid::Forked) before
/// anything is sent: the child must create its own communicator. Dropping the child's handles
/// closes its copies of the descriptors and notifies no peer. As long as the child holds them,
/// ranks that are connected to the parent only by TCP do not detect its death before their
/// deadlines.
///
/// ```
/// use comm::ReduceOp;
///
/// comm::threads::run(4, |comm| {
///     let mut gradients = vec![comm.rank() as f32; 1000];
///     comm.all_reduce(&mut gradients, ReduceOp::Avg).unwrap();
///     assert_eq!(gradients, [1.5; 1000]); // (0 + 1 + 2 + 3) / 4, on every rank
/// })?;
/// # Ok::<_, comm::Error>(())
/// ```
pub struct Comm<M: Memory = Host> {
    communicator: Arc<M::Communicator>,
    options: CallOptions,
    /// Runs calls in the background; started by the first one.
    worker: Arc<OnceLock<Worker<M>>>,
    /// The memory into which coalesced buffers are packed.
    packing: Packing,
    /// Progresses messages in the background, so that they do not wait for calls.
    messenger: Arc<OnceLock<Worker<M>>>,
}

/// Handles, and the options of their calls.
impl<M: Memory> Comm<M> {
    /// Creates a handle to a communicator for any memory, with the default options.
    #[must_use]
    pub fn over(communicator: Arc<M::Communicator>) -> Self {
        Self {
            communicator,
            options: CallOptions::default(),
            worker: Arc::default(),
            packing: Packing::default(),
            messenger: Arc::default(),
        }
    }

    /// Returns the communicator, for calls that are specific to this memory; pass them
    /// [`Comm::options`].
    #[must_use]
    pub fn communicator(&self) -> &M::Communicator {
        &self.communicator
    }

    /// Returns the communicator, for code that builds on it.
    #[must_use]
    pub fn shared_communicator(&self) -> Arc<M::Communicator> {
        Arc::clone(&self.communicator)
    }

    /// Returns the options of the calls of this handle, for calls that are specific to this memory.
    #[must_use]
    pub const fn options(&self) -> &CallOptions {
        &self.options
    }

    /// Returns a handle to the same communicator whose calls have these options.
    #[must_use]
    pub fn with_call_options(&self, options: CallOptions) -> Self {
        self.with_options(|ours| *ours = options)
    }

    /// Returns a handle to the same communicator with changed options.
    pub(crate) fn with_options(&self, change: impl FnOnce(&mut CallOptions)) -> Self {
        let mut handle = self.clone();
        change(&mut handle.options);
        handle
    }

    /// Returns the fingerprint on which ranks must agree in addition to the signature of a call:
    /// [`CallOptions::extra_fingerprint`].
    #[must_use]
    pub const fn extra_fingerprint(&self) -> u64 {
        self.options.extra_fingerprint
    }

    /// Returns the memory into which coalesced buffers are packed.
    pub(crate) const fn packing(&self) -> &Packing {
        &self.packing
    }

    /// Returns a handle with the same options that does not share the workers, so that dropping it
    /// does not wait for them.
    pub(crate) fn in_foreground(&self) -> Self {
        Self { worker: Arc::default(), messenger: Arc::default(), ..self.clone() }
    }

    /// Returns the worker that runs the calls of all clones.
    pub(crate) fn worker(&self) -> Result<&Worker<M>> {
        self.started(&self.worker, |_| {})
    }

    fn started<'a>(&self, worker: &'a OnceLock<Worker<M>>, on_drop: fn(&Self)) -> Result<&'a Worker<M>> {
        if worker.get().is_none() {
            let ours = Worker::new(self.in_foreground())?.on_drop(on_drop);
            if let Err(spare) = worker.set(ours) {
                // Another thread was faster, so this worker is not needed.
                drop(spare.on_drop(|_| {}));
            }
        }
        worker.get().ok_or_else(|| Error::Internal("a worker was started and is gone".into()))
    }

    /// Returns the cost model of messages between the ranks, which is used to choose algorithms;
    /// see [`Communicator::links`].
    #[must_use]
    pub fn links(&self) -> Option<LinkModel> {
        self.communicator.links()
    }

    /// Returns the last calls of this communicator on this rank, for comparison with other ranks.
    /// Any thread may call this while another one is blocked in a collective. `None` if the backend
    /// does not record calls: those of NCCL are not recorded.
    ///
    /// Messages between two ranks are not recorded.
    ///
    /// ```
    /// use comm::{CallState, Collective};
    ///
    /// comm::threads::run(2, |comm| {
    ///     comm.barrier().unwrap();
    ///     let record = comm.flight_record().unwrap();
    ///     let last = record.calls.last().unwrap();
    ///     assert_eq!((last.sequence, last.signature.collective), (1, Collective::Barrier));
    ///     assert_eq!(last.state, CallState::Completed);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    #[must_use]
    pub fn flight_record(&self) -> Option<FlightRecord> {
        self.communicator.flight_record()
    }

    /// Returns the counters of the calls of this communicator on this rank: calls, bytes and times
    /// per collective and algorithm. Any thread may call this while another one is blocked in a
    /// collective. `None` if the backend does not count calls: those of NCCL are not counted.
    ///
    /// Messages between two ranks are not counted. Calls that wait for another rank or move more
    /// than 64 KiB are timed. All others take about a microsecond, of which reading a clock would
    /// be a large part: one in 32 is timed, and the others count as long as the last one that was.
    ///
    /// ```
    /// use comm::{Collective, ReduceOp};
    ///
    /// comm::threads::run(4, |comm| {
    ///     for _ in 0..10 {
    ///         comm.all_reduce(&mut [1.0_f32; 100], ReduceOp::Sum).unwrap();
    ///     }
    ///     let metrics = comm.metrics().unwrap();
    ///     let sums = metrics.calls.iter().find(|calls| calls.collective == Collective::AllReduce);
    ///     let sums = sums.unwrap();
    ///     assert_eq!((sums.calls, sums.bytes), (10, 4000));
    ///     assert_eq!(sums.bus_bandwidth(4), sums.algorithm_bandwidth() * 1.5);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Option<Metrics> {
        self.communicator.metrics()
    }

    /// Returns the error of a failure that is already known, such as the death of another rank,
    /// without making a call or waiting. This is `ncclCommGetAsyncError` of NCCL. Any thread may
    /// call it; it succeeds while another thread is in a call.
    ///
    /// ```
    /// comm::threads::run(2, |comm| {
    ///     comm.check().unwrap();
    ///     comm.barrier().unwrap();
    ///     if comm.rank() == 0 {
    ///         return comm.abort("out of work");
    ///     }
    ///     while comm.check().is_ok() {
    ///         std::thread::yield_now();
    ///     }
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// As the next call. Succeeds if the backend learns of failures only in calls.
    pub fn check(&self) -> Result<()> {
        self.communicator.check()
    }

    /// Returns the ranks that are known to have left the group in order, by
    /// [`finalize`](Self::finalize), [`leave`](Self::leave) or dropping their last handle, and not
    /// by a failure. Waits for a call in progress in another thread. Empty if the backend does not
    /// know it.
    ///
    /// ```
    /// comm::threads::run(2, |comm| {
    ///     comm.barrier().unwrap();
    ///     if comm.rank() == 1 {
    ///         return comm.leave();
    ///     }
    ///     while comm.departed().is_empty() {
    ///         std::thread::yield_now();
    ///     }
    ///     assert_eq!(comm.departed(), [1]);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    #[must_use]
    pub fn departed(&self) -> Vec<usize> {
        self.communicator.departed()
    }

    /// Leaves the group without waiting for the others. Later calls, also on other handles, fail
    /// with [`Invalid::Finalized`](crate::Invalid::Finalized). Unlike dropping the last handle,
    /// this is an orderly exit also if another rank has died. Waits for a call in progress in
    /// another thread. A backend that cannot do this leaves when the last handle is dropped.
    pub fn leave(&self) {
        self.communicator.leave();
    }

    /// Returns a handle to the same communicator whose calls have this timeout instead of
    /// [`DEFAULT_TIMEOUT`](crate::DEFAULT_TIMEOUT), five minutes.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        self.with_options(|options| options.timeout = timeout)
    }

    /// Returns a handle to the same communicator whose calls use the algorithm of this name. Every
    /// rank must use the same one.
    #[must_use]
    pub fn with_algorithm(&self, name: impl Into<Cow<'static, str>>) -> Self {
        self.with_options(|options| options.algorithm = Some(name.into()))
    }

    /// Returns a handle to the same communicator whose reductions combine contributions in this
    /// order.
    #[must_use]
    pub fn with_reduce_order(&self, order: ReduceOrder) -> Self {
        self.with_options(|options| options.order = order)
    }

    /// Returns a handle to the same communicator whose calls match only calls with the same
    /// [`CallOptions::extra_fingerprint`]. Every rank must use the same number.
    #[must_use]
    pub fn with_extra_fingerprint(&self, fingerprint: u64) -> Self {
        self.with_options(|options| options.extra_fingerprint = fingerprint)
    }
}

impl Comm<Host> {
    /// Creates a handle to a communicator, with the default options.
    #[must_use]
    pub fn new(communicator: impl HostCommunicator + 'static) -> Self {
        Self::over(Arc::new(communicator))
    }

    /// Returns the worker that progresses the messages of all clones.
    pub(crate) fn messenger(&self) -> Result<&Worker> {
        self.started(&self.messenger, |comm| comm.communicator().cancel_recvs())
    }
}

impl<M: Memory> Clone for Comm<M> {
    fn clone(&self) -> Self {
        Self {
            communicator: Arc::clone(&self.communicator),
            options: self.options.clone(),
            worker: Arc::clone(&self.worker),
            packing: self.packing.clone(),
            messenger: Arc::clone(&self.messenger),
        }
    }
}

impl<M: Memory> std::fmt::Debug for Comm<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Comm").field("group", &self.group()).field("options", &self.options).finish()
    }
}
