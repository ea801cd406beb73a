//! Tests with real processes on hosts with networks of their own, which are network namespaces.
//! They need root and iproute2, and are skipped without.
#![cfg(feature = "hybrid")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use comm::{Comm, Error, Loss, ReduceOp, Result};
use common::hosts::{Family, Hosts, INTERFACES, address, received};
use common::jobs::{Job, print_loss};
use common::process::{self, Rank};

/// The default of the setting.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The documented time in which a lost host is named by a rank that is in a call.
const LOST_WITHIN: Duration = Duration::from_millis(3500);
/// The delay with which the kernel may send a probe. A host that is cut off in the meantime has
/// been silent for that much longer already.
const PROBE_DELAY: Duration = Duration::from_millis(500);
/// The time that a report may take on a busy machine: every rank must be scheduled several times
/// among dozens of processes on two processors. The kernel's own limit is far higher, 15 minutes.
const SLACK: Duration = Duration::from_secs(6);

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Some(role) = process::role() else { return };
    if role == "rendezvous" {
        return meet();
    }
    let comm = comm::init().unwrap();
    match role.as_str() {
        "collectives" => {
            (1..=3).for_each(|round| collectives(&comm, 1000 * round).unwrap());
            comm.finalize().unwrap();
            println!("report: right");
        }
        "small calls" => call_until_lost(&comm, 10),
        "large calls" => call_until_lost(&comm, 1_000_000),
        "sleep" => sleep_until_resumed(&comm),
        "one message" => await_one_message(&comm),
        "messages" => exchange_until_lost(&comm),
        "calls until resumed" => call_until_resumed(&comm),
        "traffic" => {
            let mut buffer = vec![1.0_f32; 1_000_000];
            (0..5).for_each(|_| comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap());
            comm.barrier().unwrap();
            println!("report: {:?}", INTERFACES.map(|interface| received(interface) > 10_000_000));
        }
        other => panic!("no such role: {other}"),
    }
}

/// Makes every collective, and a ring of messages, and checks all results.
fn collectives(comm: &Comm, len: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let (own, sum) = (rank as u64, (size * (size - 1) / 2) as u64);
    let blocks = |value: &dyn Fn(usize) -> u64| -> Vec<u64> {
        (0..size).flat_map(|block| vec![value(block); len]).collect()
    };
    let is = |buffer: &[u64], value: u64| assert!(buffer.iter().all(|&element| element == value));
    let (mut one, mut all) = (vec![own; len], vec![0; len * size]);
    comm.all_reduce(&mut one, ReduceOp::Sum)?;
    is(&one, sum);
    one.fill(own);
    comm.reduce(1, &mut one, ReduceOp::Sum)?;
    is(&one, if rank == 1 { sum } else { own });
    comm.broadcast(1, &mut one)?;
    is(&one, sum);
    one.fill(own);
    comm.all_gather(&one, &mut all)?;
    assert_eq!(all, blocks(&|block| block as u64));
    comm.reduce_scatter(&all, &mut one, ReduceOp::Sum)?;
    is(&one, own * size as u64);
    one.fill(own);
    all.fill(0);
    comm.gather(2, &one, &mut all)?;
    assert_eq!(all, if rank == 2 { blocks(&|block| block as u64) } else { vec![0; len * size] });
    comm.scatter(2, &all, &mut one)?;
    is(&one, own);
    comm.all_to_all(&blocks(&|block| (100 * rank + block) as u64), &mut all)?;
    assert_eq!(all, blocks(&|block| (100 * block + rank) as u64));
    one.fill(1);
    comm.scan(&mut one, ReduceOp::Sum)?;
    is(&one, own + 1);
    one.fill(1);
    comm.exscan(&mut one, ReduceOp::Sum)?;
    is(&one, own.max(u64::from(rank == 0)));
    comm.barrier()?;
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut received = vec![0; len];
    let message = comm.send_recv((next, 7), &vec![own; len], (previous, 7), &mut received)?;
    assert_eq!((message.source, message.len), (previous, len));
    is(&received, previous as u64);
    Ok(())
}

