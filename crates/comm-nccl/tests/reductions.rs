//! Reductions of every type with every operator, bit by bit, in worlds of several sizes, with and without disorder.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use comm_core::{Accumulate, Buffers, Call, Communicator, Counts, ReduceOp};
use comm_sim::exact::{Small, arithmetic, contribution, elements, of_rank, reduced};
use comm_sim::for_each_reduced;

use common::{Rank, devices, in_all_worlds, options, world};

const COUNTS: [usize; 5] = [0, 1, 4, 5, 6];

fn all_reduce<T: Small>(rank: &Rank) {
    for (op, count) in arithmetic::<T>().flat_map(|op| COUNTS.map(|count| (op, count))) {
        let ours: Vec<T> = elements(0..count, |index| contribution(op, rank.size, rank.rank, index));
        let wanted: Vec<T> = elements(0..count, |index| reduced(op, rank.size, index));
        let op = of_rank(op, rank.rank);
        let mut in_place = rank.buffer(&ours);
        let buffers = Buffers::InPlace(in_place.view_mut());
        rank.comm.run(Call::AllReduce { buffers, op }, &options()).unwrap();
        assert_eq!(in_place.to_vec().unwrap(), wanted, "{op} {} x {count}", T::DTYPE);
        let (send, mut recv) = (rank.buffer(&ours), rank.zeros(count));
        let buffers = Buffers::Separate { send: send.view(), recv: recv.view_mut() };
        rank.comm.run(Call::AllReduce { buffers, op }, &options()).unwrap();
        assert_eq!((send.to_vec().unwrap(), recv.to_vec().unwrap()), (ours, wanted), "{op} {}", T::DTYPE);
    }
}

#[test]
fn an_all_reduce_gives_every_rank_the_result() {
    in_all_worlds(|rank| for_each_reduced!(T => all_reduce::<T>(&rank)));
}

/// Sums of up to three ones and twos, and their products, have two bits of mantissa.
fn small_all_reduce<T: Small>(rank: &Rank) {
    let of = |rank: usize, index: usize| 1 + ((rank + index) % 2) as i64;
    for op in arithmetic::<T>() {
        let all = |index| (0..rank.size).map(move |rank| of(rank, index));
        let ours: Vec<T> = elements(0..5, |index| match op {
            ReduceOp::PreMulSum(_) => 2 * of(rank.rank, index),
            ReduceOp::Avg => 2,
            _ => of(rank.rank, index),
        });
        let wanted: Vec<T> = elements(0..5, |index| match op {
            ReduceOp::Prod => all(index).product(),
            ReduceOp::Min => all(index).min().unwrap(),
            ReduceOp::Max => all(index).max().unwrap(),
            ReduceOp::Avg => 2,
            _ => all(index).sum(),
        });
        let mut buffer = rank.buffer(&ours);
        let buffers = Buffers::InPlace(buffer.view_mut());
        rank.comm.run(Call::AllReduce { buffers, op }, &options()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), wanted, "{op} {}", T::DTYPE);
    }
}

#[test]
fn floats_of_8_bits_are_reduced_too() {
    let devices = devices(3);
    for size in [1, 2, 3] {
        world(&devices[..size], |rank| {
            small_all_reduce::<float8::F8E4M3>(&rank);
            small_all_reduce::<float8::F8E5M2>(&rank);
        });
    }
}

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
fn sums_in_f32_are_taken_where_they_are_what_nccl_has() {
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

fn reduce<T: Small>(rank: &Rank) {
    let count = 5;
    for (op, root) in arithmetic::<T>().flat_map(|op| (0..rank.size).map(move |root| (op, root))) {
        let ours: Vec<T> = elements(0..count, |index| contribution(op, rank.size, rank.rank, index));
        let result: Vec<T> = elements(0..count, |index| reduced(op, rank.size, index));
        let op = of_rank(op, rank.rank);
        let is_root = rank.rank == root;
        let mut in_place = rank.buffer(&ours);
        let buffers = Buffers::InPlace(in_place.view_mut());
        rank.comm.run(Call::Reduce { root, buffers, op }, &options()).unwrap();
        assert_eq!(&in_place.to_vec().unwrap(), if is_root { &result } else { &ours }, "{op} {}", T::DTYPE);
        let (send, mut recv) = (rank.buffer(&ours), rank.zeros::<T>(count));
        let send_view = send.view();
        let buffers = if is_root {
            Buffers::Separate { send: send_view, recv: recv.view_mut() }
        } else {
            Buffers::SendOnly(send_view)
        };
        rank.comm.run(Call::Reduce { root, buffers, op }, &options()).unwrap();
        let wanted = if is_root { result } else { elements(0..count, |_| 0) };
        assert_eq!((send.to_vec().unwrap(), recv.to_vec().unwrap()), (ours, wanted), "{op} {}", T::DTYPE);
    }
}

#[test]
fn a_reduce_gives_the_root_the_result_and_leaves_others_as_they_were() {
    in_all_worlds(|rank| for_each_reduced!(T => reduce::<T>(&rank)));
}

fn reduce_scatter<T: Small>(rank: &Rank, counts: &[usize], shares: Counts<'_>) {
    let total = counts.iter().sum();
    let start: usize = counts[..rank.rank].iter().sum();
    let block = start..start + counts[rank.rank];
    for op in arithmetic::<T>() {
        let ours: Vec<T> = elements(0..total, |index| contribution(op, rank.size, rank.rank, index));
        let wanted: Vec<T> = elements(block.clone(), |index| reduced(op, rank.size, index));
        let op = of_rank(op, rank.rank);
        let (send, mut recv) = (rank.buffer(&ours), rank.zeros(block.len()));
        let buffers = Buffers::Separate { send: send.view(), recv: recv.view_mut() };
        rank.comm.run(Call::ReduceScatter { buffers, counts: shares, op }, &options()).unwrap();
        assert_eq!((send.to_vec().unwrap(), &recv.to_vec().unwrap()), (ours, &wanted), "{op} {}", T::DTYPE);
        let mut in_place = send;
        let buffers = Buffers::InPlace(in_place.view_mut());
        rank.comm.run(Call::ReduceScatter { buffers, counts: shares, op }, &options()).unwrap();
        assert_eq!(in_place.slice(block.clone()).unwrap().to_vec().unwrap(), wanted, "{op} {}", T::DTYPE);
    }
}

#[test]
fn a_reduce_scatter_gives_each_rank_its_block() {
    in_all_worlds(|rank| {
        for count in [0, 1, 3] {
            let equal = vec![count; rank.size];
            for_each_reduced!(T => reduce_scatter::<T>(&rank, &equal, Counts::Equal));
        }
    });
}

#[test]
fn blocks_of_a_reduce_scatter_may_differ_in_length() {
    in_all_worlds(|rank| {
        let counts: Vec<usize> = (0..rank.size).map(|rank| (rank * 2 + 3) % 5).collect();
        for_each_reduced!(T => reduce_scatter::<T>(&rank, &counts, Counts::PerRank(&counts)));
    });
}
