//! Ranks as threads, and data whose reductions are exact.
#![allow(dead_code, reason = "not every test file uses every helper")]

use std::time::Duration;

use comm_core::{Comm, DType, Element, Link, LinkModel, ReduceOp};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig};
use comm_sim::network::{self, FaultPlan, VirtualClock};
use float8::F8E4M3;
use half::{bf16, f16};

/// Worlds around powers of two, and larger ones.
pub(crate) const WORLDS: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13];

/// Segments so small that a few dozen elements make many, and three ranks to a host.
pub(crate) fn small_segments() -> RingConfig {
    let mut config = RingConfig::default();
    config.segment_bytes = 16;
    config.segments_per_pass = 2;
    let link = Link { latency: 1e-5, overhead: 1e-6, per_byte: 1e-9 };
    config.links = Some(LinkModel { ranks_per_host: 3, ..LinkModel::uniform(link, 1e-10) });
    config
}

/// Exact products of up to 13 contributions fit every type but these.
pub(crate) fn is_exact<T: Sample>(op: ReduceOp, ranks: usize) -> bool {
    op.supports(T::DTYPE)
        && !(op == ReduceOp::Prod && T::DTYPE.is_float() && T::DTYPE.size() == 2 && ranks > 4)
}

/// Runs `rank` on every rank of a world of threads.
pub(crate) fn world<R: Send>(
    ranks: usize,
    network: &InProcessConfig,
    config: &RingConfig,
    rank: impl Fn(Comm) -> R + Sync,
) -> Vec<R> {
    in_process::run(ranks, network, |fabric| {
        let communicator = RingCommunicator::new(fabric, config.clone(), Duration::from_secs(20)).unwrap();
        // On its own line, so that the rank has the last handle.
        let comm = Comm::new(communicator).with_timeout(Duration::from_secs(20));
        rank(comm)
    })
}

/// Runs `rank` on every rank of a world in virtual time, in an order that depends on the seed.
pub(crate) fn virtual_world<R: Send>(
    ranks: usize,
    seed: u64,
    config: &RingConfig,
    rank: impl Fn(Comm, &VirtualClock) -> R + Sync,
) -> Vec<R> {
    network::run(ranks, seed, &FaultPlan::calm(), |fabric, clock| {
        let communicator = RingCommunicator::new(fabric, config.clone(), Duration::from_secs(20)).unwrap();
        rank(Comm::new(communicator).with_timeout(Duration::from_secs(20)), &clock)
    })
}

/// An element that small whole numbers convert to without rounding.
pub(crate) trait Sample: Element + Copy {
    /// The element nearest to a number; integers wrap around.
    fn of(number: f64) -> Self;
}

macro_rules! integers {
    ($($int:ty),+) => { $( impl Sample for $int {
        fn of(number: f64) -> Self { (number as i128) as $int }
    } )+ };
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64);

impl Sample for f16 {
    fn of(number: f64) -> Self {
        f16::from_f32(number as f32)
    }
}

impl Sample for bf16 {
    fn of(number: f64) -> Self {
        bf16::from_f32(number as f32)
    }
}

impl Sample for F8E4M3 {
    fn of(number: f64) -> Self {
        F8E4M3::from_f64(number)
    }
}

impl Sample for f32 {
    fn of(number: f64) -> Self {
        number as f32
    }
}

impl Sample for f64 {
    fn of(number: f64) -> Self {
        number
    }
}

/// Returns the contribution of `rank` at position `at`: 1, 2 or 3, in a pattern that no two ranks
/// share.
pub(crate) fn contribution(rank: usize, at: usize) -> u32 {
    let mixed = (rank as u64 * 0x9e37 + at as u64 * 0x79b9 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    1 + (mixed >> 40) as u32 % 3
}

/// The buffer that `rank` contributes.
pub(crate) fn contributions<T: Sample>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|at| T::of(f64::from(contribution(rank, at)))).collect()
}

/// The reduction at position `at`, in exact arithmetic, rounded once at the end.
pub(crate) fn reduced<T: Sample>(ranks: usize, at: usize, op: ReduceOp) -> T {
    let all = || (0..ranks).map(|rank| contribution(rank, at));
    let sum: u32 = all().sum();
    match op {
        ReduceOp::Sum => T::of(f64::from(sum)),
        // Up to 3^13, which every float but the small ones holds; integers wrap around.
        ReduceOp::Prod => T::of(all().map(f64::from).product()),
        ReduceOp::Min => T::of(f64::from(all().min().unwrap())),
        ReduceOp::Max => T::of(f64::from(all().max().unwrap())),
        ReduceOp::Avg => average(sum, ranks),
        ReduceOp::PreMulSum(factor) => T::of(f64::from(sum) * factor),
        ReduceOp::BitAnd => T::of(f64::from(all().fold(u32::MAX, |a, b| a & b))),
        ReduceOp::BitOr => T::of(f64::from(all().fold(0, |a, b| a | b))),
        ReduceOp::BitXor => T::of(f64::from(all().fold(0, |a, b| a ^ b))),
        _ => unreachable!("an operator that this test does not know"),
    }
}

/// Division in the precision of the type, 16-bit floats in 32 bits.
fn average<T: Sample>(sum: u32, ranks: usize) -> T {
    if T::DTYPE == DType::F64 {
        T::of(f64::from(sum) / ranks as f64)
    } else {
        T::of(f64::from(sum as f32 / ranks as f32))
    }
}

/// The whole reduction.
pub(crate) fn reductions<T: Sample>(ranks: usize, len: usize, op: ReduceOp) -> Vec<T> {
    (0..len).map(|at| reduced(ranks, at, op)).collect()
}

/// Lengths around the world size, where off-by-one errors live.
pub(crate) fn lengths(ranks: usize) -> Vec<usize> {
    let mut lengths = vec![0, 1, ranks - 1, ranks, ranks + 1, 67];
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// Lists of counts that are uneven, and empty in different places.
pub(crate) fn uneven(ranks: usize) -> Vec<Vec<usize>> {
    let only = |rank: usize| (0..ranks).map(|at| if at == rank { 50 } else { 0 }).collect();
    let falling = (0..ranks).map(|rank| 3 * (ranks - 1 - rank)).collect();
    let mixed = (0..ranks).map(|rank| [5, 0, 31, 1][rank % 4]).collect();
    vec![vec![0; ranks], only(0), only(ranks - 1), falling, mixed]
}
