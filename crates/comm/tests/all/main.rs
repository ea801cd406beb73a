//! Tests of the public API, in one program, because it takes less time to build than one per file.

#[cfg(feature = "hybrid")]
mod auto;
#[cfg(feature = "tcp")]
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "tcp")]
mod environment;
#[cfg(feature = "tcp")]
mod groups;
#[cfg(feature = "hybrid")]
mod grow;
#[cfg(feature = "tcp")]
mod killed_in_init;
#[cfg(feature = "tcp")]
mod large;
#[cfg(feature = "tcp")]
mod launchers;
#[cfg(feature = "tcp")]
mod newcomers;
#[cfg(feature = "objects")]
mod objects;
#[cfg(feature = "tcp")]
mod point_to_point;
#[cfg(feature = "tcp")]
mod processes;
#[cfg(feature = "tcp")]
mod rendezvous;
#[cfg(feature = "shm")]
mod shm;
#[cfg(feature = "hybrid")]
mod shrink;
#[cfg(feature = "tcp")]
mod store_unavailable;
#[cfg(feature = "tcp")]
mod tcp;
