//! Test support for the `comm` library, which does not depend on it at run time.
//!
//! - [`in_process`]: ranks as threads of one process, over byte queues with adjustable
//!   capacity and delays;
//! - [`network`]: ranks as state machines in one thread, over a faulty network in virtual time,
//!   reproducible from a seed;
//! - [`swarm`]: a whole program on a faulty network, drawn from seeds, with the properties that
//!   must hold in every run;
//! - [`verify`]: proves that a schedule computes the right result and cannot deadlock;
//! - [`cost`]: predicts the time of a schedule under a model of the links, for thousands of ranks;
//! - [`mutate`]: checks that the verifier rejects every wrong schedule;
//! - [`conformance`]: a test suite that every transport must pass;
//! - [`mod@communicator_conformance`]: a test suite that every communicator must pass;
//! - [`kernels_conformance`]: a test suite that the kernels of every kind of memory must pass;
//! - [`hostile_bytes!`]: a test that every decoder of messages must pass;
//! - [`hostile_input!`]: a test of what has a state against the decisions of a hostile peer;
//! - [`exact`]: elements of every type whose reductions are exact;
//! - [`MemoryStore`]: a store within one process, which executes last wills;
//! - [`AlteredFabric`], [`SharingFabric`], [`AlteredTransport`], [`AlteredStore`]: wrappers that
//!   replace one operation.
//!
//! No algorithm is defined here: a collective is an iterator of [`Step`](comm_core::Step)s from any
//! source.
#![deny(unsafe_code)]

mod altered;
pub mod communicator_conformance;
pub mod conformance;
pub mod cost;
mod endpoint;
pub mod exact;
pub mod hostile;
pub mod in_process;
pub mod kernels_conformance;
mod memory_store;
pub mod mutate;
pub mod network;
mod queue;
mod random;
mod release;
mod store_table;
pub mod swarm;
mod threads;
pub mod verify;

pub use altered::{Alteration, AlteredFabric, AlteredStore, AlteredTransport, SharingFabric};
pub use memory_store::MemoryStore;
pub use release::Release;
pub use threads::run_each;

use queue::ByteQueue;
use release::revocation;
