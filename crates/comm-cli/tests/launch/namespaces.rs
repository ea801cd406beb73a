//! Tests of launches on hosts with networks of their own, which are network namespaces. They need
//! root and iproute2, and are skipped without.

use std::env;
use std::process::Command;
use std::time::{Duration, Instant};

use comm::hybrid::Path;
use comm::{Comm, ReduceOp};
use rustix::process::{Signal, getpid, kill_process};

use crate::collectives::ROLE;
use crate::harness::{FOREVER, Launched, commctl, kill, start, wait_until_dead};
use crate::hosts::{Family, Hosts, address};
use crate::nodes::agent;

const PORT: u16 = 29_500;
/// The time in which agents name a host that does not answer: 10 s until keepalive gives it up, and
/// a margin for a busy machine. It leaves no time for another 10 s, after which an operation of the
/// store fails that was begun in vain.
const LOST_WITHIN: Duration = Duration::from_secs(20);

/// Returns the command of an agent with two ranks on a host, without its program.
fn agent_on(hosts: &Hosts, host: usize, flags: &[&str]) -> (Command, Vec<String>) {
    agent_with(hosts, host, "2", flags)
}

pub(crate) fn agent_with(hosts: &Hosts, host: usize, ranks: &str, flags: &[&str]) -> (Command, Vec<String>) {
    let mut command = hosts.command(host);
    let inner = commctl();
    command.arg(inner.get_program()).args(inner.get_args());
    command.env_remove("COMM_SECRET");
    let (nodes, rendezvous) = (hosts.count().to_string(), format!("{}:{PORT}", address(Family::V4, 0, 0)));
    let host = host.to_string();
    let ours = ["-n", ranks, "--nnodes", &nodes, "--node-rank", &host, "--rendezvous", &rendezvous];
    (command, ours.iter().chain(flags).map(|flag| (*flag).to_owned()).collect())
}

