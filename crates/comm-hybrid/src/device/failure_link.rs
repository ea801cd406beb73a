//! The link between the host and device communicators of a group, which makes them fail together.
//!
//! A communicator that fails notifies all ranks, so each rank only has to fail its other
//! communicator.

use std::sync::Arc;

use comm_core::{Error, Failure, HostCommunicator, Result};
use comm_nccl::NcclCommunicator;

use super::staging::StagedCommunicator;

/// The communicator of a group that detected a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Host,
    Device,
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

    fn on_failure(&self, observer: impl FnOnce(&Error) + Send + 'static) {
        match self {
            Self::Nccl(nccl) => nccl.on_failure(observer),
            Self::Staged(staged) => staged.on_failure(observer),
        }
    }

    /// Returns a function that fails the backend. It does not keep the backend alive.
    fn fail_later(&self) -> FailBackend {
        match self {
            Self::Nccl(nccl) => {
                let nccl = Arc::downgrade(nccl);
                Box::new(move |cause| nccl.upgrade().into_iter().for_each(|nccl| nccl.fail(cause.clone())))
            }
            Self::Staged(staged) => {
                let staged = Arc::downgrade(staged);
                Box::new(move |cause| staged.upgrade().into_iter().for_each(|staged| staged.fail(cause)))
            }
        }
    }
}

/// Fails a backend if it still exists.
type FailBackend = Box<dyn Fn(&Error) + Send + Sync>;

/// The state that the communicators of a group share.
pub(super) struct FailureLink {
    host: Arc<dyn HostCommunicator>,
    fail_backend: FailBackend,
    failure: Failure,
}

impl FailureLink {
    /// Links both communicators: from now on they fail together.
    pub(super) fn new(host: &Arc<dyn HostCommunicator>, device: &DeviceBackend) -> Arc<Self> {
        let (host, failure) = (Arc::clone(host), Failure::default());
        let link = Arc::new(Self { host, fail_backend: device.fail_later(), failure });
        let linked = Arc::downgrade(&link);
        device.on_failure(move |cause| {
            if let Some(link) = linked.upgrade() {
                link.fail(Origin::Device, cause);
            }
        });
        link
    }

    /// Ends the other communicator of the group, here and on every other rank, because one has
    /// failed.
    fn fail(&self, origin: Origin, cause: &Error) {
        let rank = self.host.group().rank();
        if self.failure.keep(cause) {
            tracing::warn!(rank, error = %cause, ?origin, "a group with host and device communicators has failed");
            if origin == Origin::Device && !is_known(cause, rank) {
                self.host.abort(&format!("the device communicator failed: {cause}"));
            }
        }
        if origin == Origin::Host {
            self.fail_device();
        }
    }

    /// Ends the device communicator on this thread, even if another thread is recording the
    /// failure: a caller that got the error from one communicator must also get it from the other,
    /// and must not start work that would be aborted.
    fn fail_device(&self) {
        if let Some(cause) = self.failure.cause() {
            (self.fail_backend)(&cause);
        }
    }

    /// Fails the link because this rank aborts the host communicator.
    pub(super) fn aborted(&self, reason: &str) {
        let by = self.host.group().rank();
        self.fail(Origin::Host, &Error::Aborted { by, reason: reason.into() });
    }

    /// Returns an error after a failure.
    pub(super) fn usable(&self) -> Result<()> {
        self.failure.usable().inspect_err(|_| self.fail_device())
    }

    /// Replaces a fatal error of the host communicator with the first failure of the group, if that
    /// is its cause.
    pub(super) fn explain(&self, error: Error) -> Error {
        self.fail(Origin::Host, error.root_cause());
        let Some(cause) = self.failure.cause() else { return error };
        match error {
            Error::Poisoned(_) => Error::Poisoned(cause),
            Error::Aborted { .. } => (*cause).clone(),
            other => other,
        }
    }
}

/// Returns whether another rank has reported the failure. All ranks then know it, and it ends both
/// communicators.
pub(super) fn is_known(cause: &Error, rank: usize) -> bool {
    matches!(cause, Error::Aborted { by, .. } if *by != rank)
}

impl std::fmt::Debug for FailureLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FailureLink").field("failure", &self.failure).finish_non_exhaustive()
    }
}
