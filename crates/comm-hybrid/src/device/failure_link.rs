//! The link between the two sides of a group, by which they fail together on this rank and on all
//! others.
//!
//! Each rank has a channel for this alone, on which a thread receives for as long as the group
//! lives. No rank sends anything there: the receive ends when a rank dies, which ends its streams,
//! or gives up, which aborts the channel. So a rank that waits for its device, outside any call of
//! the host, hears of a death as soon as the kernel closes the streams of the dead process. The
//! thread starts before the device's side is made, so that no rank waits for a dead one while NCCL
//! connects.

use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use comm_core::{
    ANY_TAG, CallOptions, During, Error, Failure, HostCommunicator, HostView, HostViewMut, Loss, Process,
    Result, Source,
};
use comm_nccl::NcclCommunicator;

use super::diagnosis;
use super::staging::StagedCommunicator;

/// The timeout of one receive of the listener.
const LONG: Duration = Duration::from_secs(1 << 20);
/// The timeout for telling this rank's own listener to end.
const SOON: Duration = Duration::from_secs(10);
/// The tag of the message by which this rank ends its listener.
const FAREWELL: u64 = 0;

/// The part of the group that noticed a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Host,
    Device,
    Other,
}

/// The backend for device buffers.
#[derive(Debug, Clone)]
pub(super) enum DeviceBackend {
    Nccl(Arc<NcclCommunicator>),
    Staged(Arc<StagedCommunicator>),
}

impl DeviceBackend {
    pub(super) fn synchronize(&self) -> Result<()> {
        match self {
            Self::Nccl(nccl) => nccl.synchronize(),
            Self::Staged(staged) => staged.synchronize(),
        }
    }

    /// Makes a failure of this backend fail the link.
    fn bind(&self, link: &Arc<FailureLink>) {
        if let Self::Staged(staged) = self {
            staged.belong_to(&link.failure);
        }
        let link = Arc::downgrade(link);
        let observer = move |cause: &Error| {
            if let Some(link) = link.upgrade() {
                link.fail(Origin::Device, cause);
            }
        };
        match self {
            Self::Nccl(nccl) => nccl.on_failure(observer),
            Self::Staged(staged) => staged.on_failure(observer),
        }
    }

    fn downgrade(&self) -> WeakBackend {
        match self {
            Self::Nccl(nccl) => WeakBackend::Nccl(Arc::downgrade(nccl)),
            Self::Staged(staged) => WeakBackend::Staged(Arc::downgrade(staged)),
        }
    }
}

/// The device's side, which the link does not keep alive.
#[derive(Debug)]
enum WeakBackend {
    Nccl(Weak<NcclCommunicator>),
    Staged(Weak<StagedCommunicator>),
}

impl WeakBackend {
    fn fail(&self, cause: &Error) {
        match self {
            Self::Nccl(nccl) => {
                if let Some(nccl) = nccl.upgrade() {
                    nccl.fail(cause.clone());
                }
            }
            Self::Staged(staged) => {
                if let Some(staged) = staged.upgrade() {
                    staged.fail(cause);
                }
            }
        }
    }
}

/// The state that the sides of a group share.
pub(super) struct FailureLink {
    rank: usize,
    /// A group of the same ranks, used only here; `None` if there is no other rank.
    channel: Option<Arc<dyn HostCommunicator>>,
    failure: Arc<Failure>,
    /// The sides that fail together, once both exist.
    linked: OnceLock<LinkedPair>,
}

struct LinkedPair {
    host: Arc<dyn HostCommunicator>,
    device: WeakBackend,
}

impl FailureLink {
    /// Returns the link of a group whose sides do not exist yet.
    pub(super) fn new(rank: usize, channel: Option<Arc<dyn HostCommunicator>>) -> Arc<Self> {
        Arc::new(Self { rank, channel, failure: Arc::default(), linked: OnceLock::new() })
    }

    /// Returns the first failure of the group.
    pub(super) const fn failure(&self) -> &Arc<Failure> {
        &self.failure
    }

    /// Links the sides: from now on they fail together.
    ///
    /// # Errors
    /// The failure of the group, if it has failed before; the device's side is then failed too.
    pub(super) fn join(
        self: &Arc<Self>,
        host: &Arc<dyn HostCommunicator>,
        device: &DeviceBackend,
    ) -> Result<()> {
        let sides = LinkedPair { host: Arc::clone(host), device: device.downgrade() };
        // A link joins one pair of sides in its life.
        let _only_once = self.linked.set(sides);
        device.bind(self);
        // A failure before that did not find the sides.
        let Some(cause) = self.failure.cause() else { return Ok(()) };
        device.downgrade().fail(&cause);
        Err(Arc::unwrap_or_clone(cause))
    }

