//! Tests with real processes whose rank 0 cannot serve the store.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use crate::common::{Port, process};
use comm::{Error, Refusal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The process of a rank that a test starts: rank 0 has no memory left for the stack of a thread.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    if process::role().is_none() {
        return;
    }
    if std::env::var("RANK").unwrap() == "0" {
        exhaust_memory_for_threads();
    }
    match comm::init().unwrap_err() {
        Error::Io { doing, .. } => println!("report: {doing}"),
        Error::Handshake { refusal: Refusal::StoreUnavailable { errno }, .. } => {
            println!("report: errno {errno}")
        }
        other => println!("report: other: {other}"),
    }
}

fn exhaust_memory_for_threads() {
    const SPARE_BYTES: u64 = 256 * 1024;
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split_whitespace().next().unwrap().parse().unwrap();
    let mapped = pages * rustix::param::page_size() as u64;
    let limit = Rlimit { current: Some(mapped + SPARE_BYTES), ..getrlimit(Resource::As) };
    setrlimit(Resource::As, limit).unwrap();
}

#[test]
fn all_ranks_learn_why_rank_0_cannot_serve_the_store() {
    let port = Port::reserve();
    let (_store, mut processes) = process::start("store_unavailable::rendezvous", 3, |_| {
        [("COMM_STORE", "rank0".to_owned()), ("MASTER_PORT", port.number.to_string())]
    });
    assert_eq!(processes[0].report().as_deref(), Some("start the thread of a store"));
    let refused = format!("errno {}", rustix::io::Errno::AGAIN.raw_os_error());
    for process in &mut processes[1..] {
        assert_eq!(process.report().as_deref(), Some(refused.as_str()));
    }
}
