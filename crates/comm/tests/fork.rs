//! Tests with real processes; one forks.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use comm::{Comm, Error, Invalid, ReduceOp, Result};
use common::process::{self, Rank};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// The timeout of a child, which waits for no other process.
const CHILD: Duration = Duration::from_secs(20);
/// The timeout of a call in which a rank dies.
const DEADLINE: Duration = Duration::from_secs(6);
/// The rank that forks.
const FORKS: usize = 1;

const TRANSPORTS: &[&str] = &[
    "tcp",
    #[cfg(feature = "hybrid")]
    "auto",
];

fn start(role: &str, transport: &str, ranks: usize) -> (comm::tcp::TcpStoreServer, Vec<Rank>) {
    process::start(role, ranks, |_| [("COMM_TRANSPORT", transport.to_owned())])
}

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Some(role) = process::role() else { return };
    let comm = comm::init().unwrap().with_timeout(Duration::from_secs(30));
    match role.as_str() {
        "call in a child" => continue_while_a_child(comm, call),
        "drop in a child" => continue_while_a_child(comm, drop),
        "finalize in a child" => continue_while_a_child(comm, |comm| refused("finalize", comm.finalize())),
        "abort in a child" => continue_while_a_child(comm, |comm| comm.abort("a child aborts")),
        "background in a child" => background(comm),
        "new communicator in a child" => continue_while_a_child(comm, |_| make_another()),
        "leave a living child" => leave_a_living_child(comm, std::mem::forget),
        "drop in a child that lives on" => leave_a_living_child(comm, drop),
        other => panic!("no such role: {other}"),
    }
}

/// Forks. The child runs `body` and exits without the exit handlers of the test.
#[allow(unsafe_code, reason = "a fork")]
fn fork(body: impl FnOnce()) -> Pid {
    // SAFETY: the other threads of this process hold no lock that the child acquires: the test
    // harness waits for the test.
    match unsafe { libc::fork() } {
        0 => {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: exits immediately, without handlers.
            unsafe { libc::_exit(i32::from(ended.is_err())) }
        }
        child => Pid::from_raw(child).unwrap(),
    }
}

