//! Reduction kernels: how elements are combined.

mod kernels;

use crate::{DType, Lent, ReduceOp, Result};

/// An operator on an element type, checked to be defined.
///
/// Floats of 16 bits are combined in 32 bits and rounded once per combination. Integers wrap around. NaN wins in
/// minimum and maximum, and -0 is less than +0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduction {
    op: ReduceOp,
    dtype: DType,
}

impl Reduction {
    /// The operator on the element type.
    ///
    /// # Errors
    /// [`Invalid::Op`](crate::Invalid::Op) if it is not defined there.
    pub fn new(op: ReduceOp, dtype: DType) -> Result<Self> {
        op.check(dtype)?;
        Ok(Self { op, dtype })
    }

    /// The operator.
    #[must_use]
    pub const fn op(self) -> ReduceOp {
        self.op
    }

    /// The element type.
    #[must_use]
    pub const fn dtype(self) -> DType {
        self.dtype
    }

    /// Combines as many whole elements as both hold: `into[i] = into[i] op from[i]`. Returns how many bytes of each
    /// were used. Neither needs alignment.
    pub fn combine(self, into: &mut [u8], from: Lent<'_>) -> usize {
        kernels::combine(self, into, from)
    }

    /// Ends a reduction over `ranks` contributions: the division of an average. Nothing for other operators.
    pub fn finish(self, elements: &mut [u8], ranks: usize) {
        if self.op == ReduceOp::Avg {
            kernels::divide(self.dtype, elements, ranks);
        }
    }

    /// Starts a contribution: the multiplication of a premultiplied sum. Nothing for other operators.
    pub fn start(self, elements: &mut [u8]) {
        if let ReduceOp::PreMulSum(factor) = self.op {
            kernels::multiply(self.dtype, elements, factor);
        }
    }
}
