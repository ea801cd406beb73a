//! NCCL in host memory.
//!
//! | subject | file |
//! |---|---|
//! | connections of ranks, as threads or as processes | `bootstrap.rs` |
//! | messages from rank to rank | `mesh.rs`, `wire.rs`, `mailbox.rs` |
//! | the messages of an operation, and its result | `operation.rs`, `run.rs` |
//! | reductions | `element.rs`, `reduction.rs` |
//! | communicators and their state | `communicator.rs` |
//! | groups of calls | `group.rs` |
//! | the exported functions | `abi/` |
//!
//! The algorithm is the simplest one: every rank is connected to every other one, sends the data
//! that the others need, and waits for the data that it needs. All ranks reduce in rank order, so
//! that their results are bitwise equal.

mod abi;
mod bootstrap;
mod communicator;
mod element;
mod failure;
mod group;
mod mailbox;
mod mesh;
mod operation;
mod reduction;
mod run;
mod wire;

pub(crate) use communicator::live as live_communicators;
pub(crate) use mailbox::waiting;
