//! Averages and sums of 16-bit floats.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::{Accumulate, Buffers, Call, Communicator, ReduceOp};

use crate::common::{in_all_worlds, options};

#[test]
fn an_average_of_f16_does_not_overflow_where_the_sum_would() {
    in_all_worlds(|rank| {
        let mut buffer = rank.buffer(&[half::f16::from_f32(32_768.0); 5]);
        let buffers = Buffers::InPlace(buffer.view_mut());
        rank.comm.run(Call::AllReduce { buffers, op: ReduceOp::Avg }, &options()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [half::f16::from_f32(32_768.0); 5]);
    });
}

#[test]
fn f32_accumulation_is_used_only_where_nccl_has_it() {
    in_all_worlds(|rank| {
        let mut wide = options();
        wide.accumulate = Accumulate::F32;
        let mut floats = rank.buffer(&[1.5_f32; 5]);
        rank.comm
            .run(Call::AllReduce { buffers: Buffers::InPlace(floats.view_mut()), op: ReduceOp::Sum }, &wide)
            .unwrap();
        assert_eq!(floats.to_vec().unwrap(), [1.5 * rank.size as f32; 5]);
        let mut halves = rank.buffer(&[half::f16::ONE; 5]);
        rank.comm
            .run(Call::AllReduce { buffers: Buffers::InPlace(halves.view_mut()), op: ReduceOp::Max }, &wide)
            .unwrap();
        assert_eq!(halves.to_vec().unwrap(), [half::f16::ONE; 5]);
    });
}
