//! Shared memory transport of the comm collective communication library, between processes of one host.
//!
//! [`SharedMemoryLanes::rendezvous`] makes the processes of a host that share a store a group of ranks, and opens lanes
//! between them. A lane is a [`SharedMemoryTransport`]: for every other rank two rings of shared memory, one per
//! direction. Ranks may also be threads of one process.
//!
//! While both sides are awake, a byte costs two copies and no system call. Of large pieces in memory that the lanes
//! gave out, the other side reads the bytes where they lie, which saves one of the copies; and so it does of any memory, with the
//! kernel's help, where the caller says that this pays ([`Transport::expose`](comm_core::Transport::expose)). A rank that sleeps says so in shared memory,
//! and is then woken through a Unix socket, which also shows at once when a process ends, however it ends.
//!
//! Nothing that a process shares has a name in a file system, so that nothing is left behind by any end of any
//! process. What is shared is specified to the byte in `docs/wire-shm.md`.
//!
//! | question | file |
//! |---|---|
//! | which processes can share memory | `host.rs`, `credentials.rs` |
//! | how do ranks find each other | `rendezvous.rs`, `record.rs` |
//! | how is a lane connected | `lanes.rs`, `mesh.rs`, `connect.rs`, `probe.rs`, `identity.rs`, `hello.rs`, `socket.rs`, and `comm-mesh` |
//! | how does the end of a process show | `socket.rs`, `process.rs` |
//! | what lies in the memory | `segment.rs`, `positions.rs` |
//! | how do bytes move | `transport.rs`, `peer.rs` and `peer/` |
//! | which memory is lent instead | `regions.rs`, `region.rs`, `loans.rs`, `lender.rs`, `borrower.rs` |
//! | which memory is read although it is not shared | `exposed.rs`, `remote.rs`, `peer/fetching.rs` |
//! | do they go through the caches | `route.rs`, `stream.rs` |
//! | how is a sleeper woken | `doze.rs`, and every order of both sides in `positions/interleavings.rs` |
//!
//! # Example
//!
//! Two ranks, here threads, meet and exchange a byte each way.
//!
//! ```
//! use std::io::IoSlice;
//! use std::time::{Duration, Instant};
//!
//! use comm_core::{Membership, GroupId, LaneId, LaneKind, Lanes, Result, Store, Transport};
//! use comm_shm::{RendezvousConfig, SharedMemoryLanes};
//!
//! fn rank(rank: usize, store: &dyn Store) -> Result<u8> {
//!     let lanes = SharedMemoryLanes::rendezvous(store, &RendezvousConfig::new(Membership { rank, size: 2 }))?;
//!     let lane = LaneId { group: GroupId::WORLD, kind: LaneKind::Collective };
//!     let mut transport = lanes.open(lane, Instant::now() + Duration::from_secs(10))?;
//!     let mut byte = [0];
//!     while transport.try_send(1 - rank, &[IoSlice::new(&[rank as u8])])? == 0 {}
//!     while transport.try_recv(1 - rank, &mut byte)? == 0 {}
//!     Ok(byte[0])
//! }
//! ```
#![deny(unsafe_code)]

mod borrower;
mod clock;
mod config;
mod connect;
mod credentials;
mod doze;
mod echo;
mod endpoint;
mod everywhere;
mod exposed;
mod hello;
mod host;
mod identity;
mod lanes;
mod lender;
mod loans;
mod mesh;
mod peer;
mod positions;
mod probe;
mod process;
mod random;
mod record;
mod region;
mod regions;
mod remote;
mod rendezvous;
mod route;
mod segment;
mod socket;
mod stream;
mod sync;
mod transport;

pub use comm_rendezvous::{Rendezvous, Settings};
pub use config::SharedMemoryConfig;
pub use endpoint::SharedMemoryEndpoint;
pub use host::{HostId, NoHostId};
pub use lanes::SharedMemoryLanes;
pub use rendezvous::RendezvousConfig;
pub use transport::SharedMemoryTransport;
