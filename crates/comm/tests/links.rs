//! Streams between hosts whose network limits the rate of a connection, and between hosts with
//! several networks. The hosts are network namespaces, which need root and iproute2; the tests are
//! skipped without.
#![cfg(feature = "hybrid")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use comm::{Comm, ReduceOp, ShrinkOptions};
use common::hosts::{Family, Hosts, INTERFACES, address, received};
use common::jobs::{Job, print_loss};
use common::process::{self, Rank};

/// The rate of a connection where the network limits that.
const CONNECTION_MEGABITS: u32 = 60;
/// The rate of a link that one connection can fill.
const LINK_MEGABITS: u32 = 80;
/// The time in which a stream becomes faster on a busy machine. It usually takes two seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of bytes that arrive through a link that carries its part of a stream.
const SHARE: u64 = 20_000_000;
/// The documented time in which a lost network is noticed, and that for a report on a busy machine.
const LOST_WITHIN: Duration = Duration::from_millis(3500);
const SLACK: Duration = Duration::from_secs(6);

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Some(role) = process::role() else { return };
    let comm = comm::init().unwrap();
    match role.as_str() {
        "broadcasts" => broadcast_until_fast(&comm),
        "rates" => print_rates(&comm),
        "sums" => reduce_until_lost(&comm),
        other => panic!("no such role: {other}"),
    }
}

/// Broadcasts until that is more than twice as fast as one connection is allowed to be.
fn broadcast_until_fast(comm: &Comm) {
    let (began, mut buffer) = (Instant::now(), vec![0_u8; 1_000_000]);
    let mut fastest = 0.0_f64;
    while buffer[0] == 0 {
        let round = Instant::now();
        (0..4).for_each(|_| comm.broadcast(0, &mut buffer).unwrap());
        fastest = fastest.max(4.0 * 8.0 * 1e6 / round.elapsed().as_secs_f64());
        let is_fast = fastest > 2.2e6 * f64::from(CONNECTION_MEGABITS);
        buffer[0] = u8::from(comm.rank() == 0 && (is_fast || began.elapsed() > PATIENCE));
        comm.broadcast(0, &mut buffer).unwrap();
        if comm.rank() == 0 && buffer[0] == 1 {
            println!("report: fast: {is_fast}");
        }
    }
    println!("{} Mbit/s after {:?}", fastest / 1e6, began.elapsed());
    comm.barrier().unwrap();
}

/// Broadcasts for four seconds, and reports the rate of each quarter of a second in Gbit/s.
fn print_rates(comm: &Comm) {
    const STEP: Duration = Duration::from_millis(250);
    let mut buffer = vec![0_u8; 4 << 20];
    comm.broadcast(0, &mut buffer).unwrap();
    let (began, mut step, mut bytes, mut rates) = (Instant::now(), Instant::now(), 0_usize, Vec::new());
    loop {
        comm.broadcast(0, &mut buffer).unwrap();
        if buffer[0] == 1 {
            break;
        }
        bytes += buffer.len();
        if step.elapsed() >= STEP {
            rates.push(format!("{:.2}", 8e-9 * bytes as f64 / step.elapsed().as_secs_f64()));
            (step, bytes) = (Instant::now(), 0);
            buffer[0] = u8::from(comm.rank() == 0 && began.elapsed() > Duration::from_secs(4));
        }
    }
    comm.barrier().unwrap();
    println!("report: {}", rates.join(" "));
}

/// Makes all-reduces until they fail, and checks every bit. Reports once much has arrived through
/// every interface.
fn reduce_until_lost(comm: &Comm) {
    const LEN: usize = 1 << 20;
    let (began, before) = (Instant::now(), INTERFACES.map(received));
    let mut has_reported = false;
    for round in 0_u32.. {
        let value =
            |rank: usize, at: usize| (at as u32).wrapping_add(round).wrapping_mul(2_654_435_761) >> rank;
        let mut buffer: Vec<u32> = (0..LEN).map(|at| value(comm.rank(), at)).collect();
        if let Err(error) = comm.all_reduce(&mut buffer, ReduceOp::Sum) {
            print_loss(&error);
            return go_on(comm);
        }
        let sum = |at: usize| (0..comm.size()).fold(0_u32, |sum, rank| sum.wrapping_add(value(rank, at)));
        assert!(buffer.iter().enumerate().all(|(at, element)| *element == sum(at)), "round {round}");
        let carried = [0, 1].map(|at| received(INTERFACES[at]) > before[at] + SHARE);
        if !has_reported && (carried == [true, true] || began.elapsed() > PATIENCE) {
            has_reported = true;
            println!("report: through eth0: {}, through ib0: {}", carried[0], carried[1]);
            println!("after {:?} and {round} rounds", began.elapsed());
        }
    }
}

