//! Elements whose reductions are exact in every type, so that results can be compared bit by bit.
//!
//! ```
//! use comm_core::ReduceOp;
//! use comm_sim::exact::{self, Small};
//!
//! fn sums<T: Small>(size: usize) -> Vec<T> {
//!     exact::elements(0..10, |index| exact::reduced(ReduceOp::Sum, size, index))
//! }
//! comm_sim::for_each_type!(T => assert_eq!(sums::<T>(1), exact::elements::<T>(0..10, |at| exact::number(0, at))));
//! ```

use std::ops::Range;

use comm_core::{DType, Element, ReduceOp};

#[doc(hidden)]
pub use float8::{F8E4M3, F8E5M2};
#[doc(hidden)]
pub use half::{bf16, f16};

/// A type with small numbers.
pub trait Small: Element {
    /// Returns the number, which wraps around like the type.
    fn of(number: i64) -> Self;

    /// Returns a zero that has a bit set, if the type has one. Its sums are such zeros, too.
    fn negative_zero() -> Self;
}

macro_rules! small {
    ($($integer:ty),+; $($float:ident),+) => {
        $(impl Small for $integer {
            fn of(number: i64) -> Self {
                number as Self
            }

            fn negative_zero() -> Self {
                -0.0_f64 as Self
            }
        })+
        $(impl Small for $float {
            fn of(number: i64) -> Self {
                $float::from_f64(number as f64)
            }

            fn negative_zero() -> Self {
                $float::from_f64(-0.0)
            }
        })+
    };
}

small!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64; f16, bf16, F8E4M3, F8E5M2);

/// Returns element `index` of a rank's contribution, from 1 to 3.
#[must_use]
pub const fn number(rank: usize, index: usize) -> i64 {
    1 + (mixed(rank as u64, index as u64) % 3) as i64
}

/// Returns element `index` of a rank's contribution to a sum that is rounded, so that its bits
/// depend on the order.
#[must_use]
pub fn fraction(rank: usize, index: usize) -> f32 {
    1.0 / (1.0 + rank as f32 * 0.37 + index as f32 * 1.13)
}

/// Returns pseudorandom bits, so that ranks and positions differ.
const fn mixed(a: u64, b: u64) -> u64 {
    let mixed = a.wrapping_mul(0x9e37).wrapping_add(b.wrapping_mul(0x79b9)).wrapping_add(1);
    mixed.wrapping_mul(0xd1b5_4a32_d192_ed03) >> 40
}

/// Returns the operator as this rank passes it: the factors of ranks differ.
#[must_use]
pub const fn of_rank(op: ReduceOp, rank: usize) -> ReduceOp {
    match op {
        ReduceOp::PreMulSum(_) => ReduceOp::PreMulSum(weight(rank) as f64 * 0.5),
        op => op,
    }
}

/// Returns twice the factor of a rank.
const fn weight(rank: usize) -> i64 {
    1 + (rank % 3) as i64
}

/// Returns element `index` of the contribution to a reduction in a group of `size`.
///
/// No partial result exceeds 256, up to which floats of 16 bits hold all whole numbers: in large
/// groups, some ranks, which differ for each index, contribute the neutral element of a sum or
/// product. Contributions to an average are multiples of the size, or in large groups equal on all
/// ranks.
#[must_use]
pub const fn contribution(op: ReduceOp, size: usize, rank: usize, index: usize) -> i64 {
    let (number, turn) = (number(rank, index), (rank + index) % size);
    match op {
        ReduceOp::Avg if size > 9 => (mixed(0, index as u64) % (256 / size as u64 + 1)) as i64,
        ReduceOp::Avg => number * size as i64,
        ReduceOp::Sum if turn >= 85 => 0,
        ReduceOp::PreMulSum(_) if turn >= 28 => 0,
        ReduceOp::PreMulSum(_) => number * 2,
        ReduceOp::Prod if turn >= 5 => 1,
        _ => number,
    }
}

/// Returns element `index` of the reduction of all contributions in a group of `size`, by a
/// built-in operator.
#[must_use]
pub fn reduced(op: ReduceOp, size: usize, index: usize) -> i64 {
    reduced_below(op, size, size, index)
}

/// Returns element `index` of the reduction of the contributions of the ranks below `end`, like
/// [`reduced`].
#[must_use]
pub fn reduced_below(op: ReduceOp, size: usize, end: usize, index: usize) -> i64 {
    let all = (0..end).map(|rank| contribution(op, size, rank, index));
    match op {
        ReduceOp::Avg => all.sum::<i64>() / size as i64,
        ReduceOp::PreMulSum(_) => all.enumerate().map(|(rank, number)| number / 2 * weight(rank)).sum(),
        ReduceOp::Prod => all.product(),
        ReduceOp::Min => all.fold(i64::MAX, i64::min),
        ReduceOp::Max => all.fold(i64::MIN, i64::max),
        ReduceOp::BitAnd => all.fold(-1, |a, b| a & b),
        ReduceOp::BitOr => all.fold(0, |a, b| a | b),
        ReduceOp::BitXor => all.fold(0, |a, b| a ^ b),
        _ => all.sum(),
    }
}

