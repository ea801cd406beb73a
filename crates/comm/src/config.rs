//! Everything that can be said about meeting the other ranks.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use comm_core::{DEFAULT_TIMEOUT, Group, GroupId, Membership, Result};
use comm_ring::RingConfig;
use comm_tcp::{Secret, TcpConfig};

use crate::env::Environment;

/// Who serves the store in which ranks find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StoreHost {
    /// Rank 0, at the master address.
    #[default]
    RankZero,
    /// Somebody else, who was there before the ranks: the launcher. Every rank is a client.
    Launcher,
    /// The agent of torchrun, or another program in which PyTorch's `TCPStore` is served. Every rank is a client, in
    /// PyTorch's protocol. That store knows no secrets; between ranks, `secret` matters as always.
    TorchElastic,
}

/// How ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TransportKind {
    /// Shared memory between ranks that can share some, sockets between all others. A rank that can share none, as
    /// where `/proc` is not mounted, is reached through sockets, and says so in its log. Without the feature `hybrid`
    /// this is [`TransportKind::Tcp`].
    #[default]
    Auto,
    /// Sockets, wherever the ranks are.
    Tcp,
    /// Shared memory. All ranks must be on one host, in containers that share its network namespace if in any. Ranks
    /// that cannot share memory are an error.
    #[cfg(feature = "shm")]
    SharedMemory,
}

/// Who this process is and how it meets the others: what the environment says, in a struct.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// This process's rank, below `world_size`.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This process's number among those on its host.
    pub local_rank: usize,
    /// The number of ranks on this host.
    pub local_world_size: usize,
    /// The host, name or address, at which the store is served. Not needed in a world of one.
    pub master_addr: String,
    /// The port at which the store is served.
    pub master_port: u16,
    /// Who serves the store.
    pub store: StoreHost,
    /// Tells this job from others: processes of another job are refused.
    pub job: u64,
    /// Which meeting of the job this is. Ranks that meet once more in the same store count up, all alike, so that
    /// none takes what an earlier meeting left there for its own.
    pub round: u64,
    /// A shared secret without which nobody takes part.
    pub secret: Option<Secret>,
    /// The network interfaces whose address the other ranks may be told, in NCCL's syntax: `eth` (prefix), `=eth0`
    /// (exactly), `^docker` (all but), and lists with commas. By default the one that leads to the master.
    pub interface: Option<String>,
    /// The address to listen on, if it is not the one that the others are told.
    pub bind: Option<IpAddr>,
    /// The ports to listen on for other ranks over TCP, one per rank of a host; `None` lets the system choose. The port of
    /// the store is `master_port`.
    pub ports: Option<RangeInclusive<u16>>,
    /// How long to wait for the other ranks.
    pub rendezvous_timeout: Duration,
    /// How long a collective may take, unless the call says otherwise.
    pub timeout: Duration,
    /// How ranks reach each other. Equal on every rank.
    pub transport: TransportKind,
    /// Names a part of this host: ranks that give another name, or none, do not share memory with this one, as if they
    /// were on another host.
    #[cfg(feature = "shm")]
    pub host_part: Option<String>,
    /// Sockets.
    pub tcp: TcpConfig,
    /// Rings in shared memory.
    #[cfg(feature = "shm")]
    pub shm: comm_shm::SharedMemoryConfig,
    /// Algorithms.
    pub ring: RingConfig,
    /// Buffers on devices, for [`init_devices_with`](crate::init_devices_with): by NCCL unless this says otherwise. The device is that of
    /// `local_rank` unless this names another one, and the time to connect is that of `rendezvous_timeout`.
    #[cfg(feature = "nccl")]
    pub devices: comm_hybrid::DeviceConfig,
}

impl Config {
    /// A rank of a world on one host, whose rank 0 serves the store at `master_addr:master_port`.
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
            secret: None,
            interface: None,
            bind: None,
            ports: None,
            rendezvous_timeout: DEFAULT_TIMEOUT,
            timeout: DEFAULT_TIMEOUT,
            transport: TransportKind::default(),
            #[cfg(feature = "shm")]
            host_part: None,
            tcp: TcpConfig::default(),
            #[cfg(feature = "shm")]
            shm: comm_shm::SharedMemoryConfig::default(),
            ring: RingConfig::default(),
            #[cfg(feature = "nccl")]
            devices: comm_hybrid::DeviceConfig::default(),
        })
    }

    #[doc = include_str!("env/variables.md")]
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) naming the variable and what is wrong with it: [`Invalid::Variable`](crate::Invalid::Variable)
    /// if it is missing, empty, not text or misspelt, [`Invalid::Setting`](crate::Invalid::Setting) if its value cannot
    /// be used.
    pub fn from_env() -> Result<Self> {
        crate::env::config(&Environment::of_process())
    }

    /// Returns whether a launcher has started this process, with usable variables or not. A program that starts its own
    /// ranks asks this first. It is false in a batch script of Slurm, whose `SLURM_PROCID` is no rank, and true in the
    /// tasks that `srun` starts.
    #[must_use]
    pub fn is_launched() -> bool {
        crate::env::is_launched(&Environment::of_process())
    }
}
