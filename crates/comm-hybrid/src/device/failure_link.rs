//! How the two sides of a group fail together, on this rank and on all others.
//!
//! Each rank has a channel of messages for this alone, on which a thread listens for as long as the group lives. Nobody sends anything there: what
//! is heard is that a rank died, which ends its streams, or that a rank gave up, which aborts the channel. So a rank that waits for its
//! device, in no call of the host, hears of a death when the kernel of the dead one's host does. It begins before the side for devices
//! is made, so that nobody waits for a dead one while NCCL connects either.

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

/// How long the listener listens at a time.
const LONG: Duration = Duration::from_secs(1 << 20);
/// How long it may take to tell this rank's own listener that it may go.
const SOON: Duration = Duration::from_secs(10);
/// What the listener is told with, by this rank.
const FAREWELL: u64 = 0;

/// The part of the group that noticed a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Host,
    Device,
    Other,
}

/// What carries out the calls on buffers of the device.
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

    /// Makes a failure of this side fail the link.
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

/// The side of the device, which the link does not keep.
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

/// What the sides of a group share.
pub(super) struct FailureLink {
    rank: usize,
    /// A group of the same ranks, for nothing else; `None` if there is no other rank.
    channel: Option<Arc<dyn HostCommunicator>>,
    failure: Arc<Failure>,
    /// What fails together, once both are there.
    linked: OnceLock<LinkedPair>,
}

struct LinkedPair {
    host: Arc<dyn HostCommunicator>,
    device: WeakBackend,
}

impl FailureLink {
    /// That of a group whose sides are yet to come.
    pub(super) fn new(rank: usize, channel: Option<Arc<dyn HostCommunicator>>) -> Arc<Self> {
        Arc::new(Self { rank, channel, failure: Arc::default(), linked: OnceLock::new() })
    }

    /// The first failure of the group.
    pub(super) const fn failure(&self) -> &Arc<Failure> {
        &self.failure
    }

    /// From now on the sides fail together.
    ///
    /// # Errors
    /// The failure of the group, if there was one before: the side for devices has failed then too.
    pub(super) fn join(
        self: &Arc<Self>,
        host: &Arc<dyn HostCommunicator>,
        device: &DeviceBackend,
    ) -> Result<()> {
        let sides = LinkedPair { host: Arc::clone(host), device: device.downgrade() };
        // There is one pair of sides in the life of a link.
        let _only_once = self.linked.set(sides);
        device.bind(self);
        // Whoever broke the link before has not found them.
        let Some(cause) = self.failure.cause() else { return Ok(()) };
        device.downgrade().fail(&cause);
        Err(Arc::unwrap_or_clone(cause))
    }

    /// This rank could not make its side for devices: tells the others, who wait for it. Returns the first failure of the group,
    /// which shows a little later than what came of it.
    pub(super) fn fail_to_connect(&self, error: Error) -> Error {
        if !error.is_fatal() {
            return error;
        }
        let before = self.failure.await_cause(diagnosis::PATIENCE);
        self.fail(Origin::Device, before.as_deref().unwrap_or(&error));
        self.failure.cause().map_or(error, Arc::unwrap_or_clone)
    }

    /// Ends what is left of the group, here and on every other rank, since one side of it failed.
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
        // A rank whose connection to this one alone is broken must be told; one that gave up has told all others itself.
        let is_known = matches!(cause, Error::Aborted { by, .. } if *by != self.rank);
        if let Some(channel) = self.channel.as_ref().filter(|_| !is_known) {
            channel.abort(&words);
        }
        let Some(LinkedPair { host, device }) = self.linked.get() else { return };
        // The device first: somebody may be waiting for it with no other deadline than a long one.
        if origin != Origin::Device {
            device.fail(cause);
        }
        if origin != Origin::Host {
            host.abort(&words);
        }
    }

    /// This rank aborted the host's side, by itself.
    pub(super) fn aborted(&self, reason: &str) {
        self.fail(Origin::Host, &Error::Aborted { by: self.rank, reason: reason.into() });
    }

    /// Ends the side of the device on this thread too, if another one is still at breaking up: whoever was told of the failure on
    /// one side is refused on the other, and does not start what is then aborted.
    fn finish_device(&self) {
        if let (Some(cause), Some(sides)) = (self.failure.cause(), self.linked.get()) {
            sides.device.fail(&cause);
        }
    }

    /// Refuses to go on after a failure.
    pub(super) fn usable(&self) -> Result<()> {
        self.failure.usable().inspect_err(|_| self.finish_device())
    }

    /// What a fatal error of the host's side comes to: the first failure of the group, if that is behind it.
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

    /// Listens until a rank fails, all others have left, or this one wants to.
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

/// The thread that listens. Dropped, it ends.
#[derive(Debug)]
pub(super) struct Listener {
    link: Arc<FailureLink>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread.
    process: Process,
}

impl Listener {
    /// Starts it, unless there is nobody to listen to.
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
        // If it could not be told, the channel has failed, and it has heard that.
        if let Err(error) = told {
            tracing::debug!(%error, "the listener was not told to go");
        }
        if thread.join().is_err() {
            tracing::warn!("the thread that listens to other ranks panicked");
        }
    }
}
