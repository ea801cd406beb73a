//! TCP transport, store and rendezvous of the comm collective communication library.
#![forbid(unsafe_code)]

mod abort;
mod bell;
mod config;
mod dial;
mod handshake;
mod hello;
mod identity;
mod interface;
mod lanes;
mod mesh;
mod message;
mod peer;
mod read_ahead;
mod reception;
mod record;
mod rendezvous;
mod secret;
mod socket;
mod store;
mod throttle;
mod transport;

pub use config::{Congestion, Keepalive, TcpConfig};
pub use lanes::TcpLanes;
pub use rendezvous::RendezvousConfig;
pub use secret::Secret;
pub use store::{StoreConfig, TcpStore, TcpStoreServer};
pub use transport::TcpTransport;
