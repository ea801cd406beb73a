//! Many buffers in one collective.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use crate::common::{contributions, reductions, world};
use comm_core::{Comm, Desync, Error, ReduceOp, ReduceOrder};
use comm_ring::RingConfig;
use comm_sim::exact::Small;
use comm_sim::in_process::InProcessConfig;

const WORLDS: [usize; 6] = [1, 2, 3, 5, 8, 13];

fn run<R: Send>(ranks: usize, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    let mut config = RingConfig::default();
    config.announce_after = Duration::from_millis(20);
    world(ranks, &InProcessConfig::default(), &config, rank)
}

/// Lists of lengths: none, one, empty ones in every place, and a thousand tiny ones with a large
/// one among them.
fn lists(ranks: usize) -> Vec<Vec<usize>> {
    let mut many = [1, 0, 3, 2, 7].repeat(200);
    many[517] = 10_000;
    vec![vec![], vec![0], vec![0, 0], vec![1], vec![0, ranks, 0, ranks + 1, ranks - 1, 0], many]
}

/// The buffers that `rank` contributes.
fn all_contributions<T: Small>(rank: usize, lengths: &[usize]) -> Vec<Vec<T>> {
    lengths.iter().map(|&length| contributions(rank, length)).collect()
}

fn all_reductions<T: Small>(ranks: usize, lengths: &[usize], op: ReduceOp) -> Vec<Vec<T>> {
    lengths.iter().map(|&length| reductions(ranks, length, op)).collect()
}

fn zeros<T: Small>(lengths: impl IntoIterator<Item = usize>) -> Vec<Vec<T>> {
    lengths.into_iter().map(|length| vec![T::of(0); length]).collect()
}

fn every_collective<T: Small>(comm: &Comm, lengths: &[usize]) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let sends = all_contributions::<T>(rank, lengths);
    for op in [ReduceOp::Sum, ReduceOp::Max] {
        let mut buffers = sends.clone();
        comm.all_reduce_coalesced(&mut buffers, op).unwrap();
        assert_eq!(buffers, all_reductions(ranks, lengths, op), "{op}");
        let longer: Vec<usize> = lengths.iter().map(|length| length * ranks).collect();
        let mut shares = zeros::<T>(lengths.iter().copied());
        comm.reduce_scatter_coalesced(&all_contributions::<T>(rank, &longer), &mut shares, op).unwrap();
        let all = all_reductions::<T>(ranks, &longer, op);
        let expected = all.iter().zip(lengths).map(|(all, length)| all[rank * length..][..*length].to_vec());
        assert_eq!(shares, expected.collect::<Vec<_>>(), "{op}");
    }
    for root in [0, ranks - 1] {
        let mut buffers = sends.clone();
        comm.broadcast_coalesced(root, &mut buffers).unwrap();
        assert_eq!(buffers, all_contributions(root, lengths), "from {root}");
    }
    let mut gathered = zeros::<T>(lengths.iter().map(|length| length * ranks));
    comm.all_gather_coalesced(&sends, &mut gathered).unwrap();
    let of_all = |&length: &usize| (0..ranks).flat_map(|rank| contributions::<T>(rank, length)).collect();
    assert_eq!(gathered, lengths.iter().map(of_all).collect::<Vec<Vec<T>>>());
    assert_eq!(sends, all_contributions(rank, lengths), "the sent buffers must not change");
}

#[test]
fn results_equal_those_of_one_call_per_buffer() {
    for ranks in WORLDS {
        run(ranks, |comm| {
            for lengths in lists(ranks) {
                // Types of different sizes reuse the same memory.
                every_collective::<f32>(&comm, &lengths);
                every_collective::<u8>(&comm, &lengths);
                every_collective::<f64>(&comm, &lengths);
                every_collective::<half::bf16>(&comm, &lengths);
            }
        });
    }
}

#[test]
fn slices_of_one_buffer_can_be_reduced_together() {
    run(3, |comm| {
        let mut buffer = [1_u32, 10, 100, 1000, 10_000];
        let (first, rest) = buffer.split_at_mut(2);
        comm.all_reduce_coalesced(&mut [first, &mut rest[1..]], ReduceOp::Sum).unwrap();
        assert_eq!(buffer, [3, 30, 100, 3000, 30_000]);
    });
}

fn desync(error: &Error) -> &Desync {
    match error.root_cause() {
        Error::Desync(desync) => desync,
        other => panic!("expected a desync, got: {other}"),
    }
}

#[test]
fn each_is_exactly_one_call() {
    let errors = run(2, |comm| {
        let mut buffers = vec![vec![1_u16; 3]; 1000];
        comm.all_reduce_coalesced(&mut buffers, ReduceOp::Sum).unwrap();
        comm.broadcast_coalesced(1, &mut buffers).unwrap();
        comm.all_gather_coalesced(&vec![[1_u16; 2]; 1000], &mut vec![[0_u16; 4]; 1000]).unwrap();
        comm.reduce_scatter_coalesced(&[[1_u16; 4]; 9], &mut [[0_u16; 2]; 9], ReduceOp::Max).unwrap();
        // Each rank waits for the other in this call, so the error has its number.
        comm.broadcast(1 - comm.rank(), &mut [0_u8; 4]).unwrap_err()
    });
    for error in errors {
        assert_eq!(desync(&error).sequence, 5);
    }
}

