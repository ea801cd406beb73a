//! Averages of 16-bit floats: no intermediate overflow, and an error within the documented bound.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use crate::common::{lengths, small_segments, world};
use comm_core::{Collective, Comm, Element, HostView, ReduceOp, ReduceOrder};
use comm_ring::schedule::Algorithm;
use comm_sim::in_process::InProcessConfig;
use half::{bf16, f16};
use proptest::prelude::*;

const WORLDS: [usize; 5] = [1, 2, 3, 5, 8];

/// A 16-bit float, with the constants of the bound on the error of an average.
trait Half: Element + Copy {
    /// Half of the distance between 1 and the next element.
    const ROUNDING: f64;
    /// Half of the smallest subnormal element.
    const UNDERFLOW: f64;
    fn of(number: f64) -> Self;
    fn number(self) -> f64;
}

impl Half for f16 {
    const ROUNDING: f64 = f64::from_bits((1023 - 11) << 52);
    const UNDERFLOW: f64 = f64::from_bits((1023 - 25) << 52);

    fn of(number: f64) -> Self {
        Self::from_f64(number)
    }

    fn number(self) -> f64 {
        self.to_f64()
    }
}

impl Half for bf16 {
    const ROUNDING: f64 = f64::from_bits((1023 - 8) << 52);
    // 2^-134, as the subnormals of bf16 are multiples of 2^-133.
    const UNDERFLOW: f64 = f64::from_bits((1023 - 134) << 52);

    fn of(number: f64) -> Self {
        Self::from_f64(number)
    }

    fn number(self) -> f64 {
        self.to_f64()
    }
}

/// The bits of elements, because NaN differs from itself.
fn bits<T: Half>(elements: &[T]) -> &[u8] {
    HostView::new(elements).bytes()
}

/// Computes the average of all contributions with every algorithm of every collective that supports
/// averages.
fn every_average<T: Half>(comm: &Comm, contribution: &[T]) -> Vec<(&'static str, Vec<T>)> {
    let (rank, ranks, len) = (comm.rank(), comm.size(), contribution.len());
    let mut averages = Vec::new();
    for row in Algorithm::for_collective(Collective::AllReduce) {
        let comm = comm.with_algorithm(row.name);
        let mut buffer = contribution.to_vec();
        comm.all_reduce(&mut buffer, ReduceOp::Avg).unwrap();
        let mut recv = vec![T::of(99.0); len];
        comm.all_reduce_into(contribution, &mut recv, ReduceOp::Avg).unwrap();
        assert!(bits(&buffer) == bits(&recv), "{}: {buffer:?} in place, {recv:?} out of place", row.name);
        averages.push((row.name, buffer));
    }
    for row in Algorithm::for_collective(Collective::Reduce) {
        let mut buffer = contribution.to_vec();
        comm.with_algorithm(row.name).reduce(0, &mut buffer, ReduceOp::Avg).unwrap();
        if rank != 0 {
            assert!(bits(&buffer) == bits(contribution), "{} wrote to a buffer that it only reads", row.name);
        }
        comm.broadcast(0, &mut buffer).unwrap();
        averages.push((row.name, buffer));
    }
    for row in Algorithm::for_collective(Collective::ReduceScatter) {
        let comm = comm.with_algorithm(row.name);
        let repeated: Vec<T> = contribution.repeat(ranks);
        let mut recv = vec![T::of(99.0); len];
        comm.reduce_scatter(&repeated, &mut recv, ReduceOp::Avg).unwrap();
        averages.push((row.name, recv));
        let mut buffer = repeated.clone();
        comm.reduce_scatter_in_place(&mut buffer, ReduceOp::Avg).unwrap();
        averages.push((row.name, buffer[rank * len..][..len].to_vec()));
    }
    averages
}

/// Every rank contributes the same number, so the average is this number up to rounding. In the
/// tree of the deterministic order, sums of 2, 4 and 8 equal numbers are not rounded.
fn check_constant<T: Half>(number: f64) {
    for ranks in WORLDS {
        world(ranks, &InProcessConfig::default(), &small_segments(), |comm| {
            let comm = comm.with_timeout(Duration::from_secs(60));
            for len in lengths(ranks) {
                let same = vec![T::of(number); len];
                let bound = ranks as f64 * T::ROUNDING * number.abs();
                for (algorithm, average) in every_average(&comm, &same) {
                    let close = average.iter().all(|average| (average.number() - number).abs() <= bound);
                    assert!(close, "{algorithm}, {ranks} ranks, {len} x {number}: {average:?}");
                }
                let mut average = same.clone();
                let ordered = comm.with_reduce_order(ReduceOrder::Deterministic);
                ordered.all_reduce(&mut average, ReduceOp::Avg).unwrap();
                assert!(!ranks.is_power_of_two() || average == same, "{ranks} ranks, {len} x {number}");
            }
        });
    }
}

