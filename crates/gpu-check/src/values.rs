//! Elements whose reductions are exact in every type, so that results are compared bit by bit.

use std::ops::Range;

use comm_core::{Element, ReduceOp};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// A type with small numbers.
pub(crate) trait Small: Element {
    /// The number, which wraps where the type does.
    fn of(number: i64) -> Self;
}

macro_rules! small {
    ($($integer:ty),+; $($float:ident),+) => {
        $(impl Small for $integer {
            fn of(number: i64) -> Self {
                number as Self
            }
        })+
        $(impl Small for $float {
            fn of(number: i64) -> Self {
                $float::from_f64(number as f64)
            }
        })+
    };
}

small!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64; f16, bf16, F8E4M3, F8E5M2);

/// Element `index` of what a rank contributes, from 1 to 3.
fn number(rank: usize, index: usize) -> i64 {
    1 + ((rank * 7 + index * 3 + index / 3 + rank * index) % 3) as i64
}

/// The operator as this rank gives it: factors differ.
pub(crate) fn of_rank(op: ReduceOp, rank: usize) -> ReduceOp {
    match op {
        ReduceOp::PreMulSum(_) => ReduceOp::PreMulSum((rank as f64 + 1.0) * 0.5),
        op => op,
    }
}

/// Element `index` of the contribution to a reduction in a group of `size`: a multiple of whatever it is divided by.
pub(crate) fn contribution(op: ReduceOp, size: usize, rank: usize, index: usize) -> i64 {
    match op {
        ReduceOp::Avg => number(rank, index) * size as i64,
        ReduceOp::PreMulSum(_) => number(rank, index) * 2,
        _ => number(rank, index),
    }
}

/// Element `index` of the reduction, with one of the operators that NCCL has.
pub(crate) fn reduced(op: ReduceOp, size: usize, index: usize) -> i64 {
    let all = (0..size).map(|rank| (rank, number(rank, index)));
    match op {
        ReduceOp::PreMulSum(_) => all.map(|(rank, number)| number * (rank as i64 + 1)).sum(),
        ReduceOp::Prod => all.map(|(_, number)| number).product(),
        ReduceOp::Min => all.map(|(_, number)| number).fold(i64::MAX, i64::min),
        ReduceOp::Max => all.map(|(_, number)| number).fold(i64::MIN, i64::max),
        _ => all.map(|(_, number)| number).sum(),
    }
}

/// The operators that NCCL has for a type.
pub(crate) fn ops<T: Small>() -> impl Iterator<Item = ReduceOp> {
    let lacking = [ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor];
    ReduceOp::ALL.into_iter().filter(move |op| op.supports(T::DTYPE) && !lacking.contains(op))
}

/// So many elements of what rank `from` has for rank `to`.
pub(crate) fn block<T: Small>(from: usize, to: usize, len: usize) -> Vec<T> {
    elements(0..len, |index| ((from * 31 + to * 17 + index * 5) % 120) as i64)
}

/// The blocks of all ranks, as `of` says, one after the other.
pub(crate) fn joined<T: Small>(counts: &[usize], of: impl Fn(usize, usize) -> Vec<T>) -> Vec<T> {
    counts.iter().enumerate().flat_map(|(rank, count)| of(rank, *count)).collect()
}

pub(crate) fn elements<T: Small>(range: Range<usize>, number: impl Fn(usize) -> i64) -> Vec<T> {
    range.map(|index| T::of(number(index))).collect()
}

/// Calls a function with each type that NCCL reduces, and stops at the first trouble.
macro_rules! for_each_reduced {
    ($function:ident ( $($argument:expr),* )) => {{
        $function::<i8>($($argument),*)?;
        $function::<u8>($($argument),*)?;
        $function::<i32>($($argument),*)?;
        $function::<u32>($($argument),*)?;
        $function::<i64>($($argument),*)?;
        $function::<u64>($($argument),*)?;
        $function::<half::f16>($($argument),*)?;
        $function::<half::bf16>($($argument),*)?;
        $function::<f32>($($argument),*)?;
        $function::<f64>($($argument),*)?;
    }};
}

/// Calls a function with each type, and stops at the first trouble.
macro_rules! for_each_type {
    ($function:ident ( $($argument:expr),* )) => {{
        $function::<i16>($($argument),*)?;
        $function::<u16>($($argument),*)?;
        $function::<float8::F8E4M3>($($argument),*)?;
        $function::<float8::F8E5M2>($($argument),*)?;
        $crate::values::for_each_reduced!($function($($argument),*));
    }};
}

pub(crate) use {for_each_reduced, for_each_type};
