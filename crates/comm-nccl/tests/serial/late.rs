//! NCCL enqueues a call late, after the communicator has failed.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::thread;
use std::time::Duration;

use comm_core::{Buffers, Call, Communicator, Error, ReduceOp};
use gpu_emu::Setting;

use crate::alone;
use crate::common::{control, devices, faults_of, options, world};

/// The delay in milliseconds.
const LATE: u64 = 100;

#[test]
fn memory_of_an_aborted_call_is_kept_until_the_call_is_over() {
    let _alone = alone();
    let devices = devices(2);
    control().set(Setting::CallMilliseconds, LATE);
    world(&devices, |rank| {
        let mut buffer = rank.buffer(&[1.0_f32; 1000]);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(LATE / 4));
                rank.comm.abort("enough");
            });
            let buffers = Buffers::InPlace(buffer.view_mut());
            let error =
                rank.comm.run(Call::AllReduce { buffers, op: ReduceOp::Sum }, &options()).unwrap_err();
            assert!(matches!(&error, Error::Aborted { reason, .. } if reason == "enough"), "{error}");
            drop(buffer);
            // Later work would access freed memory if it was released too early.
            thread::sleep(Duration::from_millis(2 * LATE));
            rank.device.new_stream().unwrap().synchronize().unwrap();
        });
    });
    control().set(Setting::CallMilliseconds, 0);
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}
