//! The configuration of a rank.

use std::ffi::OsString;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use comm_core::{DEFAULT_TIMEOUT, Group, GroupId, Membership, Result};
use comm_ring::RingConfig;
use comm_tcp::{Secret, StoreConfig, TcpConfig};

use crate::env::Environment;

/// The store in which ranks find each other: the process that serves it, or a folder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StoreHost {
    /// Rank 0, at the master address.
    #[default]
    RankZero,
    /// Rank 0. The ranks exchange its address through the process manager of MPICH or Intel MPI, in
    /// the first rendezvous of a process; the master address is not used. A program that also calls
    /// `MPI_Init` cannot use this, because it works once in a process.
    ProcessManager {
        /// The descriptor of the socket to the process manager, `PMI_FD`.
        descriptor: RawFd,
    },
    /// Rank 0. The ranks exchange its address through PMIx, the process manager of Open MPI, whose
    /// library `libpmix.so.2` is loaded, in the first rendezvous of a process; the master address
    /// is not used. A program that also calls `MPI_Init` has to call it before.
    Pmix,
    /// The launcher, which serves the store before it starts the ranks. Every rank is a client.
    Launcher,
    /// The agent of torchrun, or another program that serves PyTorch's `TCPStore`. Every rank is a
    /// client, in PyTorch's protocol. That store has no authentication; connections between ranks
    /// still use `secret`.
    TorchElastic,
    /// A folder that all ranks can access, in which each writes files
    /// ([`FileStore`](comm_tcp::FileStore)); it is created if it does not exist. No process serves
    /// a store, so a rank cannot detect that another one exited before they were connected, and
    /// waits until the deadline. A later rendezvous of the same ranks may reuse the folder.
    /// `secret` does not protect the files; only their owner can read them.
    Folder(PathBuf),
}

impl StoreHost {
    /// Returns whether rank 0 serves the store.
    pub(crate) const fn is_rank_zero(&self) -> bool {
        matches!(self, Self::RankZero | Self::ProcessManager { .. } | Self::Pmix)
    }
}

/// The transport between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TransportKind {
    /// Shared memory between ranks that can share memory, and TCP between all others. A rank that
    /// cannot share memory, for example because `/proc` is not mounted, uses TCP and logs the
    /// reason. Without the feature `hybrid` this is [`TransportKind::Tcp`].
    #[default]
    Auto,
    /// TCP between all ranks.
    Tcp,
    /// Shared memory between all ranks. They must run on one host, as one user, and in one network
    /// namespace; otherwise the rendezvous fails.
    #[cfg(feature = "shm")]
    SharedMemory,
}

/// The identity of this rank, the rendezvous and the transport: everything that
/// [`Config::from_env`] reads from the environment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The rank of this process, less than `world_size`.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The rank of this process among those on its host.
    pub local_rank: usize,
    /// The number of ranks on this host.
    pub local_world_size: usize,
    /// The name or address of the host that serves the store. Unused in a world of one rank, and if
    /// `store` is a folder.
    pub master_addr: String,
    /// The port at which the store is served.
    pub master_port: u16,
    /// The store in which ranks find each other.
    pub store: StoreHost,
    /// The id of this job. Processes with another id are rejected.
    pub job: u64,
    /// The number of the rendezvous within the job, equal on every rank. Ranks that repeat the
    /// rendezvous in the same store increase it, so that no rank reads keys of an earlier one.
    pub round: u64,
    /// Whether this process joins a group that runs already, instead of the first one. Only an
    /// [`ElasticGroup`](crate::ElasticGroup) admits such a process; its `rank` and `world_size` do
    /// not matter then.
    pub join: bool,
    /// The number by which the launcher finds this process among those that wait to join, so that
    /// it knows whether the group has any member left. By default, a launcher does not know it.
    pub join_id: Option<u64>,
    /// The shared secret that authenticates TCP connections and all their bytes. Equal on every
    /// rank. With the feature `tls`, [`TcpConfig`]`::tls` also encrypts them, and those of the
    /// store.
    pub secret: Option<Secret>,
    /// The network interfaces whose addresses this rank advertises, in NCCL's syntax: `eth`
    /// (prefix), `=eth0` (exact name), `^docker` (all except), and comma-separated lists. Ranks
    /// connect over the first one, and streams between hosts that need more also use the others.
    /// The default is the interface on the route to the master.
    pub interface: Option<String>,
    /// The address to listen on, if it differs from the advertised one.
    pub bind: Option<IpAddr>,
    /// The address at which others reach this rank, if it is not the interface's but a router's
    /// that forwards `ports` unchanged (NAT, or a container with published ports).
    pub advertise: Option<IpAddr>,
    /// The ports on which ranks listen for each other over TCP, one per rank of a host; `None` lets
    /// the system choose. The port of the store is `master_port`.
    pub ports: Option<RangeInclusive<u16>>,
    /// The timeout of the rendezvous.
    pub rendezvous_timeout: Duration,
    /// The timeout of a call, unless the call sets its own.
    pub timeout: Duration,
    /// The transport between ranks. Equal on every rank.
    pub transport: TransportKind,
    /// An id that divides this host (compare `NCCL_HOSTID`): two ranks with different ids, or only
    /// one of which has an id, do not share memory, as if they ran on different hosts.
    #[cfg(feature = "shm")]
    pub host_id: Option<String>,
    /// Options of the TCP transport.
    pub tcp: TcpConfig,
    /// Options of the shared memory transport.
    #[cfg(feature = "shm")]
    pub shm: comm_shm::SharedMemoryConfig,
    /// Options of the collective algorithms.
    pub ring: RingConfig,
    /// The folder in which this rank writes its last calls when a communicator fails; see
    /// [`flight`](crate::flight). It is created if it does not exist. A
    /// [`RingConfig::flight_sink`] takes precedence.
    #[cfg(feature = "flight")]
    pub flight_dir: Option<PathBuf>,
    /// Whether this rank answers `commctl top`; see [`monitor`](crate::monitor).
    #[cfg(feature = "monitor")]
    pub monitor: bool,
    /// Options for buffers on devices, for [`init_devices_with`](crate::init_devices_with). By
    /// default they use NCCL and the device of `local_rank`. The timeout to connect is
    /// `rendezvous_timeout`.
    #[cfg(feature = "nccl")]
    pub devices: comm_hybrid::DeviceConfig,
    /// [`Config::set_subgroup`].
    #[cfg(feature = "flight")]
    pub(crate) subgroup: Option<Subgroup>,
}

