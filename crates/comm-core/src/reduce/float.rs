//! The floating point types: the type in which each is computed, conversions to it and back, and
//! the order of elements.

use std::ops::{Add, Div, Mul};

use half::{bf16, f16};

use crate::Element;

/// A floating point element. All results that are NaN have the same bits.
pub(super) trait Float: Element {
    /// The type in which elements are computed.
    type Wide: Copy + Add<Output = Self::Wide> + Mul<Output = Self::Wide> + Div<Output = Self::Wide>;

    /// Converts to the wide type, exactly.
    fn widen(self) -> Self::Wide;

    /// Rounds to the nearest element, ties to even.
    fn narrow(wide: Self::Wide) -> Self;

    /// Returns the minimum, where -0 is less than +0. NaN if either is NaN.
    fn lower(self, other: Self) -> Self;

    /// Returns the maximum, where -0 is less than +0. NaN if either is NaN.
    fn higher(self, other: Self) -> Self;
}

macro_rules! computes_itself {
    ($($float:ident, $nan:literal;)+) => {
        $(
            impl Float for $float {
                type Wide = Self;

                #[inline(always)]
                fn widen(self) -> Self {
                    self
                }

                #[inline(always)]
                fn narrow(wide: Self) -> Self {
                    // The language does not specify the bits of `NAN`.
                    if wide.is_nan() { Self::from_bits($nan) } else { wide }
                }

                // If the operands are equal or one is NaN, `this` and `that` are the two operands.
                // For -0 and +0 both matter: the minimum is negative if either is, the maximum only
                // if both are.

                #[inline(always)]
                fn lower(self, other: Self) -> Self {
                    let this = if self < other { self } else { other };
                    let that = if other < self { other } else { self };
                    // A NaN with more bits set is still a NaN.
                    Self::narrow(Self::from_bits(this.to_bits() | that.to_bits()))
                }

                #[inline(always)]
                fn higher(self, other: Self) -> Self {
                    let this = if self > other { self } else { other };
                    let that = if other > self { other } else { self };
                    let bits = this.to_bits() & that.to_bits();
                    Self::from_bits(if self.is_nan() | other.is_nan() { $nan } else { bits })
                }
            }
        )+
    };
}

computes_itself! {
    f32, 0x7fc0_0000;
    f64, 0x7ff8_0000_0000_0000;
}

/// Converts the bits of a 16-bit float to an integer of the same order, or back.
#[inline(always)]
fn ordinal(bits: i16) -> i16 {
    // Floats are stored as sign and magnitude, so the magnitude of negative numbers is inverted.
    bits ^ (bits >> 15 & i16::MAX)
}

/// The order of 16-bit floats, computed without conversion.
macro_rules! ordered_by_bits {
    () => {
        #[inline(always)]
        fn lower(self, other: Self) -> Self {
            let least = ordinal(self.to_bits() as i16).min(ordinal(other.to_bits() as i16));
            if self.is_nan() | other.is_nan() { Self::NAN } else { Self::from_bits(ordinal(least) as u16) }
        }

        #[inline(always)]
        fn higher(self, other: Self) -> Self {
            let most = ordinal(self.to_bits() as i16).max(ordinal(other.to_bits() as i16));
            if self.is_nan() | other.is_nan() { Self::NAN } else { Self::from_bits(ordinal(most) as u16) }
        }
    };
}

// These do not use the conversions of `half`, which detect CPU features for each element and so
// prevent vectorisation.

impl Float for bf16 {
    type Wide = f32;

    ordered_by_bits!();

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        // Adds just under half of the last place, or half if the last place is odd. A carry into
        // the exponent is correct, even up to infinity.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        if wide.is_nan() { Self::NAN } else { Self::from_bits(rounded as u16) }
    }
}

/// The lowest bit of the exponent of an `f32`: adding it doubles the number.
const DOUBLE: u32 = 1 << 23;
/// The difference between the exponent biases of `f16` and `f32`.
const REBIAS: u32 = (127 - 15) * DOUBLE;

/// After F. Giesen, "Half-float conversions" (public domain): the float adder scales and rounds
/// subnormal numbers.
impl Float for f16 {
    type Wide = f32;

    ordered_by_bits!();

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = (bits & 0x7fff) << 13;
        let normal = magnitude + REBIAS;
        let subnormal = f32::from_bits(normal + DOUBLE) - f32::from_bits(REBIAS + DOUBLE);
        let wide = if magnitude >= 0x7c00 << 13 {
            normal + REBIAS
        } else if magnitude >= DOUBLE {
            normal
        } else {
            subnormal.to_bits()
        };
        f32::from_bits(wide | (bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        /// The power of two whose last place as an `f32` equals the last place of subnormal `f16`
        /// numbers.
        const ALIGNED: f32 = 0.5;
        /// The power of two after the largest number.
        const OVERFLOW: u32 = (127 + 16) * DOUBLE;

        let bits = wide.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        // Rounded as above.
        let normal = magnitude.wrapping_sub(REBIAS).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
        let subnormal = (f32::from_bits(magnitude) + ALIGNED).to_bits().wrapping_sub(ALIGNED.to_bits());
        let narrow = if magnitude >= OVERFLOW {
            0x7c00
        } else if magnitude >= REBIAS + DOUBLE {
            normal
        } else {
            subnormal
        };
        let signed = narrow | bits >> 16 & 0x8000;
        if wide.is_nan() { Self::NAN } else { Self::from_bits(signed as u16) }
    }
}
