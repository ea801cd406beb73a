//! What users hold of a group with two sides.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{CallOptions, Comm, Error, Group, Host, HostCommunicator, Membership, Result, Store};
use comm_nccl::{Cuda, Device, Library, NcclCommunicator, NcclConfig, UniqueId};

use super::agreement::{self, Decision};
use super::capabilities::LocalDevice;
use super::config::{DeviceConfig, DevicePath};
use super::failure_link::{DeviceBackend, FailureLink, Listener};
use super::guard::Guarded;
use super::staging::StagedCommunicator;

/// A group of ranks with two sides: one for buffers of the host, and one for buffers of a device, by NCCL or staged through the host.
///
/// The ranks are the same on both, each with one device. Calls on one side do not wait for calls on the other, and may come in any
/// order among them. But both fail together: when one fails, a rank dies, or somebody aborts, both are aborted on every rank,
/// and later calls tell the first cause. A thread listens for that, so that a rank which waits for its device, in no call of the host,
/// hears of a death at once, and not at the deadline of its call; so does one that waits for NCCL to connect the ranks. Groups that
/// are made of a side are on their own.
///
/// Dropped, it ends the side of the device in order, and the side of the host if nobody has a handle to it any more.
#[derive(Debug)]
pub struct HybridCommunicator {
    /// Ends before the sides do, so that nobody takes their end for a failure.
    _listener: Listener,
    host: Comm<Host>,
    cuda: Comm<Cuda>,
    side: DeviceBackend,
    device: Device,
    decision: Decision,
    _link: Arc<FailureLink>,
    /// What must live as long, such as who serves the store.
    _owner: Option<Box<dyn Any + Send + Sync>>,
}

impl HybridCommunicator {
    /// Gives ranks that have a communicator for the host another side, for buffers of their devices. Every rank calls this. They
    /// tell each other which devices and which NCCL they have, and decide together on one way.
    ///
    /// `host` is not to be used beside what comes out of this. NCCL's ranks meet in the store as [`NcclCommunicator::connect`] says, and
    /// keep it. A world of one needs no store, and neither do ranks that all ask for [`DevicePath::Staged`].
    ///
    /// # Errors
    /// On every rank alike: [`Error::BackendUnavailable`] if a rank has no device, or if `config` asks for NCCL and not all can use
    /// it, with what is missing on which rank, and which ranks are on one device; [`Error::Invalid`] if ranks ask for unlike
    /// ways. Otherwise what `host` and [`NcclCommunicator::connect`] answer. If a rank dies meanwhile, or cannot go on, all others hear
    /// of it at once, also in the middle of either.
    pub fn connect(
        host: Arc<dyn HostCommunicator>,
        store: Option<Arc<dyn Store>>,
        config: &DeviceConfig,
    ) -> Result<Self> {
        let began = Instant::now();
        let group = host.group();
        let local = LocalDevice::find(config);
        let options = within(config, began);
        let decision = agreement::agree(&*host, &local.capabilities(config.path), &options)?;
        tell(group, config.path, &decision);
        let device = local.device?;
        let channel = (group.size() > 1).then(|| host.duplicate(&within(config, began))).transpose()?;
        let link = FailureLink::new(group.rank(), channel.map(Arc::from));
        let listener = Listener::start(&link)?;
        let side = match decision.path {
            DevicePath::Nccl => {
                let library = local.library.unwrap_or_else(|| config.load());
                let config = nccl_config(&link, group, config, began);
                by_nccl(library, &device, store, config)
            }
            _ => staged(&*host, &device, config, began),
        };
        let side = side.map_err(|error| link.fail_to_connect(error))?;
        link.join(&host, &side)?;
        let cuda = match &side {
            DeviceBackend::Nccl(nccl) => Comm::<Cuda>::over(Arc::<NcclCommunicator>::clone(nccl)),
            DeviceBackend::Staged(staged) => Comm::<Cuda>::over(Arc::<StagedCommunicator>::clone(staged)),
        };
        Ok(Self {
            _listener: listener,
            host: Comm::new(Guarded::new(host, &link)),
            cuda,
            side,
            device,
            decision,
            _link: link,
            _owner: None,
        })
    }

    /// Keeps something for as long as this lives, such as who serves the store in which the ranks met.
    #[must_use]
    pub fn keeping(self, owner: impl Any + Send + Sync) -> Self {
        Self { _owner: Some(Box::new(owner)), ..self }
    }

