//! Everything that the `comm` library is tested with, and nothing that it needs to run.
//!
//! - [`in_process`]: ranks as threads of one process, over byte queues that can be made as awkward as a test likes;
//! - [`network`]: ranks as state machines in one thread, over a faulty network in virtual time, repeatable from a seed;
//! - [`verify`]: proves that a schedule computes what it should and cannot deadlock;
//! - [`cost`]: says how long a schedule takes under a model of the links, for thousands of ranks;
//! - [`mutate`]: checks that the verifier refuses every schedule that is wrong;
//! - [`conformance`]: one suite that every transport passes;
//! - [`hostile_bytes!`]: one test that every decoder of messages passes;
//! - [`exact`]: elements of every type whose reductions are exact;
//! - [`MemoryStore`]: a store of one process, which notices clients that are gone;
//! - [`AlteredFabric`], [`AlteredTransport`], [`AlteredStore`]: those of anybody, but for one thing.
//!
//! No algorithm is known here: a collective is an iterator of [`Step`](comm_core::Step)s, whoever wrote it.
#![forbid(unsafe_code)]

mod altered;
pub mod conformance;
pub mod cost;
mod endpoint;
pub mod exact;
pub mod hostile;
pub mod in_process;
mod memory_store;
pub mod mutate;
pub mod network;
mod queue;
mod random;
mod release;
mod threads;
pub mod verify;

pub use altered::{AlteredFabric, AlteredStore, AlteredTransport};
pub use memory_store::MemoryStore;
pub use release::Release;
pub use threads::run_each;

use queue::ByteQueue;
use release::revocation;
