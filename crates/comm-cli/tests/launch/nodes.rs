//! Tests of launches on several hosts. Most of them have several agents on this host.

use std::process::Command;

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::harness::{Ended, FOREVER, Launched, REPORT, commctl, kill, start, wait_for, wait_until_dead};
use crate::port::Port;

/// Adds the arguments of an agent.
pub(crate) fn agent(mut command: Command, dir: &TempDir, flags: &[&str], script: &str) -> Command {
    command.arg("run").args(flags).args(["--", "sh", "-c", &format!("{REPORT}{script}")]);
    command.env("DIR", dir.path()).env("COMM_SECRET", "known to all agents");
    command
}

/// The agents of a job on this host, which meet at a free port.
pub(crate) struct Agents {
    port: Port,
    nodes: usize,
}

impl Agents {
    pub(crate) fn of(nodes: usize) -> Self {
        Self { port: Port::reserve(), nodes }
    }

    fn flags(&self, more: &[&str]) -> Vec<String> {
        let (nodes, address) = (self.nodes.to_string(), self.address());
        let ours = ["--nnodes", &nodes, "--rendezvous", &address];
        ours.iter().chain(more).map(|flag| (*flag).to_owned()).collect()
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number)
    }

    pub(crate) fn start(&self, more: &[&str], script: &str) -> Launched {
        let flags = self.flags(more);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        start(|dir| agent(commctl(), dir, &flags, script))
    }
}

/// Waits until an agent serves the store, so that others that fail early find it.
fn wait_until_served(agents: &Agents) {
    wait_for("the store", || std::net::TcpStream::connect(agents.address()).ok());
}

pub(crate) fn assert_message(ended: &Ended, code: i32, parts: &[&str]) {
    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    let missing = parts.iter().find(|part| !ended.message().contains(**part));
    assert_eq!(missing, None, "{ended:?}");
}

const PLACE: &str = r#"report "place.$RANK" "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $NODE_RANK $COMM_JOB_ID $MASTER_ADDR:$MASTER_PORT""#;

#[test]
fn ranks_are_numbered_by_node_rank() {
    let agents = Agents::of(3);
    let mut last = agents.start(&["-n", "1", "--node-rank", "2"], PLACE);
    let mut middle = agents.start(&["-n", "3", "--node-rank", "1"], PLACE);
    let mut first = agents.start(&["-n", "2", "--node-rank", "0"], PLACE);
    let place = |agent: &Launched, rank: usize| {
        let report = agent.report(&format!("place.{rank}"));
        let (place, job) = report.split_at(report.rfind(' ').unwrap());
        let (place, id) = place.rsplit_once(' ').unwrap();
        (place.to_owned(), format!("{id}{job}"))
    };
    let (first_place, job) = place(&first, 1);
    assert_eq!(first_place, "1/6 1/2 0/3 0");
    assert!(job.contains(" 127.0.0.1:"), "{job}");
    assert_eq!(place(&middle, 2), ("2/6 0/3 1/3 1".to_owned(), job.clone()));
    assert_eq!(place(&middle, 4), ("4/6 2/3 1/3 1".to_owned(), job.clone()));
    assert_eq!(place(&last, 5), ("5/6 0/1 2/3 2".to_owned(), job));
    for agent in [&mut first, &mut middle, &mut last] {
        let ended = agent.end();
        assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(0), ""));
    }
}

#[test]
fn node_ranks_follow_the_order_of_arrival() {
    let agents = Agents::of(3);
    let script = r#"report node "$GROUP_RANK"; while [ ! -e "$DIR/go" ]; do sleep 0.01; done"#;
    let first = agents.start(&["-n", "1"], script);
    wait_until_served(&agents);
    let others = [agents.start(&["-n", "1"], script), agents.start(&["-n", "1"], script)];
    assert_eq!(first.report("node"), "0");
    let mut nodes = others.each_ref().map(|agent| agent.report("node"));
    nodes.sort_unstable();
    assert_eq!(nodes, ["1", "2"]);
    let mut all: Vec<Launched> = [first].into_iter().chain(others).collect();
    all.iter().for_each(|agent| std::fs::write(agent.path("go"), "").unwrap());
    all.iter_mut().for_each(|agent| assert_eq!(agent.end().status.code(), Some(0)));
}

/// Starts two agents with two ranks each.
pub(crate) fn pair(agents: &Agents, flags: &[&str], script: &str) -> [Launched; 2] {
    ["0", "1"].map(|rank| agents.start(&[&["-n", "2", "--node-rank", rank], flags].concat(), script))
}

/// Returns the process ids of all ranks of a pair, once they run.
pub(crate) fn pids(pair: &[Launched; 2]) -> [Pid; 4] {
    [0, 1, 2, 3].map(|rank| pair[rank / 2].pid(&format!("pid.{rank}")))
}

