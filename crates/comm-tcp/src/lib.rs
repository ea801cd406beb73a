//! TCP transport, store and rendezvous of the comm collective communication library.
#![forbid(unsafe_code)]

mod config;
mod dial;
mod handshake;
mod hello;
mod secret;
mod socket;
mod store;

pub use config::{Congestion, Keepalive, TcpConfig};
pub use secret::Secret;
pub use store::{StoreConfig, TcpStore, TcpStoreServer};