/// Returns whether every partial result of a reduction of [`contribution`]s is exact in the type.
#[must_use]
pub const fn is_exact(op: ReduceOp, dtype: DType, ranks: usize) -> bool {
    // Floats of 8 bits hold all whole numbers up to 16 (E4M3) or 8 (E5M2), and all even ones up to
    // 16.
    let ranks_max = match op {
        ReduceOp::Sum if matches!(dtype, DType::F8E4M3) => 5,
        ReduceOp::Sum | ReduceOp::Avg => 2,
        ReduceOp::Prod | ReduceOp::PreMulSum(_) => 1,
        _ => usize::MAX,
    };
    !dtype.is_float8() || ranks <= ranks_max
}

/// Returns element `index` of the block that rank `from` sends to rank `to`.
#[must_use]
pub const fn block_number(from: usize, to: usize, index: usize) -> i64 {
    (mixed((from << 8 | to) as u64, index as u64) % 120) as i64
}

/// Returns the elements `number(index)` for a range of indices.
pub fn elements<T: Small>(range: Range<usize>, number: impl Fn(usize) -> i64) -> Vec<T> {
    range.map(|index| T::of(number(index))).collect()
}

/// Runs an expression once for each type that the host can reduce (all but floats of 8 bits), with
/// the given name as an alias of the type.
#[macro_export]
macro_rules! for_each_of_host {
    ($name:ident => $body:expr) => {
        $crate::for_each_listed!($name => $body;
            i8, u8, i16, u16, i32, u32, i64, u64, $crate::exact::f16, $crate::exact::bf16, f32, f64)
    };
}

/// Runs an expression once for each type, with the given name as an alias of the type.
#[macro_export]
macro_rules! for_each_type {
    ($name:ident => $body:expr) => {{
        $crate::for_each_listed!($name => $body; $crate::exact::F8E4M3, $crate::exact::F8E5M2);
        $crate::for_each_of_host!($name => $body);
    }};
}

#[doc(hidden)]
#[macro_export]
macro_rules! for_each_listed {
    ($name:ident => $body:expr; $first:ty $(, $rest:ty)*) => {{
        {
            type $name = $first;
            $body;
        }
        $crate::for_each_listed!($name => $body; $($rest),*);
    }};
    ($name:ident => $body:expr; ) => {};
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use comm_core::HostView;

    use super::*;

    #[test]
    fn partial_results_are_exact_in_groups_of_any_size() {
        let sizes = [1, 2, 3, 5, 8, 9, 10, 17, 100, 256];
        for (op, size) in ReduceOp::ALL.into_iter().flat_map(|op| sizes.map(|size| (op, size))) {
            for index in 0..300 {
                let given = (0..size).map(|rank| contribution(op, size, rank, index));
                // An average first computes the sum of the contributions.
                let sum = if op == ReduceOp::Avg { given.clone().sum() } else { 0 };
                let below = (1..=size).map(|end| reduced_below(op, size, end, index));
                let exact = given.chain(below).chain([sum]).all(|number| (0..=256).contains(&number));
                assert!(exact && sum % size as i64 == 0, "{op} of {size}, element {index}");
            }
        }
    }

    #[test]
    fn numbers_up_to_256_differ_in_every_type() {
        fn check<T: Small>() {
            let differs = |one: i64| (0..one).all(|other| T::of(one) != T::of(other));
            assert!((0..256).all(differs), "{}", T::DTYPE);
        }
        for_each_of_host!(T => check::<T>());
    }

    #[test]
    fn a_negative_zero_has_a_bit_set_in_types_that_have_one() {
        fn check<T: Small>() {
            let zeros = [T::negative_zero()];
            let has_bit = HostView::new(&zeros).bytes().iter().any(|byte| *byte != 0);
            assert_eq!(has_bit, T::DTYPE.is_float(), "{}", T::DTYPE);
        }
        for_each_type!(T => check::<T>());
    }

    #[test]
    fn every_type_is_used_once() {
        let mut types = Vec::new();
        for_each_type!(T => types.push(<T as Element>::DTYPE.code()));
        assert_eq!(types.len(), DType::ALL.len());
        assert_eq!(types.into_iter().collect::<BTreeSet<_>>().len(), DType::ALL.len());
    }

    /// Otherwise, a result that was received from the wrong place would be accepted.
    #[test]
    fn elements_differ_between_ranks_and_positions() {
        for rank in 0..5 {
            let numbers: BTreeSet<i64> = (0..9).map(|index| number(rank, index)).collect();
            assert_eq!(numbers, BTreeSet::from([1, 2, 3]), "rank {rank}");
        }
        assert!((0..5).any(|rank| number(rank, 1) != number(rank + 1, 1)));
    }
}
