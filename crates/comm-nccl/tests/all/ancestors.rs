//! The use cases of earlier libraries, through `Comm`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use comm_core::{Comm, Error, Invalid, ReduceOp};
use comm_nccl::{Cuda, DeviceBuffer, NcclCommunicator, Stream};

use crate::common::{devices, faults_of, world};

/// Two ranks, through the public interface.
fn pair(body: impl Fn(Comm<Cuda>, &dyn Fn(&[f32]) -> DeviceBuffer<f32>) + Sync) {
    let devices = devices(2);
    world(&devices, |rank| {
        let stream: Stream = rank.stream.clone();
        let comm = Comm::<Cuda>::over(Arc::new(rank.comm) as Arc<_>);
        body(comm, &|elements| DeviceBuffer::from_host(&stream, elements).unwrap());
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn sums_means_and_broadcasts_of_two_ranks() {
    pair(|comm, buffer| {
        let first = comm.rank() == 0;
        let mut sum = buffer(if first { &[1.0, 2.0, 3.0] } else { &[4.0, 5.0, 6.0] });
        comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        let mut mean = buffer(if first { &[2.0, 4.0] } else { &[6.0, 8.0] });
        comm.all_reduce(&mut mean, ReduceOp::Avg).unwrap();
        let mut answer = buffer(if first { &[42.0, 99.0] } else { &[0.0, 0.0] });
        comm.broadcast(0, &mut answer).unwrap();
        comm.barrier().unwrap();
        assert_eq!(sum.to_vec().unwrap(), [5.0, 7.0, 9.0]);
        assert_eq!(mean.to_vec().unwrap(), [4.0, 6.0]);
        assert_eq!(answer.to_vec().unwrap(), [42.0, 99.0]);
    });
}

#[test]
fn parts_of_buffers_are_buffers() {
    pair(|comm, buffer| {
        let mut all = buffer(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let (mut first, mut second) = all.as_mut_slice().split_at(2).unwrap();
        comm.all_reduce(&mut second, ReduceOp::Sum).unwrap();
        comm.all_gather(&buffer(&[comm.rank() as f32]).as_slice(), &mut first).unwrap();
        assert_eq!(all.to_vec().unwrap(), [0.0, 1.0, 6.0, 8.0, 10.0, 12.0]);
        assert!(all.slice(3..7).is_err() && all.slice_mut(7..).is_err());
        assert_eq!(all.slice(1..=2).unwrap().to_vec().unwrap(), [1.0, 6.0]);
    });
}

#[test]
fn only_a_root_outside_of_the_group_is_refused() {
    pair(|comm, buffer| {
        let mut ours = buffer(&[1.0]);
        for refused in [comm.broadcast(5, &mut ours), comm.reduce(5, &mut ours, ReduceOp::Sum)] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Invalid(Invalid::Root { root: 5, size: 2 })), "{error}");
        }
        comm.all_reduce(&mut ours, ReduceOp::Sum).unwrap();
        assert_eq!(ours.to_vec().unwrap(), [2.0]);
    });
}

#[test]
fn a_single_rank_gets_its_own_input() {
    world(&devices(1), |rank| {
        let stream = rank.stream.clone();
        let comm = Comm::<Cuda>::over(Arc::new(rank.comm) as Arc<_>);
        let mut buffer = DeviceBuffer::from_host(&stream, &[7_i64, -7]).unwrap();
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            comm.all_reduce(&mut buffer, op).unwrap();
        }
        comm.barrier().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [7, -7]);
    });
}

#[test]
fn the_communicator_reports_its_device() {
    let devices = devices(2);
    let ordinals = world(&devices, |rank| {
        let comm: &NcclCommunicator = &rank.comm;
        assert_eq!(comm.device(), &rank.device);
        assert_eq!(comm.stream().device(), rank.device);
        comm.device().ordinal()
    });
    assert_eq!(ordinals, devices);
}
