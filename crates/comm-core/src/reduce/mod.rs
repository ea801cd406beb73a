//! Reduction kernels: how elements are combined.
//!
//! - `ops`: what an operator does to one pair of elements;
//! - `float`: what the four floating point types share, and the conversions of the 16-bit ones;
//! - `f16c`: the operators on blocks of `f16`, where the machine converts them;
//! - `pass`: the one loop that applies an operator to buffers;
//! - `isa`: compiles that loop for several instruction sets and picks one at run time;
//! - `convert`: 16-bit floats to `f32` and back;
//! - `user`: operators that users define;
//! - `dispatch`: from the values of [`ReduceOp`] and [`DType`] to types, outside of the loop.

mod convert;
mod dispatch;
#[cfg(target_arch = "x86_64")]
mod f16c;
mod float;
mod isa;
mod ops;
mod pass;
#[cfg(test)]
mod tests;
mod user;

pub use self::convert::Widening;
use self::isa::Isa;
use self::pass::Operands;
pub use self::user::{Operator, UserOp};
use crate::{DType, Invalid, Lent, ReduceOp, Result};

/// An operator on an element type, checked to be defined.
///
/// Floats of 16 bits are combined in 32 bits and rounded once per combination, to nearest, ties to even. Their average over
/// n ranks is that of [`ReduceOp::Avg`]: contributions are multiplied by 2^-k before they are added, where 2^k is the
/// smallest power of two that is at least n, and the sum is divided by n * 2^-k. Integers
/// wrap around. NaN wins in minimum and maximum, and -0 is less than +0. Every NaN that comes out is the same, the
/// positive quiet one without payload. So the order of two operands never shows, in no bit of the result, and neither
/// does the instruction set of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduction {
    op: ReduceOp,
    dtype: DType,
}

impl Reduction {
    /// The operator on the element type.
    ///
    /// # Errors
    /// [`Invalid::Op`] if it is not defined there, [`Invalid::BackendOp`] if the type is one with which only devices
    /// compute: a float of 8 bits.
    #[inline]
    pub fn new(op: ReduceOp, dtype: DType) -> Result<Self> {
        op.check(dtype)?;
        if dtype.is_float8() && !matches!(op, ReduceOp::User(_)) {
            return Err(Invalid::BackendOp { backend: "the host", op, dtype }.into());
        }
        Ok(Self { op, dtype })
    }

    /// The operator.
    #[must_use]
    #[inline]
    pub const fn op(self) -> ReduceOp {
        self.op
    }

    /// The element type.
    #[must_use]
    #[inline]
    pub const fn dtype(self) -> DType {
        self.dtype
    }

    /// Combines two operands: `dst[i] = addend[i] op from[i]`, or `dst[i] = dst[i] op from[i]` without an addend.
    ///
    /// Combines as many whole elements as all buffers hold, and returns their size in bytes. No buffer needs alignment.
    #[inline]
    pub fn combine(self, dst: &mut [u8], addend: Option<&[u8]>, from: Lent<'_>) -> usize {
        dispatch::combine(Isa::best(), self, Operands { dst, left: addend, right: from })
    }

    /// Whether [`start`](Self::start) does anything to the contributions of so many ranks.
    #[must_use]
    #[inline]
    pub const fn has_start(self, ranks: usize) -> bool {
        match self.op {
            ReduceOp::PreMulSum(_) => true,
            ReduceOp::Avg => self.dtype.is_float16() && ranks > 1,
            _ => false,
        }
    }

    /// Whether [`finish`](Self::finish) does anything.
    #[must_use]
    #[inline]
    pub fn has_finish(self) -> bool {
        self.op == ReduceOp::Avg
    }

    /// Prepares a contribution, one of `ranks`: multiplies that to a premultiplied sum by its factor, and that to an average
    /// of 16-bit floats by a power of two with which their sum does not overflow. Nothing for other operators.
    ///
    /// Only whole elements are multiplied. The factor is rounded first to the type that computes: `f64` for `f64`,
    /// `f32` for the others.
    #[inline]
    pub fn start(self, elements: &mut [u8], ranks: usize) {
        if !self.has_start(ranks) {
            return;
        }
        let factor = match self.op {
            ReduceOp::PreMulSum(factor) => factor,
            _ => 1.0 / power_of_two(ranks),
        };
        dispatch::multiply(Isa::best(), self.dtype, elements, factor);
    }

    /// Ends a reduction over `ranks` contributions: the division of an average. Nothing for other operators.
    ///
    /// Only whole elements are divided.
    #[inline]
    pub fn finish(self, elements: &mut [u8], ranks: usize) {
        if !self.has_finish() {
            return;
        }
        let started = if self.has_start(ranks) { power_of_two(ranks) } else { 1.0 };
        let divisor = ranks as f64 / started;
        // By a power of two, an average of 16-bit floats has been divided before.
        if divisor < 1.0 || !self.dtype.is_float16() {
            dispatch::divide(Isa::best(), self.dtype, elements, divisor);
        }
    }
}

/// The smallest power of two that is not below the number of ranks. Sums of 16-bit floats fit in `f32` with all powers
/// that memory has room for.
const fn power_of_two(ranks: usize) -> f64 {
    ranks.next_power_of_two() as f64
}
