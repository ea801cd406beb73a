//! The parts of a launch that the supervisor of its ranks uses.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::error::{LaunchError, RankFailure};
use super::process::RankProcess;

/// The consequence of the failure of a rank of this host.
pub(super) enum Consequence {
    /// The others go on.
    GoOn,
    /// This process takes its place.
    Replaced(RankProcess),
    /// All ranks are terminated.
    End(LaunchError),
}

/// The reaction of a launch to the ends of its ranks.
pub(super) trait Events {
    /// A rank of this host has failed.
    fn failed(&mut self, failure: RankFailure) -> Consequence;

    /// A rank of this host has exited with code 0, as the first one.
    fn first_success(&mut self);

    /// Returns the time until [`Events::check_group`] is to be called, if it is.
    fn next_check(&self) -> Option<Duration>;

    /// Returns why all ranks are terminated, if none is left in the group that the processes which
    /// wait could join.
    fn check_group(&mut self) -> Option<LaunchError>;

    /// Returns the other hosts, if there are any that this one can reach.
    fn others(&mut self) -> Option<&mut dyn Others>;
}

/// The ranks on other hosts.
pub(super) trait Others {
    /// Readable when [`Others::poll`] may have something to do.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Reads the changes on other hosts. Returns how the ranks of all hosts have ended, or why
    /// they are to be terminated, if that is known.
    fn poll(&mut self) -> Option<Result<(), LaunchError>>;

    /// Tells the other hosts that all ranks of this one have ended, without a reason to terminate
    /// others.
    fn ended(&mut self) -> Result<(), LaunchError>;

    /// Tells the other hosts why the ranks of this one are terminated.
    fn failed(&self, cause: &LaunchError);
}
