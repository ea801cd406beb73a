//! Elements of every type as bytes: pseudorandom ones, and special values for rounding and
//! comparisons.

use comm_core::{DType, wire};

pub(super) const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
pub(super) const INTEGERS: [DType; 8] =
    [DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32, DType::I64, DType::U64];

/// Zeros, the smallest and largest numbers, infinities, and quiet and signalling NaN.
const F16: [u64; 12] = [0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xfe01];
const BF16: [u64; 12] = [0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x7f7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffc1];
/// The same, and numbers at and next to the midpoint of two 16-bit floats, and below the smallest
/// one.
const F32: [u64; 27] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x7f_ffff,
    0x80_0000,
    0x7f7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7f80_0001,
    0x7fc0_0000,
    0xffc0_0001,
    // bf16
    0x3f80_8000,
    0x3f81_8000,
    0x3f80_8001,
    0x3f80_7fff,
    0x7f7f_8000,
    // f16
    0x3f80_1000,
    0x3f80_3000,
    0xbf80_1001,
    0x477f_efff,
    0x477f_f000,
    0x3300_0000,
    0x3300_0001,
    0x33c0_0000,
    0x387f_e000,
    0x3880_0000,
];
/// The same, and numbers at the midpoint of two 32-bit floats, and some that are rounded twice when
/// they are converted to 16 bits.
const F64: [u64; 20] = [
    0,
    1 << 63,
    1,
    0xf_ffff_ffff_ffff,
    0x10_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x7ff0_0000_0000_0001,
    0x7ff8_0000_0000_0000,
    0xfff8_0000_0000_0001,
    // 1 + 2^-24, 1 + 3 * 2^-24, the largest f32 and half of its last place, 2^-150, 3 * 2^-150
    0x3ff0_0000_1000_0000,
    0x3ff0_0000_3000_0000,
    0x47ef_ffff_f000_0000,
    0x3690_0000_0000_0000,
    0x36a8_0000_0000_0000,
    0x3690_0000_0000_0001,
    // 1 + 2^-11 + 2^-26, which is halfway between two f16 once it is rounded to f32
    0x3ff0_0200_0400_0000,
    0x3ff0_0200_0000_0001,
    0x40ef_fe00_0000_0001,
];

/// Returns infinities and NaN of a floating point type.
pub(super) fn not_finite(dtype: DType) -> [u64; 4] {
    match dtype {
        DType::F16 => [0x7c00, 0xfc00, 0x7e00, 0xfc01],
        DType::BF16 => [0x7f80, 0xff80, 0x7fc0, 0xff81],
        DType::F32 => [0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xff80_0001],
        _ => [0x7ff << 52, 0xfff << 52, 0x7ff8 << 48, 0xfff << 52 | 1],
    }
}

/// Returns the bytes of `len` elements; a third of them are special values. If they must be finite,
/// all magnitudes are between 1 and 2.
pub(super) fn elements(dtype: DType, len: usize, seed: u64, is_finite: bool) -> Vec<u8> {
    let (special, exponent): (&[u64], u64) = match dtype {
        DType::F16 => (&F16, 0x7c00),
        DType::BF16 => (&BF16, 0x7f80),
        DType::F32 => (&F32, 0x7f80_0000),
        DType::F64 => (&F64, 0x7ff << 52),
        _ => (&[0, u64::MAX, 1, 1 << 7, 1 << 15, 1 << 31, 1 << 63], 0),
    };
    let bits = |at: u64| {
        let noise = wire::digest([seed, at]);
        let bits =
            if noise.is_multiple_of(3) { special[(noise >> 8) as usize % special.len()] } else { noise };
        // The exponent of 1.
        if is_finite { bits & !exponent | exponent & exponent >> 1 } else { bits }
    };
    (0..len as u64).flat_map(|at| wire::words::<1, 8>([bits(at)]).into_iter().take(dtype.size())).collect()
}