/// Checks that ranks whose lists are `first` on rank 0 and `second` elsewhere get a desync, and
/// that their buffers do not change.
fn mismatch(
    first: &[usize],
    second: &[usize],
    call: impl Fn(&Comm, &mut [Vec<i32>]) -> Result<(), Error> + Sync,
) {
    for ranks in [2, 3] {
        let errors = run(ranks, |comm| {
            let lengths = if comm.rank() == 0 { first } else { second };
            let mut buffers = all_contributions::<i32>(comm.rank(), lengths);
            let result = call(&comm, &mut buffers);
            if result.is_err() {
                assert_eq!(buffers, all_contributions(comm.rank(), lengths), "untouched");
            }
            // A rank that only sends may complete the call before the others detect the mismatch.
            result.and_then(|()| comm.barrier()).unwrap_err()
        });
        for error in errors {
            let text = desync(&error).to_string();
            assert_eq!(text.matches("extra fingerprint").count(), 2, "{text}");
        }
    }
}

#[test]
fn lists_of_the_same_total_must_be_the_same() {
    let reduce = |comm: &Comm, buffers: &mut [Vec<i32>]| comm.all_reduce_coalesced(buffers, ReduceOp::Sum);
    mismatch(&[3, 5], &[5, 3], reduce);
    mismatch(&[8], &[4, 4], reduce);
    mismatch(&[0, 8], &[8, 0], reduce);
    mismatch(&[], &[0], reduce);
    mismatch(&[4, 4], &[2, 6], |comm, buffers| comm.broadcast_coalesced(0, buffers));
    mismatch(&[4, 4], &[2, 6], |comm, sends| {
        let mut recvs = zeros::<i32>(sends.iter().map(|send| send.len() * comm.size()));
        comm.all_gather_coalesced(sends, &mut recvs)
    });
    mismatch(&[4, 4], &[2, 6], |comm, recvs| {
        let sends = zeros::<i32>(recvs.iter().map(|recv| recv.len() * comm.size()));
        comm.reduce_scatter_coalesced(&sends, recvs, ReduceOp::Sum)
    });
}

#[test]
fn a_plain_call_of_the_same_length_is_another_call() {
    let errors = run(2, |comm| {
        let result = match comm.rank() {
            0 => comm.all_reduce(&mut [1_u8; 4], ReduceOp::Sum),
            _ => comm.all_reduce_coalesced(&mut [[1_u8; 4]], ReduceOp::Sum),
        };
        result.and_then(|()| comm.barrier()).unwrap_err()
    });
    errors.iter().for_each(|error| assert_eq!(desync(error).sequence, 1));
}

#[test]
fn the_fingerprint_of_the_handle_still_counts() {
    let errors = run(2, |comm| {
        let comm = comm.with_extra_fingerprint(comm.rank() as u64);
        let result = comm.all_reduce_coalesced(&mut [[1_u8; 4]], ReduceOp::Sum);
        result.and_then(|()| comm.barrier()).unwrap_err()
    });
    errors.iter().for_each(|error| assert_eq!(desync(error).sequence, 1));
}

#[test]
fn a_refused_call_changes_nothing() {
    run(3, |comm| {
        let mut buffers = [[1.0_f32; 2], [2.0; 2]];
        let mut one = [[0.0_f32; 6]; 1];
        let refused = [
            comm.all_reduce_coalesced(&mut buffers, ReduceOp::BitAnd),
            comm.broadcast_coalesced(3, &mut buffers),
            comm.all_gather_coalesced(&buffers, &mut one),
            comm.all_gather_coalesced(&buffers[..1], &mut [[0.0_f32; 5]]),
            comm.reduce_scatter_coalesced(&one, &mut buffers, ReduceOp::Sum),
            comm.reduce_scatter_coalesced(&[[0.0_f32; 7]], &mut buffers[..1], ReduceOp::Sum),
            comm.reduce_scatter_coalesced(&one, &mut buffers[..1], ReduceOp::BitOr),
        ];
        for result in refused {
            assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
        }
        assert_eq!((buffers, one), ([[1.0; 2], [2.0; 2]], [[0.0; 6]]));
        comm.all_reduce_coalesced(&mut buffers, ReduceOp::Sum).unwrap();
        assert_eq!(buffers, [[3.0; 2], [6.0; 2]]);
    });
}

#[test]
fn in_rank_order_results_are_bit_identical_to_one_call_per_buffer() {
    run(5, |comm| {
        let comm = comm.with_reduce_order(ReduceOrder::Deterministic);
        let lengths = [1, 9, 0, 1001];
        let fraction = |at: usize| 1.0 / (3.0 + (comm.rank() * 31 + at) as f32);
        let mut together: Vec<Vec<f32>> =
            lengths.iter().map(|&length| (0..length).map(fraction).collect()).collect();
        let mut apart = together.clone();
        comm.all_reduce_coalesced(&mut together, ReduceOp::Sum).unwrap();
        apart.iter_mut().for_each(|buffer| comm.all_reduce(buffer, ReduceOp::Sum).unwrap());
        let bits = |all: &[Vec<f32>]| all.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&together), bits(&apart));
    });
}
