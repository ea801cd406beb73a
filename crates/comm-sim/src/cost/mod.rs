//! The cost simulator: predicts the time of a program under a model of the links.
//!
//! It runs the same lazy steps as the executor, by the same rules, but moves no data. Ranks form a
//! Kahn network: the actions of a rank depend on the messages that it receives, but not on their
//! times. So there is no queue of events ordered by time. Each rank runs its steps in program order
//! until it needs a message; then the sender of that message runs. The times of steps are maxima
//! and sums of earlier ones. Memory holds only a window of steps per rank and the messages in
//! flight, whatever the length of the program.
//!
//! # The model
//! Links are those of [`LinkModel`].
//!
//! - All ranks start at time 0. A step enters the window when all but the last `window - 1` steps
//!   before it have ended, and can start when no earlier unfinished step conflicts with it.
//! - A send occupies the rank for the overhead, then the outgoing port for the time of its bytes,
//!   and then ends: it does not wait for its receive. One latency later, its bytes pass the
//!   receiver's incoming port, but not before the receive has entered the window there. The receive
//!   then occupies its rank for the overhead and, if it reduces, for the reduction of its bytes.
//!   Messages between a pair of ranks keep their order.
//! - A local reduction occupies the rank for the reduction of its bytes. Copies and the end of a
//!   reduction take no time.
//!
//! # Simplifications
//! A rank and each of its two ports do one thing at a time. If two steps compete for the same time,
//! the one that is earlier in the rank's program gets it, and the other takes the first idle time
//! that is long enough; but receives give way to later sends and local steps that need not wait for
//! them. An executor instead serves whichever is ready first. There are no other limits: no shared
//! switches, no full buffers.

mod failure;
mod machine;
mod mail;
mod rank;
mod report;
mod timeline;
mod window;

use comm_core::{LinkModel, Partition};

pub use failure::SimulationError;
pub use report::{RankReport, Report};

pub use crate::verify::Steps;

/// A program to be simulated: the steps of every rank, and the sizes of blocks.
pub struct TimedProgram<'a> {
    /// The number of ranks.
    pub ranks: usize,
    /// The sizes of all blocks of the collective's data.
    pub sizes: &'a Partition,
    /// The steps of each rank.
    pub steps: &'a dyn Fn(usize) -> Steps<'a>,
}

impl std::fmt::Debug for TimedProgram<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TimedProgram")
            .field("ranks", &self.ranks)
            .field("sizes", &self.sizes)
            .finish_non_exhaustive()
    }
}

/// The parameters of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct SimulationOptions {
    /// The cost model of messages.
    pub links: LinkModel,
    /// The largest number of unfinished steps of a rank, at least two.
    pub window: usize,
    /// The largest number of steps of all ranks together. The simulation of a longer program stops
    /// with an error soon after the limit.
    pub steps_max: u64,
}

impl SimulationOptions {
    /// Creates options with these links, the default window of communicators, and no limit.
    #[must_use]
    pub const fn new(links: LinkModel) -> Self {
        Self { links, window: 32, steps_max: u64::MAX }
    }

    comm_core::setters!(window: usize, steps_max: u64);
}

/// Simulates a program. The same program and options give the same report, bit for bit.
///
/// # Errors
/// [`SimulationError`]: the program is longer than allowed, or malformed. Programs that
/// pass [`verify`](crate::verify::verify) are not malformed.
pub fn simulate(program: &TimedProgram<'_>, options: &SimulationOptions) -> Result<Report, SimulationError> {
    simulate_with(program, options, &mut |_| {})
}

/// Simulates a program as [`simulate`] does, and calls `progress` with the number of steps so far
/// about every million steps.
///
/// # Errors
/// Same as [`simulate`].
pub fn simulate_with(
    program: &TimedProgram<'_>,
    options: &SimulationOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, SimulationError> {
    machine::Simulator::new(program, options)?.run(progress)
}
