//! Connects the ranks of a group with each other, for the transports of the comm collective
//! communication library.
//!
//! A transport supplies three things, and this crate does the rest:
//!
//! - [`Accept`]: accepts a connection and authenticates it. An [`Acceptor`] drives it: it limits
//!   the number of unauthenticated connections and the time of their handshakes, and never lets
//!   them use up the file descriptors of the process. The store of `comm-tcp` uses it too.
//! - [`Connect`]: connects to one peer, with retries.
//! - [`LivenessProbe`]: detects that a peer from which a connection is expected has exited.
//!
//! [`Protocol`] combines them. A [`Mesh`] then opens channels: a rank connects to the members whose
//! world ranks are below its own, and accepts connections from those with higher ones. An
//! [`Opening`] is a channel that is being opened; [`complete`] waits for one, or for two together
//! as a tuple.
//!
//! In a channel of many ranks, connections are made when they are first used
//! ([`Registration::request`]), by a thread of the mesh. Small meshes have no thread: the threads
//! that open channels accept connections for each other, and so do those that use a channel whose
//! transport keeps its [`Registration`].
//!
//! | question | file |
//! |---|---|
//! | how many connections may be pending, and which one is closed first | `pending.rs` |
//! | how is a connection accepted | `acceptor.rs` |
//! | where does it wait until its channel is opened on this rank | `accept_queue.rs` |
//! | how is a channel opened | `mesh.rs`, `opening.rs`, `connect.rs` |
//! | how is a connection made when it is first used | `on_demand.rs`, `dialer.rs` |
//! | how does a thread wait | `poll.rs` |
//! | how does a channel tell the time at almost no cost | `coarse_clock.rs` |
#![forbid(unsafe_code)]

mod accept_queue;
mod acceptor;
mod coarse_clock;
mod connect;
mod dialer;
mod mesh;
mod on_demand;
mod opening;
mod pending;
mod poll;
mod rate_limit;
#[cfg(test)]
mod testing;

pub use accept_queue::{Added, Registration};
pub use acceptor::{Accept, Acceptor, HandshakeState, Limits, PendingConn};
pub use coarse_clock::CoarseClock;
pub use connect::{Backoff, ConnId, Connect, LivenessProbe};
pub use mesh::{ASK_INDEX, ConnectedChannel, Destination, Mesh, Protocol};
pub use opening::{Opening, complete};
pub use pending::{descriptor_limit, pending_max};
pub use poll::{deadline_after, timespec, wait, wait_for};
pub use rate_limit::RateLimit;
