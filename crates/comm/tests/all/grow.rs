//! Tests with real processes that join a running group; some are killed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use crate::common::process::{self, Rank};
use comm::tcp::{StoreConfig, TcpStore, TcpStoreServer};
use comm::{Config, ElasticGroup, Error, GrowOptions, ReduceOp, Result, ShrinkOptions, Store};

/// The timeout of calls, with time for replies of ranks on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of elements of an all-reduce.
const LENGTH: usize = 1000;

/// The shortest time between two right results that is reported.
const PAUSE: Duration = Duration::from_millis(300);

/// The variable with the number of a process, which is the same in every group.
const PROCESS: &str = "COMM_TEST_PROCESS";

/// The process of a rank that a test starts: makes all-reduces, admits processes between them, and
/// goes on after a failure. Prints the processes of each group after the first right results.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let config = match process::role().as_deref() {
        None => return,
        Some("check") => return check(),
        Some(_) => Config::from_env().unwrap(),
    };
    let mut state = State { process: std::env::var(PROCESS).unwrap().parse().unwrap(), ..State::default() };
    let mut group = ElasticGroup::join(&config).unwrap();
    let mut is_complete = !group.is_newcomer();
    let (mut reported, mut last) = (Vec::new(), Instant::now());
    loop {
        let outcome = state.step(&mut group, &mut is_complete);
        if outcome.is_ok() {
            let pause = last.elapsed();
            if pause > PAUSE {
                println!("report: pause {}", pause.as_millis());
            }
            last = Instant::now();
        }
        match outcome {
            Ok(processes) if processes != reported => {
                println!("report: group {processes:?}");
                reported = processes;
            }
            Ok(_) => {}
            Err(error) => {
                assert!(error.is_fatal(), "{error}");
                group.shrink(&ShrinkOptions::default().patience(TIMEOUT)).unwrap();
                is_complete = false;
            }
        }
    }
}

