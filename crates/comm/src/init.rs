//! Meeting the other ranks.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use comm_core::{Comm, Error, Lanes, Result, Store};
#[cfg(feature = "hybrid")]
use comm_hybrid::{HybridLanes, Path, Paths};
use comm_ring::RingCommunicator;
#[cfg(feature = "shm")]
use comm_shm::SharedMemoryLanes;
use comm_tcp::{RendezvousConfig, StoreConfig, TcpLanes, TcpStore, TcpStoreServer, TorchStore};

use crate::{Config, StoreHost, TransportKind};

/// How long rank 0 keeps the store up after a failed meeting, so that the others learn why from it.
const STORE_LINGER: Duration = Duration::from_secs(2);

/// Meets the other ranks as the environment says, and returns the group of all of them.
///
/// # Errors
/// As [`Config::from_env`] and [`init_with`].
pub fn init() -> Result<Comm> {
    init_with(&Config::from_env()?)
}

/// Meets the other ranks and returns the group of all of them. Every rank calls this.
///
/// # Errors
/// [`Error::Timeout`] naming the ranks that did not come before the deadline; [`Error::Handshake`] if ranks disagree
/// about job, size, ranks or secret; [`Error::Invalid`] for settings that cannot be; [`Error::Io`] if the store can
/// be neither served nor reached.
pub fn init_with(config: &Config) -> Result<Comm> {
    join(config).map(|(comm, _)| comm)
}

/// Meets the other ranks as [`init_with`] does, and tells in which way they reach each other.
///
/// # Errors
/// As [`init_with`].
#[cfg(feature = "hybrid")]
pub fn init_with_paths(config: &Config) -> Result<(Comm, Paths)> {
    let (comm, reach) = join(config)?;
    let all = |path| Paths::all(config.rank, config.world_size, path);
    let paths = match reach {
        Reach::Tcp => all(Path::Tcp),
        Reach::SharedMemory => all(Path::SharedMemory),
        Reach::Each(paths) => paths,
    };
    Ok((comm, paths))
}

/// In which way the ranks that have met reach each other.
enum Reach {
    Tcp,
    #[cfg(feature = "shm")]
    SharedMemory,
    #[cfg(feature = "hybrid")]
    Each(Paths),
}

fn join(config: &Config) -> Result<(Comm, Reach)> {
    let start = Instant::now();
    if config.world_size == 1 {
        let comm = communicator(TcpLanes::alone(&config.tcp)?, config, start)?;
        return Ok((comm, Reach::Tcp));
    }
    let master = config.master()?;
    let server = serve(config, master)?;
    let met = meet(config, master, start);
    if let (Some(server), true) = (server, met.is_err()) {
        server.drain(STORE_LINGER);
    }
    met
}

fn store_config(config: &Config) -> StoreConfig {
    StoreConfig::job(config.job).secret(config.secret.clone())
}

/// Serves the store, if that is this rank's duty. It is not needed once the lanes are open.
fn serve(config: &Config, master: SocketAddr) -> Result<Option<TcpStoreServer>> {
    if config.store != StoreHost::RankZero || config.rank != 0 {
        return Ok(None);
    }
    TcpStoreServer::bind(master, store_config(config)).map(Some).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::AddrNotAvailable => Error::setting(
            "MASTER_ADDR",
            &config.master_addr,
            "it is no address of the host on which rank 0 runs",
        ),
        other => other,
    })
}

/// A client of the store.
fn connect(config: &Config, master: SocketAddr) -> Result<Box<dyn Store>> {
    let (store, timeout) = (store_config(config), config.rendezvous_timeout);
    Ok(match config.store {
        StoreHost::TorchElastic => Box::new(TorchStore::connect(master, store, timeout)?),
        StoreHost::RankZero | StoreHost::Launcher => Box::new(TcpStore::connect(master, store, timeout)?),
    })
}

fn meet(config: &Config, master: SocketAddr, start: Instant) -> Result<(Comm, Reach)> {
    let store = connect(config, master)?;
    match config.transport {
        #[cfg(feature = "hybrid")]
        TransportKind::Auto => {
            let lanes = HybridLanes::rendezvous(&*store, &anywhere(config, master, start))?;
            let paths = lanes.paths().clone();
            Ok((communicator(lanes, config, start)?, Reach::Each(paths)))
        }
        TransportKind::Tcp => {
            let lanes = TcpLanes::rendezvous(&*store, &over_tcp(config, master, start))?;
            Ok((communicator(lanes, config, start)?, Reach::Tcp))
        }
        #[cfg(feature = "shm")]
        TransportKind::SharedMemory => {
            let lanes = SharedMemoryLanes::rendezvous(&*store, &over_memory(config, start))?;
            Ok((communicator(lanes, config, start)?, Reach::SharedMemory))
        }
    }
}

#[cfg(feature = "hybrid")]
fn anywhere(config: &Config, master: SocketAddr, start: Instant) -> comm_hybrid::RendezvousConfig {
    let mut rendezvous = comm_hybrid::RendezvousConfig::from(over_tcp(config, master, start));
    rendezvous.shm = config.shm.clone();
    rendezvous.part.clone_from(&config.host_part);
    rendezvous
}

#[cfg(feature = "shm")]
fn over_memory(config: &Config, start: Instant) -> comm_shm::RendezvousConfig {
    let mut rendezvous = comm_shm::RendezvousConfig::new(config.rank, config.world_size);
    rendezvous.job = config.job;
    rendezvous.round = config.round;
    rendezvous.timeout = left(config, start);
    rendezvous.part.clone_from(&config.host_part);
    rendezvous.shm = config.shm.clone();
    rendezvous
}

fn over_tcp(config: &Config, master: SocketAddr, start: Instant) -> RendezvousConfig {
    let mut rendezvous = RendezvousConfig::new(config.rank, config.world_size);
    rendezvous.job = config.job;
    rendezvous.round = config.round;
    rendezvous.secret.clone_from(&config.secret);
    rendezvous.timeout = left(config, start);
    rendezvous.store = Some(master);
    rendezvous.interface.clone_from(&config.interface);
    rendezvous.bind = config.bind;
    rendezvous.tcp = config.tcp.clone();
    rendezvous
}

fn communicator(lanes: impl Lanes + 'static, config: &Config, start: Instant) -> Result<Comm> {
    let communicator = RingCommunicator::new(lanes, config.ring.clone(), left(config, start))?;
    Ok(Comm::new(communicator).with_timeout(config.timeout))
}

/// What is left of the time to meet.
fn left(config: &Config, start: Instant) -> Duration {
    config.rendezvous_timeout.saturating_sub(start.elapsed())
}
