//! Collectives for the `comm` library: schedules, their executor, and a communicator over any
//! transport.
//!
//! A collective is *described* by a schedule ([`schedule`]), *executed* by one executor and *moved*
//! by a [`Transport`](comm_core::Transport) that this crate knows nothing about.
//! [`RingCommunicator`] combines the three: it selects the algorithm, waits, and reports failures
//! as errors that name the rank that caused them.
//!
//! # A transport of your own
//!
//! Implement [`Transport`](comm_core::Transport), which moves bytes without blocking, and
//! [`Fabric`](comm_core::Fabric), which opens transports; every collective, message and group then
//! runs over them:
//!
//! ```
//! use std::time::Duration;
//!
//! use comm_core::{Comm, Fabric, ReduceOp, Result};
//! use comm_ring::{RingCommunicator, RingConfig};
//!
//! fn sum_of_ranks(fabric: impl Fabric + 'static) -> Result<usize> {
//!     let communicator = RingCommunicator::new(fabric, RingConfig::default(), Duration::from_secs(60))?;
//!     let comm = Comm::new(communicator);
//!     comm.all_reduce_scalar(comm.rank(), ReduceOp::Sum)
//! }
//!
//! // Threads with a queue of bytes between each pair; your fabric goes here.
//! let fabric = comm_sim::in_process::InProcessFabric::create(3);
//! for sum in comm_sim::run_each(fabric, sum_of_ranks) {
//!     assert_eq!(sum?, 0 + 1 + 2);
//! }
//! # Ok::<_, comm_core::Error>(())
//! ```
//!
//! The example `own_transport` of this package implements both traits for queues between threads in
//! 300 lines, and `comm_sim::transport_conformance!` tests any transport.

#![forbid(unsafe_code)]

mod agreement;
pub mod choose;
mod communicator;
mod config;
mod control;
mod executor;
mod history;
mod message;
mod peer_table;
mod point_to_point;
pub mod schedule;

pub use communicator::RingCommunicator;
pub use config::{RingConfig, Tuning};

/// The executor, only for the tests and benches of this workspace: it may change at any time.
#[doc(hidden)]
pub mod __private {
    pub use crate::executor::{
        Executor, Job, JobReduction, LoweredStep, Progress, Regions, Stop, lower, mark_only_reduced,
    };
}
