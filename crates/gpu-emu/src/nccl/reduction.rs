//! Reduces the contributions of all ranks.

use super::element::{Class, Element};

/// A reduction operator. The numbers are sent on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Reduction {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    /// Floats are multiplied by one over the number of ranks before they are added; integers are
    /// added and then divided.
    Avg = 4,
    /// Each rank's elements are multiplied by its own factor before they are added.
    PreMulSum = 5,
}

/// The contribution of one rank.
#[derive(Debug)]
pub(super) struct Contribution {
    pub(super) bytes: Vec<u8>,
    /// The factor of this rank, as one element; only used by [`Reduction::PreMulSum`].
    pub(super) factor: [u8; 8],
}

/// Combines `parts` in order. There is at least one, and all have the same length.
pub(super) fn reduce(element: Element, reduction: Reduction, parts: &[Contribution]) -> Vec<u8> {
    match element.class() {
        Class::Single => {
            let decode = |bytes: &[u8]| element.to_f32(bytes);
            let one_of_n = 1.0 / parts.len() as f32;
            let sums = fold(element.size(), parts, decode, &floats(reduction, one_of_n));
            let mut out = Vec::new();
            sums.into_iter().for_each(|sum| element.put_f32(sum, &mut out));
            out
        }
        Class::Double => {
            let decode = |bytes: &[u8]| bytes.try_into().map_or(f64::NAN, f64::from_ne_bytes);
            let one_of_n = 1.0 / parts.len() as f64;
            let sums = fold(element.size(), parts, decode, &floats(reduction, one_of_n));
            sums.into_iter().flat_map(f64::to_ne_bytes).collect()
        }
        Class::Integer { signed } => integers(element.size(), signed, reduction, parts),
    }
}

/// The arithmetic on numbers of type `T`: a number is prepared with its rank's factor, and then
/// combined.
struct Rule<T> {
    prepare: Box<dyn Fn(T, T) -> T>,
    combine: fn(T, T) -> T,
}

fn fold<T: Copy>(size: usize, parts: &[Contribution], decode: impl Fn(&[u8]) -> T, rule: &Rule<T>) -> Vec<T> {
    let mut rows = parts.iter().map(|part| {
        let factor = decode(&part.factor[..size]);
        let row = part.bytes.chunks_exact(size);
        row.map(|bytes| (rule.prepare)(decode(bytes), factor)).collect::<Vec<T>>()
    });
    let mut sums = rows.next().unwrap_or_default();
    for row in rows {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum = (rule.combine)(*sum, value);
        }
    }
    sums
}

/// A floating point type in which sums are computed.
trait Float: Copy + 'static {
    const COMBINE: [fn(Self, Self) -> Self; 4];
    fn times(self, other: Self) -> Self;
}

impl Float for f32 {
    const COMBINE: [fn(f32, f32) -> f32; 4] = [|a, b| a + b, |a, b| a * b, f32::max, f32::min];
    fn times(self, other: f32) -> f32 {
        self * other
    }
}

impl Float for f64 {
    const COMBINE: [fn(f64, f64) -> f64; 4] = [|a, b| a + b, |a, b| a * b, f64::max, f64::min];
    fn times(self, other: f64) -> f64 {
        self * other
    }
}

fn floats<T: Float>(reduction: Reduction, one_of_n: T) -> Rule<T> {
    let [sum, product, max, min] = T::COMBINE;
    let unchanged: Box<dyn Fn(T, T) -> T> = Box::new(|value, _| value);
    match reduction {
        Reduction::Sum => Rule { prepare: unchanged, combine: sum },
        Reduction::Prod => Rule { prepare: unchanged, combine: product },
        Reduction::Max => Rule { prepare: unchanged, combine: max },
        Reduction::Min => Rule { prepare: unchanged, combine: min },
        Reduction::Avg => Rule { prepare: Box::new(move |value, _| value.times(one_of_n)), combine: sum },
        Reduction::PreMulSum => Rule { prepare: Box::new(|value, factor| value.times(factor)), combine: sum },
    }
}

