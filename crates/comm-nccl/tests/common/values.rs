//! Elements whose reductions are exact in every type, so that results are compared bit by bit.

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

/// Element `index` of what rank `rank` contributes, from 1 to 3.
pub(crate) fn number(rank: usize, index: usize) -> i64 {
    1 + ((rank * 7 + index * 3 + rank * index) % 3) as i64
}

/// What the rank's factor of a premultiplied sum is.
pub(crate) fn factor(rank: usize) -> f64 {
    (rank as f64 + 1.0) * 0.5
}

/// The operator as this rank gives it.
pub(crate) fn of_rank(op: ReduceOp, rank: usize) -> ReduceOp {
    match op {
        ReduceOp::PreMulSum(_) => ReduceOp::PreMulSum(factor(rank)),
        op => op,
    }
}

/// Element `index` of the contribution to a reduction with `op` in a world of `size`: a multiple of whatever it is divided by.
pub(crate) fn contribution(op: ReduceOp, size: usize, rank: usize, index: usize) -> i64 {
    match op {
        ReduceOp::Avg => number(rank, index) * size as i64,
        ReduceOp::PreMulSum(_) => number(rank, index) * 2,
        _ => number(rank, index),
    }
}

/// Element `index` of the reduction.
pub(crate) fn reduced(op: ReduceOp, size: usize, index: usize) -> i64 {
    let all = (0..size).map(|rank| (rank, number(rank, index)));
    match op {
        ReduceOp::Sum | ReduceOp::Avg => all.map(|(_, number)| number).sum(),
        ReduceOp::PreMulSum(_) => all.map(|(rank, number)| number * (rank as i64 + 1)).sum(),
        ReduceOp::Prod => all.map(|(_, number)| number).product(),
        ReduceOp::Min => all.map(|(_, number)| number).min().unwrap(),
        ReduceOp::Max => all.map(|(_, number)| number).max().unwrap(),
        other => panic!("NCCL has no {other}"),
    }
}

pub(crate) fn elements<T: Small>(range: std::ops::Range<usize>, number: impl Fn(usize) -> i64) -> Vec<T> {
    range.map(|index| T::of(number(index))).collect()
}

/// Calls a function with each type that NCCL reduces, but for floats of 8 bits, which are exact in small worlds only.
#[allow(unused_macros, reason = "not every test file uses it")]
macro_rules! for_each_reduced {
    ($function:ident ( $($argument:expr),* )) => {{
        $function::<i8>($($argument),*);
        $function::<u8>($($argument),*);
        $function::<i32>($($argument),*);
        $function::<u32>($($argument),*);
        $function::<i64>($($argument),*);
        $function::<u64>($($argument),*);
        $function::<half::f16>($($argument),*);
        $function::<half::bf16>($($argument),*);
        $function::<f32>($($argument),*);
        $function::<f64>($($argument),*);
    }};
}

/// Calls a function with each type that the host reduces.
#[allow(unused_macros, reason = "not every test file uses it")]
macro_rules! for_each_of_host {
    ($function:ident ( $($argument:expr),* )) => {{
        $function::<i16>($($argument),*);
        $function::<u16>($($argument),*);
        $crate::common::values::for_each_reduced!($function($($argument),*));
    }};
}

/// Calls a function with each type.
#[allow(unused_macros, reason = "not every test file uses it")]
macro_rules! for_each_type {
    ($function:ident ( $($argument:expr),* )) => {{
        $function::<float8::F8E4M3>($($argument),*);
        $function::<float8::F8E5M2>($($argument),*);
        $crate::common::values::for_each_of_host!($function($($argument),*));
    }};
}

#[allow(unused_imports, reason = "not every test file uses them")]
pub(crate) use {for_each_of_host, for_each_reduced, for_each_type};
