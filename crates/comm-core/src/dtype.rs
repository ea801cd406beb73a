//! Element types.

use std::num::NonZeroU32;

use bytemuck::Pod;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// The nonzero size in bytes of a [`Plain`] type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlainType(NonZeroU32);

impl PlainType {
    /// Creates the type from its size in bytes. `None` for 0.
    #[must_use]
    pub const fn new(size: u32) -> Option<Self> {
        match NonZeroU32::new(size) {
            Some(size) => Some(Self(size)),
            None => None,
        }
    }

    /// Returns the size of one element in bytes.
    #[must_use]
    #[inline]
    pub const fn size(self) -> usize {
        self.0.get() as usize
    }

    const fn of<T>() -> Self {
        assert!(
            size_of::<T>() > 0 && size_of::<T>() <= u32::MAX as usize,
            "an element has 1 to 2^32 - 1 bytes"
        );
        assert!(align_of::<T>() <= align_of::<u64>(), "an element is aligned to at most 8 bytes");
        match Self::new(size_of::<T>() as u32) {
            Some(size) => size,
            None => unreachable!(),
        }
    }
}

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
    /// Four bits of exponent and three of mantissa, without infinities: E4M3 of the OCP
    /// specification of 8-bit floating point. The host can only move it; devices can reduce it.
    F8E4M3 = 13,
    /// Five bits of exponent and two of mantissa: E5M2 of the same specification. The host can only
    /// move it; devices can reduce it.
    F8E5M2 = 14,
    /// A plain struct that the program defines, represented by its size: see [`Plain`]. Only
    /// user-defined operators can reduce it: see [`Operator`](crate::Operator).
    Plain(PlainType) = 15,
}

impl DType {
    pub(crate) const PLAIN_CODE: u8 = 15;

    /// Every element type except [`DType::Plain`], in the order of the codes.
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

    /// Returns the size of one element in bytes.
    #[must_use]
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
            Self::Plain(plain) => plain.size(),
        }
    }

    /// Returns the alignment of views of elements in bytes: the size of a built-in type, 1 for
    /// others.
    pub(crate) const fn align(self) -> usize {
        if let Self::Plain(_) = self { 1 } else { self.size() }
    }

    /// Compares two types in const contexts.
    pub(crate) const fn is(self, other: Self) -> bool {
        self.code() == other.code() && self.size() == other.size()
    }

    /// Returns whether this is one of the floating point types.
    #[must_use]
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64) || self.is_float8()
    }

    /// Returns whether this is one of the floating point types of 16 bits: `f16` or `bf16`.
    #[must_use]
    #[inline]
    pub const fn is_float16(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }

    /// Returns whether this is one of the floating point types of eight bits, which the host can
    /// move but not reduce.
    #[must_use]
    #[inline]
    pub const fn is_float8(self) -> bool {
        matches!(self, Self::F8E4M3 | Self::F8E5M2)
    }

    /// Returns the code on the wire, never zero.
    #[must_use]
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::I8 => 1,
            Self::U8 => 2,
            Self::I16 => 3,
            Self::U16 => 4,
            Self::I32 => 5,
            Self::U32 => 6,
            Self::I64 => 7,
            Self::U64 => 8,
            Self::F16 => 9,
            Self::BF16 => 10,
            Self::F32 => 11,
            Self::F64 => 12,
            Self::F8E4M3 => 13,
            Self::F8E5M2 => 14,
            Self::Plain(_) => Self::PLAIN_CODE,
        }
    }

    /// Returns the size of a [`DType::Plain`], which accompanies its code on the wire; 0 for
    /// others.
    #[must_use]
    pub const fn plain_size(self) -> u32 {
        if let Self::Plain(plain) = self { plain.0.get() } else { 0 }
    }

    /// Returns the type with this code and this [`plain_size`](Self::plain_size) on the wire.
    #[must_use]
    pub fn from_wire(code: u8, plain_size: u32) -> Option<Self> {
        match Self::from_code(code) {
            None if code == Self::PLAIN_CODE => PlainType::new(plain_size).map(Self::Plain),
            dtype => dtype.filter(|_| plain_size == 0),
        }
    }

    /// Returns the built-in type with this code on the wire.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the name as in Rust: `f32`, `u8`, `bf16`; `struct` for plain structs.
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
            Self::Plain(_) => "struct",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(plain) => write!(f, "struct of {} bytes", plain.size()),
            _ => f.pad(self.name()),
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type whose values can be communicated: the Rust side of a [`DType`].
///
/// These are `i8`, `i16`, `i32`, `i64`, `u8`, `u16`, `u32`, `u64`, `f32`, `f64`,
/// [`half`](crate::half)'s `f16` and `bf16`, [`float8`](crate::float8)'s `F8E4M3` and `F8E5M2`,
/// `usize` and `isize`, which are integers of their width, and your own types that are [`Plain`].
/// The trait is sealed, so that a `DType` is never guessed from a size.
///
/// `bool` and `char` are not elements: calls write bytes from other ranks to buffers, and not all
/// bytes are valid values of these types. Send `u8::from(flag)`, and compare the result with 0;
/// with [`ReduceOp::Min`](crate::ReduceOp::Min) it is the conjunction of all flags, with
/// [`ReduceOp::Max`](crate::ReduceOp::Max) the disjunction:
///
/// ```
/// use comm::ReduceOp;
///
/// comm::threads::run(3, |comm| {
///     let converged = comm.rank() != 1;
///     let all = comm.all_reduce_scalar(u8::from(converged), ReduceOp::Min).unwrap() != 0;
///     assert!(!all);
/// })?;
/// # Ok::<_, comm::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element of a buffer",
    label = "not an element",
    note = "elements are `i8` to `i64`, `u8` to `u64`, `f32`, `f64`, `comm::half::f16`, `comm::half::bf16`, \
            `comm::float8::F8E4M3`, `comm::float8::F8E5M2`, `usize` and `isize`; `bool` is not: send `u8`",
    note = "a struct of your own is an element if it is `bytemuck::Pod` and you implement `comm::Plain` for it",
    note = "other types are communicated as objects: see `comm::ObjectCollectives`"
)]
pub trait Element: Pod + Send + Sync + std::fmt::Debug + PartialEq + sealed::Sealed {
    /// The element type of this Rust type.
    const DTYPE: DType;
}

