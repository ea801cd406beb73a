//! Types of elements, and their arithmetic.

use half::{bf16, f16};
use nccl_sys::ncclDataType_t;

use crate::settings::{self, Setting};

use super::failure::{Failure, Outcome};

/// A type of the emulated version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element(ncclDataType_t);

/// The arithmetic of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// In wide integers, truncated to the size of the type.
    Integer {
        signed: bool,
    },
    /// In f32, and rounded once at the end.
    Single,
    Double,
}

/// The version that introduced types of 8 bits.
const FLOAT8_SINCE: u64 = 22_400;

impl Element {
    pub(super) fn new(kind: ncclDataType_t) -> Outcome<Self> {
        let newest = if settings::get(Setting::NcclVersion) < FLOAT8_SINCE {
            ncclDataType_t::ncclBfloat16
        } else {
            ncclDataType_t::ncclFloat8e5m2
        };
        let known = kind.0 <= newest.0;
        known.then_some(Self(kind)).ok_or_else(|| Failure::argument(format!("invalid type {}", kind.0)))
    }

    pub(super) fn number(self) -> u8 {
        u8::try_from(self.0.0).unwrap_or(u8::MAX)
    }

    pub(super) fn size(self) -> usize {
        match self.0 {
            ncclDataType_t::ncclFloat16 | ncclDataType_t::ncclBfloat16 => 2,
            ncclDataType_t::ncclInt32 | ncclDataType_t::ncclUint32 | ncclDataType_t::ncclFloat32 => 4,
            ncclDataType_t::ncclInt64 | ncclDataType_t::ncclUint64 | ncclDataType_t::ncclFloat64 => 8,
            _ => 1,
        }
    }

    pub(super) fn class(self) -> Class {
        match self.0 {
            ncclDataType_t::ncclInt8 | ncclDataType_t::ncclInt32 | ncclDataType_t::ncclInt64 => {
                Class::Integer { signed: true }
            }
            ncclDataType_t::ncclUint8 | ncclDataType_t::ncclUint32 | ncclDataType_t::ncclUint64 => {
                Class::Integer { signed: false }
            }
            ncclDataType_t::ncclFloat64 => Class::Double,
            _ => Class::Single,
        }
    }

    /// Returns an element of at most 32 bits in floating point.
    pub(super) fn to_f32(self, bytes: &[u8]) -> f32 {
        match (self.0, bytes) {
            (ncclDataType_t::ncclFloat16, &[a, b]) => f16::from_ne_bytes([a, b]).to_f32(),
            (ncclDataType_t::ncclBfloat16, &[a, b]) => bf16::from_ne_bytes([a, b]).to_f32(),
            (ncclDataType_t::ncclFloat8e4m3, &[bits]) => E4M3.decode(bits),
            (ncclDataType_t::ncclFloat8e5m2, &[bits]) => E5M2.decode(bits),
            (_, &[a, b, c, d]) => f32::from_ne_bytes([a, b, c, d]),
            _ => f32::NAN,
        }
    }

    /// Appends the nearest element; of two, the even one.
    pub(super) fn put_f32(self, value: f32, out: &mut Vec<u8>) {
        match self.0 {
            ncclDataType_t::ncclFloat16 => out.extend(f16::from_f32(value).to_ne_bytes()),
            ncclDataType_t::ncclBfloat16 => out.extend(bf16::from_f32(value).to_ne_bytes()),
            ncclDataType_t::ncclFloat8e4m3 => out.push(E4M3.encode(value)),
            ncclDataType_t::ncclFloat8e5m2 => out.push(E5M2.encode(value)),
            _ => out.extend(value.to_ne_bytes()),
        }
    }
}

/// A floating point format of eight bits, as the OCP specification of 8-bit floating point defines
/// it. Numbers that are too large become the largest finite one, as in CUDA's conversions.
#[derive(Debug, Clone, Copy)]
struct Float8 {
    mantissa_bits: u32,
    bias: i32,
    largest_finite: u8,
    infinity: Option<u8>,
}

const E4M3: Float8 = Float8 { mantissa_bits: 3, bias: 7, largest_finite: 0x7E, infinity: None };
const E5M2: Float8 = Float8 { mantissa_bits: 2, bias: 15, largest_finite: 0x7B, infinity: Some(0x7C) };
const SIGN: u8 = 0x80;
const NAN: u8 = 0x7F;

impl Float8 {
    fn decode(self, bits: u8) -> f32 {
        let magnitude = bits & !SIGN;
        let sign = if bits & SIGN == 0 { 1.0 } else { -1.0 };
        if Some(magnitude) == self.infinity {
            return sign * f32::INFINITY;
        }
        if magnitude > self.largest_finite {
            return f32::NAN;
        }
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let fraction = f32::from(magnitude & ((1 << self.mantissa_bits) - 1));
        let one = f32::from(1_u8 << self.mantissa_bits);
        let (significand, power) =
            if exponent == 0 { (fraction / one, 1) } else { (1.0 + fraction / one, exponent) };
        sign * significand * 2_f32.powi(power - self.bias)
    }

    fn encode(self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { SIGN } else { 0 };
        if value.is_nan() {
            return sign | NAN;
        }
        // Numbers of one sign are ordered like their bits, so binary search finds the neighbours.
        let size = value.abs();
        let (mut low, mut high) = (0, self.largest_finite);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.decode(middle) <= size { low = middle } else { high = middle }
        }
        let (below, above) = (size - self.decode(low), self.decode(high) - size);
        let upwards = above < below || above == below && high & 1 == 0;
        sign | if upwards { high } else { low }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_eight_bits_is_its_own_nearest() {
        for format in [E4M3, E5M2] {
            for bits in 0..=u8::MAX {
                let value = format.decode(bits);
                if value.is_finite() {
                    assert_eq!(format.encode(value), bits, "{format:?} {value}");
                }
            }
        }
    }

    #[test]
    fn the_formats_have_the_limits_of_their_specification() {
        assert_eq!((E4M3.decode(0x7E), E5M2.decode(0x7B)), (448.0, 57_344.0));
        assert_eq!((E4M3.decode(0x01), E5M2.decode(0x01)), (2_f32.powi(-9), 2_f32.powi(-16)));
        assert!(E4M3.decode(0x7F).is_nan() && E5M2.decode(0x7D).is_nan());
        assert_eq!(E5M2.decode(0xFC), f32::NEG_INFINITY);
        assert_eq!((E4M3.encode(1e9), E5M2.encode(-1e9)), (0x7E, 0xFB));
    }

    #[test]
    fn halves_go_to_the_even_neighbour() {
        // Neighbours of 17 in three bits of mantissa are 16 and 18; of 19, 18 and 20.
        assert_eq!(E4M3.decode(E4M3.encode(17.0)), 16.0);
        assert_eq!(E4M3.decode(E4M3.encode(19.0)), 20.0);
        assert_eq!(E5M2.decode(E5M2.encode(9.0)), 8.0);
        assert_eq!(E5M2.decode(E5M2.encode(9.5)), 10.0);
    }
}
