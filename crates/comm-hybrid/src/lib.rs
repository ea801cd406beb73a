//! Shared memory within a host and TCP between hosts, as one transport of the comm collective communication library.
//!
//! [`HybridFabric::rendezvous`] makes the processes that share a store a group of ranks, and finds out which of them are
//! on one host. A channel is a [`HybridTransport`], which routes per peer: through shared memory where both ranks can share
//! some, through a socket elsewhere. A channel whose ranks are all on one host has no sockets, and one whose ranks are all
//! on different hosts no shared memory; neither costs more than what it is made of.
//!
//! With the feature `nccl`, a `HybridCommunicator` puts a communicator for buffers of the host and one for buffers of devices together.
//! The latter is NCCL's, or a `StagedCommunicator`, which takes the buffers through the host.
//!
//! Which ranks share memory is decided once, when they meet, and told: [`HybridFabric::paths`] says how this rank reaches
//! each other one, [`HybridFabric::obstacle`] why it can share no memory if that is so, and both are logged. Nobody changes
//! sides afterwards.
//!
//! | question | file |
//! |---|---|
//! | how do ranks find each other | `rendezvous.rs` |
//! | who is reached in which way | `paths.rs` |
//! | how is a channel connected | `fabric.rs` |
//! | how do bytes move, who is heard while one sleeps | `transport.rs`, `both.rs` |
//! | which way do buffers of devices take, and who decides | `device/config.rs`, `device/facts.rs`, `device/agreement.rs` |
//! | how do they go through the host | `device/staging/` |
//! | how do the two sides of a group fail together | `device/bond.rs`, `device/guard.rs` |
//!
//! # Example
//!
//! Two ranks, here threads, meet and exchange a byte each way, through shared memory as both are on this host.
//!
//! ```
//! use std::io::IoSlice;
//! use std::time::{Duration, Instant};
//!
//! use comm_core::{Membership, GroupId, ChannelId, ChannelKind, Fabric, Result, Transport};
//! use comm_hybrid::{HybridFabric, Path, RendezvousConfig};
//! use comm_tcp::{StoreConfig, TcpStore, TcpStoreServer};
//!
//! fn rank(rank: usize, store: &TcpStore) -> Result<u8> {
//!     let fabric = HybridFabric::rendezvous(store, &RendezvousConfig::new(Membership { rank, size: 2 }))?;
//!     assert_eq!(fabric.paths().to(1 - rank), Some(Path::SharedMemory));
//!     let channel = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };
//!     let mut transport = fabric.open(channel, Instant::now() + Duration::from_secs(10))?;
//!     let mut byte = [0];
//!     while transport.try_send(1 - rank, &[IoSlice::new(&[rank as u8])])? == 0 {}
//!     while transport.try_recv(1 - rank, &mut byte)? == 0 {}
//!     Ok(byte[0])
//! }
//!
//! # fn main() -> Result<()> {
//! let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), StoreConfig::default())?;
//! let store = TcpStore::connect(server.local_addr(), StoreConfig::default(), Duration::from_secs(10))?;
//! std::thread::scope(|scope| {
//!     let other = scope.spawn(|| rank(1, &store));
//!     assert_eq!(rank(0, &store)?, 1);
//!     assert_eq!(other.join().unwrap()?, 0);
//!     Ok(())
//! })
//! # }
//! ```
#![forbid(unsafe_code)]

mod both;
#[cfg(feature = "nccl")]
mod device;
mod fabric;
mod paths;
mod rendezvous;
mod transport;

#[cfg(feature = "nccl")]
pub use device::{DeviceChoice, DeviceConfig, DevicePath, HybridCommunicator, StagedCommunicator};
pub use fabric::HybridFabric;
pub use paths::{Path, Paths};
pub use rendezvous::RendezvousConfig;
pub use transport::HybridTransport;