/// Makes an all-reduce with the ranks that are left; none is lost if they are connected.
fn go_on(comm: &Comm) {
    let comm = comm.shrink(&ShrinkOptions::default()).unwrap().comm;
    let mut buffer = vec![1_u32; 1 << 20];
    comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
    assert!(buffer.iter().all(|element| *element == comm.size() as u32));
    println!("report: goes on with {} ranks", comm.size());
}

/// Two hosts, each with two links of the same rate.
fn two_links() -> Option<Hosts> {
    let hosts = Hosts::new(2, 2)?;
    hosts.await_interfaces();
    let mut links = [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter();
    links.all(|(host, switch)| hosts.limit_link(host, switch, LINK_MEGABITS)).then_some(hosts)
}

fn job(role: &'static str, interfaces: Option<&str>) -> Job {
    let interfaces = interfaces.map(|interfaces| ("COMM_SOCKET_IFNAME", interfaces.to_owned()));
    Job { ranks_per_host: 1, variables: interfaces.into_iter().collect(), ..Job::new(role, 29_500) }
}

fn assert_all_report(ranks: &mut [Rank], expected: &str) {
    for (rank, process) in ranks.iter_mut().enumerate() {
        assert_eq!(process.report().as_deref(), Some(expected), "rank {rank}");
    }
}

#[test]
fn a_stream_is_faster_than_the_network_lets_one_connection_be() {
    let Some(hosts) = Hosts::new(2, 1) else { return };
    if !hosts.limit_connections(0, CONNECTION_MEGABITS, 1000) {
        return;
    }
    for checksum in ["none", "crc32c"] {
        let mut job = job("broadcasts", None);
        job.variables.push(("COMM_CHECKSUM", checksum.into()));
        let mut ranks = hosts.start(&job);
        assert_eq!(ranks[0].report().as_deref(), Some("fast: true"));
    }
}

/// Prints the rates of a stream over time, for docs/launching.md.
#[test]
#[ignore = "measures"]
fn rates_of_a_stream_with_half_a_gigabit_per_connection_of_two() {
    let Some(hosts) = Hosts::new(2, 1) else { return };
    assert!(hosts.limit_connections(0, 500, 2000));
    for sockets in [None, Some("1")] {
        let mut job = Job { has_secret: false, ..job("rates", None) };
        job.variables.extend(sockets.map(|sockets| ("COMM_TCP_SOCKETS", sockets.into())));
        println!("COMM_TCP_SOCKETS={sockets:?}: {:?}", hosts.start(&job)[0].report());
    }
}

#[test]
fn the_streams_of_two_hosts_use_all_links_until_one_is_lost() {
    // The link is cut at a switch, or the interface of a host is switched off.
    for is_local in [false, true] {
        let Some(hosts) = two_links() else { return };
        let mut ranks = hosts.start(&job("sums", Some("eth,ib")));
        assert_all_report(&mut ranks, "through eth0: true, through ib0: true");
        let cut_off = Instant::now();
        if is_local {
            hosts.host_ip(1, &["link", "set", "ib0", "down"]);
        } else {
            hosts.isolate(1, 1);
        }
        let mut is_explained = false;
        for (rank, process) in ranks.iter_mut().enumerate() {
            let report = process.report().unwrap();
            let took = cut_off.elapsed();
            println!("rank {rank} after {took:?}: {report}");
            // The first one that notices it gives up the stream, and the other one may see that.
            let names = [format!("lost {}: ", 1 - rank), format!("other: aborted by rank {}: ", 1 - rank)];
            assert!(names.iter().any(|name| report.starts_with(name)), "rank {rank}: {report}");
            assert!(took < LOST_WITHIN + SLACK, "rank {rank}: {took:?}");
            is_explained |= report.contains("has not answered");
        }
        assert!(is_explained);
        assert_all_report(&mut ranks, "goes on with 2 ranks");
    }
}

#[test]
fn a_network_that_does_not_lead_to_the_peer_fails_nothing_and_lets_the_other_one_be_used() {
    let Some(hosts) = Hosts::new(2, 2) else { return };
    if !hosts.limit_connections(0, CONNECTION_MEGABITS, 1000) {
        return;
    }
    hosts.await_interfaces();
    hosts.isolate(1, 1);
    for (is_silent, sockets) in [(false, None), (true, None), (true, Some("4"))] {
        if is_silent {
            // Otherwise the kernel finds no neighbour there, and says so after three seconds.
            let neighbour = [&address(Family::V4, 1, 1), "lladdr", "02:00:00:00:00:01", "dev", "ib0"];
            hosts.host_ip(0, &[&["neigh", "replace"][..], &neighbour].concat());
        }
        let mut job = job("broadcasts", Some("eth,ib"));
        job.variables.extend(sockets.map(|sockets| ("COMM_TCP_SOCKETS", sockets.into())));
        let mut ranks = hosts.start(&job);
        assert_eq!(ranks[0].report().as_deref(), Some("fast: true"));
    }
}
