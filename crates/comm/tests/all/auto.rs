//! Tests of the public API with a different transport for each peer.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::process::Command;

use crate::common::{config, each, store};
use comm::hybrid::Path;
use comm::{Comm, Config, Membership, ReduceOp, TransportKind};

/// Returns the reports of each rank about the others; each letter of `hosts` is the host of a rank.
fn world<R: Send>(
    hosts: &str,
    kind: TransportKind,
    rank: impl Fn(Comm, Vec<Option<Path>>) -> R + Sync,
) -> Vec<R> {
    let store = store();
    each(hosts.len(), |at| {
        let mut config: Config = config(at, hosts.len(), store.local_addr());
        config.transport = kind;
        config.host_id = Some(hosts[at..=at].into());
        let (comm, paths) = comm::init_with_paths(&config).unwrap();
        rank(comm, (0..hosts.len()).map(|peer| paths.to(peer)).collect())
    })
}

fn sum_ranks(comm: &Comm) {
    let (rank, ranks) = (comm.rank() as u64, comm.size() as u64);
    let mut buffer = vec![rank; 30_011];
    comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
    assert!(buffer.iter().all(|sum| *sum == ranks * (ranks - 1) / 2));
}

#[test]
fn each_peer_has_its_own_transport() {
    let (near, far) = (Some(Path::SharedMemory), Some(Path::Tcp));
    let reached = world("aab", TransportKind::Auto, |comm, paths| {
        sum_ranks(&comm);
        paths
    });
    assert_eq!(reached, [[None, near, far], [near, None, far], [far, far, None]]);
}

#[test]
fn a_requested_transport_is_used() {
    for (hosts, kind, path) in
        [("aaa", TransportKind::Tcp, Path::Tcp), ("aaa", TransportKind::SharedMemory, Path::SharedMemory)]
    {
        world(hosts, kind, |comm, paths| {
            sum_ranks(&comm);
            assert!(paths.iter().flatten().all(|taken| *taken == path), "{paths:?}");
        });
    }
}

#[test]
fn auto_is_the_default() {
    assert_eq!(
        Config::new(Membership { rank: 0, size: 2 }, "127.0.0.1", 1).unwrap().transport,
        TransportKind::Auto
    );
    assert_eq!(world("a", TransportKind::Auto, |comm, paths| (comm.size(), paths)), [(1, vec![None])]);
}

/// Starts two processes with a file size limit of 0, which includes anonymous memory files.
fn without_memory(transport: &str) -> Vec<String> {
    let store = store();
    let rank = |rank: usize| {
        Command::new("sh")
            .args(["-c", r#"trap "" XFSZ; ulimit -f 0; exec "$0" auto::rank --exact --ignored --nocapture"#])
            .arg(std::env::current_exe().unwrap())
            .env("COMM_TEST_PORT", store.local_addr().port().to_string())
            .env("COMM_TEST_RANK", rank.to_string())
            .env("COMM_TRANSPORT", transport)
            .output()
            .unwrap()
    };
    let report = |at| {
        let output = String::from_utf8(rank(at).stdout).unwrap();
        let report = output.lines().find_map(|line| line.split_once("report: "));
        report.unwrap_or_else(|| panic!("rank {at} printed no report: {output}")).1.to_owned()
    };
    each(2, report)
}

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Ok(port) = std::env::var("COMM_TEST_PORT") else { return };
    let rank = std::env::var("COMM_TEST_RANK").unwrap().parse().unwrap();
    let mut config = config(rank, 2, format!("127.0.0.1:{port}").parse().unwrap());
    config.transport = match std::env::var("COMM_TRANSPORT").unwrap().as_str() {
        "shm" => TransportKind::SharedMemory,
        _ => TransportKind::Auto,
    };
    match comm::init_with_paths(&config) {
        Ok((comm, paths)) => {
            sum_ranks(&comm);
            println!("report: {paths}");
        }
        Err(error) => println!("report: {error}"),
    }
}

#[test]
fn a_process_without_shared_memory_uses_tcp() {
    assert_eq!(without_memory("auto"), ["tcp", "tcp"]);
}

#[test]
fn requested_shared_memory_that_is_unavailable_is_an_error() {
    for report in without_memory("shm") {
        assert!(report.contains("allocate shared memory"), "{report}");
    }
}
