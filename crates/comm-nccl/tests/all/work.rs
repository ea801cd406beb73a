//! Waiting for enqueued work on the device and on the host.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::thread;
use std::time::Duration;

use comm_core::{Buffers, Call, CallOptions, Communicator, Error, ReduceOp};
use comm_nccl::{DeviceCommunicator, DeviceWork};

use crate::common::hold::hold;
use crate::common::{control, devices, faults_of, options, world};

/// Long enough for everything that does not wait.
const WHILE: Duration = Duration::from_millis(100);

#[test]
fn joining_a_stream_waits_for_the_calls_on_the_device_and_not_on_the_host() {
    let devices = devices(2);
    world(&devices, |rank| {
        let mut buffer = rank.buffer(&[1_u8; 100]);
        let held = hold(rank.comm.stream());
        rank.comm
            .run(
                Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum },
                &options(),
            )
            .unwrap();
        let work = rank.comm.work().unwrap();
        let (joined, other) = (rank.device.new_stream().unwrap(), rank.device.new_stream().unwrap());
        work.wait(&joined).unwrap();
        work.wait(rank.comm.stream()).unwrap();
        let after_join = DeviceWork::until_now(&joined).unwrap();
        DeviceWork::until_now(&other).unwrap().synchronize().unwrap();
        thread::sleep(WHILE);
        assert!(!work.is_done().unwrap() && !after_join.is_done().unwrap());
        drop(held);
        after_join.synchronize().unwrap();
        assert!(work.is_done().unwrap());
        work.synchronize().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [2; 100]);
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn results_before_a_lost_call_remain_valid() {
    let devices = devices(1);
    world(&devices, |rank| {
        let mut buffer = rank.buffer(&[1_u8; 100]);
        let mut sum = |options: &CallOptions| {
            let buffers = Buffers::InPlace(buffer.view_mut());
            rank.comm.run(Call::AllReduce { buffers, op: ReduceOp::Sum }, options).unwrap();
            rank.comm.work().unwrap()
        };
        let nothing = rank.comm.work().unwrap();
        let kept = sum(&options());
        kept.synchronize().unwrap();
        control().plan_hang(devices[0], 0);
        let mut short = options();
        short.timeout = Duration::from_millis(300);
        let lost = sum(&short).synchronize().unwrap_err();
        let Error::Poisoned(cause) = &lost else { panic!("{lost}") };
        assert!(matches!(**cause, Error::Timeout { .. }), "{cause}");
        kept.synchronize().unwrap();
        nothing.synchronize().unwrap();
        assert!(matches!(rank.comm.work(), Err(Error::Poisoned(_))));
    });
}
