//! Ranks on hosts with networks of their own.

use comm::Error;

use super::hosts::{Family, Hosts, address};
use super::process::{Rank, set_role};

const SECRET: &str = "known to all ranks of these tests";

/// A group of ranks on all hosts.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) role: &'static str,
    pub(crate) ranks_per_host: usize,
    pub(crate) master: String,
    pub(crate) port: u16,
    pub(crate) has_secret: bool,
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Job {
    pub(crate) fn new(role: &'static str, port: u16) -> Self {
        let (ranks_per_host, master) = (2, address(Family::V4, 0, 0));
        Self { role, ranks_per_host, master, port, has_secret: true, variables: Vec::new() }
    }
}

impl Hosts {
    /// Starts all ranks of a job, in order of hosts.
    pub(crate) fn start(&self, job: &Job) -> Vec<Rank> {
        (0..self.count() * job.ranks_per_host).map(|rank| self.start_rank(job, rank, None)).collect()
    }

    /// Starts a rank, if given with this file as `/etc/hosts`.
    pub(crate) fn start_rank(&self, job: &Job, rank: usize, etc_hosts: Option<&str>) -> Rank {
        let exe = std::env::current_exe().unwrap();
        let mut command = self.command(rank / job.ranks_per_host);
        if let Some(file) = etc_hosts {
            // Each process of `ip netns exec` has a mount namespace of its own.
            let script = r#"mount --bind "$0" /etc/hosts && exec "$@""#;
            command.args(["sh", "-c", script, file]);
        }
        command
            .arg(exe)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", (self.count() * job.ranks_per_host).to_string())
            .env("MASTER_ADDR", &job.master)
            .env("MASTER_PORT", job.port.to_string())
            .envs(job.has_secret.then_some(("COMM_SECRET", SECRET)))
            .envs(job.variables.iter().map(|(name, value)| (name, value)));
        set_role(&mut command, job.role);
        Rank::start(command)
    }
}

/// Reports the rank that an error names as lost.
#[allow(clippy::print_stdout, reason = "the test that started this rank reads it")]
pub(crate) fn print_loss(error: &Error) {
    match error.root_cause() {
        Error::PeerLost { peer, loss, .. } => println!("report: lost {peer}: {loss}"),
        other => println!("report: other: {other}"),
    }
}
