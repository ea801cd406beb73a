//! The symbolic verifier, which proves that a schedule computes the result of its collective and
//! cannot deadlock.
//!
//! It runs the steps of all ranks on symbols instead of numbers, under the strictest rules that an
//! executor may have: no buffering at all, so that a send ends only together with its matching
//! receive, and the smallest window. All steps that can run commute with each other, so one run
//! represents all interleavings: if it completes, then no order of events, larger window or larger
//! buffer can make the schedule deadlock or compute another result.
//!
//! A symbol is a block, the set of ranks whose contributions are in it, whether its reduction is
//! finished, and a hash of the tree of combinations that produced it. Sets alone would not detect a
//! block in the wrong place.

mod contributors;
mod fault;
mod machine;
mod memory;
mod rank;
mod spec;
mod stats;
mod tree;

use comm_core::Step;

pub use contributors::Contributors;
pub use fault::{Blocked, Fault, Reason, StepLocation};
pub use memory::Value;
pub use spec::{Buffers, InitialContent, Required, Spec};
pub use stats::{Stats, Traffic};
pub use tree::Tree;

/// The steps of one rank.
pub type Steps<'a> = Box<dyn Iterator<Item = Step> + 'a>;

/// A collective to be verified: the steps of every rank, and the required result.
pub struct Program<'a> {
    /// The call.
    pub spec: Spec,
    /// The number of slots of scratch of each rank.
    pub scratch_slots: usize,
    /// The tree in which the contributions of all ranks must be combined; `None` if any tree is
    /// allowed.
    pub tree: Option<Tree<'a>>,
    /// The steps of each rank.
    pub steps: &'a dyn Fn(usize) -> Steps<'a>,
}

impl std::fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("spec", &self.spec)
            .field("scratch_slots", &self.scratch_slots)
            .field("tree", &self.tree)
            .finish_non_exhaustive()
    }
}

/// Verifies a program with the smallest window, and measures its communication.
///
/// # Errors
/// The first [`Fault`] found.
pub fn verify(program: &Program<'_>) -> Result<Stats, Fault> {
    verify_window(program, Step::WINDOW_MIN)
}

/// Verifies a program with a window of this many steps.
///
/// # Errors
/// The first [`Fault`] found.
pub fn verify_window(program: &Program<'_>, window: usize) -> Result<Stats, Fault> {
    program.spec.check()?;
    let mut machine = machine::Machine::new(program, window.max(1));
    machine.run()?;
    machine.check_results(program.tree)?;
    Ok(machine.into_stats())
}
