//! Calls beyond the suite: user-defined operators, NaN, wide sums, long buffers, threads, groups.

use comm_core::bytemuck::{Pod, Zeroable};
use comm_core::half::f16;
use comm_core::{Accumulate, Error, Invalid, Operator, Plain, ReduceOp, ReduceOrder};
use comm_mpi::{CallMemoryMode, MpiCommunicator, MpiConfig};

use crate::ranks::run;

#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[bytemuck(crate = "comm_core::bytemuck")]
#[repr(C)]
struct Best {
    score: f64,
    rank: u64,
    index: u64,
}

impl Plain for Best {}

struct ArgMax;

impl Operator for ArgMax {
    type Element = Best;
    const NAME: &'static str = "argmax";

    fn combine(a: Best, b: Best) -> Best {
        if a.score > b.score || a.score == b.score && a.rank < b.rank { a } else { b }
    }
}

#[test]
fn structs_are_moved_and_combined_by_operators_of_the_program() {
    run(1, MpiConfig::default(), |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let of = |rank: usize, index: u64| Best { score: (rank % 2) as f64, rank: rank as u64, index };
        let mut best: Vec<Best> = (0..100).map(|index| of(rank, index)).collect();
        comm.all_reduce(&mut best, ReduceOp::of::<ArgMax>()).unwrap();
        let winner = usize::from(size > 1);
        assert_eq!(best, (0..100).map(|index| of(winner, index)).collect::<Vec<_>>());
        let mut all = vec![Best::zeroed(); size];
        comm.all_gather(&[of(rank, 7)], &mut all).unwrap();
        assert_eq!(all, (0..size).map(|rank| of(rank, 7)).collect::<Vec<_>>());
        comm.finalize().unwrap();
    });
}

#[test]
fn every_nan_has_the_same_bits_and_signed_integers_wrap_around() {
    for memory in [CallMemoryMode::Staged, CallMemoryMode::Borrowed] {
        run(2, MpiConfig::default().memory(memory), |comm| {
            let sign = if comm.rank() == 0 { 1.0 } else { -1.0 };
            // Infinities of both signs, and a NaN with a sign and a payload.
            let ours = [f32::INFINITY * sign, f32::from_bits(0xffc0_1234), 1.0, -0.0];
            let mut sums = [0.0_f32; 4];
            comm.all_reduce_into(&ours, &mut sums, ReduceOp::Sum).unwrap();
            assert_eq!(sums.map(f32::to_bits)[..2], [0x7fc0_0000; 2]);
            assert_eq!((sums[2], sums[3].to_bits()), (comm.size() as f32, (-0.0_f32).to_bits()));
            let mut least = [if comm.rank() == 1 { f64::NAN } else { -1.0 }, 0.0 * f64::from(sign)];
            comm.all_reduce(&mut least, ReduceOp::Min).unwrap();
            assert_eq!(least.map(f64::to_bits), [0x7ff8_0000_0000_0000, (-0.0_f64).to_bits()]);
            let mut largest = [i32::MAX];
            comm.all_reduce(&mut largest, ReduceOp::Sum).unwrap();
            assert_eq!(largest[0], (0..comm.size()).fold(0, |sum: i32, _| sum.wrapping_add(i32::MAX)));
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn sums_of_f16_may_be_kept_in_f32() {
    run(4, MpiConfig::default(), |comm| {
        let mut sum = [f16::from_f32(if comm.rank() == 0 { 2048.0 } else { 1.0 })];
        comm.with_accumulate(Accumulate::F32).all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum, [f16::from_f32(2052.0)]);
        comm.finalize().unwrap();
    });
}

#[test]
fn long_buffers_are_divided() {
    run(2, MpiConfig::default(), |comm| {
        if comm.size() > 2 {
            return comm.finalize().unwrap();
        }
        // A part has 256 MiB.
        let len = (256 << 20) + 3;
        let mut bytes = vec![1_u8 << comm.rank(); len];
        comm.all_reduce(&mut bytes, ReduceOp::BitOr).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 3));
        comm.finalize().unwrap();
    });
}

#[test]
fn blocks_beyond_the_counts_of_mpi_are_refused_before_anything_is_sent() {
    run(1, MpiConfig::default(), |comm| {
        // Pages that are not touched take no memory.
        let len = ((1_usize << 31) + 4).next_multiple_of(comm.size());
        let mut bytes = vec![0_u8; len];
        let error = comm.all_gather_in_place(&mut bytes).unwrap_err();
        assert!(matches!(error, Error::Invalid(Invalid::TooLong { backend: "mpi", .. })), "{error}");
        comm.barrier().unwrap();
        comm.finalize().unwrap();
    });
}

#[test]
fn options_that_mpi_does_not_support_are_refused() {
    run(1, MpiConfig::default(), |comm| {
        let refused = |error: Error| assert!(matches!(error, Error::Invalid(_)), "{error}");
        let ordered = comm.with_reduce_order(ReduceOrder::Deterministic);
        refused(ordered.all_reduce(&mut [1.0], ReduceOp::Sum).unwrap_err());
        refused(comm.with_algorithm("ring").barrier().unwrap_err());
        comm.with_algorithm("mpi").barrier().unwrap();
        comm.finalize().unwrap();
    });
}

#[test]
fn ranks_with_different_settings_are_refused_on_every_rank() {
    let Some(2..) = crate::ranks::launched() else { return };
    // All ranks must create a communicator to learn their ranks.
    let rank = {
        let comm = comm_mpi::init().unwrap();
        let rank = comm.rank();
        comm.finalize().unwrap();
        rank
    };
    let error = MpiCommunicator::world(MpiConfig::default().compare_calls(rank == 0)).unwrap_err();
    assert!(error.to_string().contains("compare_calls"), "{error}");
}

#[test]
fn threads_use_groups_concurrently() {
    run(2, MpiConfig::default(), |comm| {
        let groups: Vec<_> = (0..3).map(|_| comm.duplicate().unwrap()).collect();
        std::thread::scope(|scope| {
            for (number, group) in groups.into_iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..50 {
                        let sum = group.all_reduce_scalar(number * round, ReduceOp::Sum).unwrap();
                        assert_eq!(sum, number * round * group.size());
                    }
                });
            }
        });
        let works: Vec<_> =
            (0..20).map(|at| comm.all_reduce_async(vec![at as u32; 1000], ReduceOp::Sum).unwrap()).collect();
        for (at, work) in works.into_iter().enumerate() {
            assert_eq!(work.wait().unwrap(), vec![(at * comm.size()) as u32; 1000]);
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn many_groups_can_be_created_and_finalized() {
    run(2, MpiConfig::default(), |comm| {
        // More than MPICH has at a time. Creating a group is slow if there are few processors.
        let rounds = if comm.size() == 2 { 220 } else { 5 };
        let next = (comm.rank() + 1) % comm.size();
        for round in 0..rounds {
            let groups: Vec<_> = (0..10).map(|_| comm.duplicate().unwrap()).collect();
            for group in groups {
                if round % 50 == 0 {
                    assert_eq!(group.all_reduce_scalar(1, ReduceOp::Sum).unwrap(), comm.size());
                    // A message that is never received.
                    group.send(next, 7, &[round]).unwrap();
                }
                group.finalize().unwrap();
            }
        }
        comm.finalize().unwrap();
    });
}