fn call_until_lost(comm: &Comm, len: usize) {
    let mut buffer = vec![1.0_f32; len];
    for round in 0_u64.. {
        buffer.fill(1.0);
        if let Err(error) = comm.all_reduce(&mut buffer, ReduceOp::Sum) {
            return print_loss(&error);
        }
        assert!(buffer.iter().all(|&element| element == comm.size() as f32));
        if round == 3 {
            println!("report: running");
        }
        // Leaves the processors to others.
        thread::sleep(Duration::from_millis(2));
    }
}

/// Makes no calls until there is input, and then one.
fn sleep_until_resumed(comm: &Comm) {
    comm.barrier().unwrap();
    println!("report: running");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    match comm.barrier() {
        Ok(()) => println!("report: continued"),
        Err(error) => print_loss(&error),
    }
}

/// Sends long messages to the last rank, which sends them back, until that fails.
fn exchange_until_lost(comm: &Comm) {
    let last = comm.size() - 1;
    let exchange = |peer: usize| {
        let (message, mut buffer) = (vec![1_u8; 3_000_000], vec![0_u8; 3_000_000]);
        for round in 0_u64.. {
            if let Err(error) = comm.send_recv((peer, round), &message, (peer, round), &mut buffer) {
                return print_loss(&error);
            }
            if round == 1 && comm.rank() != last {
                println!("report: running");
            }
        }
    };
    if comm.rank() != last {
        return exchange(last);
    }
    println!("report: running");
    thread::scope(|scope| (0..last).for_each(|peer| drop(scope.spawn(move || exchange(peer)))));
}

/// Ranks 3 and 4 exchange a message half a second after they were connected, so that the kernel
/// probes their channels of messages half a second before or after the others. Then rank 3 waits
/// for another message, and all others for rank 3.
fn await_one_message(comm: &Comm) {
    comm.barrier().unwrap();
    thread::sleep(Duration::from_millis(500));
    let error = match comm.rank() {
        rank @ (3 | 4) => {
            let _ = comm.send_recv((7 - rank, 0), &[0_u8], (7 - rank, 0), &mut [0_u8]).unwrap();
            println!("report: running");
            comm.recv(7 - rank, 1, &mut [0_u8]).map(drop).unwrap_err()
        }
        _ => {
            println!("report: running");
            comm.barrier().unwrap_err()
        }
    };
    print_loss(&error);
}

