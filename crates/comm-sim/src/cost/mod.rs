//! The cost simulator: how long a program takes under a model of the links.
//!
//! It runs the same lazy steps as the executor, by the same rules, and moves no data. Ranks are a Kahn network: what
//! a rank does depends on the messages it gets and not on when it gets them. So there is no queue of events in the
//! order of time. Each rank goes through its steps in the order of the program until it lacks a message, then the
//! sender of that message is worked on; when steps start and end follows from maxima and sums. Memory holds a window
//! of steps per rank and the messages that were sent and not yet received, however long the program is.
//!
//! # The model
//!
//! Links are those of [`LinkModel`].
//! - All ranks start at time 0. A step enters the window when all but the last `window - 1` steps before it have ended,
//!   and starts when no earlier unfinished step conflicts with it.
//! - A send keeps the rank for the overhead and then the outgoing port for its bytes, at whose end it ends: it does not
//!   wait for its receive. A latency later its bytes pass the receiver's incoming port, at the earliest when the
//!   receive has entered the window there. A receive then keeps its rank for the overhead, and for the reduction of
//!   its bytes if it reduces. Messages of one pair of ranks keep their order.
//! - A local reduction keeps the rank for the reduction of its bytes. Copies and the end of a reduction take no time.
//!
//! # What it simplifies
//!
//! A rank and each of its two ports do one thing at a time. When two things want the same time then the one that is
//! earlier in the rank's program gets it, and the other takes the first idle time that is long enough; but a receive
//! comes after the sends and local steps behind it that need not wait for it. An executor serves whichever comes first
//! in time. There are no other limits: no switches that are shared, no buffers that are full.

mod failure;
mod machine;
mod mail;
mod rank;
mod report;
mod timeline;
mod window;

use comm_core::{LinkModel, Partition};

pub use failure::Failure;
pub use report::{RankReport, Report};

pub use crate::verify::Steps;

/// A program to be simulated: what every rank does, with blocks of which sizes.
pub struct Program<'a> {
    /// How many ranks there are.
    pub ranks: usize,
    /// The sizes of all blocks of the collective's data.
    pub sizes: &'a Partition,
    /// The steps of each rank.
    pub steps: &'a dyn Fn(usize) -> Steps<'a>,
}

impl std::fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("ranks", &self.ranks)
            .field("sizes", &self.sizes)
            .finish_non_exhaustive()
    }
}

/// How a program is simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// What messages cost.
    pub links: LinkModel,
    /// How many steps of a rank may be under way at once, at least two.
    pub window: usize,
    /// The most steps of all ranks together. A program that turns out longer is given up, soon after.
    pub steps_max: u64,
}

impl Options {
    /// These links, the window that communicators have by default, and no limit.
    #[must_use]
    pub const fn new(links: LinkModel) -> Self {
        Self { links, window: 32, steps_max: u64::MAX }
    }

    /// The options with so many steps of a rank under way at once.
    #[must_use]
    pub const fn window(mut self, window: usize) -> Self {
        self.window = window;
        self
    }

    /// The options with this limit of steps of all ranks together.
    #[must_use]
    pub const fn steps_max(mut self, steps_max: u64) -> Self {
        self.steps_max = steps_max;
        self
    }
}

/// Simulates a program. The same program and options give the same report, to the bit.
///
/// # Errors
/// [`Failure`]: the program is longer than allowed, or malformed. Programs that [`verify`](crate::verify::verify)
/// proves are not malformed.
pub fn simulate(program: &Program<'_>, options: &Options) -> Result<Report, Failure> {
    simulate_with(program, options, &mut |_| {})
}

/// Simulates a program as [`simulate`] does, and tells the number of steps so far about every million steps.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_with(
    program: &Program<'_>,
    options: &Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, Failure> {
    machine::Machine::new(program, options)?.run(progress)
}
