//! Answers of a running rank about its calls, for `commctl top`.
//!
//! Each process that connects to other ranks has a thread that listens on a Unix socket, unless
//! `COMM_MONITOR=0` or [`Config::monitor`](crate::Config::monitor) turns it off. The socket has an
//! abstract name, [`MonitorName`], so that it disappears with the process. To a process of the same
//! user, or of root, the thread sends a [`MonitorReport`] as JSON. It sleeps otherwise, and takes
//! no time of calls.

mod name;
mod report;
mod server;
#[cfg(test)]
mod tests;

use std::os::unix::process::parent_id;

use comm_core::{CommRegistry, ObservedComms};

use crate::flight::Origin;
use crate::{Config, StoreHost};
pub use name::MonitorName;
pub use report::{MonitorReport, ReportedCalls, ReportedMetrics};
use server::Server;

/// Starts to answer for a rank, and returns the registry of its communicators. A failure is logged.
pub(crate) fn start(config: &Config) -> Option<CommRegistry> {
    let comms = ObservedComms::default();
    let name = MonitorName { launch: launch(config), rank: rank(config), pid: std::process::id(), number: 0 };
    match Server::start(name, Origin::of(config), comms.clone()) {
        Ok(server) => Some(CommRegistry::new(comms, server)),
        Err(error) => {
            tracing::warn!(%error, "commctl top cannot show this rank");
            None
        }
    }
}

/// Returns the rank in the world of the program.
fn rank(config: &Config) -> usize {
    let subgroup = config.subgroup.as_ref();
    subgroup.and_then(|subgroup| subgroup.members.get(config.rank).copied()).unwrap_or(config.rank)
}

/// Returns a number that all ranks of a launch share: the id of the job, or else one that is
/// derived from the place at which they meet. If the caller knows that place, as in
/// [`init_over`](crate::init_over), from the parent process, which has started all of this host.
fn launch(config: &Config) -> u64 {
    if config.job != 0 {
        return config.job;
    }
    let place = match &config.store {
        StoreHost::Folder(folder) => folder.display().to_string(),
        _ if config.world_size == 1 && config.subgroup.is_none() => {
            format!("process {}", std::process::id())
        }
        _ if config.master_addr.is_empty() => format!("parent {}", parent_id()),
        _ => format!("{}:{}", config.master_addr, config.master_port),
    };
    crate::env::fnv_1a(place.as_bytes())
}
