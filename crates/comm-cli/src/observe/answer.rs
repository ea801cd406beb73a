//! The answers of the ranks of a host.

use std::io;

use comm::monitor::{MonitorName, MonitorReport};
use serde::{Deserialize, Serialize};

use super::sockets;

/// A process of a rank and its answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankAnswer {
    /// The rank in the world of the process.
    pub rank: usize,
    /// The id of the process.
    pub pid: u32,
    /// Whether a signal has stopped it.
    pub is_stopped: bool,
    /// `None` if it did not answer.
    pub report: Option<MonitorReport>,
}

/// The answers of the ranks of a host of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HostAnswer {
    /// The name of the host.
    pub host: String,
    /// `None` if the agent of the host did not answer.
    pub ranks: Option<Vec<RankAnswer>>,
}

impl RankAnswer {
    /// Asks the ranks of a launch on this host. Processes that have exited meanwhile are left out.
    ///
    /// # Errors
    /// If the system does not let this process wait.
    pub fn of_ranks(names: &[MonitorName], calls: usize) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for (name, report) in names.iter().zip(sockets::ask(names, calls)?) {
            let state = sockets::state(name.pid);
            if report.is_none() && matches!(state, None | Some('Z' | 'X')) {
                continue;
            }
            let is_stopped = matches!(state, Some('T' | 't'));
            found.push(Self { rank: name.rank, pid: name.pid, is_stopped, report });
        }
        Ok(found)
    }
}
