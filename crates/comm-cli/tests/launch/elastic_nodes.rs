//! Tests of elastic launches on several hosts, which are network namespaces, or agents on this
//! host.

use std::process::Command;

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::harness::{FOREVER, Launched, kill, start, wait_until_dead};
use crate::hosts::Hosts;
use crate::namespaces::agent_with;
use crate::nodes::{Agents, assert_message, pair, pids};
use crate::steps;

/// The ranks of a job with two ranks on each of three hosts.
struct Job<'a> {
    hosts: &'a Hosts,
    dir: TempDir,
    elastic: &'static str,
    change: fn(&mut Command),
}

impl<'a> Job<'a> {
    fn new(hosts: &'a Hosts, elastic: &'static str) -> Self {
        Self { hosts, dir: tempfile::tempdir().unwrap(), elastic, change: |_| {} }
    }

    fn start(&self, host: usize) -> Launched {
        self.start_with(host, &[])
    }

    fn start_with(&self, host: usize, more: &[&str]) -> Launched {
        let (mut command, flags) = agent_with(self.hosts, host, "2", &["--elastic", self.elastic]);
        command.arg("run").args(flags).args(more);
        steps::program(&mut command, self.dir.path());
        command.env("COMM_SECRET", "known to all agents");
        (self.change)(&mut command);
        start(|_| command)
    }

    fn start_all(&self) -> Vec<Launched> {
        (0..self.hosts.count()).map(|host| self.start(host)).collect()
    }

    /// Waits for a group of these ranks, whose rank 0 is on a node, and which has no lost rank.
    /// Returns their process ids.
    fn await_ranks(&self, node: usize, ranks: &[usize], lost: &[Pid]) -> Vec<Pid> {
        let members = steps::await_group(self.dir.path(), node, |members| {
            members.keys().eq(ranks) && !members.values().any(|pid| lost.contains(pid))
        });
        members.into_values().collect()
    }

    fn finish(&self) {
        steps::finish(self.dir.path());
    }
}

const ALL: [usize; 6] = [0, 1, 2, 3, 4, 5];

fn lines(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| line.starts_with("commctl: ")).collect()
}

#[test]
fn ranks_and_hosts_are_lost_and_come_back() {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    let mut job = Job::new(&hosts, "2:6");
    // The ranks of a host that is cut off are too few to go on.
    job.change = |command| steps::size_min(command, 3);
    let mut agents = job.start_all();
    let first = job.await_ranks(0, &ALL, &[]);
    // Its agent replaces a rank on the same host.
    kill(first[3], Signal::KILL);
    let second = job.await_ranks(0, &ALL, &[first[3]]);
    // A host is lost with its ranks, and comes back with new ones.
    agents[2].signal(Signal::KILL);
    job.await_ranks(0, &[0, 1, 2, 3], &[]);
    second[4..].iter().for_each(|pid| wait_until_dead(*pid));
    agents[2].end();
    agents[2] = job.start(2);
    let third = job.await_ranks(0, &ALL, &second[4..]);
    // The agent that came back replaces ranks, too.
    kill(third[5], Signal::KILL);
    job.await_ranks(0, &ALL, &[third[5]]);
    // The network of another host fails. Its ranks are too few, and the others go on.
    hosts.cut_off(1);
    let last = job.await_ranks(0, &[0, 1, 4, 5], &[third[5]]);
    let cut_off = agents[1].end();
    assert_eq!(cut_off.status.code(), Some(101), "{cut_off:?}");
    assert!(cut_off.stderr.contains("commctl: node 0 ("), "{cut_off:?}");
    assert!(cut_off.message().ends_with(" exited with code 101"), "{cut_off:?}");
    job.finish();
    let ended = agents[0].end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let reports = lines(&ended.stderr);
    let is_report = |report: &str, end: &str| report.starts_with("commctl: node ") && report.ends_with(end);
    let ends = [
        " is lost, and 4 ranks go on",
        " has joined again, with 6 ranks in all",
        " is lost, and 4 ranks go on",
    ];
    assert!(reports.len() == 3 && reports.iter().zip(ends).all(|(r, end)| is_report(r, end)), "{ended:?}");
    let ended = agents[2].end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    last.into_iter().for_each(wait_until_dead);
}

