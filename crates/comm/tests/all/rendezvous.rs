//! Tests with real processes that connect by `COMM_RENDEZVOUS`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use crate::common::{Port, process};
use comm::ReduceOp;

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    if process::role().is_none() {
        return;
    }
    match comm::init() {
        Ok(comm) => {
            let mut ranks = vec![1_u64 << (8 * comm.rank()); 1000];
            comm.all_reduce(&mut ranks, ReduceOp::Sum).unwrap();
            assert!(ranks.iter().all(|sum| *sum == ranks[0]));
            println!("report: {:x}", ranks[0]);
        }
        Err(error) => println!("report: {error}"),
    }
}

/// Starts three ranks with these variables, and returns their outputs.
fn rendezvous(variables: &[(&'static str, String)]) -> Vec<String> {
    let (_store, mut ranks) = process::start("rendezvous::rendezvous", 3, |_| variables.to_vec());
    ranks.iter_mut().map(|rank| rank.report().unwrap()).collect()
}

const TRANSPORTS: &[&str] = &[
    "tcp",
    #[cfg(feature = "shm")]
    "shm",
    #[cfg(feature = "hybrid")]
    "auto",
];

#[test]
fn ranks_connect_through_a_folder_of_an_earlier_run() {
    let parent = tempfile::tempdir().unwrap();
    // It does not exist yet.
    let folder = parent.path().join("jobs/17");
    for transport in TRANSPORTS {
        for _ in 0..2 {
            let report = rendezvous(&[
                ("COMM_RENDEZVOUS", format!("file://{}", folder.display())),
                ("COMM_TRANSPORT", (*transport).into()),
            ]);
            assert_eq!(report, ["10101"; 3], "over {transport}");
        }
    }
}

#[test]
fn ranks_connect_through_a_folder_after_deaths() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let incomplete = process::start("rendezvous::rendezvous", 2, |rank| {
        let world = if rank == 0 { "3" } else { "an error" };
        [("COMM_RENDEZVOUS", url.clone()), ("WORLD_SIZE", world.into())]
    });
    while std::fs::read_dir(folder.path()).unwrap().count() < 3 {
        std::thread::yield_now();
    }
    drop(incomplete);
    assert_eq!(rendezvous(&[("COMM_RENDEZVOUS", url)]), ["10101"; 3]);
}

#[test]
fn a_folder_that_cannot_be_used_is_named_with_its_variable() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let url = format!("file://{}", file.path().display());
    for report in rendezvous(&[("COMM_RENDEZVOUS", url.clone())]) {
        assert!(report.contains("COMM_RENDEZVOUS") && report.contains(&url), "{report}");
    }
}

#[test]
fn ranks_connect_at_the_address_of_a_url() {
    let port = Port::reserve();
    let url = format!("tcp://127.0.0.1:{}", port.number);
    let report = rendezvous(&[
        ("COMM_RENDEZVOUS", url),
        ("COMM_STORE", "rank0".into()),
        // They are ignored.
        ("MASTER_ADDR", "host.invalid".into()),
        ("MASTER_PORT", "1".into()),
    ]);
    assert_eq!(report, ["10101"; 3]);
}

#[test]
fn an_address_that_is_not_of_rank_0_is_named_with_its_variable() {
    let report = rendezvous(&[
        ("COMM_RENDEZVOUS", "tcp://192.0.2.1:29500".into()),
        ("COMM_STORE", "rank0".into()),
        ("COMM_RENDEZVOUS_TIMEOUT_S", "2".into()),
    ]);
    assert!(
        report[0].contains("COMM_RENDEZVOUS") && report[0].contains("not an address of this host"),
        "{report:?}"
    );
}
