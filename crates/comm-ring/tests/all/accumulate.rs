//! Partial sums in `f32`: a call on 16-bit floats yields the bits of the same call on `f32`,
//! rounded once at the end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use crate::common::{lengths, small_segments};
use comm_core::{
    Accumulate, Collective, Comm, Element, Error, HostView, Link, LinkModel, ReduceOp, ReduceOrder,
};
use comm_ring::RingConfig;
use comm_ring::schedule::Algorithm;
use comm_sim::in_process::InProcessConfig;
use half::{bf16, f16};

const WORLDS: [usize; 5] = [1, 2, 3, 5, 8];

const OPS: [ReduceOp; 6] =
    [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod, ReduceOp::PreMulSum(0.3), ReduceOp::Min, ReduceOp::Max];

trait Half: Element + Copy {
    fn narrow(number: f32) -> Self;
    fn widen(self) -> f32;
}

impl Half for f16 {
    fn narrow(number: f32) -> Self {
        Self::from_f32(number)
    }

    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Half for bf16 {
    fn narrow(number: f32) -> Self {
        Self::from_f32(number)
    }

    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// Numbers whose sums and products round in 16 bits.
fn contribution<T: Half>(rank: usize, len: usize) -> Vec<T> {
    let mixed =
        |at: usize| (rank as u64 * 0x9e37 + at as u64 * 0x79b9 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    (0..len).map(|at| T::narrow((mixed(at) >> 40) as f32 / 4096.0 - 2048.0)).collect()
}

fn wide<T: Half>(halves: &[T]) -> Vec<f32> {
    halves.iter().map(|half| half.widen()).collect()
}

fn narrow<T: Half>(wides: &[f32]) -> Vec<T> {
    wides.iter().map(|wide| T::narrow(*wide)).collect()
}

#[track_caller]
fn assert_bits<T: Element>(got: &[T], wanted: &[T], what: &str) {
    let bytes = |elements| HostView::new(elements).bytes();
    assert!(bytes(got) == bytes(wanted), "{what}: got {got:?}, wanted {wanted:?}");
}

/// Runs `rank` on every rank of every world, with a handle whose calls keep partial sums in `f32`.
fn in_all_worlds(rank: impl Fn(Comm) + Sync) {
    for ranks in WORLDS {
        crate::common::world(ranks, &InProcessConfig::default(), &small_segments(), |comm| {
            rank(comm.with_accumulate(Accumulate::F32).with_timeout(Duration::from_secs(60)));
        });
    }
}

/// A handle for every algorithm of a collective, and its name.
fn each_algorithm(comm: &Comm, collective: Collective) -> impl Iterator<Item = (&'static str, Comm)> {
    Algorithm::for_collective(collective).map(|row| (row.name, comm.with_algorithm(row.name)))
}

/// Checks every operator on every length, with a description for failure messages.
fn cases(comm: &Comm, collective: Collective, check: impl Fn(&Comm, ReduceOp, usize, &str)) {
    for (name, comm) in each_algorithm(comm, collective) {
        for (op, len) in OPS.iter().flat_map(|op| lengths(comm.size()).into_iter().map(move |len| (*op, len)))
        {
            check(&comm, op, len, &format!("{name} {op} of {len} on {} ranks", comm.size()));
        }
    }
}

fn all_reduces<T: Half>(comm: &Comm) {
    cases(comm, Collective::AllReduce, |comm, op, len, what| {
        let own = contribution::<T>(comm.rank(), len);
        let mut wanted = wide(&own);
        comm.all_reduce(&mut wanted, op).unwrap();
        let (mut in_place, mut recv) = (own.clone(), vec![T::narrow(9.0); len]);
        comm.all_reduce(&mut in_place, op).unwrap();
        assert_bits(&in_place, &narrow(&wanted), what);
        comm.all_reduce_into(&own, &mut recv, op).unwrap();
        assert_bits(&recv, &narrow(&wanted), what);
    });
}

fn reduces<T: Half>(comm: &Comm) {
    cases(comm, Collective::Reduce, |comm, op, len, what| {
        let (root, own) = (comm.size() / 2, contribution::<T>(comm.rank(), len));
        let (mut wanted, mut in_place) = (wide(&own), own.clone());
        comm.reduce(root, &mut wanted, op).unwrap();
        comm.reduce(root, &mut in_place, op).unwrap();
        assert_bits(&in_place, &narrow(&wanted), what);
        let mut recv = vec![T::narrow(9.0); len];
        comm.reduce_into(root, &own, &mut recv, op).unwrap();
        let untouched = vec![T::narrow(9.0); len];
        let wanted = if comm.rank() == root { narrow(&wanted) } else { untouched };
        assert_bits(&recv, &wanted, what);
    });
}

fn reduce_scatters<T: Half>(comm: &Comm) {
    cases(comm, Collective::ReduceScatter, |comm, op, len, what| {
        let (rank, own) = (comm.rank(), contribution::<T>(comm.rank(), len * comm.size()));
        let mut wanted = vec![0.0; len];
        comm.reduce_scatter(&wide(&own), &mut wanted, op).unwrap();
        let (mut in_place, mut recv) = (own.clone(), vec![T::narrow(9.0); len]);
        comm.reduce_scatter(&own, &mut recv, op).unwrap();
        assert_bits(&recv, &narrow(&wanted), what);
        let mut wanted = wide(&own);
        comm.reduce_scatter_in_place(&mut wanted, op).unwrap();
        comm.reduce_scatter_in_place(&mut in_place, op).unwrap();
        let mine = rank * len..(rank + 1) * len;
        assert_bits(&in_place[mine.clone()], &narrow(&wanted[mine]), what);
    });
}

fn scans<T: Half>(comm: &Comm) {
    for collective in [Collective::Scan, Collective::Exscan] {
        cases(comm, collective, |comm, op, len, what| {
            let scan = |buffer: &mut [f32]| match collective {
                Collective::Scan => comm.scan(buffer, op),
                _ => comm.exscan(buffer, op),
            };
            if op == ReduceOp::Avg {
                return;
            }
            let own = contribution::<T>(comm.rank(), len);
            let (mut wanted, mut in_place) = (wide(&own), own.clone());
            scan(&mut wanted).unwrap();
            let mut recv = vec![T::narrow(9.0); len];
            if collective == Collective::Scan {
                comm.scan(&mut in_place, op).unwrap();
                comm.scan_into(&own, &mut recv, op).unwrap();
                assert_bits(&recv, &narrow(&wanted), what);
            } else {
                comm.exscan(&mut in_place, op).unwrap();
                comm.exscan_into(&own, &mut recv, op).unwrap();
                let untouched = vec![T::narrow(9.0); len];
                let wanted = if comm.rank() == 0 { untouched } else { narrow(&wanted) };
                assert_bits(&recv, &wanted, what);
            }
            assert_bits(&in_place, &narrow(&wanted), what);
        });
    }
}

#[test]
fn f16_reductions_are_bit_identical_to_f32_reductions_rounded_once() {
    in_all_worlds(|comm| {
        all_reduces::<f16>(&comm);
        reduces::<f16>(&comm);
        reduce_scatters::<f16>(&comm);
        scans::<f16>(&comm);
    });
}

#[test]
fn bf16_reductions_are_bit_identical_to_f32_reductions_rounded_once() {
    in_all_worlds(|comm| {
        all_reduces::<bf16>(&comm);
        reduces::<bf16>(&comm);
        reduce_scatters::<bf16>(&comm);
        scans::<bf16>(&comm);
    });
}

#[test]
fn a_sum_that_every_hop_would_round_is_rounded_once() {
    crate::common::world(4, &InProcessConfig::default(), &small_segments(), |comm| {
        let contribution = if comm.rank() == 0 { 2048.0 } else { 1.0 };
        let sum = |comm: &Comm, name| {
            let mut buffer = [f16::from_f32(contribution); 5];
            comm.with_algorithm(name).all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            buffer
        };
        let wide = comm.with_accumulate(Accumulate::F32);
        for row in Algorithm::for_collective(Collective::AllReduce) {
            assert_eq!(sum(&wide, row.name), [f16::from_f32(2052.0); 5], "{}", row.name);
        }
        assert!(
            sum(&comm, "ring").iter().any(|sum| *sum != f16::from_f32(2052.0)),
            "a ring rounds every hop"
        );
    });
}

#[test]
fn an_average_of_equal_numbers_is_this_number_by_every_algorithm() {
    in_all_worlds(|comm| {
        for number in [10_000.0, 65_504.0, -1e-7] {
            let same = vec![f16::from_f32(number); 9];
            for (name, comm) in each_algorithm(&comm, Collective::AllReduce) {
                let mut average = same.clone();
                comm.all_reduce(&mut average, ReduceOp::Avg).unwrap();
                assert_bits(&average, &same, name);
            }
        }
    });
}

#[test]
fn an_average_of_equal_numbers_is_this_number_without_sums_in_f32_at_any_length() {
    // If messages cost nothing but their bytes, rings are fastest.
    let mut config = RingConfig::default();
    config.links = Some(LinkModel::uniform(Link { latency: 0.0, overhead: 0.0, per_byte: 1e-9 }, 1e-10));
    for ranks in [1, 2, 4, 8] {
        crate::common::world(ranks, &InProcessConfig::default(), &config, |comm| {
            for len in [1, 100, 10_000, 300_000] {
                let mut average = vec![f16::from_f32(10_000.0); len];
                comm.all_reduce(&mut average, ReduceOp::Avg).unwrap();
                assert_bits(&average, &vec![f16::from_f32(10_000.0); len], "f16");
                let mut block = vec![bf16::from_f32(9_984.0); len];
                comm.reduce_scatter(&vec![block[0]; len * ranks], &mut block, ReduceOp::Avg).unwrap();
                assert_bits(&block, &vec![bf16::from_f32(9_984.0); len], "bf16");
            }
        });
    }
}

#[test]
fn a_deterministic_order_holds_in_f32_too() {
    in_all_worlds(|comm| {
        let ordered = comm.with_reduce_order(ReduceOrder::Deterministic);
        let own = contribution::<f16>(comm.rank(), 67);
        let mut whole = own.clone();
        ordered.all_reduce(&mut whole, ReduceOp::Sum).unwrap();
        let mut cut = own;
        cut.chunks_mut(7).for_each(|piece| ordered.all_reduce(piece, ReduceOp::Sum).unwrap());
        assert_bits(&cut, &whole, "in pieces");
    });
}

#[test]
fn ranks_that_keep_sums_in_unlike_types_get_a_desync_that_names_both() {
    for ranks in [2, 3, 5] {
        let errors = crate::common::world(ranks, &InProcessConfig::default(), &small_segments(), |comm| {
            let accumulate = if comm.rank() == 1 { Accumulate::F32 } else { Accumulate::Native };
            let comm = comm.with_accumulate(accumulate);
            // The setting may differ between ranks in calls that it does not affect.
            comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum).unwrap();
            comm.all_reduce(&mut [f16::ONE; 8], ReduceOp::Max).unwrap();
            comm.all_reduce(&mut [f16::ONE; 8], ReduceOp::Sum).unwrap_err()
        });
        for error in errors {
            let words = error.to_string();
            let named = ["all_reduce(sum, 8 x f16", "all_reduce(sum in f32, 8 x f16"];
            assert!(
                matches!(error, Error::Desync(_)) && named.iter().all(|call| words.contains(call)),
                "{words}"
            );
        }
    }
}
