//! Reduction kernels: loops that combine the elements of buffers.
//!
//! - `ops`: the operators on one pair of elements;
//! - `float`: the common part of the four floating point types, and conversions of the 16-bit ones;
//! - `f16c`: the operators on blocks of `f16`, with the conversion instructions of x86;
//! - `pass`: the loop that applies an operator to buffers;
//! - `isa`: compiles that loop for several instruction sets, and selects one at run time;
//! - `convert`: conversions of 16-bit floats to `f32` and back;
//! - `user`: operators that users define;
//! - `dispatch`: maps the values of [`ReduceOp`] and [`DType`] to types, outside of the loop.

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
use self::pass::PassBuffers;
pub use self::user::{Operator, UserOp};
use crate::{DType, Invalid, RecvBuf, ReduceOp, Result, copy};

/// The size of the blocks in which results are computed before they are copied to memory that other
/// processors read: a quarter of the first-level cache or less.
const BLOCK_BYTES: usize = 8 << 10;

/// An operator on an element type on which it is defined.
///
/// Floats of 16 bits are combined in 32 bits and rounded once per combination, to nearest, ties to
/// even. Their average over n ranks is as documented at [`ReduceOp::Avg`]: contributions are
/// multiplied by 2^-k before they are added, where 2^k is the smallest power of two that is at
/// least n, and the sum is divided by n * 2^-k. Integers wrap around. The minimum and maximum are
/// NaN if either operand is, and -0 is less than +0. Every NaN in a result is the positive quiet
/// NaN without payload. So no bit of a result depends on the order of two operands or on the
/// instruction set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduction {
    op: ReduceOp,
    dtype: DType,
    /// The number of contributions if [`combine`](Self::combine) completes the reduction, else 0.
    completes: usize,
    /// Whether other processors read the results of [`combine`](Self::combine) where they are.
    is_shared: bool,
}

impl Reduction {
    /// Creates the reduction by `op` of elements of type `dtype`.
    ///
    /// # Errors
    /// [`Invalid::Op`] if the operator is not defined on the type, [`Invalid::BackendOp`] if only
    /// devices compute with the type, as with floats of 8 bits.
    #[inline]
    pub fn new(op: ReduceOp, dtype: DType) -> Result<Self> {
        op.check(dtype)?;
        if dtype.is_float8() && !matches!(op, ReduceOp::User(_)) {
            return Err(Invalid::BackendOp { backend: "the host", op, dtype }.into());
        }
        Ok(Self { op, dtype, completes: 0, is_shared: false })
    }

    /// Returns the operator.
    #[must_use]
    #[inline]
    pub const fn op(self) -> ReduceOp {
        self.op
    }

    /// Returns the element type.
    #[must_use]
    #[inline]
    pub const fn dtype(self) -> DType {
        self.dtype
    }

    /// Combines two operands: `dst[i] = addend[i] op from[i]`, or `dst[i] = dst[i] op from[i]`
    /// without an addend.
    ///
    /// Combines as many whole elements as all buffers hold, and returns their size in bytes. No
    /// buffer needs alignment.
    #[inline]
    pub fn combine(&self, dst: &mut [u8], addend: Option<&[u8]>, from: RecvBuf<'_>) -> usize {
        if self.is_shared && from.len() > BLOCK_BYTES {
            return self.combine_in_blocks(dst, addend, from);
        }
        self.combine_directly(dst, addend, from)
    }

    /// Combines into a block that stays in the first-level cache, and copies each block to its
    /// place.
    fn combine_in_blocks(&self, dst: &mut [u8], addend: Option<&[u8]>, from: RecvBuf<'_>) -> usize {
        let len = PassBuffers { dst: &mut *dst, left: addend, right: from }.len();
        let mut block = [0; BLOCK_BYTES];
        let mut done = 0;
        while done < len {
            let place = done..len.min(done + BLOCK_BYTES);
            let (result, right) = (&mut block[..place.len()], from.skip(done).first(place.len()));
            let left = addend.map_or(&dst[place.clone()], |addend| &addend[place.clone()]);
            let used = self.combine_directly(result, Some(left), right);
            copy(&mut dst[done..done + used], &block[..used]);
            done += used;
            if used < place.len() {
                break;
            }
        }
        done
    }

