//! A library that lacks a call, as older ones do. It is loaded once in a process, so that this has
//! one to itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use gpu_emu::{Control, LoadError};

use common::devices;
use common::ranks::{nccl, world};

#[test]
fn symbols_are_missing_where_they_were_left_out() {
    assert!(matches!(Control::load_without(&["ncclNone"]), Err(LoadError::NoSymbol(_))));
    Control::load_without(&["ncclAlltoAll", "ncclGather"]).unwrap();
    let devices = devices(2);
    assert!(nccl().require("ncclAlltoAll").is_err());
    assert!(nccl().require("ncclGather").is_err());
    assert!(nccl().require("ncclAllGather").is_ok());
    world(&devices, |member| assert_eq!(member.all_reduce(&[1.0]), [2.0]));
}