/// Waits for the success of a child. A child that hangs is killed.
fn join(child: Pid) {
    let deadline = Instant::now() + CHILD;
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            return assert_eq!(status.exit_status(), Some(0), "the child failed");
        }
        if Instant::now() > deadline {
            kill_process(child, Signal::KILL).unwrap();
            waitpid(Some(child), WaitOptions::empty()).unwrap();
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Asserts that a call failed because of the fork.
#[track_caller]
fn refused<R>(call: &str, outcome: Result<R>) {
    match outcome {
        Ok(_) => panic!("{call} succeeded"),
        Err(Error::Invalid(Invalid::Forked { owner, process })) => {
            assert_eq!((owner, process), (std::os::unix::process::parent_id(), std::process::id()));
        }
        Err(other) => panic!("{call}: {other}"),
    }
}

/// Makes every kind of call in a forked process.
fn call(comm: Comm) {
    let (mut buffer, peer) = ([1.0_f32; 4], (comm.rank() + 1) % comm.size());
    drop(comm.alloc::<u8>(10 << 20).unwrap());
    refused("all_reduce", comm.all_reduce(&mut buffer, ReduceOp::Sum));
    refused("broadcast", comm.broadcast(comm.rank(), &mut buffer));
    refused("barrier", comm.barrier());
    refused("monitored_barrier", comm.monitored_barrier(CHILD));
    refused("split", comm.split(Some(0), 0));
    refused("new_group", comm.new_group(&[0, 1]));
    refused("duplicate", comm.duplicate());
    refused("send", comm.send(peer, 0, &buffer));
    refused("recv", comm.recv(peer, 0, &mut buffer));
    refused("send_recv", comm.send_recv(peer, &[1_u8], peer, &mut [0_u8]));
    refused("probe", comm.probe(peer, 0));
    refused("try_probe", comm.try_probe(peer, 0));
    refused(
        "all_reduce_async",
        comm.all_reduce_async(vec![1_u8], ReduceOp::Sum).and_then(|work| work.wait()),
    );
    refused("send_async", comm.send_async(peer, 0, vec![1_u8]).and_then(|work| work.wait()));
    refused("recv_async", comm.recv_async(peer, 0, vec![1_u8]).and_then(|work| work.wait()));
}

/// Makes the calls of ranks; one has forked.
fn all_reduce(comm: &Comm, times: usize) {
    let (next, last) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
    for round in 0..times {
        let mut buffer = vec![(comm.rank() + round) as u64; 10_000];
        comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        let sum: u64 = (0..comm.size()).map(|rank| (rank + round) as u64).sum();
        assert!(buffer.iter().all(|&element| element == sum));
        let mut received = [0];
        comm.send_recv(next, &[(comm.rank() + round) as u64], last, &mut received)
            .unwrap()
            .exactly(1)
            .unwrap();
        assert_eq!(received, [(last + round) as u64]);
    }
}

/// One rank forks between calls. All ranks continue while its child runs `body` with its only
/// handle, and after the child has exited.
fn continue_while_a_child(comm: Comm, body: fn(Comm)) {
    all_reduce(&comm, 10);
    let mut handle = Some(comm);
    let forks = handle.as_ref().unwrap().rank() == FORKS;
    let child = forks.then(|| fork(|| body(handle.take().unwrap())));
    let comm = handle.unwrap();
    all_reduce(&comm, 30);
    child.into_iter().for_each(join);
    all_reduce(&comm, 30);
    #[cfg(feature = "monitor")]
    assert_answers();
    comm.finalize().unwrap();
    println!("report: continued");
}

/// Asserts that this process still answers `commctl top`, with the calls of its communicator.
#[cfg(feature = "monitor")]
fn assert_answers() {
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};

    use comm::monitor::{MonitorName, MonitorReport};

    let list = std::fs::read_to_string("/proc/net/unix").unwrap();
    let mut names = list.lines().filter_map(|line| MonitorName::parse(line.split_once('@')?.1));
    let name = names.find(|name| name.pid == std::process::id()).unwrap();
    let address = SocketAddr::from_abstract_name(name.to_string()).unwrap();
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    stream.write_all(b"{\"calls\": 1}\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let report = MonitorReport::parse(&answer).unwrap();
    assert_eq!(report.records[0].calls[0].collective, "all_reduce");
}

/// One rank forks with pending background operations.
fn background(comm: Comm) {
    let rank = comm.rank();
    comm.all_reduce_async(vec![1_u64; 100], ReduceOp::Sum).unwrap().wait().unwrap();
    let pending = (rank == FORKS).then(|| comm.recv_async(0, 77, vec![0_u8; 3]).unwrap());
    let (mut handle, mut pending) = (Some(comm), pending);
    let child = (rank == FORKS).then(|| {
        fork(|| {
            let comm = handle.take().unwrap();
            refused("the wait for a receive of the parent", pending.take().unwrap().wait());
            call(comm.clone());
            drop(comm);
        })
    });
    let comm = handle.unwrap();
    all_reduce(&comm, 30);
    child.into_iter().for_each(join);
    comm.barrier().unwrap();
    if rank == 0 {
        comm.send(FORKS, 77, &[7_u8, 8, 9]).unwrap();
    }
    if let Some(pending) = pending {
        assert_eq!(pending.wait().unwrap().0, [7, 8, 9]);
    }
    let sum = comm.all_reduce_async(vec![1_u64; 100], ReduceOp::Sum).unwrap().wait().unwrap();
    assert_eq!(sum, [comm.size() as u64; 100]);
    comm.finalize().unwrap();
    println!("report: continued");
}

/// A child may create its own communicator.
fn make_another() {
    let mut config = comm::Config::new(comm::Membership { rank: 0, size: 1 }, "127.0.0.1", 1).unwrap();
    config.timeout = CHILD;
    let alone = comm::init_with(&config).unwrap();
    alone.barrier().unwrap();
    assert_eq!(alone.all_reduce_async(vec![3_u8], ReduceOp::Sum).unwrap().wait().unwrap(), [3]);
    alone.send(0, 0, &[1_u8]).unwrap();
    alone.recv(0, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
    alone.finalize().unwrap();
}

/// One rank leaves a sleeping child, and all make calls until one fails.
fn leave_a_living_child(comm: Comm, body: fn(Comm)) {
    let mut handle = Some(comm.with_timeout(DEADLINE));
    drop(comm);
    if handle.as_ref().unwrap().rank() == FORKS {
        let child = fork(|| {
            body(handle.take().unwrap());
            println!("report: asleep");
            std::thread::sleep(Duration::from_secs(300));
        });
        println!("report: {}", child.as_raw_pid());
    }
    let comm = handle.unwrap();
    for round in 0_u64.. {
        if let Err(error) = comm.all_reduce(&mut [1.0_f32; 100], ReduceOp::Sum) {
            match error {
                Error::PeerLost { peer, .. } => println!("report: lost {peer}"),
                Error::Timeout { waiting_for, .. } => println!("report: waited for {waiting_for:?}"),
                other => println!("report: other: {other}"),
            }
            return;
        }
        if round == 50 {
            println!("report: running");
        }
    }
}

/// A process whose parent does not wait for it. It is killed with the test.
struct Orphan(Pid);

impl Drop for Orphan {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = kill_process(self.0, Signal::KILL);
    }
}

fn assert_ranks_continue(role: &str, ranks: usize) {
    for transport in TRANSPORTS {
        let (_store, mut processes) = start(role, transport, ranks);
        for (rank, process) in processes.iter_mut().enumerate() {
            assert_eq!(process.report().as_deref(), Some("continued"), "rank {rank}, {role}, {transport}");
            assert!(process.child.wait().unwrap().success());
        }
    }
}

#[test]
fn a_call_in_a_forked_child_fails_and_affects_no_rank() {
    assert_ranks_continue("call in a child", 2);
    assert_ranks_continue("call in a child", 3);
}

#[test]
fn a_forked_child_that_drops_a_communicator_affects_no_rank() {
    for role in ["drop in a child", "finalize in a child", "abort in a child"] {
        assert_ranks_continue(role, 3);
    }
}

#[test]
fn background_operations_of_the_parent_fail_in_a_forked_child_and_complete_in_the_parent() {
    assert_ranks_continue("background in a child", 2);
    assert_ranks_continue("background in a child", 3);
}

#[test]
fn a_forked_child_can_create_its_own_communicator() {
    assert_ranks_continue("new communicator in a child", 2);
}

/// Kills the rank that left a child. Returns the output of the others, and the time until all have
/// reported it.
fn kill_the_parent(role: &str, transport: &str, ranks: usize) -> (Vec<String>, Duration) {
    let (_store, mut processes) = start(role, transport, ranks);
    let (mut child, mut is_asleep) = (None, false);
    while child.is_none() || !is_asleep {
        match processes[FORKS].report().unwrap().as_str() {
            "asleep" => is_asleep = true,
            "running" => {}
            number => child = Some(Orphan(Pid::from_raw(number.parse().unwrap()).unwrap())),
        }
    }
    for (_, process) in processes.iter_mut().enumerate().filter(|(rank, _)| *rank != FORKS) {
        assert_eq!(process.report().as_deref(), Some("running"));
    }
    let killed = Instant::now();
    processes[FORKS].child.kill().unwrap();
    let others = processes.iter_mut().enumerate().filter(|(rank, _)| *rank != FORKS);
    let report = others.map(|(_, process)| process.report().unwrap()).collect();
    (report, killed.elapsed())
}

#[track_caller]
fn assert_named_at_once(role: &str, transport: &str, ranks: usize) {
    let (report, took) = kill_the_parent(role, transport, ranks);
    assert!(
        report.iter().all(|report| *report == format!("lost {FORKS}")),
        "{ranks} ranks, {transport}: {report:?}"
    );
    assert!(took < Duration::from_secs(2), "{ranks} ranks, {transport}: {took:?}");
}

/// The child holds copies of the sockets, so they do not close with the parent.
#[cfg(feature = "hybrid")]
#[test]
fn a_killed_rank_with_a_living_child_is_named_within_two_seconds_over_shared_memory() {
    for ranks in [2, 3, 5] {
        assert_named_at_once("leave a living child", "auto", ranks);
    }
}

#[test]
fn a_killed_rank_with_a_living_child_is_named_at_the_deadline_over_tcp() {
    for ranks in [2, 3] {
        let (report, took) = kill_the_parent("leave a living child", "tcp", ranks);
        assert!(
            report.iter().all(|report| *report == format!("waited for [{FORKS}]")),
            "{ranks} ranks: {report:?}"
        );
        assert!(took < 2 * DEADLINE, "{ranks} ranks: {took:?}");
    }
}

#[test]
fn a_killed_rank_is_named_within_two_seconds_if_its_child_has_dropped_the_communicator() {
    for transport in TRANSPORTS {
        assert_named_at_once("drop in a child that lives on", transport, 3);
    }
}