/// The place of a world in a larger one.
#[cfg(feature = "flight")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subgroup {
    pub(crate) id: GroupId,
    /// The ranks in the larger world.
    pub(crate) members: Vec<usize>,
}

impl Config {
    /// Creates the configuration of a rank in a world on one host, whose rank 0 serves the store at
    /// `master_addr:master_port`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the rank is not below the size.
    pub fn new(membership: Membership, master_addr: &str, master_port: u16) -> Result<Self> {
        Group::new(GroupId::WORLD, membership)?;
        let Membership { rank, size: world_size } = membership;
        Ok(Self {
            rank,
            world_size,
            local_rank: rank,
            local_world_size: world_size,
            master_addr: master_addr.into(),
            master_port,
            store: StoreHost::default(),
            job: 0,
            round: 0,
            join: false,
            join_id: None,
            secret: None,
            interface: None,
            bind: None,
            advertise: None,
            ports: None,
            rendezvous_timeout: DEFAULT_TIMEOUT,
            timeout: DEFAULT_TIMEOUT,
            transport: TransportKind::default(),
            #[cfg(feature = "shm")]
            host_id: None,
            tcp: TcpConfig::default(),
            #[cfg(feature = "shm")]
            shm: comm_shm::SharedMemoryConfig::default(),
            ring: RingConfig::default(),
            #[cfg(feature = "flight")]
            flight_dir: None,
            #[cfg(feature = "monitor")]
            monitor: true,
            #[cfg(feature = "nccl")]
            devices: comm_hybrid::DeviceConfig::default(),
            #[cfg(feature = "flight")]
            subgroup: None,
        })
    }

    /// Makes [records](crate::flight) and `commctl top` show this world as a group of a larger one,
    /// for programs in which each group is a world of its own, as a process group of PyTorch is.
    /// Without this, the records of such groups are taken for those of one world, and replace each
    /// other. `name` is equal on all ranks and differs from those of other groups; `members` has
    /// the rank of each in the larger world.
    ///
    /// # Errors
    /// [`Invalid::Length`](crate::Invalid::Length) if there are not as many members as ranks.
    #[cfg(feature = "flight")]
    pub fn set_subgroup(&mut self, name: &str, members: Vec<usize>) -> Result<()> {
        if members.len() != self.world_size {
            let (expected, got) = (self.world_size, members.len());
            return Err(comm_core::Invalid::Length { what: "the list of members", expected, got }.into());
        }
        self.subgroup = Some(Subgroup { id: GroupId(crate::env::fnv_1a(name.as_bytes())), members });
        Ok(())
    }

    #[doc = include_str!("env/variables.md")]
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) with the name of the variable:
    /// [`Invalid::Variable`](crate::Invalid::Variable) if it is missing, empty, not UTF-8 or
    /// misspelled, [`Invalid::Setting`](crate::Invalid::Setting) if its value cannot be used.
    pub fn from_env() -> Result<Self> {
        crate::env::config(&crate::env::introduced(Environment::of_process())?)
    }

    /// Returns the configuration of a rank whose place in its world is known, for
    /// [`init_over`](crate::init_over). The environment sets the options that do not depend on a
    /// launcher, such as `COMM_TRANSPORT`, `COMM_SECRET` and `COMM_TIMEOUT_S`.
    ///
    /// # Errors
    /// As [`Config::from_env`] and [`Config::new`].
    pub fn options_from_env(membership: Membership) -> Result<Self> {
        crate::env::options(membership, &Environment::of_process())
    }

    /// Returns the configuration of the store that a launcher serves for the ranks of a job, whose
    /// environment has these variables. `COMM_SECRET`, `COMM_TLS` and the files of its certificate
    /// apply to the store.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn launcher_store<N, V>(job: u64, variables: impl IntoIterator<Item = (N, V)>) -> Result<StoreConfig>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let mut config = crate::env::store_server(&variables.into_iter().collect())?;
        config.job = job;
        Ok(crate::init::store_config(&config))
    }

    /// Returns whether a launcher has started this process, even if its variables are unusable. A
    /// program that starts its own ranks calls this first. Returns false in a Slurm batch script,
    /// whose `SLURM_PROCID` is not a rank, and true in the tasks that `srun` starts.
    #[must_use]
    pub fn is_launched() -> bool {
        crate::env::is_launched(&Environment::of_process())
    }
}
