//! Devices that allocate memory without regard to the order of work.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::{Buffers, Call, Communicator, Counts};
use gpu_emu::Setting;

use crate::alone;
use crate::common::{control, devices, faults_of, options, world};

#[test]
fn devices_that_cannot_allocate_in_order_do_without() {
    let _alone = alone();
    control().set(Setting::AsyncAllocation, 0);
    let devices = devices(2);
    world(&devices, |rank| {
        for round in 1..10_u32 {
            let mut buffer = rank.buffer(&[round; 50]);
            let buffers = Buffers::InPlace(buffer.view_mut());
            rank.comm
                .run(Call::AllToAll { buffers, send: Counts::Equal, recv: Counts::Equal }, &options())
                .unwrap();
            assert_eq!(buffer.to_vec().unwrap(), [round; 50]);
        }
    });
    control().set(Setting::AsyncAllocation, 1);
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}
