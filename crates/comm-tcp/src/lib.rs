//! TCP transport, store and rendezvous of the comm collective communication library.
//!
//! It has three parts, which use each other only through the traits of `comm-core`:
//!
//! - [`TcpStoreServer`] and [`TcpStore`]: a key-value store through which the processes of a job
//!   find each other; [`TorchStore`] is a client of PyTorch's store, for processes that torchrun
//!   has started; [`FileStore`] is a store in a folder;
//! - [`TcpFabric::rendezvous`]: makes a group of ranks of the processes that share a store, and
//!   returns a fabric, which opens channels between them;
//! - [`TcpTransport`]: one channel, with one or more sockets to every other rank.
//!
//! The protocol is specified to the byte in `docs/wire-tcp.md`. A connection begins with a
//! handshake of fixed length, which includes a proof of the shared [`Secret`] if there is one.
//! Until the handshake is complete, only a few hundred bytes are allocated for a connection.
//! Connections that fail it are rejected with a warning and do not affect peers.
//!
//! Every wait has a deadline, and the error at the deadline names the ranks that are missing. The
//! only background thread is that of the store's server.
//!
//! | question | file |
//! |---|---|
//! | how does a connection begin | `handshake.rs`, `hello.rs`, `secret.rs` |
//! | when does a connect time out or try again | `connect.rs` |
//! | what do ranks publish | `rendezvous.rs`, `endpoint.rs`, `record.rs`, `interface.rs` |
//! | how is a channel connected | `fabric.rs`, `mesh.rs`, `accept.rs`, `connect.rs`, `probe.rs`, `identity.rs`, and `comm-mesh` |
//! | how do bytes move | `transport.rs`, `peer.rs`, `connection.rs`, `stripes/`, `read_ahead.rs` |
//! | how does a stream get more sockets | `growth.rs`, `outgoing.rs`, `added.rs` |
//! | how are bytes checked | `protection/` |
//! | how are bytes encrypted | `tls/` |
//! | how is a socket set up | `config.rs`, `socket.rs` |
//! | when is a host lost that does not answer | `keepalive.rs`, `tcp_info.rs` |
//! | how does the store work | `store/` |
//!
//! # Example
//!
//! Two ranks connect and exchange a byte in each direction.
//!
//! ```
//! use std::io::IoSlice;
//! use std::time::{Duration, Instant};
//!
//! use comm_core::{Membership, GroupId, ChannelId, ChannelKind, Fabric, Result, Transport};
//! use comm_tcp::{RendezvousConfig, StoreConfig, TcpFabric, TcpStore, TcpStoreServer};
//!
//! fn rank(rank: usize, store: &TcpStore) -> Result<u8> {
//!     let fabric = TcpFabric::rendezvous(store, &RendezvousConfig::new(Membership { rank, size: 2 }))?;
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

mod accept;
mod added;
mod ask;
mod config;
mod congestion;
mod connect;
mod connection;
mod endpoint;
mod fabric;
mod growth;
mod handshake;
mod hello;
mod identity;
mod interface;
mod keepalive;
mod mesh;
mod message;
mod outgoing;
mod peer;
mod probe;
mod protection;
mod read_ahead;
mod record;
mod rendezvous;
mod secret;
mod socket;
mod store;
mod stripes;
mod tcp_info;
mod tls;
mod transport;

pub use comm_rendezvous::{
    Admission, Admissions, Admitted, ElasticGroup, GroupConnector, GrowOptions, ListId, Member, Rendezvous,
    Settings, WaitList, WaitingProcess,
};
pub use config::{Congestion, TcpConfig};
pub use endpoint::TcpEndpoint;
pub use fabric::TcpFabric;
pub use interface::{outward_address, own_addresses};
pub use rendezvous::RendezvousConfig;
pub use secret::Secret;
pub use store::{FileStore, StoreConfig, TcpStore, TcpStoreServer, TorchStore};
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsFiles};
pub use transport::TcpTransport;
