//! The deterministic order of combination, tested with floats whose sums show every change of order
//! in their last bits.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::world;
use comm_core::{Collective, Comm, Element, Error, ReduceOp, ReduceOrder};
use comm_ring::RingConfig;
use comm_ring::schedule::{Algorithm, TABLE};
use comm_sim::in_process::InProcessConfig;
use half::{bf16, f16};

const WORLDS: [usize; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 13];
const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg, ReduceOp::PreMulSum(0.3)];

/// A float that rounds, with a second implementation of the arithmetic of reductions.
trait Rough: Element {
    fn of(number: f64) -> Self;
    fn bits(self) -> u64;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn scale(self, factor: f64) -> Self;
    fn divide(self, count: usize) -> Self;
}

macro_rules! rough {
    ($($float:ident computes in $wide:ident by $widen:ident, $narrow:ident;)+) => { $(
        impl Rough for $float {
            fn of(number: f64) -> Self { Self::$narrow(number as $wide) }
            fn bits(self) -> u64 { u64::from(self.to_bits()) }
            fn add(self, other: Self) -> Self { Self::$narrow(<$wide>::$widen(self) + <$wide>::$widen(other)) }
            fn multiply(self, other: Self) -> Self { Self::$narrow(<$wide>::$widen(self) * <$wide>::$widen(other)) }
            fn scale(self, factor: f64) -> Self { Self::$narrow(<$wide>::$widen(self) * factor as $wide) }
            fn divide(self, count: usize) -> Self { Self::$narrow(<$wide>::$widen(self) / count as $wide) }
        }
    )+ };
}

rough! {
    f16 computes in f32 by from, from_f32;
    bf16 computes in f32 by from, from_f32;
    f32 computes in f32 by from, from;
    f64 computes in f64 by from, from;
}

/// Returns the contribution of a rank at a position: of either sign, and of very different
/// magnitudes unless it is a factor.
fn rough<T: Rough>(rank: usize, at: usize, op: ReduceOp) -> T {
    let mixed = (rank as u64 * 0x9e37_79b9 + at as u64 * 0x85eb_ca6b + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let fraction = 0.75 + (mixed >> 12) as f64 / (1_u64 << 52) as f64 / 2.0;
    let sign = if mixed & 1 == 0 { 1.0 } else { -1.0 };
    let power = if op == ReduceOp::Prod { 0 } else { (mixed >> 1 & 7) as i32 - 3 };
    T::of(sign * fraction * 2.0_f64.powi(power))
}

fn contributions<T: Rough>(rank: usize, len: usize, op: ReduceOp) -> Vec<T> {
    (0..len).map(|at| rough(rank, at, op)).collect()
}

/// Computes the element at a position by the definition of the order: first the leading ranks in
/// pairs, so that a power of two remains, then neighbours, repeatedly.
fn reference<T: Rough>(ranks: usize, at: usize, op: ReduceOp) -> T {
    let combine = |a: T, b: T| if op == ReduceOp::Prod { a.multiply(b) } else { a.add(b) };
    let mut left: Vec<T> = (0..ranks).map(|rank| rough(rank, at, op)).collect();
    if let ReduceOp::PreMulSum(factor) = op {
        left.iter_mut().for_each(|element| *element = element.scale(factor));
    }
    let beyond = ranks - (1 << ranks.ilog2());
    for pair in 0..beyond {
        let odd = left.remove(pair + 1);
        left[pair] = combine(left[pair], odd);
    }
    while left.len() > 1 {
        left = left.chunks(2).map(|pair| combine(pair[0], pair[1])).collect();
    }
    if op == ReduceOp::Avg { left[0].divide(ranks) } else { left[0] }
}

fn bits<T: Rough>(elements: &[T]) -> Vec<u64> {
    elements.iter().map(|element| element.bits()).collect()
}

/// Handles for the selected algorithm, and for every one that keeps the order.
fn handles(comm: &Comm, collective: Collective) -> Vec<(&'static str, Comm)> {
    let comm = comm.with_reduce_order(ReduceOrder::Deterministic);
    let keepers = Algorithm::for_collective(collective).filter(|row| row.traits.keeps_order);
    let forced: Vec<_> = keepers.map(|row| (row.name, comm.with_algorithm(row.name))).collect();
    forced.into_iter().chain([("chosen", comm)]).collect()
}

/// Checks every reduction of one vector, whole and in parts.
fn reductions<T: Rough>(comm: &Comm, len: usize, op: ReduceOp) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let send = contributions::<T>(rank, len, op);
    let expected: Vec<u64> = (0..len).map(|at| reference::<T>(ranks, at, op).bits()).collect();
    let context = |name: &str| format!("{name}: {op} of {len} x {} among {ranks}", T::DTYPE);

    for (name, comm) in handles(comm, Collective::AllReduce) {
        let mut buffer = send.clone();
        comm.all_reduce(&mut buffer, op).unwrap();
        assert_eq!(bits(&buffer), expected, "all_reduce {}", context(name));
        let mut buffer = send.clone();
        for part in buffer.chunks_mut(1 + len / 3) {
            comm.all_reduce(part, op).unwrap();
        }
        assert_eq!(bits(&buffer), expected, "all_reduce in parts {}", context(name));
    }
    for (name, comm) in handles(comm, Collective::Reduce) {
        for root in 0..ranks {
            let mut in_place = send.clone();
            comm.reduce(root, &mut in_place, op).unwrap();
            let mut recv = send.clone();
            comm.reduce_into(root, &send, &mut recv, op).unwrap();
            if rank == root {
                assert_eq!(bits(&in_place), expected, "reduce to {root} {}", context(name));
                assert_eq!(bits(&recv), expected, "reduce into {root} {}", context(name));
            }
        }
    }
    for (name, comm) in handles(comm, Collective::ReduceScatter) {
        let share = len / ranks;
        let (whole, own) = (&send[..share * ranks], &expected[rank * share..][..share]);
        let mut recv = vec![T::of(99.0); share];
        comm.reduce_scatter(whole, &mut recv, op).unwrap();
        assert_eq!(bits(&recv), own, "reduce_scatter {}", context(name));
        let mut buffer = whole.to_vec();
        comm.reduce_scatter_in_place(&mut buffer, op).unwrap();
        assert_eq!(bits(&buffer[rank * share..][..share]), own, "reduce_scatter in place {}", context(name));
    }
    for (name, comm) in handles(comm, Collective::ReduceScatterV) {
        // The last rank gets all elements that the others leave, at least a third.
        let mut counts: Vec<usize> = (0..ranks).map(|rank| 2 * len / 3 / ranks * (rank % 2)).collect();
        counts[ranks - 1] += len - counts.iter().sum::<usize>();
        let start = counts[..rank].iter().sum::<usize>();
        let mut recv = vec![T::of(99.0); counts[rank]];
        comm.reduce_scatter_v(&send, &mut recv, &counts, op).unwrap();
        assert_eq!(bits(&recv), expected[start..start + counts[rank]], "reduce_scatter_v {}", context(name));
    }
}

