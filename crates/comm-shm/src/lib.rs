//! Shared memory transport of the comm collective communication library, between processes of one
//! host.
//!
//! [`SharedMemoryFabric::rendezvous`] makes a group of ranks of the processes of a host that share
//! a store. The fabric that it returns opens channels between them. A channel is a
//! [`SharedMemoryTransport`]: two rings of shared memory for every other rank, one per direction.
//! Ranks may also be threads of one process.
//!
//! While both sides are awake, each byte is copied twice, without a system call. Receivers read
//! large pieces of memory from [`Fabric::allocate`](comm_core::Fabric::allocate) in place, which
//! saves one of the copies. They read other memory that the caller has registered
//! ([`Transport::register`](comm_core::Transport::register)) by cross-memory attach. A rank sets a
//! flag in shared memory before it sleeps, and is woken through a Unix socket, which also shows
//! immediately when a process exits.
//!
//! All shared memory is anonymous, so processes leave nothing behind however they exit. Its layout
//! is specified to the byte in `docs/wire-shm.md`.
//!
//! | question | file |
//! |---|---|
//! | which processes can share memory | `host.rs`, `credentials.rs` |
//! | how do ranks find each other | `rendezvous.rs`, `record.rs` |
//! | how is a channel connected | `fabric.rs`, `mesh.rs`, `connect.rs`, `probe.rs`, `identity.rs`, `hello.rs`, `socket.rs`, and `comm-mesh` |
//! | how is the exit of a process noticed | `socket.rs`, `process.rs` |
//! | what is in the shared memory | `segment.rs`, `positions.rs`, `fast_boxes.rs` |
//! | how do bytes move | `transport.rs`, `peer.rs` and `peer/` |
//! | which memory is read in place | `regions.rs`, `region.rs`, `descriptors.rs`, `exporter.rs`, `region_cache.rs` |
//! | which memory is read by cross-memory attach | `registered.rs`, `cma.rs`, `peer/cma.rs` |
//! | are bytes copied with ordinary or non-temporal stores | `copy_path.rs` |
//! | how is a sleeper woken | `wakeup.rs`; `positions/interleavings.rs` tests every interleaving of both sides |
//!
//! # Example
//!
//! Two ranks connect and exchange a byte in each direction.
//!
//! ```
//! use std::io::IoSlice;
//! use std::time::{Duration, Instant};
//!
//! use comm_core::{Membership, GroupId, ChannelId, ChannelKind, Fabric, Result, Store, Transport};
//! use comm_shm::{RendezvousConfig, SharedMemoryFabric};
//!
//! fn rank(rank: usize, store: &dyn Store) -> Result<u8> {
//!     let fabric = SharedMemoryFabric::rendezvous(store, &RendezvousConfig::new(Membership { rank, size: 2 }))?;
//!     let channel = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };
//!     let mut transport = fabric.open(channel, Instant::now() + Duration::from_secs(10))?;
//!     let mut byte = [0];
//!     while transport.try_send(1 - rank, &[IoSlice::new(&[rank as u8])])? == 0 {}
//!     while transport.try_recv(1 - rank, &mut byte)? == 0 {}
//!     Ok(byte[0])
//! }
//! ```
#![deny(unsafe_code)]

mod ask;
mod cache;
mod cma;
mod config;
mod connect;
mod copy_path;
mod credentials;
mod descriptors;
mod endpoint;
mod exporter;
mod fabric;
mod fast_boxes;
mod heap;
mod hello;
mod host;
mod identity;
mod membarrier;
mod mesh;
mod peer;
mod positions;
mod prefetch;
#[doc(hidden)]
pub mod preload;
mod probe;
mod process;
mod record;
mod region;
mod region_cache;
mod regions;
mod registered;
mod rendezvous;
mod segment;
mod socket;
mod sync;
mod transport;
mod wakeup;
mod window;

pub use comm_rendezvous::{Member, Rendezvous, Settings};
pub use config::SharedMemoryConfig;
pub use endpoint::SharedMemoryEndpoint;
pub use fabric::SharedMemoryFabric;
pub use heap::{Heap, HeapUsage};
pub use host::{HostId, ParseHostIdError};
pub use rendezvous::RendezvousConfig;
pub use transport::SharedMemoryTransport;