/// Detects without a call that another rank has died.
fn check() {
    let comm = comm::init().unwrap();
    comm.barrier().unwrap();
    comm.check().unwrap();
    println!("report: ready");
    let error = loop {
        match comm.check() {
            Ok(()) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    println!("report: {error}");
    assert!(matches!(comm.check(), Err(Error::Poisoned(_))));
}

#[test]
fn the_death_of_a_rank_is_found_without_a_call() {
    for transport in ["tcp", "auto"] {
        let (_store, mut ranks) =
            process::start("grow::check", 3, |_| [("COMM_TRANSPORT", transport.to_owned())]);
        for rank in &mut ranks {
            assert_eq!(rank.report().as_deref(), Some("ready"));
        }
        ranks[1].child.kill().unwrap();
        for rank in [0, 2] {
            let report = ranks[rank].report().unwrap();
            assert!(report.starts_with("rank 1 was lost between calls"), "{report}");
        }
    }
}

/// The state that all ranks share.
#[derive(Default)]
struct State {
    process: u64,
    step: u64,
    /// Depends on every earlier step.
    digest: u64,
}

impl State {
    /// Makes a step together with all others. Returns the processes of the group.
    fn step(&mut self, group: &mut ElasticGroup, is_complete: &mut bool) -> Result<Vec<u64>> {
        if !*is_complete || group.grow(&GrowOptions::default())? > 0 {
            let mut shared = [self.step, self.digest];
            group.comm().broadcast(0, &mut shared)?;
            [self.step, self.digest] = shared;
            *is_complete = true;
        }
        let comm = group.comm();
        let processes = comm.all_gather_scalar(self.process)?;
        let element = |process: u64| (process << 32) + self.step;
        let mut sums = [element(self.process); LENGTH];
        comm.all_reduce(&mut sums, ReduceOp::Sum)?;
        let expected: u64 = processes.iter().map(|&process| element(process)).sum();
        assert!(sums.iter().all(|&sum| sum == expected), "step {}: {sums:?}, not {expected}", self.step);
        let digests = comm.all_gather_scalar(self.digest)?;
        assert!(digests.iter().all(|digest| *digest == self.digest), "step {}: {digests:?}", self.step);
        self.step += 1;
        self.digest = self.digest.wrapping_mul(31).wrapping_add(sums[0]);
        Ok(processes)
    }
}

/// The processes of a test, by their numbers.
struct Processes {
    store: TcpStoreServer,
    all: Vec<Option<Rank>>,
    /// The numbers of the members, in the order of their ranks.
    members: Vec<u64>,
    transport: &'static str,
    /// The port at which rank 0 serves the store, instead of `store`.
    port: Option<crate::common::Port>,
}

impl Processes {
    fn start(transport: &'static str, ranks: usize) -> Self {
        let (store, all) = process::start("grow::steps", ranks, |rank| {
            [("COMM_TRANSPORT", transport.to_owned()), (PROCESS, rank.to_string())]
        });
        let members = (0..ranks as u64).collect();
        Self { store, all: all.into_iter().map(Some).collect(), members, transport, port: None }
    }

    /// Starts ranks; rank 0 serves the store.
    fn start_without_launcher(ranks: usize) -> Self {
        let port = Some(crate::common::Port::reserve());
        let mut all = Self {
            store: crate::common::store(),
            all: Vec::new(),
            members: Vec::new(),
            transport: "auto",
            port,
        };
        (0..ranks).for_each(|rank| all.add((rank, ranks), false));
        all
    }

    /// Starts a process that is to join the group.
    fn join(&mut self) -> usize {
        self.add((0, 1), true);
        self.all.len() - 1
    }

    fn add(&mut self, rank: (usize, usize), joins: bool) {
        let process = self.all.len();
        let mut command = process::command("grow::steps", &self.store, rank);
        command.env("COMM_TRANSPORT", self.transport).env(PROCESS, process.to_string());
        if let Some(port) = &self.port {
            command.env_remove("COMM_STORE").env("MASTER_PORT", port.number.to_string());
        }
        if joins {
            command.env("COMM_JOIN", "1");
        }
        self.all.push(Some(Rank::start(command)));
        self.members.push(process as u64);
    }

    fn kill(&mut self, process: usize) {
        self.members.retain(|member| *member != process as u64);
        // Dropping it kills it.
        self.all[process] = None;
    }

    /// Waits until the members, and no others, compute right results together.
    fn await_group(&mut self) {
        let members = std::mem::take(&mut self.members);
        let mut sorted = members.clone();
        sorted.sort_unstable();
        for &member in &members {
            let rank = self.all[member as usize].as_mut().unwrap();
            loop {
                let report = rank.report().unwrap_or_else(|| panic!("process {member} has failed"));
                let mut group = numbers(&report);
                group.sort_unstable();
                if group == sorted {
                    break;
                }
            }
        }
        self.members = members;
    }
}

fn num_keys(server: &TcpStoreServer) -> u64 {
    let config = StoreConfig::job(crate::common::JOB);
    TcpStore::connect(server.local_addr(), config, TIMEOUT).unwrap().num_keys().unwrap()
}

/// Returns the numbers in a report such as `group [1, 2]`.
fn numbers(report: &str) -> Vec<u64> {
    let Some(list) = report.strip_prefix("group [") else { return Vec::new() };
    let list = list.strip_suffix(']').unwrap();
    list.split(", ").map(|number| number.parse().unwrap()).collect()
}

#[test]
fn a_group_regains_the_ranks_that_it_loses_its_leader_among_them() {
    for transport in ["tcp", "auto"] {
        let mut processes = Processes::start(transport, 3);
        processes.await_group();
        processes.join();
        processes.join();
        processes.await_group();
        for victim in [0, 3, 1, 2, 4] {
            processes.kill(victim);
            processes.await_group();
            processes.join();
            processes.await_group();
        }
    }
}

#[test]
fn the_next_rank_serves_the_store_when_the_one_that_did_is_lost() {
    let mut processes = Processes::start_without_launcher(3);
    processes.await_group();
    for _ in 0..3 {
        processes.join();
        processes.await_group();
        processes.kill(processes.members[0] as usize);
        processes.await_group();
    }
}

#[test]
fn ranks_that_die_while_others_join_do_not_keep_the_rest_from_going_on() {
    for transport in ["tcp", "auto"] {
        let mut processes = Processes::start(transport, 2);
        processes.await_group();
        for wait in [0, 1, 2, 3, 5, 8, 13, 21, 34] {
            // The members change with every death, so that a leader dies too.
            let (victim, newcomer) = (processes.members[0] as usize, processes.join());
            std::thread::sleep(Duration::from_millis(wait));
            processes.kill(victim);
            processes.await_group();
            let abandoned = processes.join();
            std::thread::sleep(Duration::from_millis(wait));
            processes.kill(abandoned);
            processes.join();
            processes.await_group();
            processes.kill(newcomer);
            processes.await_group();
        }
        let keys = num_keys(&processes.store);
        // Those of the rendezvous of the present group, and of the list.
        assert!(keys < 30, "{keys} keys");
    }
}

#[test]
#[ignore = "measures times"]
fn the_time_without_a_right_result_while_ranks_come_and_go() {
    let seconds = std::env::var("COMM_TEST_SECONDS").map_or(60, |seconds| seconds.parse().unwrap());
    let seed = std::env::var("COMM_TEST_SEEDS").map_or(1, |seed| seed.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    let mut processes = Processes::start("auto", 6);
    processes.await_group();
    let (began, mut events) = (Instant::now(), [0, 0]);
    let (mut pauses, mut killed) = (Vec::new(), Vec::new());
    while began.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(100));
        let joins = processes.members.len() <= 4 || processes.members.len() < 8 && random.bool();
        events[usize::from(joins)] += 1;
        if joins {
            processes.join();
        } else {
            let victim = processes.members[random.usize(..processes.members.len())] as usize;
            processes.members.retain(|member| *member != victim as u64);
            let mut victim = processes.all[victim].take().unwrap();
            victim.child.kill().unwrap();
            killed.push(victim);
        }
    }
    processes.await_group();
    let keys = num_keys(&processes.store);
    for member in &processes.members {
        let rank = processes.all[*member as usize].as_mut().unwrap();
        rank.child.kill().unwrap();
    }
    for mut rank in killed.into_iter().chain(processes.all.into_iter().flatten()) {
        while let Some(report) = rank.report() {
            pauses.extend(report.strip_prefix("pause ").map(|pause| pause.parse::<u64>().unwrap()));
        }
    }
    pauses.sort_unstable();
    let [kills, joins] = events;
    println!("{kills} kills, {joins} joins, {keys} keys, pauses of {PAUSE:?} and more in ms: {pauses:?}");
}