/// Makes calls until every rank has input, then prints the duration of the longest call.
fn call_until_resumed(comm: &Comm) {
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || sender.send(std::io::stdin().read_line(&mut String::new()).is_ok()));
    println!("report: running");
    let (mut is_resumed, mut longest) = (false, Duration::ZERO);
    loop {
        is_resumed |= receiver.try_recv().unwrap_or(false);
        let mut buffer = vec![f32::from(u8::from(is_resumed)); 10_000];
        let began = Instant::now();
        if let Err(error) = comm.all_reduce(&mut buffer, ReduceOp::Sum) {
            return print_loss(&error);
        }
        longest = longest.max(began.elapsed());
        if buffer.iter().all(|&element| element == comm.size() as f32) {
            return println!("report: continued {}", longest.as_millis());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Joins a rendezvous that never completes.
fn meet() {
    println!("report: running");
    match comm::init().unwrap_err() {
        Error::PeerLost { peer, loss: Loss::Store(_), .. } => println!("report: lost the store of {peer}"),
        error => print_loss(&error),
    }
}

fn await_running(ranks: &mut [Rank]) {
    for (rank, process) in ranks.iter_mut().enumerate() {
        assert_eq!(process.report().as_deref(), Some("running"), "rank {rank}");
    }
}

fn assert_all_report(ranks: &mut [Rank], expected: &str) {
    for (rank, process) in ranks.iter_mut().enumerate() {
        assert_eq!(process.report().as_deref(), Some(expected), "rank {rank}");
    }
}

/// Checks that each of these ranks names a rank that was lost, because its host does not answer,
/// and that it does so in time.
fn assert_named_in_time(ranks: &mut [Rank], lost: &[usize], cut_off: Instant, context: &str) {
    for (rank, process) in ranks.iter_mut().enumerate() {
        let report = process.report().unwrap();
        let took = cut_off.elapsed();
        let is_named = lost.iter().any(|lost| report.starts_with(&format!("lost {lost}: ")));
        assert!(is_named && report.contains("has not answered"), "rank {rank}, {context}: {report}");
        assert!(took >= KEEPALIVE_TIMEOUT - PROBE_DELAY, "rank {rank}, {context}: {took:?}");
        assert!(took < LOST_WITHIN + SLACK, "rank {rank}, {context}: {took:?}");
        println!("{context}: rank {rank} after {took:?}: {report}");
    }
}

#[test]
fn all_collectives_of_two_jobs_on_three_hosts_are_right_over_ipv4_and_ipv6() {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    let jobs = [(Family::V4, "1"), (Family::V6, "2")].map(|(family, id)| Job {
        master: address(family, 0, 0),
        variables: vec![("COMM_JOB_ID", id.into())],
        ..Job::new("collectives", 29_500)
    });
    for mut ranks in jobs.map(|job| hosts.start(&job)) {
        assert_all_report(&mut ranks, "right");
    }
}

#[test]
fn a_host_that_vanishes_and_no_other_is_named_by_all_others_in_time() {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    let parts = ["small calls", "large calls", "sleep"];
    let mut jobs: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(at, role)| (*role, hosts.start(&Job::new(role, 29_500 + at as u16))))
        .collect();
    jobs.iter_mut().for_each(|(_, ranks)| await_running(ranks));
    let cut_off = Instant::now();
    hosts.cut_off(2);
    for (role, ranks) in &mut jobs {
        let (survivors, gone) = ranks.split_at_mut(4);
        if *role == "sleep" {
            // The kernel has found out by now. The ranks begin a call, and need not wait.
            thread::sleep(LOST_WITHIN.saturating_sub(cut_off.elapsed()));
            survivors.iter_mut().for_each(Rank::resume);
        }
        assert_named_in_time(survivors, &[4, 5], cut_off, role);
        if *role != "sleep" {
            // As seen from there, the other hosts have vanished.
            assert_named_in_time(gone, &[0, 1, 2, 3], cut_off, role);
        }
    }
}

#[test]
fn a_host_that_vanishes_in_the_middle_of_messages_is_named_by_their_senders() {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    let job = Job { ranks_per_host: 1, ..Job::new("messages", 29_500) };
    let mut striped = Job { port: 29_501, ..job.clone() };
    striped.variables.push(("COMM_TCP_SOCKETS", "3".into()));
    let mut jobs =
        [("messages", job), ("striped messages", striped)].map(|(context, job)| (context, hosts.start(&job)));
    jobs.iter_mut().for_each(|(_, ranks)| await_running(ranks));
    let cut_off = Instant::now();
    hosts.cut_off(2);
    for (context, ranks) in &mut jobs {
        assert_named_in_time(&mut ranks[..2], &[2], cut_off, context);
    }
}

#[test]
fn a_rank_that_fails_in_a_message_and_leaves_is_not_named_in_place_of_the_vanished_host() {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    // In some of them, messages show first that the host is gone.
    let mut jobs = [0, 1, 2, 3, 4].map(|at| {
        thread::sleep(Duration::from_millis(250));
        let mut job = Job::new("one message", 29_500 + at);
        job.variables.push(("COMM_TCP_SOCKETS", if at < 2 { "3".into() } else { "1".into() }));
        hosts.start(&job)
    });
    jobs.iter_mut().for_each(|ranks| await_running(ranks));
    let cut_off = Instant::now();
    hosts.cut_off(2);
    for (at, ranks) in jobs.iter_mut().enumerate() {
        assert_named_in_time(&mut ranks[..4], &[4, 5], cut_off, &format!("job {at}"));
    }
}

#[test]
fn a_host_that_vanishes_during_rendezvous_is_named_at_once() {
    for (victim, lost) in [(1, "lost 1"), (0, "lost the store of 0")] {
        let Some(hosts) = Hosts::new(4, 1) else { return };
        let job = Job { ranks_per_host: 1, ..Job::new("rendezvous", 29_500) };
        let mut ranks: Vec<_> = (0..3).map(|rank| hosts.start_rank(&job, rank, None)).collect();
        await_running(&mut ranks);
        // Gives them time to join; otherwise they wait for the deadline.
        thread::sleep(Duration::from_secs(1));
        let cut_off = Instant::now();
        hosts.cut_off(victim);
        for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
            let report = process.report().unwrap();
            assert!(report.starts_with(lost), "rank {rank}: {report}");
            assert!(cut_off.elapsed() < LOST_WITHIN + SLACK, "rank {rank}: {:?}", cut_off.elapsed());
            println!("rank {rank} after {:?}: {report}", cut_off.elapsed());
        }
    }
}