fn every_world<T: Rough>() {
    let mut tiny = RingConfig::default();
    (tiny.segment_bytes, tiny.segments_per_pass) = (48, 2);
    for ranks in WORLDS {
        for (config, lengths) in [
            (&tiny, &[0, 1, ranks - 1, ranks, ranks + 1, 67, 331, 1000][..]),
            (&RingConfig::default(), &[67, 4099]),
        ] {
            world(ranks, &InProcessConfig::default(), config, |comm| {
                for op in OPS {
                    lengths.iter().for_each(|len| reductions::<T>(&comm, *len, op));
                }
            });
        }
    }
}

#[test]
fn every_reduction_of_f16s_keeps_the_order() {
    every_world::<f16>();
}

#[test]
fn every_reduction_of_bf16s_keeps_the_order() {
    every_world::<bf16>();
}

#[test]
fn every_reduction_of_f32s_keeps_the_order() {
    every_world::<f32>();
}

#[test]
fn every_reduction_of_f64s_keeps_the_order() {
    every_world::<f64>();
}

#[test]
fn order_shows_where_it_is_not_asked_for() {
    for ranks in [3, 5, 8, 13] {
        world(ranks, &InProcessConfig::default(), &RingConfig::default(), |comm| {
            let (len, op) = (1000, ReduceOp::Sum);
            let mut buffer = contributions::<f32>(comm.rank(), len, op);
            comm.with_algorithm("ring").all_reduce(&mut buffer, op).unwrap();
            let expected: Vec<u64> = (0..len).map(|at| reference::<f32>(ranks, at, op).bits()).collect();
            assert_ne!(bits(&buffer), expected, "{ranks}");
        });
    }
}

#[test]
fn an_algorithm_that_does_not_keep_the_order_is_refused() {
    let breakers =
        |collective| TABLE.iter().filter(move |row| row.collective == collective && !row.traits.keeps_order);
    assert!(breakers(Collective::AllReduce).count() > 0 && breakers(Collective::ReduceScatter).count() > 0);
    world(3, &InProcessConfig::default(), &RingConfig::default(), |comm| {
        let comm = comm.with_reduce_order(ReduceOrder::Deterministic);
        let (sum, mut buffer) = (ReduceOp::Sum, [1.0_f32; 6]);
        for row in breakers(Collective::AllReduce) {
            let refused = comm.with_algorithm(row.name).all_reduce(&mut buffer, sum);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{}: {refused:?}", row.name);
        }
        for row in breakers(Collective::ReduceScatter) {
            let comm = comm.with_algorithm(row.name);
            let refused = comm.reduce_scatter_in_place(&mut buffer, sum);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{}: {refused:?}", row.name);
            let refused = comm.reduce_scatter_v(&buffer, &mut [0.0; 2], &[2; 3], sum);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{}: {refused:?}", row.name);
        }
        comm.all_reduce(&mut buffer, sum).unwrap();
        assert_eq!(buffer, [3.0; 6]);
    });
}
