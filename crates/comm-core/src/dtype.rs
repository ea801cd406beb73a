//! Element types.

use bytemuck::Pod;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// The type of the elements of a buffer.
///
/// The discriminants are the codes on the wire; zero is reserved for "no type".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum DType {
    /// Signed 8-bit integer.
    I8 = 1,
    /// Unsigned 8-bit integer.
    U8 = 2,
    /// Signed 16-bit integer.
    I16 = 3,
    /// Unsigned 16-bit integer.
    U16 = 4,
    /// Signed 32-bit integer.
    I32 = 5,
    /// Unsigned 32-bit integer.
    U32 = 6,
    /// Signed 64-bit integer.
    I64 = 7,
    /// Unsigned 64-bit integer.
    U64 = 8,
    /// IEEE 754 binary16.
    F16 = 9,
    /// bfloat16: the upper half of a binary32.
    BF16 = 10,
    /// IEEE 754 binary32.
    F32 = 11,
    /// IEEE 754 binary64.
    F64 = 12,
    /// Four bits of exponent and three of mantissa, finite but for NaN: E4M3 of the OCP specification of 8-bit floating
    /// point. The host moves it; devices reduce it.
    F8E4M3 = 13,
    /// Five bits of exponent and two of mantissa, E5M2 of the same specification. The host moves it; devices reduce it.
    F8E5M2 = 14,
}

impl DType {
    /// Every element type, in the order of their codes.
    pub const ALL: [Self; 14] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// The size of one element in bytes.
    #[must_use]
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Whether this is one of the floating point types.
    #[must_use]
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64) || self.is_float8()
    }

    /// Whether this is one of the floating point types of 16 bits: `f16` or `bf16`.
    #[must_use]
    #[inline]
    pub const fn is_float16(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }

    /// Whether this is one of the floating point types of eight bits, with which the host does not compute.
    #[must_use]
    #[inline]
    pub const fn is_float8(self) -> bool {
        matches!(self, Self::F8E4M3 | Self::F8E5M2)
    }

    /// The code on the wire, never zero.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type with this code on the wire.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// The name as in Rust: `f32`, `u8`, `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type whose values can be communicated: the Rust side of a [`DType`].
///
/// The trait is sealed, so that a `DType` is never guessed from a size: what a buffer holds is known from its type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element of a buffer",
    label = "not an element",
    note = "elements are `i8` to `i64`, `u8` to `u64`, `f32`, `f64`, `comm::half::f16`, `comm::half::bf16`, \
            `comm::float8::F8E4M3` and `comm::float8::F8E5M2`",
    note = "other types are communicated as objects: see `comm::ObjectCollectives`"
)]
pub trait Element: Pod + Send + Sync + std::fmt::Debug + PartialEq + sealed::Sealed {
    /// The element type of this Rust type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),+ $(,)?) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DTYPE: DType = DType::$dtype;
            }
        )+

        crate::view::element_buffers!($($rust),+);
    };
}

elements! {
    i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
    F8E4M3 => F8E4M3, F8E5M2 => F8E5M2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_zero_is_no_type() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
        }
        assert_eq!(DType::from_code(0), None);
        assert_eq!(DType::from_code(15), None);
        assert_eq!(DType::from_code(255), None);
    }

    #[test]
    fn sizes_are_those_of_the_rust_types() {
        fn check<T: Element>() {
            assert_eq!(T::DTYPE.size(), size_of::<T>(), "{}", T::DTYPE);
        }
        check::<i8>();
        check::<u16>();
        check::<f16>();
        check::<bf16>();
        check::<f32>();
        check::<u64>();
        check::<F8E4M3>();
        check::<F8E5M2>();
    }

    /// They are on the wire, and are never given to another type.
    #[test]
    fn codes_are_those_of_the_wire_format() {
        let names = [
            "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "f8e4m3",
            "f8e5m2",
        ];
        assert_eq!(DType::ALL.map(DType::name), names);
        assert_eq!(DType::ALL.map(|dtype| usize::from(dtype.code()) - 1), std::array::from_fn(|at| at));
    }
}