#[test]
fn a_link_that_is_down_for_a_second_fails_no_call() {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    // On a busy machine the interruption may take longer, and then shows nothing.
    for port in 29_500..29_510 {
        let mut calls = hosts.start(&Job::new("calls until resumed", port));
        let mut sleepers = hosts.start(&Job::new("sleep", port + 100));
        await_running(&mut calls);
        await_running(&mut sleepers);
        let cut_off = Instant::now();
        hosts.cut_off(2);
        thread::sleep(Duration::from_secs(1));
        hosts.reconnect(2);
        if cut_off.elapsed() > Duration::from_millis(1200) {
            continue;
        }
        // Nothing may be lost later either.
        thread::sleep(LOST_WITHIN);
        calls.iter_mut().chain(&mut sleepers).for_each(Rank::resume);
        assert_all_report(&mut sleepers, "continued");
        for (rank, process) in calls.iter_mut().enumerate() {
            let report = process.report().unwrap();
            let longest = report.strip_prefix("continued ").and_then(|millis| millis.parse().ok());
            assert!(longest.is_some_and(|millis: u64| millis >= 900), "rank {rank}: {report}");
        }
        return;
    }
    panic!("no interruption took about a second");
}

#[test]
fn a_master_whose_name_is_loopback_on_its_own_host_is_reached_by_the_others() {
    let Some(hosts) = Hosts::new(2, 1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |host: usize, text: String| {
        let path = folder.path().join(host.to_string());
        std::fs::write(&path, format!("127.0.0.1 localhost\n{text}\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let files = [
        file(0, "127.0.1.1 node0".into()),
        file(1, format!("127.0.1.1 node1\n{} node0", address(Family::V4, 0, 0))),
    ];
    let job = Job { master: "node0".into(), ..Job::new("collectives", 29_500) };
    let mut ranks: Vec<_> = (0..4).map(|rank| hosts.start_rank(&job, rank, Some(&files[rank / 2]))).collect();
    assert_all_report(&mut ranks, "right");
}

#[test]
fn ranks_behind_a_router_are_reached_at_its_address() {
    let Some(hosts) = Hosts::new(3, 2) else { return };
    let (hidden, open, router) = (0, 1, 2);
    if !hosts.hide_behind(router, hidden, "29500-29609") {
        return;
    }
    hosts.host_ip(open, &["link", "set", "ib0", "down"]);
    // Each rank connects to those below it, so the hidden ranks and their store are called.
    let public = address(Family::V4, 0, router);
    let mut outside = Job { master: public.clone(), ..Job::new("collectives", 29_500) };
    outside.variables.push(("WORLD_SIZE", "4".into()));
    let mut inside = Job { master: address(Family::V4, 1, hidden), ..outside.clone() };
    inside.variables.push(("COMM_PORT_RANGE", "29600-29609".into()));
    inside.variables.push(("COMM_ADVERTISE_ADDR", public));
    let jobs = [&inside, &inside, &outside, &outside];
    let mut ranks: Vec<_> = (0..4).map(|rank| hosts.start_rank(jobs[rank], rank, None)).collect();
    assert_all_report(&mut ranks, "right");
}

#[test]
fn data_goes_through_the_chosen_interface_and_routes_may_be_asymmetric() {
    // The interfaces through which each host has received much.
    let (eth0, ib0) = ("[true, false]", "[false, true]");
    for is_asymmetric in [false, true] {
        let Some(hosts) = Hosts::new(2, 2) else { return };
        let mut job = Job { ranks_per_host: 1, ..Job::new("traffic", 29_500) };
        if is_asymmetric {
            // What host 1 sends to host 0 takes the other switch.
            let (to, from) = (address(Family::V4, 0, 0), address(Family::V4, 0, 1));
            hosts.host_ip(1, &["route", "add", &format!("{to}/32"), "dev", "ib0", "src", &from]);
        } else {
            job.variables.push(("COMM_SOCKET_IFNAME", "=ib0,eth".into()));
        }
        let reports: Vec<_> = hosts.start(&job).iter_mut().map(|rank| rank.report().unwrap()).collect();
        assert_eq!(reports, [ib0, if is_asymmetric { eth0 } else { ib0 }]);
    }
}
