//! The operators on one pair of elements.
//!
//! All functions are inlined into the loop and have no branches on values, so that the loop
//! vectorises.

use half::{bf16, f16};

use super::float::Float;

/// A binary operator. Its left operand and its result are of type `T`.
pub(super) trait Combine<T, U = T> {
    fn combine(&self, left: T, right: U) -> T;
}

#[derive(Clone, Copy)]
pub(super) struct Sum;
#[derive(Clone, Copy)]
pub(super) struct Prod;
#[derive(Clone, Copy)]
pub(super) struct Min;
#[derive(Clone, Copy)]
pub(super) struct Max;
#[derive(Clone, Copy)]
pub(super) struct And;
#[derive(Clone, Copy)]
pub(super) struct Or;
#[derive(Clone, Copy)]
pub(super) struct Xor;

macro_rules! operators {
    (for $types:tt $($operator:ident = |$left:ident, $right:ident| $result:expr;)+) => {
        $(operators!(@ $types $operator $left $right $result);)+
    };
    (@ [$($type:ty),+] $operator:ident $left:ident $right:ident $result:expr) => {
        $(
            impl Combine<$type> for $operator {
                #[inline(always)]
                fn combine(&self, $left: $type, $right: $type) -> $type {
                    $result
                }
            }
        )+
    };
}

operators! {
    for [i8, u8, i16, u16, i32, u32, i64, u64]
    Sum = |left, right| left.wrapping_add(right);
    Prod = |left, right| left.wrapping_mul(right);
    Min = |left, right| left.min(right);
    Max = |left, right| left.max(right);
}

operators! {
    for [u8]
    And = |left, right| left & right;
    Or = |left, right| left | right;
    Xor = |left, right| left ^ right;
}

operators! {
    for [f16, bf16, f32, f64]
    Sum = |left, right| Float::narrow(left.widen() + right.widen());
    Prod = |left, right| Float::narrow(left.widen() * right.widen());
    Min = |left, right| left.lower(right);
    Max = |left, right| left.higher(right);
}

/// Multiplies by a number of the type in which elements are computed.
#[derive(Clone, Copy)]
pub(super) struct Scale;

impl<T: Float> Combine<T, T::Wide> for Scale {
    #[inline(always)]
    fn combine(&self, left: T, right: T::Wide) -> T {
        T::narrow(left.widen() * right)
    }
}

/// Divides by a number of the type in which elements are computed.
#[derive(Clone, Copy)]
pub(super) struct Divide;

impl<T: Float> Combine<T, T::Wide> for Divide {
    #[inline(always)]
    fn combine(&self, left: T, right: T::Wide) -> T {
        T::narrow(left.widen() / right)
    }
}

/// Adds, and divides the sum by a number of the type in which elements are computed.
#[derive(Clone, Copy)]
pub(super) struct Average<W>(pub(super) W);

impl<T: Float> Combine<T> for Average<T::Wide> {
    #[inline(always)]
    fn combine(&self, left: T, right: T) -> T {
        T::narrow((left.widen() + right.widen()) / self.0)
    }
}