    /// Tells the others, who wait for it, that this rank could not make its device's side. Returns
    /// the first failure of the group, which may become known a little later than its consequences.
    pub(super) fn fail_to_connect(&self, error: Error) -> Error {
        if !error.is_fatal() {
            return error;
        }
        let before = self.failure.await_cause(diagnosis::PATIENCE);
        self.fail(Origin::Device, before.as_deref().unwrap_or(&error));
        self.failure.cause().map_or(error, Arc::unwrap_or_clone)
    }

    /// Ends the rest of the group, here and on every other rank, because one part of it failed.
    pub(super) fn fail(&self, origin: Origin, cause: &Error) {
        if !self.failure.keep(cause) {
            return self.finish_device();
        }
        let words = match origin {
            Origin::Host => format!("the host's side failed: {cause}"),
            Origin::Device => format!("the device's side failed: {cause}"),
            Origin::Other => cause.to_string(),
        };
        tracing::warn!(rank = self.rank, error = %cause, ?origin, "a group with a host's and a device's side has failed");
        // A rank that loses only its connection to this one must be told; one that gave up has told
        // all others itself.
        let is_known = matches!(cause, Error::Aborted { by, .. } if *by != self.rank);
        if let Some(channel) = self.channel.as_ref().filter(|_| !is_known) {
            channel.abort(&words);
        }
        let Some(LinkedPair { host, device }) = self.linked.get() else { return };
        // The device first: a thread may be waiting for it with a long deadline.
        if origin != Origin::Device {
            device.fail(cause);
        }
        if origin != Origin::Host {
            host.abort(&words);
        }
    }

    /// Fails the link because this rank aborted the host's side.
    pub(super) fn aborted(&self, reason: &str) {
        self.fail(Origin::Host, &Error::Aborted { by: self.rank, reason: reason.into() });
    }

    /// Ends the device's side on this thread too, if another thread is still failing the link: a
    /// caller that was told of the failure on one side is then refused on the other, and starts
    /// nothing that would be aborted.
    fn finish_device(&self) {
        if let (Some(cause), Some(sides)) = (self.failure.cause(), self.linked.get()) {
            sides.device.fail(&cause);
        }
    }

    /// Returns an error after a failure.
    pub(super) fn usable(&self) -> Result<()> {
        self.failure.usable().inspect_err(|_| self.finish_device())
    }

    /// Replaces a fatal error of the host's side by the first failure of the group, if that is its
    /// cause.
    pub(super) fn explain(&self, error: Error) -> Error {
        let behind = diagnosis::behind(&error, &self.failure);
        self.fail(Origin::Host, behind.as_deref().unwrap_or_else(|| error.root_cause()));
        let Some(cause) = self.failure.cause() else { return error };
        match error {
            Error::Poisoned(_) => Error::Poisoned(cause),
            Error::Aborted { .. } => (*cause).clone(),
            other => other,
        }
    }

    /// Receives until a rank fails, all others have left, or this rank ends the listener.
    fn listen(&self, channel: &dyn HostCommunicator) {
        let mut options = CallOptions::default();
        options.timeout = LONG;
        loop {
            let mut nothing = [0_u8; 1];
            let heard = channel.recv(Source::Any, ANY_TAG, HostViewMut::new(&mut nothing), &options);
            let cause = match heard {
                Ok(received) if received.source == self.rank => return,
                Ok(_) | Err(Error::Timeout { during: During::Await { .. }, .. }) => continue,
                Err(Error::PeerLost { loss: Loss::Finished, .. }) => return,
                Err(Error::PeerLost { peer, loss, .. }) => {
                    Error::PeerLost { peer, during: During::Idle, loss }
                }
                Err(error) => error.root_cause().clone(),
            };
            return self.fail(Origin::Other, &cause);
        }
    }
}

impl std::fmt::Debug for FailureLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FailureLink")
            .field("rank", &self.rank)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

/// The listener thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    link: Arc<FailureLink>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread.
    process: Process,
}

impl Listener {
    /// Starts the listener, unless there are no other ranks.
    pub(super) fn start(link: &Arc<FailureLink>) -> Result<Self> {
        let (ours, link) = (Arc::clone(link), Arc::clone(link));
        let thread = link.channel.clone().map(|channel| {
            let listener = std::thread::Builder::new().name("comm-hybrid listener".into());
            listener
                .spawn(move || ours.listen(&*channel))
                .map_err(|source| Error::io("start a thread that listens to other ranks", source))
        });
        Ok(Self { thread: thread.transpose()?, link, process: Process::current() })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.thread.take());
            return;
        }
        let Some((thread, channel)) = self.thread.take().zip(self.link.channel.as_ref()) else { return };
        let mut options = CallOptions::default();
        options.timeout = SOON;
        let told = channel.send(self.link.rank, FAREWELL, HostView::new(&[0_u8]), &options);
        // If the message could not be sent, the channel has failed, and the listener knows.
        if let Err(error) = told {
            tracing::debug!(%error, "the listener was not told to go");
        }
        if thread.join().is_err() {
            tracing::warn!("the thread that listens to other ranks panicked");
        }
    }
}