#[test]
fn a_failed_rank_ends_the_ranks_of_all_hosts_and_each_agent_reports_it() {
    for rank in [1, 2] {
        let mut pair = pair(&Agents::of(2), &[], FOREVER);
        let pids = pids(&pair);
        kill(pids[rank], Signal::KILL);
        for agent in &mut pair {
            let cause = format!("rank {rank} (pid {}) on node {} (", pids[rank], rank / 2);
            assert_message(&agent.end(), 137, &[&cause, ") was killed by SIGKILL"]);
        }
        pids.into_iter().for_each(wait_until_dead);
    }
}

#[test]
fn an_agent_whose_ranks_have_ended_waits_for_the_others() {
    let script = r#"[ $RANK = 3 ] || exit 0; while [ ! -e "$DIR/go" ]; do sleep 0.01; done; exit 5"#;
    let mut pair = pair(&Agents::of(2), &[], script);
    let pids = pids(&pair);
    pids[..3].iter().copied().for_each(wait_until_dead);
    assert!(pair[0].is_running());
    std::fs::write(pair[1].path("go"), "").unwrap();
    for agent in &mut pair {
        assert_message(&agent.end(), 5, &["rank 3 (pid", "on node 1 (", "exited with code 5"]);
    }
}

#[test]
fn all_hosts_restart_together() {
    let script = r#"report "try.$RANK" "$TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS $MASTER_PORT";
        [ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; while [ ! -e "$DIR/go" ]; do sleep 0.01; done; exit 3"#;
    let mut pair = pair(&Agents::of(2), &["--max-restarts", "2"], script);
    let pids = pids(&pair);
    let try_of = |pair: &[Launched; 2], rank: usize| pair[rank / 2].report(&format!("try.{rank}"));
    let first = try_of(&pair, 0);
    assert!(first.starts_with("0/2 "), "{first}");
    std::fs::write(pair[1].path("go"), "").unwrap();
    for agent in &mut pair {
        let ended = agent.end();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        assert!(ended.message().ends_with("exited with code 3: restart 1 of 2"), "{ended:?}");
    }
    pids.into_iter().for_each(wait_until_dead);
    let second = [0, 1, 2, 3].map(|rank| try_of(&pair, rank));
    assert!(second[0].starts_with("1/2 ") && second.iter().all(|other| *other == second[0]), "{second:?}");
    assert_ne!(first.split_once(' ').unwrap().1, second[0].split_once(' ').unwrap().1, "another store");
}

#[test]
fn a_killed_agent_is_named_by_the_other() {
    for killed in [0, 1] {
        let mut pair = pair(&Agents::of(2), &["--max-restarts", "3"], FOREVER);
        let pids = pids(&pair);
        pair[killed].signal(Signal::KILL);
        let ended = pair[1 - killed].end();
        assert_message(&ended, 1, &[&format!("commctl: node {killed} ("), "is lost: its commctl was killed"]);
        pids.into_iter().for_each(wait_until_dead);
    }
}

#[test]
fn a_signal_to_one_agent_stops_all() {
    let mut pair = pair(&Agents::of(2), &[], FOREVER);
    let pids = pids(&pair);
    pair[1].signal(Signal::TERM);
    assert_message(&pair[0].end(), 143, &["commctl: node 1 (", "was interrupted by SIGTERM"]);
    assert_message(&pair[1].end(), 143, &["commctl: interrupted by SIGTERM"]);
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn a_program_that_one_host_lacks_is_reported_by_all() {
    let agents = Agents::of(2);
    let mut first = agents.start(&["-n", "2", "--node-rank", "0"], FOREVER);
    let flags = agents.flags(&["-n", "1", "--node-rank", "1"]);
    let mut second = start(|_| {
        let mut command = commctl();
        command.env("COMM_SECRET", "known to all agents");
        command.arg("run").args(flags).args(["--", "no-such-program-anywhere"]);
        command
    });
    assert_message(&second.end(), 127, &["commctl: program not found: no-such-program-anywhere"]);
    assert_message(&first.end(), 1, &["commctl: node 1 (", "program not found: no-such-program-anywhere"]);
}

#[test]
fn agents_that_contradict_each_other_are_refused_and_the_others_go_on() {
    let agents = Agents::of(2);
    let script = r#"while [ ! -e "$DIR/go" ]; do sleep 0.01; done"#;
    let mut first = agents.start(&["-n", "1", "--node-rank", "0"], script);
    wait_until_served(&agents);
    let address = agents.address();
    let other_count = ["-n", "1", "--nnodes", "3", "--rendezvous", &address];
    let refused = start(|dir| agent(commctl(), dir, &other_count, "")).end();
    assert_message(&refused, 1, &["--nnodes is 3 here, and 2 on node 0"]);
    let refused = agents.start(&["-n", "1", "--node-rank", "1", "--max-restarts", "4"], "").end();
    assert_message(&refused, 1, &["--max-restarts is 4 here, and 0 on node 0"]);
    let refused = agents.start(&["-n", "1", "--node-rank", "1", "--elastic", "1"], "").end();
    assert_message(&refused, 1, &["--elastic is 1 here, and not set on node 0"]);
    let mut second = agents.start(&["-n", "1", "--node-rank", "1"], script);
    second.pid("pid.1");
    let refused = agents.start(&["-n", "1", "--node-rank", "1"], "").end();
    assert_message(&refused, 1, &["node rank 1 is taken by an agent on ", "--node-rank"]);
    let refused = agents.start(&["-n", "1", "--node-rank", "0"], "").end();
    assert_message(&refused, 1, &["cannot use the rendezvous at 127.0.0.1:", "the port is in use"]);
    let refused = agents.start(&["-n", "1"], "").end();
    assert_message(&refused, 1, &["all 2 nodes have come already"]);
    let refused = agents.start(&["-n", "1", "--node-rank", "2"], "").end();
    assert_message(&refused, 1, &["node rank 2 is out of range"]);
    for agent in [&first, &second] {
        std::fs::write(agent.path("go"), "").unwrap();
    }
    for agent in [&mut first, &mut second] {
        assert_eq!(agent.end().status.code(), Some(0));
    }
}

#[test]
fn an_agent_that_never_comes_is_named_at_the_deadline() {
    let agents = Agents::of(3);
    let flags = ["-n", "1", "--rendezvous-timeout", "4", "--node-rank"];
    let mut first = agents.start(&[&flags[..], &["0"]].concat(), "");
    let mut last = agents.start(&[&flags[..], &["2"]].concat(), "");
    let came = "no agent with node rank 1 has come to 127.0.0.1:";
    // One of them may learn from the other that it has given up.
    assert_message(&first.end(), 1, &[came, "after 4s"]);
    assert_message(&last.end(), 1, &[came, "after 4s"]);
}

#[test]
fn an_address_without_an_agent_is_an_error_at_the_deadline() {
    let agents = Agents::of(2);
    let ended = agents.start(&["-n", "1", "--node-rank", "1", "--rendezvous-timeout", "1"], "").end();
    let address = agents.address();
    assert_message(&ended, 1, &[&format!("cannot meet the other agents at {address}"), "refused"]);
    // An address of the documentation range, which is not one of this host.
    let flags = ["-n", "1", "--nnodes", "2", "--node-rank", "0", "--rendezvous", "192.0.2.1:29500"];
    let ended = start(|dir| agent(commctl(), dir, &flags, "")).end();
    assert_message(
        &ended,
        1,
        &["cannot use the rendezvous at 192.0.2.1:29500", "not an address of this host"],
    );
}

#[test]
fn an_agent_needs_the_secret_of_the_others() {
    let agents = Agents::of(2);
    let mut first = agents.start(&["-n", "1", "--node-rank", "0"], "exit 0");
    wait_until_served(&agents);
    for secret in [None, Some("another secret")] {
        let flags = agents.flags(&["-n", "1", "--node-rank", "1"]);
        let mut second = start(|_| {
            let mut command = commctl();
            command.arg("run").args(flags).args(["--", "true"]);
            command.envs(secret.map(|secret| ("COMM_SECRET", secret)));
            command
        });
        assert_message(&second.end(), 1, &["cannot meet the other agents at", "secret"]);
    }
    let mut second = agents.start(&["-n", "1", "--node-rank", "1"], "exit 0");
    assert_eq!(first.end().status.code(), Some(0));
    assert_eq!(second.end().status.code(), Some(0));
}

#[test]
fn options_that_do_not_fit_several_hosts_are_refused() {
    let agents = Agents::of(2);
    let flags = ["-n", "2", "--elastic", "1", "--max-restarts", "1"];
    assert_message(&agents.start(&flags, "").end(), 1, &["does not restart all ranks"]);
    for flags in [
        &["-n", "1", "--nnodes", "2"][..],
        &["-n", "1", "--rendezvous", "127.0.0.1:1"],
        &["-n", "1", "--node-rank", "0"],
        &["-n", "1", "--nnodes", "2", "--rendezvous", "::1:29500"],
        &["-n", "1", "--nnodes", "2", "--rendezvous", "host"],
        &["-n", "1", "--nnodes", "2", "--rendezvous", "127.0.0.1:1", "--master-addr", "127.0.0.1"],
    ] {
        assert_eq!(start(|dir| agent(commctl(), dir, flags, "")).end().status.code(), Some(2), "{flags:?}");
    }
}
