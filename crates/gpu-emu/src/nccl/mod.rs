//! NCCL on memory of the host.
//!
//! | question | file |
//! |---|---|
//! | how do ranks meet, as threads or as processes | `meeting.rs` |
//! | how do bytes get from rank to rank | `mesh.rs`, `wire.rs`, `mailbox.rs` |
//! | what does an operation send, to whom, and what does it make of what arrives | `operation.rs`, `run.rs` |
//! | how is anything reduced | `element.rs`, `reduction.rs` |
//! | what is a communicator, and in which state is it | `communicator.rs` |
//! | when does a group of calls begin | `group.rs` |
//! | which functions does a program call | `abi/` |
//!
//! The way through is the simplest one: every rank is connected with every other one, sends what
//! the other needs, and waits for what it needs itself. All ranks reduce in the order of their
//! numbers, so that they agree on every bit.

mod abi;
mod communicator;
mod element;
mod failure;
mod group;
mod mailbox;
mod meeting;
mod mesh;
mod operation;
mod reduction;
mod run;
mod wire;

pub(crate) use communicator::live as live_communicators;
pub(crate) use mailbox::waiting;
