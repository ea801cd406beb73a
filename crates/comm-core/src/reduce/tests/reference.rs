//! A reference implementation of the kernels, which is as simple as possible and shares no code
//! with them.
//!
//! An element of any type is represented by the integer with its bytes.

use crate::{DType, ReduceOp};

pub(super) fn combine(op: ReduceOp, dtype: DType, left: u64, right: u64) -> u64 {
    if dtype.is_float() { float(op, dtype, left, right) } else { integer(op, dtype, left, right) }
}

pub(super) fn divide(dtype: DType, element: u64, divisor: f64) -> u64 {
    round(dtype, value(dtype, element) / divisor)
}

pub(super) fn multiply(dtype: DType, element: u64, factor: f64) -> u64 {
    let factor = if dtype == DType::F64 { factor } else { f64::from(factor as f32) };
    round(dtype, value(dtype, element) * factor)
}

fn integer(op: ReduceOp, dtype: DType, left: u64, right: u64) -> u64 {
    let unused = 64 - 8 * dtype.size();
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let value = |bits: u64| {
        let high = bits << unused;
        if signed { i128::from(high.cast_signed() >> unused) } else { i128::from(high >> unused) }
    };
    let (left, right) = (value(left), value(right));
    let result = match op {
        ReduceOp::Sum => left + right,
        ReduceOp::Prod => left.wrapping_mul(right),
        ReduceOp::Min => left.min(right),
        ReduceOp::Max => left.max(right),
        ReduceOp::BitAnd => left & right,
        ReduceOp::BitOr => left | right,
        ReduceOp::BitXor => left ^ right,
        ReduceOp::Avg | ReduceOp::PreMulSum(_) | ReduceOp::User(_) => panic!("{op} of {dtype}"),
    };
    (result as u64) << unused >> unused
}

fn float(op: ReduceOp, dtype: DType, left: u64, right: u64) -> u64 {
    let (a, b) = (value(dtype, left), value(dtype, right));
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => round(dtype, a + b),
        ReduceOp::Prod => round(dtype, a * b),
        ReduceOp::Min | ReduceOp::Max => {
            if a.is_nan() || b.is_nan() {
                return nan(dtype);
            }
            let left_is_less = a < b || a == b && a.is_sign_negative();
            if left_is_less == (op == ReduceOp::Min) { left } else { right }
        }
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor | ReduceOp::User(_) => {
            panic!("{op} of {dtype}")
        }
    }
}

/// Returns the NaN of all results.
pub(super) fn nan(dtype: DType) -> u64 {
    match dtype {
        DType::F16 => 0x7e00,
        DType::BF16 => 0x7fc0,
        DType::F32 => 0x7fc0_0000,
        DType::F64 => 0x7ff8_0000_0000_0000,
        _ => panic!("{dtype} has no NaN"),
    }
}

/// Returns the number of stored bits of the mantissa.
pub(super) fn mantissa_bits(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 10,
        DType::BF16 => 7,
        DType::F32 => 23,
        DType::F64 => 52,
        _ => panic!("{dtype} has no mantissa"),
    }
}

/// Returns the bits of infinity, in which the whole exponent is set.
pub(super) fn infinity(dtype: DType) -> u64 {
    let sign = 1 << (8 * dtype.size() - 1);
    sign - (1 << mantissa_bits(dtype))
}

/// Returns the number that an element represents.
pub(super) fn value(dtype: DType, element: u64) -> f64 {
    let sign = 1 << (8 * dtype.size() - 1);
    let magnitude = element & (sign - 1);
    let magnitude = match dtype {
        DType::F64 => f64::from_bits(magnitude),
        _ if magnitude > infinity(dtype) => f64::NAN,
        _ if magnitude == infinity(dtype) => f64::INFINITY,
        _ => unbounded(dtype, magnitude),
    };
    if element & sign == 0 { magnitude } else { -magnitude }
}

/// Returns the magnitude that bits represent if the largest exponent is treated like the others.
pub(super) fn unbounded(dtype: DType, magnitude: u64) -> f64 {
    let bits = mantissa_bits(dtype);
    let (exponent, fraction) = (magnitude >> bits, magnitude % (1 << bits));
    let implicit = if exponent == 0 { 0 } else { 1 << bits };
    let bias = (infinity(dtype) >> bits) / 2;
    let last_place = 1023 + exponent.max(1) - bias - u64::from(bits);
    (implicit + fraction) as f64 * f64::from_bits(last_place << 52)
}

/// Returns an `f32` as an element of 16 bits.
pub(super) fn rounded(half: DType, number: u64) -> u64 {
    round(half, value(DType::F32, number))
}

/// Returns the element nearest to a number, by way of `f32` for the types that are computed in it.
/// Rounding twice, from `f64` to `f32` and further, does no harm, because `f32` has less than half
/// the digits.
fn round(dtype: DType, number: f64) -> u64 {
    match dtype {
        _ if number.is_nan() => nan(dtype),
        DType::F64 => number.to_bits(),
        DType::F32 => u64::from((number as f32).to_bits()),
        _ => nearest(dtype, f64::from(number as f32)),
    }
}

/// Returns the nearest 16-bit element, by binary search; of two nearest elements, the even one.
pub(super) fn nearest(dtype: DType, number: f64) -> u64 {
    let magnitude = number.abs();
    let sign = u64::from(number.is_sign_negative()) << 15;
    let (mut below, mut above) = (0, infinity(dtype));
    if magnitude >= unbounded(dtype, above) {
        return sign | above;
    }
    while above - below > 1 {
        let middle = below.midpoint(above);
        if unbounded(dtype, middle) <= magnitude { below = middle } else { above = middle }
    }
    let down = magnitude - unbounded(dtype, below);
    let up = unbounded(dtype, above) - magnitude;
    let to_above = up < down || up == down && above % 2 == 0;
    sign | if to_above { above } else { below }
}