/// Starts an agent with a script on every host.
fn start_scripts(hosts: &Hosts, script: &str) -> Vec<Launched> {
    let start = |host| {
        let (command, flags) = agent_on(hosts, host, &[]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        start(|dir| agent(command, dir, &flags, script))
    };
    (0..hosts.count()).map(start).collect()
}

/// Runs a test of this file as two ranks on each of three hosts, and returns the output of the
/// agents.
fn run_as_ranks(hosts: &Hosts, flags: &[&str], test: &str) -> Vec<crate::harness::Ended> {
    let program = env::current_exe().unwrap();
    let start = |host| {
        let (mut command, ours) = agent_on(hosts, host, flags);
        command.arg("run").args(ours).arg("--").arg(&program);
        command.args(["--exact", test, "--nocapture"]).env(ROLE, "1");
        command.env("COMM_SECRET", "known to all agents");
        start(|_| command)
    };
    let mut agents: Vec<Launched> = (0..hosts.count()).map(start).collect();
    agents.iter_mut().map(Launched::end).collect()
}

fn is_rank() -> bool {
    env::var_os(ROLE).is_some()
}

/// Connects to the other ranks, over TCP to ranks on other hosts.
fn connect() -> Comm {
    let config = comm::Config::from_env().unwrap();
    let (comm, paths) = comm::init_with_paths(&config).unwrap();
    let host = |rank| rank / 2;
    for peer in (0..comm.size()).filter(|peer| host(*peer) != host(comm.rank())) {
        assert_eq!(paths.to(peer), Some(Path::Tcp), "rank {peer}");
    }
    comm
}

/// Sums numbers whose sum is exact, and compares bits.
fn sum(comm: &Comm, len: usize) -> comm::Result<()> {
    let value = |rank: usize, at: usize| (rank + 1) as f32 * ((at % 1000) as f32 + 0.5);
    let mut buffer: Vec<f32> = (0..len).map(|at| value(comm.rank(), at)).collect();
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    for (at, sum) in buffer.iter().enumerate() {
        let expected: f32 = (0..comm.size()).map(|rank| value(rank, at)).sum();
        assert_eq!(sum.to_bits(), expected.to_bits(), "element {at}");
    }
    Ok(())
}

#[test]
fn ranks_of_three_hosts_reduce_over_tcp_and_restart_after_one_was_killed() {
    if is_rank() {
        let comm = connect();
        [1, 100, 200_000].into_iter().for_each(|len| sum(&comm, len).unwrap());
        if env::var("TORCHELASTIC_RESTART_COUNT").unwrap() == "0" {
            if comm.rank() == 3 {
                kill_process(getpid(), Signal::KILL).unwrap();
            }
            // Fails, and so do the others, possibly before their launcher knows the cause.
            sum(&comm, 100_000).unwrap();
        }
        return comm.finalize().unwrap();
    }
    let Some(hosts) = Hosts::new(3, 1) else { return };
    let test = "namespaces::ranks_of_three_hosts_reduce_over_tcp_and_restart_after_one_was_killed";
    for ended in run_as_ranks(&hosts, &["--max-restarts", "1"], test) {
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let mut restarts = ended.stderr.lines().filter(|line| line.starts_with("commctl: "));
        let restart = restarts.next().unwrap();
        assert!(
            restart.starts_with("commctl: rank 3 (pid ") && restart.contains(" on node 1 ("),
            "{ended:?}"
        );
        assert!(restart.ends_with("was killed by SIGKILL: restart 1 of 1"), "{ended:?}");
        assert_eq!(restarts.next(), None, "{ended:?}");
    }
}

#[test]
fn a_killed_agent_and_a_host_that_is_cut_off_are_named_by_the_others() {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    for is_cut_off in [false, true] {
        let mut agents = start_scripts(&hosts, FOREVER);
        let pids: Vec<_> = (0..6).map(|rank| agents[rank / 2].pid(&format!("pid.{rank}"))).collect();
        let begun = Instant::now();
        if is_cut_off {
            hosts.cut_off(2);
        } else {
            agents[2].signal(Signal::KILL);
        }
        for agent in &mut agents[..2] {
            let ended = agent.end();
            assert!(ended.message().starts_with("commctl: node 2 ("), "{ended:?}");
            assert!(ended.message().contains("is lost"), "{ended:?}");
            assert_eq!(ended.status.code(), Some(1));
        }
        if is_cut_off {
            let ended = agents[2].end();
            assert!(ended.message().starts_with("commctl: node 0 ("), "{ended:?}");
            assert!(ended.message().contains("is lost"), "{ended:?}");
        }
        assert!(begun.elapsed() < LOST_WITHIN, "{:?}", begun.elapsed());
        pids.into_iter().for_each(wait_until_dead);
    }
}

#[test]
fn the_others_end_if_the_host_of_the_store_is_cut_off() {
    let Some(hosts) = Hosts::new(2, 1) else { return };
    let mut agents = start_scripts(&hosts, FOREVER);
    let pids: Vec<_> = (0..4).map(|rank| agents[rank / 2].pid(&format!("pid.{rank}"))).collect();
    hosts.cut_off(0);
    let ended = agents[1].end();
    assert!(ended.message().starts_with("commctl: node 0 ("), "{ended:?}");
    let ended = agents[0].end();
    assert!(ended.message().starts_with("commctl: node 1 ("), "{ended:?}");
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn a_killed_rank_ends_the_ranks_of_all_hosts() {
    let Some(hosts) = Hosts::new(2, 1) else { return };
    let mut agents = start_scripts(&hosts, FOREVER);
    let pids: Vec<_> = (0..4).map(|rank| agents[rank / 2].pid(&format!("pid.{rank}"))).collect();
    kill(pids[3], Signal::KILL);
    for agent in &mut agents {
        let ended = agent.end();
        assert!(ended.message().contains(" on node 1 (") && ended.status.code() == Some(137), "{ended:?}");
    }
    pids.into_iter().for_each(wait_until_dead);
}

#[test]
fn agents_without_a_secret_warn_that_others_can_join() {
    let Some(hosts) = Hosts::new(2, 1) else { return };
    let start = |host| {
        let (mut command, flags) = agent_on(&hosts, host, &[]);
        command.arg("run").args(flags).args(["--", "sh", "-c", r#"[ -z "$COMM_SECRET" ]"#]);
        start(|_| command)
    };
    for mut agent in [0, 1].map(start) {
        let ended = agent.end();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let warning =
            format!("commctl: no secret: anyone who can reach {}:{PORT} can join", address(Family::V4, 0, 0));
        assert!(ended.stderr.starts_with(&warning), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
}
