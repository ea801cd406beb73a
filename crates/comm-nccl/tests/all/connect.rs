//! Connecting ranks over a communicator for the host.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::{Buffers, Call, Communicator, Error, Invalid, ReduceOp};
use comm_nccl::{DeviceBuffer, UniqueId};

use crate::common::{WORLDS, connect_over_host, control, devices, faults_of, options, world_over_host};

#[test]
fn ranks_connect_over_the_host_and_reduce_together() {
    let devices = devices(5);
    for size in WORLDS {
        let sums = world_over_host(&devices[..size], |rank| {
            let mut sum = DeviceBuffer::from_host(rank.comm.stream(), &[rank.rank as i32 + 1]).unwrap();
            let buffers = Buffers::InPlace(sum.view_mut());
            rank.comm.run(Call::AllReduce { buffers, op: ReduceOp::Sum }, &options()).unwrap();
            sum.to_vec().unwrap()[0]
        });
        assert_eq!(sums, vec![(1..=size as i32).sum(); size]);
    }
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn an_id_of_127_bytes_is_refused() {
    for length in [0, 127, 129] {
        let error = UniqueId::from_bytes(&vec![1; length]).unwrap_err().to_string();
        assert!(error.contains(&format!("{length} elements, but 128 are needed")), "{error}");
    }
    assert_eq!(UniqueId::from_bytes(&[1; 128]).unwrap().as_bytes(), &[1; 128]);
}

#[test]
fn two_ranks_on_one_device_are_named_on_every_rank_before_nccl_is_called() {
    let devices = devices(2);
    let name = format!("GPU-6770752d-656d-752d-6465-7669636500{:02x}", devices[0]);
    let errors = connect_over_host(&[devices[0], devices[1], devices[0]], |_, comm| comm.unwrap_err());
    for error in errors {
        let Error::Invalid(Invalid::SharedDevice { ranks: (0, 2), device, advice }) = &error else {
            panic!("{error}");
        };
        assert_eq!(device, &name);
        assert!(advice.contains("NCCL_MULTI_RANK_GPU_ENABLE=1"), "{advice}");
    }
    let made = control().calls_of(&devices).into_iter().map(|call| call.name);
    assert_eq!(made.collect::<Vec<_>>(), Vec::<String>::new());
}
