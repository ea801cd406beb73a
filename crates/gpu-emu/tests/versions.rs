//! Older versions of NCCL. All threads of a process share the version, so this test runs alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use gpu_emu::Setting;
use nccl_sys::{ncclDataType_t, ncclResult_t};

use common::ranks::{Args, OK, nccl, words, world};
use common::{control, devices};

#[test]
fn an_old_version_has_no_new_calls_and_types() {
    let devices = devices(1);
    control().set(Setting::NcclVersion, 21_803);
    let mut version = 0;
    // SAFETY: the answer is written to a number that lives here.
    assert_eq!(unsafe { nccl().ncclGetVersion(&raw mut version) }.unwrap(), OK);
    assert_eq!((version, words(ncclResult_t(8)).as_str()), (21_803, "unknown result code"));
    world(&devices, |member| {
        let buffer = member.floats(&[1.0]);
        let args = member.args(member.at(&buffer), member.at(&buffer), 1);
        assert_eq!(member.call("AlltoAll", args), ncclResult_t::ncclInternalError);
        let eight_bits = Args { kind: ncclDataType_t::ncclFloat8e4m3, ..args };
        assert_eq!(member.call("AllReduce", eight_bits), ncclResult_t::ncclInvalidArgument);
        assert_eq!(member.all_reduce(&[1.0]), [1.0]);
    });
}