/// A user-defined type that can be communicated: a struct without references, padding or invalid
/// values, which is moved as bytes, like `MPI_Type_contiguous` of `MPI_BYTE`.
///
/// `#[derive(Pod, Zeroable)]` of [`bytemuck`] checks this at compile time; after an `impl Plain`,
/// all calls (broadcasts, gathers, messages) accept slices of the type, with counts in elements.
/// Reductions need a user-defined [`Operator`](crate::Operator). Ranks compare only the size of the
/// type, so all must declare it identically.
///
/// ```
/// use comm::bytemuck::{Pod, Zeroable};
///
/// #[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
/// #[bytemuck(crate = "comm::bytemuck")]
/// #[repr(C)]
/// struct Particle {
///     position: [f32; 3],
///     charge: i32,
/// }
///
/// impl comm::Plain for Particle {}
///
/// comm::threads::run(2, |comm| {
///     let mine = [Particle { position: [0.5; 3], charge: comm.rank() as i32 }];
///     let mut all = [Particle::zeroed(); 2];
///     comm.all_gather(&mine, &mut all).unwrap();
///     assert_eq!(all.map(|particle| particle.charge), [0, 1]);
/// })?;
/// # Ok::<_, comm::Error>(())
/// ```
///
/// The derive macros name the crate `bytemuck`; without a dependency on it, add `#[bytemuck(crate =
/// "comm::bytemuck")]`. The type must have at least one byte and an alignment of at most 8; other
/// types do not compile.
///
/// Wrap a type of another crate, such as `num_complex::Complex<f64>`, in a `#[repr(transparent)]`
/// struct. A sum of complex numbers needs no wrapper: cast the slice to one of `f64`, as
/// `bytemuck::cast_slice_mut` does. Both need the `Pod` impl of that crate; for `num_complex`,
/// enable its feature `bytemuck`. `bool` cannot be `Plain`, because not every byte is a valid
/// `bool`: use `u8`.
pub trait Plain: Pod + Send + Sync + std::fmt::Debug + PartialEq {}

impl<T: Plain> sealed::Sealed for T {}
impl<T: Plain> Element for T {
    const DTYPE: DType = DType::Plain(PlainType::of::<T>());
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

#[cfg(target_pointer_width = "64")]
elements!(usize => U64, isize => I64);
#[cfg(target_pointer_width = "32")]
elements!(usize => U32, isize => I32);

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;

    #[test]
    fn codes_round_trip_and_zero_is_no_type() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
        }
        assert_eq!(DType::from_code(0), None);
        assert_eq!(DType::from_code(15), None);
        assert_eq!(DType::from_code(255), None);
    }

    #[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
    #[repr(C)]
    struct Odd([u8; 5]);

    impl Plain for Odd {}

    #[test]
    fn a_plain_type_is_known_by_its_size() {
        assert_eq!(Odd::DTYPE.size(), 5);
        assert_eq!(Odd::DTYPE.to_string(), "struct of 5 bytes");
        assert_eq!(DType::from_wire(Odd::DTYPE.code(), Odd::DTYPE.plain_size()), Some(Odd::DTYPE));
        for dtype in DType::ALL {
            assert_eq!(DType::from_wire(dtype.code(), dtype.plain_size()), Some(dtype));
            assert_eq!(DType::from_wire(dtype.code(), 1), None);
        }
        assert_eq!(DType::from_wire(15, 0), None);
        assert_eq!(usize::DTYPE.size(), size_of::<usize>());
        assert_eq!(isize::DTYPE.size(), size_of::<isize>());
    }

    #[test]
    fn sizes_equal_those_of_the_rust_types() {
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

    /// Codes are part of the wire format and are never reused.
    #[test]
    fn codes_of_the_wire_format_are_pinned() {
        let names = [
            "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "f8e4m3",
            "f8e5m2",
        ];
        assert_eq!(DType::ALL.map(DType::name), names);
        assert_eq!(DType::ALL.map(|dtype| usize::from(dtype.code()) - 1), std::array::from_fn(|at| at));
    }
}
