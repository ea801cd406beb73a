//! `commctl top`: shows the calls of running ranks.

#[cfg(feature = "live")]
mod live;
mod snapshot;
mod sockets;
mod table;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;

use crate::error::{CliError, Result};
use snapshot::Snapshot;
use view::View;

/// The time between the two snapshots of which `--once` shows the speed.
const ONCE: Duration = Duration::from_millis(500);

/// Show what running ranks do, and which rank they wait for
#[derive(Debug, Args)]
#[command(after_help = "\
Every rank of this host that runs as the same user answers, unless COMM_MONITOR=0 is set. A rank that does not answer within \
200 ms is listed first, then ranks that have failed, and ranks that others wait for. since: the time in the call, or since the \
last one. busbw: as of commctl perf, over the time in calls. late: the mean time by which the rank came to the last calls \
after the first one; less than 10 ms is shown only with COMM_FLIGHT_TIMES=exact.

In a terminal, the arrow keys scroll, and q quits. Otherwise a table is printed at each interval.

Example:
  commctl run -n 4 -- path/to/your/program &
  commctl top $!")]
pub(crate) struct Top {
    /// A rank of the job, or its launcher; without it, all jobs of this user on this host are shown
    pid: Option<u32>,

    /// Print the state once
    #[arg(long)]
    once: bool,

    /// Print one JSON object per line and job
    #[arg(long)]
    json: bool,

    /// The time between two updates in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
}

/// Takes snapshots of jobs.
#[derive(Debug)]
struct Watcher {
    pid: Option<u32>,
    last: BTreeMap<u64, Snapshot>,
}

impl Watcher {
    /// Returns the views of all jobs, with speeds since the last time.
    fn look(&mut self) -> Result<Vec<View>> {
        let mut snapshots = BTreeMap::new();
        for (launch, names) in sockets::find(self.pid)? {
            let snapshot = Snapshot::take(launch, &names)?;
            if !snapshot.ranks.is_empty() {
                snapshots.insert(launch, snapshot);
            }
        }
        let views = snapshots.values().map(|now| View::new(now, self.last.get(&now.launch))).collect();
        self.last = snapshots;
        Ok(views)
    }
}

impl Top {
    pub(crate) fn execute(&self) -> Result<()> {
        if !(0.1..=3600.0).contains(&self.interval) {
            return Err(CliError::usage("--interval: it must be a number of seconds from 0.1 to 3600"));
        }
        let interval = Duration::from_secs_f64(self.interval);
        let mut watcher = Watcher { pid: self.pid, last: BTreeMap::new() };
        if watcher.look()?.is_empty() {
            return Err(CliError::NoJob { pid: self.pid });
        }
        #[cfg(feature = "live")]
        if !self.once && !self.json && io::IsTerminal::is_terminal(&io::stdout()) {
            return live::show(&mut watcher, interval);
        }
        loop {
            sleep(if self.once { ONCE } else { interval });
            let views = watcher.look()?;
            self.print(&views).map_err(CliError::write("standard output"))?;
            if self.once || views.is_empty() {
                return Ok(());
            }
        }
    }

    fn print(&self, views: &[View]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        for (at, view) in views.iter().enumerate() {
            if self.json {
                serde_json::to_writer(&mut out, view)?;
                writeln!(out)?;
                continue;
            }
            if at > 0 {
                writeln!(out)?;
            }
            table::write(&mut out, view)?;
        }
        out.flush()
    }
}
