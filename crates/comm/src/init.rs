//! The rendezvous with the other ranks.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{Comm, Error, Fabric, HostCommunicator, Membership, Refusal, Result, Store};
#[cfg(feature = "nccl")]
use comm_hybrid::{DeviceChoice, HybridCommunicator};
#[cfg(feature = "hybrid")]
use comm_hybrid::{HybridFabric, Path, Paths};
use comm_ring::{RingCommunicator, RingConfig};
#[cfg(feature = "shm")]
use comm_shm::SharedMemoryFabric;
use comm_tcp::{
    FileStore, Member, Rendezvous, RendezvousConfig, StoreConfig, TcpFabric, TcpStore, TcpStoreServer,
    TorchStore,
};

use crate::master::Master;
use crate::process_manager;
use crate::{Config, StoreHost, TransportKind};

/// The time for which rank 0 waits after a failed rendezvous, so that the other ranks can read the
/// cause before the process exits.
const STORE_WAIT: Duration = Duration::from_millis(200);
/// The time for which the store may then continue to serve its connected clients in the background.
const STORE_GRACE: Duration = Duration::from_secs(5);

/// Connects to the other ranks as configured by the environment, and returns the communicator of
/// the world. Without a launcher, the world has one rank, which is logged.
///
/// # Errors
/// As [`Config::from_env`] and [`init_with`].
pub fn init() -> Result<Comm> {
    init_with(&Config::from_env()?).map_err(crate::env::name_variable)
}

/// Connects to the other ranks and returns the communicator of the world. Every rank calls this.
///
/// # Errors
/// [`Error::Timeout`](crate::Error::Timeout) with the ranks that did not arrive before the
/// deadline; [`Error::Handshake`](crate::Error::Handshake) if ranks disagree about the job, the
/// world size, their ranks, the secret or TLS; [`Error::Invalid`](crate::Error::Invalid) if a
/// setting is unusable; [`Error::Io`](crate::Error::Io) if the store can be neither served nor
/// reached.
pub fn init_with(config: &Config) -> Result<Comm> {
    join(config).map(|joined| joined.comm(config))
}

/// Connects to the other ranks through a store of the caller, for example the store of another
/// library. Every rank calls this. [`Config::store`] and the address of the master do not matter.
///
/// # Errors
/// As [`init_with`], and those of the store.
pub fn init_over(store: Arc<dyn Store>, config: &Config) -> Result<Comm> {
    let config = Config { store: StoreHost::Launcher, ..config.clone() };
    if config.world_size == 1 {
        return init_with(&config);
    }
    Begun::now(&config, None).meet(&RendezvousStore { store, address: None, server: None })
}

/// Connects to the other ranks as [`init_with`] does, and also returns the transport that is used
/// to reach each rank.
///
/// # Errors
/// As [`init_with`].
#[cfg(feature = "hybrid")]
pub fn init_with_paths(config: &Config) -> Result<(Comm, Paths)> {
    let joined = join(config)?;
    let all = |path| Paths::all(Membership { rank: config.rank, size: config.world_size }, path);
    let paths = match &joined.transport {
        TransportInUse::Tcp => all(Path::Tcp),
        TransportInUse::SharedMemory => all(Path::SharedMemory),
        TransportInUse::Each(paths) => paths.clone(),
    };
    Ok((joined.comm(config), paths))
}

/// Connects to the other ranks as configured by the environment, for calls on host and device
/// buffers.
///
/// ```no_run
/// use comm::{DeviceBuffer, ReduceOp};
///
/// # fn main() -> comm::Result<()> {
/// let comm = comm::init_devices()?;
/// let mut gradients = DeviceBuffer::from_host(&comm.device().new_stream()?, &[1.0_f32; 1000])?;
/// comm.cuda().all_reduce(&mut gradients, ReduceOp::Avg)?;
/// comm.host().barrier()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`Config::from_env`] and [`init_devices_with`].
#[cfg(feature = "nccl")]
pub fn init_devices() -> Result<HybridCommunicator> {
    init_devices_with(&Config::from_env()?).map_err(crate::env::name_variable)
}