    #[inline]
    fn combine_directly(&self, dst: &mut [u8], addend: Option<&[u8]>, from: RecvBuf<'_>) -> usize {
        if self.completes == 0 || !self.has_finish() {
            return dispatch::combine(Isa::best(), self, PassBuffers { dst, left: addend, right: from });
        }
        self.combine_and_finish(dst, addend, from)
    }

    /// Combines the last contributions, and completes the results.
    fn combine_and_finish(&self, dst: &mut [u8], addend: Option<&[u8]>, from: RecvBuf<'_>) -> usize {
        let operands = PassBuffers { dst: &mut *dst, left: addend, right: from };
        if matches!(self.dtype, DType::F32 | DType::F64) {
            return dispatch::average(Isa::best(), self.dtype, operands, self.completes as f64);
        }
        let whole = dispatch::combine(Isa::best(), self, operands);
        self.finish(&mut dst[..whole], self.completes);
        whole
    }

    /// Returns a reduction that combines the last contributions: its [`combine`](Self::combine)
    /// also does the work of [`finish`](Self::finish) for `ranks` contributions, in the same pass
    /// over memory unless elements have 16 bits.
    #[must_use]
    #[inline]
    pub const fn completing(self, ranks: usize) -> Self {
        Self { completes: ranks, ..self }
    }

    /// Returns a reduction whose [`combine`](Self::combine) is fast if other processors have read
    /// `dst` and will read it again, and somewhat slower otherwise.
    ///
    /// Before a processor stores part of a cache line that others have a copy of, it waits until
    /// they have given up theirs. Copies of whole lines need not wait for that: on two cores of Zen
    /// 4, results were written at 16 GiB/s instead of 6.
    #[must_use]
    #[inline]
    pub const fn into_shared(self, is_shared: bool) -> Self {
        Self { is_shared, ..self }
    }

    /// Returns whether [`start`](Self::start) changes the contributions of this many ranks.
    #[must_use]
    #[inline]
    pub const fn has_start(self, ranks: usize) -> bool {
        match self.op {
            ReduceOp::PreMulSum(_) => true,
            ReduceOp::Avg => self.dtype.is_float16() && ranks > 1,
            _ => false,
        }
    }

    /// Returns whether [`finish`](Self::finish) changes results.
    #[must_use]
    #[inline]
    pub fn has_finish(self) -> bool {
        self.op == ReduceOp::Avg
    }

    /// Prepares one of `ranks` contributions. Multiplies it by the factor of a premultiplied sum,
    /// or, for an average of 16-bit floats, by a power of two so that the sum does not overflow.
    /// Does nothing for other operators.
    ///
    /// Only whole elements are multiplied. The factor is first rounded to the type of the
    /// computation: `f64` for `f64`, `f32` for the others.
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

    /// Completes a reduction of `ranks` contributions, by the division of an average. Does nothing
    /// for other operators.
    ///
    /// Only whole elements are divided.
    #[inline]
    pub fn finish(self, elements: &mut [u8], ranks: usize) {
        if !self.has_finish() {
            return;
        }
        let started = if self.has_start(ranks) { power_of_two(ranks) } else { 1.0 };
        let divisor = ranks as f64 / started;
        // For a power of two ranks, `start` has already divided averages of 16-bit floats.
        if divisor < 1.0 || !self.dtype.is_float16() {
            dispatch::divide(Isa::best(), self.dtype, elements, divisor);
        }
    }
}

/// Returns the smallest power of two that is at least the number of ranks. It scales 16-bit floats
/// so that their sum fits in an `f32`.
const fn power_of_two(ranks: usize) -> f64 {
    ranks.next_power_of_two() as f64
}
