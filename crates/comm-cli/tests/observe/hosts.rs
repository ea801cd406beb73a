//! `commctl top` on one host shows the ranks of all hosts, which are network namespaces.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::as_rank;
use crate::network::{Family, Hosts, address};
use crate::top::FOLDER;
use crate::wait::wait_for;

const PORT: u16 = 29_500;
const NODES: usize = 3;
const RANKS_PER_HOST: usize = 2;
const SECRET: &str = "known to all agents";

/// A job on several hosts. Dropping it kills it.
struct Job {
    agents: Vec<Child>,
    folder: TempDir,
    hosts: Hosts,
}

impl Drop for Job {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            drop(agent.kill());
            drop(agent.wait());
        }
    }
}

impl Job {
    fn start(hosts: Hosts, nodes: usize, secret: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let start = |host| {
            let mut command = on_host(&hosts, host);
            let (count, ranks) = (nodes.to_string(), RANKS_PER_HOST.to_string());
            let rendezvous = format!("{}:{PORT}", address(Family::V4, 0, 0));
            command.args(["run", "-n", &ranks, "--nnodes", &count, "--node-rank", &host.to_string()]);
            command.args(["--rendezvous", &rendezvous, "--"]);
            as_rank(&mut command, "calls");
            command.env(FOLDER, folder.path()).envs(secret.map(|secret| ("COMM_SECRET", secret)));
            command.stderr(Stdio::null()).spawn().unwrap()
        };
        let agents = (0..nodes).map(start).collect();
        let job = Self { agents, folder, hosts };
        (0..nodes * RANKS_PER_HOST).for_each(|rank| _ = job.rank(rank));
        job
    }

    /// Waits until a rank makes calls, and returns its process.
    fn rank(&self, rank: usize) -> Pid {
        let path = self.folder.path().join(rank.to_string());
        let pid = wait_for("a rank to start", || std::fs::read_to_string(&path).ok()?.parse().ok());
        Pid::from_raw(pid).unwrap()
    }

    fn agent(&self, host: usize) -> Pid {
        Pid::from_child(&self.agents[host])
    }

    /// Asks about a process on its host until the output is as expected, and returns its lines.
    fn top(&self, host: usize, pid: Pid, is_expected: impl Fn(&[&str]) -> bool) -> Vec<String> {
        wait_for("the expected view", || {
            let mut command = on_host(&self.hosts, host);
            let output = command.args(["top", "--once", &pid.to_string()]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            is_expected(&lines).then(|| lines.iter().map(|&line| line.to_owned()).collect())
        })
    }
}

/// Returns a command of `commctl` on a host, with the name of the host.
fn on_host(hosts: &Hosts, host: usize) -> Command {
    let mut command = hosts.command(host);
    let name = format!("echo node{host} > /proc/sys/kernel/hostname; exec \"$@\"");
    command.args(["unshare", "--uts", "sh", "-c", &name, "sh"]);
    command.arg(Path::new(env!("CARGO_BIN_EXE_commctl"))).env_remove("COMM_SECRET");
    command
}

#[test]
fn a_stopped_rank_of_another_host_is_named_through_any_rank_and_any_agent() {
    let Some(hosts) = Hosts::new(NODES + 1, 1) else { return };
    let job = Job::start(hosts, NODES, Some(SECRET));
    let stopped = job.rank(4);
    kill_process(stopped, Signal::STOP).unwrap();
    for (host, pid) in [(0, job.agent(0)), (1, job.rank(3)), (2, job.agent(2)), (2, stopped)] {
        let is_named = |lines: &[&str]| {
            lines
                .first()
                .is_some_and(|line| line.starts_with("rank 4 does not answer; all others wait for it in"))
        };
        let lines = job.top(host, pid, is_named);
        assert!(lines[1].ends_with(", 6 ranks on 3 hosts"), "{lines:#?}");
        assert!(lines[3].contains(&format!("node2 {stopped}  no answer (stopped)")), "{lines:#?}");
        assert!(
            lines.iter().any(|line| line.contains(&format!("node0 {}  in call", job.rank(1)))),
            "{lines:#?}"
        );
    }
    // From a host without any rank, by the address and the secret.
    let rendezvous = format!("{}:{PORT}", address(Family::V4, 0, 0));
    let by_address = |secret: Option<&str>| {
        let mut command = on_host(&job.hosts, 3);
        command.args(["top", "--once", "--rendezvous", &rendezvous]);
        command.envs(secret.map(|secret| ("COMM_SECRET", secret))).output().unwrap()
    };
    let text = String::from_utf8(by_address(Some(SECRET)).stdout).unwrap();
    assert!(text.starts_with("rank 4 does not answer; all others wait for it in"), "{text}");
    let refused = by_address(None);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    kill_process(stopped, Signal::CONT).unwrap();
    // An agent that is stopped cannot answer for its host, and is named.
    kill_process(job.agent(2), Signal::STOP).unwrap();
    let is_silent = |lines: &[&str]| lines.get(1).is_some_and(|line| line.contains("no answer from node2"));
    let lines = job.top(0, job.agent(0), is_silent);
    assert!(lines[1].contains(", 4 ranks on 3 hosts"), "{lines:#?}");
    kill_process(job.agent(2), Signal::CONT).unwrap();
    let are_all_there =
        |lines: &[&str]| lines.get(1).is_some_and(|line| line.ends_with(", 6 ranks on 3 hosts"));
    job.top(1, job.agent(1), are_all_there);
}

#[test]
fn without_a_secret_only_the_ranks_of_the_own_host_are_shown() {
    let Some(hosts) = Hosts::new(2, 1) else { return };
    let job = Job::start(hosts, 2, None);
    let is_alone = |lines: &[&str]| {
        lines.get(1).is_some_and(|line| line.ends_with(", 2 ranks, without a process on this host: 2 3"))
    };
    job.top(0, job.agent(0), is_alone);
}