/// Connects to the other ranks as [`init_with`] does, and creates a second communicator for device
/// buffers, as [`Config::devices`] specifies. Every rank calls this.
///
/// # Errors
/// As [`init_with`] and [`HybridCommunicator::connect`].
#[cfg(feature = "nccl")]
pub fn init_devices_with(config: &Config) -> Result<HybridCommunicator> {
    let begun = Begun::now(config, None);
    connect_devices(join(config)?.into_host(), config, begun.left())
}

/// Creates a second communicator for device buffers.
#[cfg(feature = "nccl")]
pub(crate) fn connect_devices(
    host: Arc<dyn HostCommunicator>,
    config: &Config,
    timeout: Duration,
) -> Result<HybridCommunicator> {
    let mut devices = config.devices.clone();
    devices.timeout = timeout;
    if matches!(devices.device, DeviceChoice::FromEnv) {
        devices.device = DeviceChoice::LocalRank(config.local_rank);
    }
    Ok(HybridCommunicator::connect(host, &devices)?.with_timeout(config.timeout))
}

/// The transport between the ranks.
pub(crate) enum TransportInUse {
    Tcp,
    #[cfg(feature = "shm")]
    SharedMemory,
    #[cfg(feature = "hybrid")]
    Each(Paths),
}

/// The result of a rendezvous.
struct Joined {
    host: Arc<dyn HostCommunicator>,
    #[cfg_attr(not(feature = "hybrid"), expect(dead_code, reason = "there is one way"))]
    transport: TransportInUse,
    /// `None` in a world of one.
    rendezvous: Option<RendezvousStore>,
}

impl Joined {
    /// Leaves the store, which is not needed after the channels are open.
    fn into_host(self) -> Arc<dyn HostCommunicator> {
        self.rendezvous.into_iter().for_each(|rendezvous| rendezvous.close(Duration::ZERO));
        self.host
    }

    /// Leaves the store, and returns the user's handle.
    fn comm(self, config: &Config) -> Comm {
        Comm::over(self.into_host()).with_timeout(config.timeout)
    }
}

impl std::fmt::Debug for RendezvousStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { address, server, .. } = self;
        f.debug_struct("RendezvousStore")
            .field("address", address)
            .field("server", server)
            .finish_non_exhaustive()
    }
}

/// The store of a rendezvous.
pub(crate) struct RendezvousStore {
    pub(crate) store: Arc<dyn Store>,
    /// The address of the store as other hosts see it, if a process serves it.
    address: Option<SocketAddr>,
    /// The server, on the rank that serves the store.
    server: Option<TcpStoreServer>,
}

impl RendezvousStore {
    pub(crate) fn open(begun: &Begun<'_>) -> Result<Self> {
        let config = begun.config;
        if let StoreHost::Folder(folder) = &config.store {
            let store = FileStore::open(folder).map_err(|error| {
                let url = format!("file://{}", folder.display());
                Error::setting("rendezvous", url, error.to_string())
            })?;
            return Ok(Self { store: Arc::new(store), address: None, server: None });
        }
        let (master, served) = match config.store {
            StoreHost::ProcessManager { .. } | StoreHost::Pmix => {
                process_manager::find_master(config, begun.left())?
            }
            _ => (Master::resolve(&config.master_addr, config.master_port, begun.left())?, None),
        };
        let serves = config.store.is_rank_zero() && config.rank == 0 && !config.join;
        if serves && !store_config(config).authenticates() && !master.is_local_only() {
            tracing::warn!(
                master = %master,
                "no secret: anyone who can reach this port can join the job and read its store; \
                 set COMM_SECRET to the same random text on every rank"
            );
        }
        let server = match served {
            None if serves => Some(master.serve(&store_config(config))?),
            served => served,
        };
        let (store, address) = begun.connect(&master)?;
        Ok(Self { store, address: Some(master.seen_by_others(address)), server })
    }

    /// Returns whether this process serves the store.
    pub(crate) const fn is_served_here(&self) -> bool {
        self.server.is_some()
    }

    /// Leaves the store. The rank that serves it waits up to `wait` for the others to leave it, and
    /// then serves the rest in the background. Its address is immediately free for another store.
    fn close(self, wait: Duration) {
        drop(self.store);
        if let Some(server) = self.server {
            server.drain(wait, STORE_GRACE);
        }
    }
}

