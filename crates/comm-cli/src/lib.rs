//! The library of the tool `commctl`, which starts the ranks of a program.
//!
//! [`launch::Launch`] starts N processes on this machine, passes each its rank and the world size
//! through the environment, and terminates all of them when one fails. `commctl run` is its command
//! line, and a program may use it to re-execute itself.
//!
//! It works only on Linux: the launcher watches ranks through pidfds and epoll, and the kernel
//! kills them when the launcher dies (`PR_SET_PDEATHSIG`).

#[cfg(not(target_os = "linux"))]
compile_error!("comm-cli watches ranks through pidfd, epoll and PR_SET_PDEATHSIG, which only Linux has");

mod control_group;
pub mod launch;
mod observe;
mod program;
mod report;

/// Parts of `commctl` that the programs of this workspace share. Not part of the API.
#[doc(hidden)]
pub mod __private {
    pub use crate::control_group::ControlGroups;
    pub use crate::observe::{CALLS, HostAnswer, Launches, RankAnswer, ask_agent_of, find};
    pub use crate::report::{page, plot, progress, statistics, units};

    pub mod program {
        pub use crate::program::{chain, fail, launch, report, run_rank, run_rank_of};
    }
}
