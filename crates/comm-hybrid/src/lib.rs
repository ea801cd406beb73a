//! Shared memory within a host and TCP between hosts, as one transport of the comm collective
//! communication library.
//!
//! [`HybridFabric::rendezvous`] forms a group of ranks from processes that share a store, and
//! determines which of them are on the same host. A channel is a [`HybridTransport`], which routes
//! per peer: through shared memory if both ranks can share it, and otherwise through a socket. A
//! channel whose ranks are all on one host has no sockets, and one whose ranks are all on different
//! hosts has no shared memory; neither costs more than the transport that it uses.
//!
//! With the feature `nccl`, a `HybridCommunicator` combines a communicator for host buffers with
//! one for device buffers. The latter is an NCCL communicator, or a `StagedCommunicator`, which
//! copies the buffers through the host.
//!
//! The ranks decide once, at the rendezvous, which of them share memory. [`HybridFabric::paths`]
//! returns the transport to each rank, and [`HybridFabric::obstacle`] the reason why this rank
//! cannot share memory; both are logged. The decision never changes.
//!
//! | question | file |
//! |---|---|
//! | how do ranks find each other | `rendezvous.rs` |
//! | by which transport is each rank reached | `paths.rs` |
//! | how is a channel connected | `fabric.rs` |
//! | how do bytes move, and what wakes a sleeping rank | `transport.rs`, `both.rs` |
//! | which path do device buffers take | `device/{config,local_device,agreement}.rs` |
//! | how are they copied through the host | `device/staging/` |
//! | how do both communicators of a group fail together | `device/failure_link.rs`, `device/guard.rs` |
//!
//! # Example
//!
//! Two ranks, here threads, connect and exchange a byte each way. The bytes go through shared
//! memory because both ranks are on this host.
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
//!     let config = RendezvousConfig::new(Membership { rank, size: 2 });
//!     let fabric = HybridFabric::rendezvous(store, &config)?;
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
//! let address = server.local_addr();
//! let store = TcpStore::connect(address, StoreConfig::default(), Duration::from_secs(10))?;
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