    /// The same, whose calls have this long from start to deadline on either side, unless they say otherwise.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        let (host, cuda) = (self.host.with_timeout(timeout), self.cuda.with_timeout(timeout));
        Self { host, cuda, ..self }
    }

    /// The side for buffers of the host.
    #[must_use]
    pub const fn host(&self) -> &Comm<Host> {
        &self.host
    }

    /// The side for buffers of the device.
    #[must_use]
    pub const fn cuda(&self) -> &Comm<Cuda> {
        &self.cuda
    }

    /// NCCL's communicator, if that is what carries out the calls on buffers of the device.
    #[must_use]
    pub fn nccl(&self) -> Option<&NcclCommunicator> {
        match &self.side {
            DeviceBackend::Nccl(nccl) => Some(nccl),
            DeviceBackend::Staged(_) => None,
        }
    }

    /// This rank's device.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// The group, seen by this member: the same on both sides.
    #[must_use]
    pub fn group(&self) -> Group {
        self.host.group()
    }

    /// In which way buffers of devices are communicated: [`DevicePath::Nccl`] or [`DevicePath::Staged`], on all ranks the same.
    #[must_use]
    pub const fn path(&self) -> DevicePath {
        self.decision.path
    }

    /// Why [`DevicePath::Auto`] came to be [`DevicePath::Staged`], with ranks; `None` if it did not.
    #[must_use]
    pub fn obstacle(&self) -> Option<&str> {
        self.decision.obstacle.as_deref()
    }

    /// Waits on the host until all calls on buffers of the device have ended there.
    ///
    /// # Errors
    /// What ended the group, if anything did.
    pub fn synchronize(&self) -> Result<()> {
        self.side.synchronize()
    }

    /// Returns once every rank has called it. It has nothing to do with what is under way on devices.
    ///
    /// # Errors
    /// As written at [`Communicator`](comm_core::Communicator).
    pub fn barrier(&self) -> Result<()> {
        self.host.barrier()
    }

    /// Returns once every rank has called it, and all calls on buffers of all devices that were made before have ended.
    ///
    /// # Errors
    /// As written at [`Communicator`](comm_core::Communicator).
    pub fn device_barrier(&self) -> Result<()> {
        self.synchronize()?;
        self.host.barrier()
    }

    /// Ends both sides, here and on every other rank.
    pub fn abort(&self, reason: &str) {
        self.host.abort(reason);
    }
}

/// Options for what is left of the time to connect.
fn within(config: &DeviceConfig, began: Instant) -> CallOptions {
    let mut options = CallOptions::default();
    options.timeout = config.timeout.saturating_sub(began.elapsed());
    options
}

/// The side of a group that goes through the host, on channels of its own.
fn staged(
    host: &dyn HostCommunicator,
    device: &Device,
    config: &DeviceConfig,
    began: Instant,
) -> Result<DeviceBackend> {
    let fabric = Arc::from(host.duplicate(&within(config, began))?);
    let timeout = within(config, began).timeout;
    let staged = StagedCommunicator::new(fabric, device, config.piece_bytes, timeout)?;
    Ok(DeviceBackend::Staged(Arc::new(staged)))
}

fn nccl_config(
    link: &FailureLink,
    group: Group,
    config: &DeviceConfig,
    began: Instant,
) -> Result<NcclConfig> {
    let mut nccl = match &config.nccl {
        Some(nccl) => nccl.clone(),
        None => NcclConfig::new(Membership { rank: group.rank(), size: group.size() })?,
    };
    nccl.group = group;
    nccl.failure = Some(Arc::clone(link.failure()));
    nccl.timeout = nccl.timeout.min(within(config, began).timeout);
    Ok(nccl)
}

/// The side of a group that NCCL connects.
fn by_nccl(
    library: Result<Library>,
    device: &Device,
    store: Option<Arc<dyn Store>>,
    config: Result<NcclConfig>,
) -> Result<DeviceBackend> {
    let (library, config) = (library?, config?);
    let nccl = match store {
        Some(store) => NcclCommunicator::connect(&library, device, store, config)?,
        None if config.group.size() == 1 => {
            NcclCommunicator::with_id(&library, device, &UniqueId::generate(&library)?, config)?
        }
        None => return Err(Error::setting("store", "", "ranks that use NCCL need one to meet in")),
    };
    Ok(DeviceBackend::Nccl(Arc::new(nccl)))
}

fn tell(group: Group, asked: DevicePath, decision: &Decision) {
    let (rank, path) = (group.rank(), decision.path);
    match &decision.obstacle {
        Some(obstacle) => {
            tracing::info!(rank, %asked, %path, %obstacle, "buffers of devices go through the host");
        }
        None => tracing::info!(rank, %asked, %path, "the way of buffers of devices"),
    }
}
