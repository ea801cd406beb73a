//! The user's handle to a group with a host communicator and a device communicator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{
    CallOptions, Comm, Error, Group, Host, HostCommunicator, Membership, Result, ShrinkOptions, Shrunk,
};
use comm_nccl::{Cuda, Device, Library, NcclCommunicator, NcclConfig};

use super::agreement::{self, Decision};
use super::config::{DeviceConfig, DevicePath};
use super::failure_link::{DeviceBackend, FailureLink};
use super::guard::Guarded;
use super::local_device::LocalDevice;
use super::staging::StagedCommunicator;

/// A group of ranks with two communicators: one for host buffers, and one for device buffers, which
/// uses NCCL or stages the buffers through the host.
///
/// Both have the same ranks, and each rank has one device. Calls on one communicator do not wait
/// for calls on the other, and may interleave with them in any order. But they fail together: when
/// one fails, a rank dies, or a rank aborts, both are aborted on every rank, and later calls return
/// the first cause. A rank that waits for its device, outside any host call, detects a death within
/// milliseconds instead of at the deadline of its call, and so does a rank that waits for NCCL to
/// connect the ranks. Groups created from one of the communicators are independent.
///
/// Dropping it closes the device communicator, and also the host communicator if no other handle to
/// it exists.
#[derive(Debug)]
pub struct HybridCommunicator {
    host: Comm<Host>,
    cuda: Comm<Cuda>,
    side: DeviceBackend,
    device: Device,
    decision: Decision,
    config: DeviceConfig,
}

impl HybridCommunicator {
    /// Adds a communicator for device buffers to ranks that have a host communicator. Every rank
    /// calls this. The ranks exchange their devices and NCCL versions, and agree on one path.
    ///
    /// `host` must not be used directly afterwards.
    ///
    /// # Errors
    /// Equal on every rank: [`Error::BackendUnavailable`](comm_core::Error::BackendUnavailable) if
    /// a rank has no device, or if `config` requests NCCL and not all ranks can use it (the error
    /// lists what each rank lacks, and ranks that share a device);
    /// [`Error::Invalid`](comm_core::Error::Invalid) if ranks request different paths. Otherwise
    /// the errors of `host` and [`NcclCommunicator::connect`]. If a rank dies or fails in the
    /// meantime, all others return that error immediately.
    pub fn connect(host: Arc<dyn HostCommunicator>, config: &DeviceConfig) -> Result<Self> {
        let began = Instant::now();
        let group = host.group();
        let local = LocalDevice::find(config);
        let options = remaining_options(config, began);
        let decision = agreement::agree(&*host, &local, config.path, &options)?;
        log_decision(group, config.path, &decision);
        let device = local.device?;
        let side = match (decision.path, local.nccl) {
            (DevicePath::Nccl, Some(nccl)) => by_nccl(&*host, (nccl?.0, &device), config, began)?,
            _ => staged(&*host, &device, config, began)?,
        };
        let link = FailureLink::new(&host, &side);
        let cuda = match &side {
            DeviceBackend::Nccl(nccl) => Comm::<Cuda>::over(Arc::<NcclCommunicator>::clone(nccl)),
            DeviceBackend::Staged(staged) => Comm::<Cuda>::over(Arc::<StagedCommunicator>::clone(staged)),
        };
        let (host, config) = (Comm::new(Guarded::new(host, link)), config.clone());
        Ok(Self { host, cuda, side, device, decision, config })
    }

    /// Creates a group of the ranks that remain after a failure, for host and device buffers, as
    /// [`Comm::shrink`] does. The device communicator is created anew, on the path that these ranks
    /// agree on. Every remaining rank calls this. Timeouts of calls are as in this group.
    ///
    /// [`Shrunk::completed`] counts calls on the host communicator. Calls on device buffers that
    /// had not ended have undefined results.
    ///
    /// # Errors
    /// As [`Comm::shrink`], and as [`HybridCommunicator::connect`] for a failure of a device.
    pub fn shrink(&self, options: &ShrinkOptions) -> Result<Shrunk<Self>> {
        let mut shrunk = self.host.communicator().shrink(options)?;
        loop {
            let host: Arc<dyn HostCommunicator> = Arc::from(shrunk.comm);
            match Self::connect(Arc::clone(&host), &self.config) {
                Ok(group) => {
                    let group = Self {
                        host: group.host.with_timeout(self.host.options().timeout),
                        cuda: group.cuda.with_timeout(self.cuda.options().timeout),
                        ..group
                    };
                    return Ok(Shrunk::new(group, shrunk.ranks, shrunk.completed));
                }
                Err(error) if !is_failure_of_peers(&error) => return Err(error),
                Err(error) => tracing::info!(%error, "cannot connect the devices of the remaining ranks"),
            }
            let again = host.shrink(options)?;
            let ranks = again.ranks.iter().map(|&rank| shrunk.ranks[rank]).collect();
            shrunk = Shrunk::new(again.comm, ranks, shrunk.completed);
        }
    }