#[test]
fn an_average_of_f16_does_not_overflow_where_the_sum_would() {
    for number in [10_000.0, -10_000.0, 32_768.0] {
        check_constant::<f16>(number);
    }
}

#[test]
fn an_average_of_bf16_does_not_overflow_where_the_sum_would() {
    for exponent in [126, 127] {
        check_constant::<bf16>(2_f64.powi(exponent));
    }
}

#[test]
fn an_average_of_infinities_and_nans_is_their_sum() {
    world(3, &InProcessConfig::default(), &small_segments(), |comm| {
        let (infinity, nan) = (f16::INFINITY, f16::NAN);
        let contributions =
            [[infinity, infinity, nan], [f16::ONE, -infinity, f16::ONE], [infinity, f16::ONE, f16::ONE]];
        for (algorithm, average) in every_average(&comm, &contributions[comm.rank()]) {
            assert!(
                average[0] == infinity && average[1].is_nan() && average[2].is_nan(),
                "{algorithm}: {average:?}"
            );
        }
    });
}

/// Checks the bound that [`ReduceOp::Avg`] states, for finite contributions.
fn check_bound<T: Half>(contributions: &[Vec<T>]) {
    let ranks = contributions.len();
    let len = contributions[0].len();
    let results = world(ranks, &InProcessConfig::default(), &small_segments(), |comm| {
        every_average(&comm, &contributions[comm.rank()])
    });
    for (at, (algorithm, average)) in
        results[0].iter().enumerate().take(Algorithm::for_collective(Collective::AllReduce).count())
    {
        for result in &results {
            assert_eq!(&result[at].1, average, "{algorithm}: ranks differ");
        }
    }
    for (algorithm, average) in results.iter().flatten() {
        for index in 0..len {
            let all = contributions.iter().map(|rank| rank[index].number());
            let exact = all.clone().sum::<f64>() / ranks as f64;
            let mean = all.map(f64::abs).sum::<f64>() / ranks as f64;
            let bound = ranks as f64 * T::ROUNDING * mean + 2.0 * ranks as f64 * T::UNDERFLOW;
            // Includes the rounding errors of rounding errors.
            let bound = bound * (1.0 + ranks as f64 * T::ROUNDING);
            let error = (average[index].number() - exact).abs();
            assert!(
                error <= bound,
                "{algorithm}, {ranks} ranks: {:?} for {exact}, off by {error:e} of {bound:e}",
                average[index]
            );
        }
    }
}

/// Bits of finite elements that are no larger than a quarter of the largest, including subnormal
/// ones.
fn finite(exponents: std::ops::Range<u16>, mantissa_bits: u32) -> impl Strategy<Value = u16> {
    (any::<bool>(), exponents, any::<u16>()).prop_map(move |(negative, exponent, mantissa)| {
        u16::from(negative) << 15 | exponent << mantissa_bits | (mantissa % (1 << mantissa_bits))
    })
}

fn ranks_of(bits: impl Strategy<Value = u16>) -> impl Strategy<Value = Vec<Vec<u16>>> {
    let bits = prop::collection::vec(bits, 8 * 9);
    (prop::sample::select(&WORLDS[..]), bits)
        .prop_map(|(ranks, bits)| bits.chunks(9).take(ranks).map(<[u16]>::to_vec).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_error_of_an_average_of_f16_is_within_its_bound(ranks in ranks_of(finite(0..29, 10))) {
        let contributions: Vec<Vec<f16>> =
            ranks.iter().map(|bits| bits.iter().copied().map(f16::from_bits).collect()).collect();
        check_bound(&contributions);
    }

    #[test]
    fn the_error_of_an_average_of_bf16_is_within_its_bound(ranks in ranks_of(finite(0..253, 7))) {
        let contributions: Vec<Vec<bf16>> =
            ranks.iter().map(|bits| bits.iter().copied().map(bf16::from_bits).collect()).collect();
        check_bound(&contributions);
    }
}
