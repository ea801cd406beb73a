//! `commctl top`: shows the calls of running ranks.

#[cfg(feature = "live")]
mod live;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use comm::monitor::MonitorName;
use comm::tcp::StoreConfig;
use comm_cli::__private::{CALLS, RankAnswer, ask_agent_of, find};
use comm_cli::launch::{LaunchError, Nodes};

use crate::error::{CliError, Result};
use crate::run::host_and_port;
use snapshot::Snapshot;
use view::View;

/// The time between the two snapshots from which `--once` computes speeds.
const ONCE: Duration = Duration::from_millis(500);

/// Show what running ranks do, and which rank they wait for
#[derive(Debug, Args)]
#[command(after_help = "\
Every rank of this host that runs as the same user answers, unless COMM_MONITOR=0 is set. Under commctl run --nnodes with \
COMM_SECRET, the ranks of all hosts are shown; with --rendezvous, on any host that reaches that address. A rank that does not \
answer within 200 ms is listed first, then ranks that have failed, and ranks that others wait for. since: the time in the \
call, or since the last one. busbw: as of commctl perf, over the time in calls. late: the mean time by which the rank came to the last calls \
after the first one; less than 10 ms is shown only with COMM_FLIGHT_TIMES=exact.

In a terminal, the arrow keys scroll, and q quits. Otherwise a table is printed at each interval.

Example:
  commctl run -n 4 -- path/to/your/program &
  commctl top $!")]
pub(crate) struct Top {
    /// A rank of the job, or its launcher; without it, all jobs of this user on this host are shown
    pid: Option<u32>,

    /// The rendezvous of a job of commctl run --nnodes, with its secret in COMM_SECRET
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "pid", value_parser = host_and_port)]
    rendezvous: Option<(String, u16)>,

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

/// The jobs to show.
#[derive(Debug)]
enum Jobs {
    /// The job of a process, or all jobs of this host.
    OfHost(Option<u32>),
    /// The job whose agents meet at an address, in a store with this configuration.
    At(Nodes, Box<StoreConfig>),
}

/// Takes snapshots of jobs.
#[derive(Debug)]
struct Watcher {
    jobs: Jobs,
    last: BTreeMap<u64, Snapshot>,
}

impl Watcher {
    /// Returns the views of all jobs, with speeds since the last time.
    fn look(&mut self) -> Result<Vec<View>> {
        let found = match &self.jobs {
            Jobs::OfHost(pid) => snapshots(*pid)?,
            Jobs::At(nodes, config) => {
                let answers = nodes.ask((**config).clone(), CALLS).map_err(LaunchError::from)?;
                vec![Snapshot::of_hosts(None, answers)]
            }
        };
        let found = found.into_iter().filter(|snapshot| !snapshot.ranks.is_empty());
        let snapshots: BTreeMap<u64, Snapshot> = found.map(|snapshot| (snapshot.launch, snapshot)).collect();
        let views = snapshots.values().map(|now| View::new(now, self.last.get(&now.launch))).collect();
        self.last = snapshots;
        Ok(views)
    }
}

/// Asks the ranks of this host, and of all hosts if an agent has started them.
fn snapshots(pid: Option<u32>) -> Result<Vec<Snapshot>> {
    let unreadable = |source| CliError::Read { path: "/proc/net/unix".into(), source };
    let launches = find(pid).map_err(unreadable)?.into_iter();
    let snapshot = |(launch, names): (u64, Vec<MonitorName>)| {
        let pids: Vec<u32> = names.iter().map(|name| name.pid).collect();
        if let Some(answers) = ask_agent_of(&pids, CALLS) {
            return Ok(Snapshot::of_hosts(Some(launch), answers));
        }
        let failed = |source| CliError::System { what: "wait for ranks", source };
        let ranks = RankAnswer::of_ranks(&names, CALLS).map_err(failed)?;
        Ok(Snapshot::of(launch, ranks.into_iter().map(|rank| (None, rank))))
    };
    launches.map(snapshot).collect()
}

impl Top {
    pub(crate) fn execute(&self) -> Result<()> {
        if !(0.1..=3600.0).contains(&self.interval) {
            return Err(CliError::usage("--interval: it must be a number of seconds from 0.1 to 3600"));
        }
        let interval = Duration::from_secs_f64(self.interval);
        let mut watcher = Watcher { jobs: self.jobs()?, last: BTreeMap::new() };
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

    fn jobs(&self) -> Result<Jobs> {
        let Some((host, port)) = &self.rendezvous else { return Ok(Jobs::OfHost(self.pid)) };
        // The number of nodes is read from the store.
        let nodes = Nodes::new(0, host.clone(), *port);
        Ok(Jobs::At(nodes, Box::new(comm::Config::launcher_store(0, std::env::vars_os())?)))
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
