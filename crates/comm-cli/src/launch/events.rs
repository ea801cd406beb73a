//! The parts of a launch that the supervisor of its ranks uses.

use std::os::fd::BorrowedFd;

use super::error::LaunchError;
use super::process::RankProcess;

/// The processes that may be started for ranks that have failed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Replacements {
    /// The most ranks that run at once.
    pub(super) ranks_max: usize,
    /// The number of further replacements.
    pub(super) left: usize,
}

/// The reaction of a launch to the ends of its ranks.
pub(super) trait Events {
    /// Starts a process for a rank that has failed.
    fn replace(&mut self, rank: usize) -> Result<RankProcess, LaunchError>;

    /// A rank has exited with code 0, as the first one.
    fn first_success(&mut self);

    /// Returns the other hosts, if there are any.
    fn others(&self) -> Option<&dyn Others>;
}

/// The ranks on other hosts.
pub(super) trait Others {
    /// Readable when the end of all ranks may be known.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns how the ranks of all hosts have ended, or why they are to be terminated.
    fn outcome(&self) -> Option<Result<(), LaunchError>>;

    /// Tells the other hosts that all ranks of this one have exited with code 0.
    fn succeeded(&self) -> Result<(), LaunchError>;

    /// Tells the other hosts why the ranks of this one are terminated.
    fn failed(&self, cause: &LaunchError);
}
