//! Collectives on device buffers that are staged through the host.

mod coalesced;
mod collectives;
mod groups;
mod pieces;
mod pipeline;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{Call, CallOptions, Error, Failure, Group, HostCommunicator, HostViewMut, Result};
use comm_nccl::{CopyStreams, Device};

use super::failure_link::is_known;
use pipeline::Pipeline;

/// Runs collectives on device buffers through pinned host memory, over any host communicator.
///
/// The rules of [`Communicator`](comm_core::Communicator) apply, and all capabilities of the host
/// communicator are available: every operator on every type, every algorithm,
/// [`ReduceOrder::Deterministic`](comm_core::ReduceOrder). In addition:
///
/// - A call is divided into pieces of a size on which the ranks have agreed. While one is on the
///   wire, the next is copied from the device and the previous one to the device. Pinned memory is
///   needed for three pieces, regardless of the length of the call.
/// - Only necessary copies are made: receivers of a broadcast copy nothing from the device, and
///   only the root of a reduce copies to the device.
/// - Each piece is a call on the host communicator, which selects its algorithm and compares it
///   between ranks. Calls of more than one piece also compare their total lengths, in
///   [`CallOptions::extra_fingerprint`]. Floating point reductions may differ in their last bits
///   from those of an undivided call, unless their order is deterministic. If only some ranks know
///   all lengths, as in a gather with counts, the ranks first agree on the longest one.
/// - Calls return when the host has finished. The last pieces may then still be in flight to the
///   device, and the next use of the buffer waits for them, on the device or on the host. Calls
///   first wait for earlier work on the buffers, which counts towards [`CallOptions::timeout`].
///
/// It needs exclusive use of the host communicator: other calls on it would interleave with the
/// pieces in an order that differs between ranks.
#[derive(Debug)]
pub struct StagedCommunicator {
    host: Shared,
    group: Group,
    device: Device,
    streams: CopyStreams,
    piece_bytes: usize,
    pipeline: Mutex<Pipeline>,
    failure: Failure,
}

/// A host communicator, which is omitted from debug output.
struct Shared(Arc<dyn HostCommunicator>);

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("HostCommunicator").field(&self.0.group()).finish()
    }
}

impl StagedCommunicator {
    /// The default size of a piece in bytes.
    pub const PIECE_BYTES: usize = 4 << 20;

    /// Creates the communicator for buffers of this device over `host`. Every rank calls this. Rank
    /// 0's `piece_bytes` applies to all. It needs three times `piece_bytes` of pinned memory, or
    /// three times two elements per rank if that is more.
    ///
    /// # Errors
    /// [`Error::Invalid`] on every rank if rank 0 passes zero bytes; [`Error::Backend`] if the
    /// device cannot create streams; and the errors of `host` within `timeout`.
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
        let reason = "rank 0 must set it to a number of bytes that is not zero";
        let piece_bytes = agreed.ok_or_else(|| Error::setting("piece_bytes", bytes.to_string(), reason))?;
        Self::over(host, device, piece_bytes)
    }

    /// Returns the communicator of ranks that have agreed on the size of pieces.
    fn over(host: Arc<dyn HostCommunicator>, device: &Device, piece_bytes: usize) -> Result<Self> {
        Ok(Self {
            group: host.group(),
            host: Shared(host),
            device: device.clone(),
            streams: CopyStreams::new(device)?,
            piece_bytes,
            pipeline: Mutex::new(Pipeline::new(device)),
            failure: Failure::default(),
        })
    }

    /// Returns the device whose buffers this communicator accepts.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the largest size of a piece in bytes.
    #[must_use]
    pub const fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// Waits on the host until all copies to and from the device are done.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device failed; the cause of the communicator's failure, if it has
    /// failed.
    pub fn synchronize(&self) -> Result<()> {
        self.failure.usable()?;
        self.ended(self.streams.synchronize())
    }

    /// Aborts the communicator like [`Communicator::abort`](comm_core::Communicator::abort), with a
    /// cause from elsewhere, which later calls return.
    pub fn fail(&self, cause: &Error) {
        if self.failure.keep(cause) {
            self.failure.notify();
            tracing::warn!(rank = self.group.rank(), error = %cause, "collectives on device buffers have ended");
            if !is_known(cause, self.group.rank()) {
                self.host.0.abort(&cause.to_string());
            }
        }
    }

    /// Calls `observer` once with the cause when the communicator fails or is aborted, on the
    /// thread that detects it. If the communicator has already failed, it runs immediately.
    pub fn on_failure(&self, observer: impl FnOnce(&Error) + Send + 'static) {
        self.failure.observe(observer);
    }

    /// Waits for the calls of other threads, and returns an error after a failure.
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

    /// Ends the communicator, here and on other ranks, if the error is fatal. Returns the cause of
    /// the first failure, which may be an earlier one.
    fn ended<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| {
            if !error.is_fatal() {
                return error;
            }
            self.fail(&error);
            self.failure.cause().map_or(error, |cause| (*cause).clone())
        })
    }
}

/// Returns the options of an agreement before a call. Apart from the timeout and the fingerprint,
/// they are independent of the caller's.
fn agreement(options: &CallOptions) -> CallOptions {
    let mut plain = CallOptions::default();
    plain.timeout = options.timeout;
    plain.extra_fingerprint = options.extra_fingerprint;
    plain
}
