//! The type in which reductions compute.

use crate::{Comm, DType, Memory, ReduceOp};

/// The type in which a reduction of 16-bit floats keeps its partial sums, on every rank and between
/// ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Accumulate {
    /// The type of the elements. Each combination of two contributions is rounded to 16 bits: in
    /// `f16`, a ring of four ranks sums 2048, 1, 1 and 1 to 2048.
    #[default]
    Native,
    /// `f32`, for sums, premultiplied sums, products and averages of `f16` and `bf16`; other
    /// reductions are as with [`Accumulate::Native`]. Contributions are converted once, combined in
    /// `f32`, and the result is rounded once: 2048, 1, 1 and 1 give 2052 in `f16`, because 2051 is
    /// halfway between two elements and ties round to even. No partial sum overflows.
    ///
    /// It moves twice the bytes between ranks and copies all contributions and results of the call.
    /// Communicators on top of NCCL return [`Error::Invalid`](crate::Error::Invalid), because NCCL
    /// does not support such sums.
    F32,
}

impl Accumulate {
    /// Returns the type in which `op` combines contributions of type `dtype`.
    #[must_use]
    #[inline]
    pub const fn dtype(self, op: ReduceOp, dtype: DType) -> DType {
        let rounds = matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg | ReduceOp::PreMulSum(_));
        match self {
            Self::F32 if rounds && dtype.is_float16() => DType::F32,
            _ => dtype,
        }
    }
}

impl<M: Memory> Comm<M> {
    /// Returns a handle to the same communicator whose reductions keep partial sums in this type.
    /// Every rank must use the same type; otherwise calls fail with
    /// [`Error::Desync`](crate::Error::Desync).
    #[must_use]
    pub fn with_accumulate(&self, accumulate: Accumulate) -> Self {
        self.with_options(|options| options.accumulate = accumulate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reductions_of_16_bit_floats_that_round_compute_in_f32() {
        for (op, dtype) in ReduceOp::ALL.into_iter().flat_map(|op| DType::ALL.map(|dtype| (op, dtype))) {
            let half = matches!(dtype, DType::F16 | DType::BF16);
            let rounds = op.supports(DType::F32) && !matches!(op, ReduceOp::Min | ReduceOp::Max);
            let expected = if half && rounds { DType::F32 } else { dtype };
            assert_eq!(Accumulate::F32.dtype(op, dtype), expected, "{op} {dtype}");
            assert_eq!(Accumulate::Native.dtype(op, dtype), dtype, "{op} {dtype}");
        }
    }
}
