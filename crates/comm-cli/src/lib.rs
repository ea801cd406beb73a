//! Library half of the tool `commctl`: what a program needs to start its own ranks.
//!
//! [`launch::Launch`] starts N processes on this machine, gives each its place in the group through
//! the environment, and ends all of them when one fails. `commctl run` is a command line around it,
//! and a program may call it to re-execute itself.
//!
//! Linux only: ranks are watched through pidfds and epoll, and die with their launcher through
//! `PR_SET_PDEATHSIG`.

#[cfg(not(target_os = "linux"))]
compile_error!("comm-cli watches ranks through pidfd, epoll and PR_SET_PDEATHSIG, which only Linux has");

pub mod launch;
mod report;

/// Pages and pictures of measurements, for `commctl` and the chores of this workspace alone: they
/// change without notice.
#[doc(hidden)]
pub mod __private {
    pub use crate::report::{page, plot, progress, statistics, units};
}
