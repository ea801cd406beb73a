//! Collectives on device buffers by way of the host.

mod coalesced;
mod collectives;
mod groups;
mod pieces;
mod pipeline;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use comm_core::{Call, CallOptions, Error, Failure, Group, HostCommunicator, HostViewMut, ReduceOp, Result};
use comm_nccl::{CopyStreams, CudaViewMut, Device, DeviceCommunicator, DeviceWork, Stream};

use super::diagnosis;
use pipeline::Pipeline;

/// Runs collectives on buffers of a device through pinned memory of the host, over any communicator for the host.
///
/// What holds for all calls is written at [`Communicator`](comm_core::Communicator), and what the communicator of the host can do,
/// this one can: every operator on every type, every algorithm, [`ReduceOrder::Deterministic`](comm_core::ReduceOrder). The rest is
/// as on the host or as on a device:
///
/// - A call goes in pieces, of a size on which the ranks agreed. While one is on the wire, the next is copied from the device and
///   the one before to the device. Pinned memory is needed for three pieces, however long the call is.
/// - Only what is needed is copied: nothing comes down from the receivers of a broadcast, nothing goes up on other ranks than
///   the root of a reduction.
/// - Each piece is a call of the host, and is chosen and compared as such. Calls of more than one piece also compare their whole
///   lengths, in [`CallOptions::extra_fingerprint`]. Floating point reductions may differ in their last bits from those of a call that is not
///   cut, unless their order is deterministic. Where only some ranks know the lengths of all, as in a gather with counts, they
///   first agree on the longest.
/// - Calls return when the host is through: the last pieces may still be on their way up, and whoever uses the buffer next waits
///   for them, on the device or on the host. They first wait for what was enqueued on the buffers before, which counts for
///   [`CallOptions::timeout`].
///
/// It has the communicator of the host to itself: calls that somebody else makes on it come between the pieces, and ranks do
/// not agree on where.
#[derive(Debug)]
pub struct StagedCommunicator {
    host: Shared,
    group: Group,
    device: Device,
    streams: CopyStreams,
    piece_bytes: usize,
    pipeline: Mutex<Pipeline>,
    failure: Failure,
    /// That of a group of which this is one side.
    of_group: OnceLock<Arc<Failure>>,
}

/// A communicator for the host, which says nothing of itself in debug output.
struct Shared(Arc<dyn HostCommunicator>);

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("HostCommunicator").field(&self.0.group()).finish()
    }
}

impl StagedCommunicator {
    /// How many bytes a piece has unless somebody says otherwise.
    pub const PIECE_BYTES: usize = 4 << 20;

    /// Makes the collectives of `host` those of buffers on this device. Every rank calls this, and has its pieces as large as rank
    /// 0 says: pinned memory is needed for three times `piece_bytes`, or for three times two elements per rank if that is more.
    ///
    /// # Errors
    /// [`Error::Invalid`] on every rank if rank 0 gives no bytes; [`Error::Backend`] if the device has no streams; and what
    /// `host` answers within `timeout`.
    pub fn new(
        host: Arc<dyn HostCommunicator>,
        device: &Device,
        piece_bytes: usize,
        timeout: Duration,
    ) -> Result<Self> {
        let mut agreed = [piece_bytes as u64];
        let mut options = CallOptions::default();
        options.timeout = timeout;
        host.run(Call::Broadcast { root: 0, buffer: HostViewMut::new(&mut agreed) }, &options)?;
        let [bytes] = agreed;
        let agreed = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        let reason = "rank 0 must give a number of bytes that is not zero";
        let piece_bytes = agreed.ok_or_else(|| Error::setting("piece_bytes", bytes.to_string(), reason))?;
        Self::over(host, device, piece_bytes)
    }

    /// The communicator of ranks that agree.
    fn over(host: Arc<dyn HostCommunicator>, device: &Device, piece_bytes: usize) -> Result<Self> {
        Ok(Self {
            group: host.group(),
            host: Shared(host),
            device: device.clone(),
            streams: CopyStreams::new(device)?,
            piece_bytes,
            pipeline: Mutex::new(Pipeline::new(device)),
            failure: Failure::default(),
            of_group: OnceLock::new(),
        })
    }

    /// The device whose buffers it takes.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// How many bytes a piece has at most.
    #[must_use]
    pub const fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// Waits on the host until all copies to and from the device are done.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device failed; what ended the communicator, if anything did.
    pub fn synchronize(&self) -> Result<()> {
        self.failure.usable()?;
        self.ended(self.streams.synchronize())
    }

    /// Ends the communicator as [`Communicator::abort`](comm_core::Communicator::abort) does, for a cause that is known from
    /// elsewhere: it is what later calls give.
    pub fn fail(&self, cause: &Error) {
        if self.failure.keep(cause) {
            self.failure.tell();
            tracing::warn!(rank = self.group.rank(), error = %cause, "collectives on device buffers have ended");
            self.host.0.abort(&cause.to_string());
        }
    }

    /// Has `observer` called once, with the cause, when the communicator fails or is aborted, on the thread that finds out; at
    /// once if that has happened already.
    pub fn on_failure(&self, observer: impl FnOnce(&Error) + Send + 'static) {
        self.failure.observe(observer);
    }

    /// Waits for the calls of other threads, and refuses to go on after a failure.
    fn turn(&self) -> Result<MutexGuard<'_, Pipeline>> {
        let turn = match self.pipeline.lock() {
            Ok(turn) => turn,
            Err(poisoned) => {
                self.fail(&Error::Internal("a call panicked".into()));
                PoisonError::into_inner(poisoned)
            }
        };
        self.failure.usable()?;
        Ok(turn)
    }

    /// Takes the failure of a group for its own, where that is known to be behind an abort.
    pub(super) fn belong_to(&self, group: &Arc<Failure>) {
        drop(self.of_group.set(Arc::clone(group)));
    }

    /// What is fatal ends the communicator, here and on other ranks. The cause is told, which may be another one.
    fn ended<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| {
            if !error.is_fatal() {
                return error;
            }
            let of_group = self.of_group.get().and_then(|group| diagnosis::behind(&error, group));
            self.fail(of_group.as_deref().unwrap_or(&error));
            self.failure.cause().map_or(error, |cause| (*cause).clone())
        })
    }
}

impl DeviceCommunicator for StagedCommunicator {
    fn device(&self) -> &Device {
        self.device()
    }

    /// Copies to the device run there. Those from it have ended when a call returns.
    fn stream(&self) -> &Stream {
        self.streams.up()
    }

    fn work(&self) -> Result<DeviceWork> {
        let _turn = self.turn()?;
        DeviceWork::until_now(self.stream())
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

/// The options of what ranks agree on before a call, which is none of the caller's.
fn agreement(options: &CallOptions) -> CallOptions {
    let mut plain = CallOptions::default();
    plain.timeout = options.timeout;
    plain.extra_fingerprint = options.extra_fingerprint;
    plain
}
