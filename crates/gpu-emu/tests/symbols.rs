//! A library that lacks some functions, like older ones. A process loads it once, so this test runs
//! alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use gpu_emu::{Control, LoadError};

use common::devices;
use common::ranks::{nccl, world};

#[test]
fn removed_symbols_are_missing_and_other_calls_work() {
    assert!(matches!(Control::load_without(&["ncclNone"]), Err(LoadError::NoSymbol(_))));
    Control::load_without(&["ncclAlltoAll", "ncclGather"]).unwrap();
    let devices = devices(2);
    assert!(nccl().require("ncclAlltoAll").is_err());
    assert!(nccl().require("ncclGather").is_err());
    assert!(nccl().require("ncclAllGather").is_ok());
    world(&devices, |member| assert_eq!(member.all_reduce(&[1.0]), [2.0]));
}