fn join(config: &Config) -> Result<Joined> {
    if config.join {
        let reason = "this program does not let processes join a running group; with `ElasticGroup` it would";
        return Err(Error::setting("join", "true", reason));
    }
    let begun = Begun::now(config, None);
    if config.world_size == 1 {
        let host = begun.communicator(TcpFabric::alone(&config.tcp)?)?;
        return Ok(Joined { host, transport: TransportInUse::Tcp, rendezvous: None });
    }
    loop {
        let rendezvous = RendezvousStore::open(&begun)?;
        match begun.run(&rendezvous) {
            Ok((host, transport)) => return Ok(Joined { host, transport, rendezvous: Some(rendezvous) }),
            // The store belonged to an earlier group at the same address.
            Err(Error::Handshake { refusal: Refusal::StoreClosing, .. }) if !begun.left().is_zero() => {}
            Err(error) => {
                rendezvous.close(STORE_WAIT);
                return Err(error);
            }
        }
    }
}

/// Connects to the other ranks as [`init_with`] does, and returns the store if this process serves
/// it.
pub(crate) fn init_with_store(config: &Config) -> Result<(Comm, Option<RendezvousStore>)> {
    let Joined { host, rendezvous, .. } = join(config)?;
    let store = rendezvous.filter(RendezvousStore::is_served_here);
    Ok((Comm::over(host).with_timeout(config.timeout), store))
}

pub(crate) fn store_config(config: &Config) -> StoreConfig {
    let mut store = StoreConfig::job(config.job).secret(config.secret.clone());
    #[cfg(feature = "tls")]
    store.tls.clone_from(&config.tcp.tls);
    (store.keepalive_timeout, store.checksums) = (config.tcp.keepalive_timeout, config.tcp.checksums);
    store.operation_timeout = store.operation_timeout.min(config.rendezvous_timeout);
    store
}

/// Adds the remedy to the error that no process listens where rank 0 should serve the store.
fn without_rank_0(error: Error) -> Error {
    match error {
        Error::Io { doing, source } if source.kind() == ErrorKind::ConnectionRefused => {
            let remedy = "start rank 0, which serves the store, or correct MASTER_ADDR and MASTER_PORT";
            Error::io(doing, io::Error::new(source.kind(), format!("{source}; {remedy}")))
        }
        other => other,
    }
}

/// A check that fails when a rendezvous can no longer succeed.
pub(crate) type Check = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// A rendezvous that has begun.
pub(crate) struct Begun<'a> {
    config: &'a Config,
    start: Instant,
    check: Option<Check>,
}

impl<'a> Begun<'a> {
    pub(crate) fn now(config: &'a Config, check: Option<Check>) -> Self {
        Self { config, start: Instant::now(), check }
    }

    /// Returns the rest of the rendezvous timeout.
    pub(crate) fn left(&self) -> Duration {
        self.config.rendezvous_timeout.saturating_sub(self.start.elapsed())
    }

    /// Returns a client of the store, and the address at which the store answered.
    fn connect(&self, master: &Master) -> Result<(Arc<dyn Store>, SocketAddr)> {
        let store = store_config(self.config);
        if self.config.store == StoreHost::TorchElastic {
            let store = TorchStore::connect_first(master.addresses(), store, self.left())?;
            let address = store.server_addr();
            return Ok((Arc::new(store), address));
        }
        let store = TcpStore::connect_first(master.addresses(), store, self.left()).map_err(|error| {
            match self.config.store {
                StoreHost::RankZero if !self.config.join => without_rank_0(error),
                _ => error,
            }
        })?;
        let address = store.server_addr();
        Ok((Arc::new(store), address))
    }

    /// Meets the other ranks, and returns the communicator of the group.
    pub(crate) fn meet(&self, rendezvous: &RendezvousStore) -> Result<Comm> {
        let (host, _) = self.run(rendezvous)?;
        Ok(Comm::over(host).with_timeout(self.config.timeout))
    }