/// Loses the host of the stores, and checks that the others go on without replacements.
fn lose_node_0(lose: impl FnOnce(&Hosts, &Launched)) {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    let mut job = Job::new(&hosts, "2:6");
    job.change = |command| steps::size_min(command, 3);
    let mut agents = job.start_all();
    let pids = job.await_ranks(0, &ALL, &[]);
    lose(&hosts, &agents[0]);
    job.await_ranks(1, &[2, 3, 4, 5], &[]);
    for agent in &agents[1..] {
        agent.await_message(" is lost, and 4 ranks go on; none is replaced any more");
    }
    kill(pids[5], Signal::KILL);
    job.await_ranks(1, &[2, 3, 4], &[]);
    job.finish();
    for agent in &mut agents[1..] {
        let ended = agent.end();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let reports = lines(&ended.stderr);
        assert!(reports[0].starts_with("commctl: node 0 ("), "{ended:?}");
    }
    agents[0].end();
    // Another agent of node 0 knows nothing of the job.
    let again = job.start_with(0, &["--rendezvous-timeout", "1"]).end();
    assert!(again.message().contains("no agent with node rank 1, 2 has come to "), "{again:?}");
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn the_ranks_go_on_without_replacements_if_the_agent_of_node_0_is_killed() {
    lose_node_0(|_, agent| agent.signal(Signal::KILL));
}

#[test]
fn the_ranks_go_on_without_replacements_if_the_host_of_node_0_is_cut_off() {
    lose_node_0(|hosts, _| hosts.cut_off(0));
}

#[test]
fn the_loss_of_a_host_ends_the_job_if_too_few_ranks_are_left() {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    let job = Job::new(&hosts, "5:6");
    let mut agents = job.start_all();
    let pids = job.await_ranks(0, &ALL, &[]);
    agents[1].signal(Signal::KILL);
    for agent in [0, 2] {
        let ended = agents[agent].end();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.message().starts_with("commctl: node 1 ("), "{ended:?}");
        assert!(ended.message().contains(" is lost: its commctl was killed"), "{ended:?}");
    }
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn ranks_of_two_hosts_that_all_fail_end_both_launches_with_the_first_failure() {
    let script = r#"[ "$COMM_JOIN" = 0 ] || while :; do sleep 0.05; done
        while [ ! -e "$DIR/go" ]; do sleep 0.01; done; exit $((3 + RANK))"#;
    let mut pair = pair(&Agents::of(2), &["--elastic", "1:4"], script);
    let pids = pids(&pair);
    for (agent, ranks) in [(1, [3, 2]), (0, [0, 1])] {
        std::fs::write(pair[agent].path("go"), "").unwrap();
        ranks.into_iter().for_each(|rank| wait_until_dead(pids[rank]));
    }
    let ended = pair.each_mut().map(Launched::end);
    assert_eq!(ended[0].message(), ended[1].message());
    // The ranks of node 1 have failed first.
    assert!(matches!(ended[0].status.code(), Some(5 | 6)), "{ended:?}");
    assert!(ended.iter().all(|agent| agent.status == ended[0].status), "{ended:?}");
    assert!(ended[0].message().contains(" on node 1 ("), "{ended:?}");
}

#[test]
fn a_rank_of_one_host_is_replaced_there_and_all_hosts_count_the_replacements() {
    let script = r#"[ "$COMM_JOIN" = 1 ] && report "joined.$RANK.$COMM_JOIN_ID" $$
        while [ ! -e "$DIR/go" ]; do sleep 0.01; done"#;
    let mut pair = pair(&Agents::of(2), &["--elastic", "2:4", "--max-restarts", "2"], script);
    let pids = pids(&pair);
    kill(pids[2], Signal::KILL);
    let replacement = pair[1].pid("joined.2.1");
    kill(pids[1], Signal::KILL);
    pair[0].pid("joined.1.2");
    // There is no third replacement, and three ranks are enough.
    kill(replacement, Signal::KILL);
    pair[1].await_message(&format!("rank 2 (pid {replacement}) was killed"));
    pair.iter().for_each(|agent| std::fs::write(agent.path("go"), "").unwrap());
    for (agent, losses) in pair.iter_mut().zip([1, 2]) {
        let ended = agent.end();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), losses, "{ended:?}");
    }
}

#[test]
fn an_agent_cannot_take_the_place_of_one_that_runs_or_of_a_job_that_takes_no_others() {
    let agents = Agents::of(2);
    let flags = ["--elastic", "1"];
    let mut pair = pair(&agents, &flags, FOREVER);
    let pids = pids(&pair);
    let refused = agents.start(&["-n", "1", "--node-rank", "1", "--elastic", "1"], "").end();
    assert_message(
        &refused,
        1,
        &["node rank 1 cannot join the running job: its former agent had another number of ranks"],
    );
    let refused = agents.start(&["-n", "2", "--node-rank", "1", "--elastic", "1"], "").end();
    assert_message(&refused, 1, &["node rank 1 is taken by an agent on "]);
    let refused = agents.start(&["-n", "2", "--elastic", "1"], "").end();
    assert_message(&refused, 1, &["the job runs already", "--node-rank"]);
    pair[1].signal(Signal::KILL);
    pair[0].await_message(" is lost, and 2 ranks go on");
    let refused = agents.start(&["-n", "2", "--node-rank", "1", "--elastic", "1"], "").end();
    assert_message(&refused, 1, &["node rank 1 cannot join the running job: ", "--elastic MIN:MAX"]);
    pair[0].signal(Signal::TERM);
    assert_eq!(pair[0].end().status.code(), Some(143));
    pids.into_iter().for_each(wait_until_dead);
}
