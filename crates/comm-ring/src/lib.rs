//! Collectives for the `comm` library: schedules, their executor, and a communicator over any transport.
//!
//! A collective is *described* by a schedule ([`schedule`]), *executed* by one executor and *moved* by
//! a [`Transport`](comm_core::Transport) that this crate knows nothing about. [`RingCommunicator`] puts the three
//! together: it chooses the algorithm, waits, and turns what goes wrong into errors that name the culprit.

#![forbid(unsafe_code)]

mod agreement;
pub mod choose;
mod communicator;
mod config;
mod control;
mod executor;
mod history;
mod message;
mod point_to_point;
pub mod schedule;
mod wait;

pub use communicator::RingCommunicator;
pub use config::{RingConfig, Tuning};

/// The executor, for the tests and benches of this workspace alone: it changes without notice.
#[doc(hidden)]
pub mod __private {
    pub use crate::executor::{Buffers, Executor, Job, Located, Progress, Stop, locate};
}