    /// Returns the communicator with this timeout for host and device calls, unless a call sets its
    /// own.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        let (host, cuda) = (self.host.with_timeout(timeout), self.cuda.with_timeout(timeout));
        Self { host, cuda, ..self }
    }

    /// Returns the communicator for host buffers.
    #[must_use]
    pub const fn host(&self) -> &Comm<Host> {
        &self.host
    }

    /// Returns the communicator for device buffers.
    #[must_use]
    pub const fn cuda(&self) -> &Comm<Cuda> {
        &self.cuda
    }

    /// Returns NCCL's communicator, if the path is NCCL.
    #[must_use]
    pub fn nccl(&self) -> Option<&NcclCommunicator> {
        match &self.side {
            DeviceBackend::Nccl(nccl) => Some(nccl),
            DeviceBackend::Staged(_) => None,
        }
    }

    /// Returns this rank's device.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the group as seen by this member. It is the same for host and device.
    #[must_use]
    pub fn group(&self) -> Group {
        self.host.group()
    }

    /// Returns the path of device buffers: [`DevicePath::Nccl`] or [`DevicePath::Staged`], equal on
    /// all ranks.
    #[must_use]
    pub const fn path(&self) -> DevicePath {
        self.decision.path
    }

    /// Returns the reason why [`DevicePath::Auto`] became [`DevicePath::Staged`], with ranks;
    /// `None` if it did not.
    #[must_use]
    pub fn obstacle(&self) -> Option<&str> {
        self.decision.obstacle.as_deref()
    }

    /// Waits on the host until all calls on device buffers have ended on the device.
    ///
    /// # Errors
    /// The cause of the group's failure, if it has failed.
    pub fn synchronize(&self) -> Result<()> {
        self.side.synchronize()
    }

    /// Returns once every rank has called it. It does not wait for work on devices.
    ///
    /// # Errors
    /// As [`Communicator`](comm_core::Communicator).
    pub fn barrier(&self) -> Result<()> {
        self.host.barrier()
    }

    /// Returns once every rank has called it and all earlier calls on all device buffers have
    /// ended.
    ///
    /// # Errors
    /// As [`Communicator`](comm_core::Communicator).
    pub fn device_barrier(&self) -> Result<()> {
        self.synchronize()?;
        self.host.barrier()
    }

    /// Aborts both communicators, here and on every other rank.
    pub fn abort(&self, reason: &str) {
        self.host.abort(reason);
    }
}

/// Returns whether fewer ranks may succeed.
fn is_failure_of_peers(error: &Error) -> bool {
    matches!(error.root_cause(), Error::PeerLost { .. } | Error::Timeout { .. } | Error::Aborted { .. })
}

/// Returns options with the remaining time of the timeout for connecting.
fn remaining_options(config: &DeviceConfig, began: Instant) -> CallOptions {
    let mut options = CallOptions::default();
    options.timeout = config.timeout.saturating_sub(began.elapsed());
    options
}

/// Returns the backend that stages buffers through the host, on its own channels.
fn staged(
    host: &dyn HostCommunicator,
    device: &Device,
    config: &DeviceConfig,
    began: Instant,
) -> Result<DeviceBackend> {
    let fabric = Arc::from(host.duplicate(&remaining_options(config, began))?);
    let timeout = remaining_options(config, began).timeout;
    let staged = StagedCommunicator::new(fabric, device, config.piece_bytes, timeout)?;
    Ok(DeviceBackend::Staged(Arc::new(staged)))
}

/// Returns the NCCL backend, after the ranks have agreed that NCCL can connect them.
fn by_nccl(
    host: &dyn HostCommunicator,
    (library, device): (Library, &Device),
    config: &DeviceConfig,
    began: Instant,
) -> Result<DeviceBackend> {
    let alone = Membership { rank: 0, size: 1 };
    let mut nccl = config.nccl.clone().map_or_else(|| NcclConfig::new(alone), Ok)?;
    nccl.timeout = nccl.timeout.min(remaining_options(config, began).timeout);
    let nccl = NcclCommunicator::connect(&library, device, host, nccl)?;
    Ok(DeviceBackend::Nccl(Arc::new(nccl)))
}

fn log_decision(group: Group, requested: DevicePath, decision: &Decision) {
    let (rank, path) = (group.rank(), decision.path);
    match &decision.obstacle {
        Some(obstacle) => {
            tracing::info!(rank, %requested, %path, %obstacle, "device buffers are staged through the host");
        }
        None => tracing::info!(rank, %requested, %path, "selected the path of device buffers"),
    }
}