/// Combines integers in a wider type. Wrapping at the end gives the same result as wrapping in
/// `size` bytes at each step.
fn integers(size: usize, signed: bool, reduction: Reduction, parts: &[Contribution]) -> Vec<u8> {
    let decode = |bytes: &[u8]| widen(bytes, signed);
    let unchanged: Box<dyn Fn(i128, i128) -> i128> = Box::new(|value, _| value);
    let rule = match reduction {
        Reduction::Sum | Reduction::Avg => Rule { prepare: unchanged, combine: i128::wrapping_add },
        Reduction::Prod => Rule { prepare: unchanged, combine: i128::wrapping_mul },
        Reduction::Max => Rule { prepare: unchanged, combine: Ord::max },
        Reduction::Min => Rule { prepare: unchanged, combine: Ord::min },
        Reduction::PreMulSum => Rule { prepare: Box::new(i128::wrapping_mul), combine: i128::wrapping_add },
    };
    let sums = fold(size, parts, decode, &rule);
    let ranks = i128::try_from(parts.len()).unwrap_or(1);
    sums.into_iter()
        .flat_map(|sum| {
            let wrapped = widen(&sum.to_le_bytes()[..size], signed);
            let result = if reduction == Reduction::Avg { wrapped / ranks } else { wrapped };
            result.to_le_bytes().into_iter().take(size)
        })
        .collect()
}

/// Converts a little-endian integer of any size.
fn widen(bytes: &[u8], signed: bool) -> i128 {
    let negative = signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xFF } else { 0 }; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use nccl_sys::ncclDataType_t;

    use super::*;

    fn reduced(kind: ncclDataType_t, reduction: Reduction, parts: &[&[u8]], factor: [u8; 8]) -> Vec<u8> {
        let parts: Vec<_> =
            parts.iter().map(|bytes| Contribution { bytes: bytes.to_vec(), factor }).collect();
        reduce(Element::new(kind).unwrap(), reduction, &parts)
    }

    #[test]
    fn integers_wrap_in_their_own_width() {
        let int8 = ncclDataType_t::ncclInt8;
        assert_eq!(reduced(int8, Reduction::Sum, &[&[100], &[100]], [0; 8]), [200]);
        assert_eq!(reduced(int8, Reduction::Max, &[&[0xFF], &[1]], [0; 8]), [1]);
        assert_eq!(reduced(ncclDataType_t::ncclUint8, Reduction::Max, &[&[0xFF], &[1]], [0; 8]), [0xFF]);
        assert_eq!(reduced(int8, Reduction::Avg, &[&[0xFD], &[0xFE]], [0; 8]), [0xFE]);
        let largest = u64::MAX.to_le_bytes();
        let product = reduced(ncclDataType_t::ncclUint64, Reduction::Prod, &[&largest, &largest], [0; 8]);
        assert_eq!(product, 1_u64.to_le_bytes());
    }

    #[test]
    fn small_floats_are_rounded_once() {
        // In bf16, 256 + 1 is 256 again; three of them in f32 are 258.
        let [big, one] = [256.0, 1.0].map(|value| half::bf16::from_f32(value).to_ne_bytes());
        let sum = reduced(ncclDataType_t::ncclBfloat16, Reduction::Sum, &[&big, &one, &one], [0; 8]);
        assert_eq!(sum, half::bf16::from_f32(258.0).to_ne_bytes());
    }

    #[test]
    fn factors_apply_before_the_sum() {
        let mut factor = [0; 8];
        factor[..4].copy_from_slice(&0.5_f32.to_ne_bytes());
        let parts = [3.0_f32.to_ne_bytes(), 4.0_f32.to_ne_bytes()];
        let sum = reduced(ncclDataType_t::ncclFloat32, Reduction::PreMulSum, &[&parts[0], &parts[1]], factor);
        assert_eq!(sum, 3.5_f32.to_ne_bytes());
    }
}