    /// Meets the other ranks, and connects to them.
    fn run(&self, rendezvous: &RendezvousStore) -> Result<(Arc<dyn HostCommunicator>, TransportInUse)> {
        let (store, master) = (&*rendezvous.store, rendezvous.address);
        match self.config.transport {
            #[cfg(feature = "hybrid")]
            TransportKind::Auto => {
                let (rendezvous, fabric) = HybridFabric::join(store, &self.anywhere(master))?;
                let paths = fabric.paths().clone();
                Ok((finish(rendezvous, self.communicator(fabric))?, TransportInUse::Each(paths)))
            }
            #[cfg(not(feature = "hybrid"))]
            TransportKind::Auto => self.run_over_tcp(store, master),
            TransportKind::Tcp => self.run_over_tcp(store, master),
            #[cfg(feature = "shm")]
            TransportKind::SharedMemory => {
                let (rendezvous, fabric) = SharedMemoryFabric::join(store, &self.over_memory())?;
                Ok((finish(rendezvous, self.communicator(fabric))?, TransportInUse::SharedMemory))
            }
        }
    }

    fn run_over_tcp(
        &self,
        store: &dyn Store,
        master: Option<SocketAddr>,
    ) -> Result<(Arc<dyn HostCommunicator>, TransportInUse)> {
        let (rendezvous, fabric) = TcpFabric::join(store, &self.over_tcp(master))?;
        Ok((finish(rendezvous, self.communicator(fabric))?, TransportInUse::Tcp))
    }

    fn member(&self) -> Member {
        let config = self.config;
        let mut member = Member::new(Membership { rank: config.rank, size: config.world_size });
        (member.job, member.round, member.timeout) = (config.job, config.round, self.left());
        member.store_rank = config.store.is_rank_zero().then_some(0);
        member.check.clone_from(&self.check);
        member
    }

    #[cfg(feature = "hybrid")]
    fn anywhere(&self, master: Option<SocketAddr>) -> comm_hybrid::RendezvousConfig {
        let mut rendezvous = comm_hybrid::RendezvousConfig::from(self.over_tcp(master));
        rendezvous.shm = self.config.shm.clone();
        rendezvous.host_id.clone_from(&self.config.host_id);
        rendezvous
    }

    #[cfg(feature = "shm")]
    fn over_memory(&self) -> comm_shm::RendezvousConfig {
        let mut rendezvous = comm_shm::RendezvousConfig::from(self.member());
        rendezvous.host_id.clone_from(&self.config.host_id);
        rendezvous.shm = self.config.shm.clone();
        rendezvous
    }

    fn over_tcp(&self, master: Option<SocketAddr>) -> RendezvousConfig {
        let config = self.config;
        let mut rendezvous = RendezvousConfig::from(self.member());
        rendezvous.secret.clone_from(&config.secret);
        rendezvous.store = master;
        rendezvous.interface.clone_from(&config.interface);
        rendezvous.bind = config.bind;
        rendezvous.advertise = config.advertise;
        rendezvous.ports.clone_from(&config.ports);
        rendezvous.tcp = config.tcp.clone();
        rendezvous
    }

    fn communicator(&self, fabric: impl Fabric + 'static) -> Result<Arc<dyn HostCommunicator>> {
        Ok(Arc::new(RingCommunicator::new(fabric, ring(self.config), self.left())?))
    }
}

/// Completes the rendezvous when all ranks have a communicator; if one has failed to create it,
/// fails on all ranks.
fn finish(
    rendezvous: Rendezvous<'_>,
    host: Result<Arc<dyn HostCommunicator>>,
) -> Result<Arc<dyn HostCommunicator>> {
    let host = host.map_err(|error| rendezvous.fail(error))?;
    rendezvous.finish()?;
    Ok(host)
}

/// Returns the options of the algorithms, with the sink that writes records and the registry of
/// communicators that are observed.
fn ring(config: &Config) -> RingConfig {
    #[cfg_attr(not(feature = "flight"), expect(unused_mut, reason = "there is no sink"))]
    let mut ring = config.ring.clone();
    #[cfg(feature = "flight")]
    if let (None, Some(folder)) = (&ring.flight_sink, &config.flight_dir) {
        ring.flight_sink = Some(crate::flight::Origin::of(config).sink(folder.clone()));
    }
    #[cfg(feature = "monitor")]
    if ring.registry.is_none() && config.monitor {
        ring.registry = crate::monitor::start(config);
    }
    ring
}
