//! The arithmetic of one instruction, on the bits of registers.

use half::f16;

use super::instruction::{Binary, Comparison, Type};

/// The NaN of operations on `f32` as CUDA defines it, which differs from the host's.
const NAN_32: u32 = 0x7fff_ffff;
/// A NaN of operations on `f64`, whose bits CUDA does not specify.
const NAN_64: u64 = 0xfff8_0000_0000_0001;
/// The NaN of conversions to `f16`.
const NAN_16: u16 = 0x7fff;

fn float(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn bits_of(value: f32) -> u64 {
    u64::from(if value.is_nan() { NAN_32 } else { value.to_bits() })
}

fn bits_of_double(value: f64) -> u64 {
    if value.is_nan() { NAN_64 } else { value.to_bits() }
}

/// Computes an operator. Shifts by the width or more give zero.
pub(super) fn compute(binary: Binary, kind: Type, left: u64, right: u64) -> u64 {
    match kind {
        Type::Float(64) => {
            let (left, right) = (f64::from_bits(left), f64::from_bits(right));
            bits_of_double(match binary {
                Binary::Add => left + right,
                Binary::Sub => left - right,
                Binary::Mul => left * right,
                _ => left / right,
            })
        }
        Type::Float(_) => {
            let (left, right) = (float(left), float(right));
            bits_of(match binary {
                Binary::Add => left + right,
                Binary::Sub => left - right,
                Binary::Mul => left * right,
                _ => left / right,
            })
        }
        Type::Bits(_) | Type::Predicate => {
            let amount = u32::try_from(right).ok().filter(|amount| *amount < kind.width());
            kind.mask()
                & match binary {
                    Binary::Add => left.wrapping_add(right),
                    Binary::Sub => left.wrapping_sub(right),
                    Binary::Mul => left.wrapping_mul(right),
                    // No division of integers is decoded.
                    Binary::Div => 0,
                    Binary::And => left & right,
                    Binary::Or => left | right,
                    Binary::Xor => left ^ right,
                    Binary::ShiftLeft => amount.map_or(0, |amount| left << amount),
                    Binary::ShiftRight => amount.map_or(0, |amount| left >> amount),
                }
        }
    }
}

/// Returns the square root of a float, rounded to nearest.
pub(super) fn square_root(kind: Type, value: u64) -> u64 {
    if kind == Type::Float(64) {
        bits_of_double(f64::from_bits(value).sqrt())
    } else {
        bits_of(float(value).sqrt())
    }
}

/// Converts a value from the second type to the first. Floats are rounded to nearest, ties to even.
pub(super) fn convert((to, from): (Type, Type), value: u64) -> u64 {
    match (to, from) {
        (Type::Float(32), Type::Float(16)) => bits_of(f16::from_bits(value as u16).to_f32()),
        (Type::Float(64), Type::Float(16)) => bits_of_double(f16::from_bits(value as u16).to_f64()),
        (Type::Float(64), Type::Float(32)) => bits_of_double(f64::from(float(value))),
        (Type::Float(32), Type::Float(64)) => bits_of(f64::from_bits(value) as f32),
        (Type::Float(16), Type::Float(32)) => half_of(f16::from_f32(float(value))),
        (Type::Float(16), Type::Float(64)) => half_of(f16::from_f64(f64::from_bits(value))),
        _ => value & from.mask() & to.mask(),
    }
}

fn half_of(value: f16) -> u64 {
    u64::from(if value.is_nan() { NAN_16 } else { value.to_bits() })
}

/// Compares two values. All comparisons of a NaN except [`Comparison::Unordered`] are false.
pub(super) fn compare(comparison: Comparison, kind: Type, left: u64, right: u64) -> bool {
    let order = match kind {
        Type::Float(64) => f64::from_bits(left).partial_cmp(&f64::from_bits(right)),
        Type::Float(_) => float(left).partial_cmp(&float(right)),
        Type::Bits(_) | Type::Predicate => Some(left.cmp(&right)),
    };
    match comparison {
        Comparison::Equal => order.is_some_and(|order| order.is_eq()),
        Comparison::NotEqual => order.is_some_and(|order| order.is_ne()),
        Comparison::Less => order.is_some_and(|order| order.is_lt()),
        Comparison::LessOrEqual => order.is_some_and(|order| order.is_le()),
        Comparison::Greater => order.is_some_and(|order| order.is_gt()),
        Comparison::GreaterOrEqual => order.is_some_and(|order| order.is_ge()),
        Comparison::Unordered => order.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F32: Type = Type::Float(32);
    const F64: Type = Type::Float(64);

    #[test]
    fn floats_are_rounded_once_and_keep_subnormals() {
        let tiny = u64::from(f32::from_bits(3).to_bits());
        assert_eq!(compute(Binary::Add, F32, tiny, tiny), 6);
        let half = u64::from(0.5_f32.to_bits());
        assert_eq!(compute(Binary::Mul, F32, tiny, half), 2, "half of 3 is rounded to the even number, 2");
        let (third, three) = ((1.0_f64 / 3.0).to_bits(), 3.0_f64.to_bits());
        assert_eq!(compute(Binary::Div, F64, 1.0_f64.to_bits(), three), third);
        assert_eq!(square_root(F64, 9.0_f64.to_bits()), three);
    }

    #[test]
    fn bits_of_a_nan_are_not_those_of_the_host() {
        let infinity = u64::from(f32::INFINITY.to_bits());
        assert_eq!(compute(Binary::Sub, F32, infinity, infinity), u64::from(NAN_32));
        assert_eq!(convert((F64, F32), u64::from(f32::NAN.to_bits())), NAN_64);
        assert_eq!(convert((Type::Float(16), F32), u64::from(f32::NAN.to_bits())), u64::from(NAN_16));
    }

    #[test]
    fn a_nan_is_unordered_and_nothing_else() {
        let nan = u64::from(f32::NAN.to_bits());
        for comparison in
            [Comparison::Equal, Comparison::NotEqual, Comparison::Less, Comparison::GreaterOrEqual]
        {
            assert!(!compare(comparison, F32, nan, nan));
        }
        assert!(compare(Comparison::Unordered, F32, 0, nan) && !compare(Comparison::Unordered, F32, 0, 0));
        assert!(compare(Comparison::Less, Type::Bits(64), 1, u64::MAX), "integers are unsigned");
    }

    #[test]
    fn integers_wrap_in_their_width_and_are_shifted_out() {
        let word = Type::Bits(32);
        assert_eq!(compute(Binary::Add, word, 0xffff_ffff, 2), 1);
        assert_eq!(compute(Binary::ShiftLeft, word, 1, 32), 0);
        assert_eq!(compute(Binary::ShiftRight, Type::Bits(64), 1 << 63, 63), 1);
        assert_eq!(convert((word, Type::Bits(64)), 0x1_0000_0002), 2);
    }
}
