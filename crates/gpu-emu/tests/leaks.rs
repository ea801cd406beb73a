//! Ended objects are freed. The counts are per process, so this test runs alone in one.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use common::ranks::{OK, world};
use common::{control, devices};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn communicators_come_and_go_without_a_trace() {
    let devices = devices(3);
    let round = |abort: bool| {
        world(&devices, |member| {
            assert_eq!(member.all_reduce(&[1.0]), [3.0]);
            if abort {
                assert_eq!(member.abort(), OK);
            }
        });
    };
    round(false);
    let settled = || (control().live(), descriptors(), threads());
    std::thread::sleep(Duration::from_millis(200));
    let before = settled();
    (0..50).for_each(|index| round(index % 2 == 1));
    let deadline = Instant::now() + Duration::from_secs(20);
    while settled() != before {
        assert!(Instant::now() < deadline, "{before:?} before, {:?} now", settled());
        std::thread::sleep(Duration::from_millis(10));
    }
}
