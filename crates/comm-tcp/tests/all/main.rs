//! Tests of the transport and its stores, in one program, because it takes less time to build than
//! one per file.

mod absent;
mod addresses;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod fabric;
mod file_store;
mod repeated_rendezvous;
mod store;
mod store_wills;
mod stripes;
mod torch;
mod virtual_time;
