//! Reduction operators.

use crate::{DType, Invalid, Operator, UserOp};

/// The operator that combines the contributions of the ranks.
///
/// Every combination of operator and element type either works or is rejected with [`Invalid::Op`]
/// before any byte is sent; see [`ReduceOp::check`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum. Integers wrap around, as in MPI and NCCL.
    Sum,
    /// The product. Integers wrap around.
    Prod,
    /// The minimum. NaN if any operand is NaN; -0 is less than +0, so the result does not depend on
    /// the order of operands.
    Min,
    /// The maximum, with the same rules as the minimum.
    Max,
    /// The sum divided by the number of ranks. Floating point only.
    ///
    /// `f32` and `f64` are summed and then divided. An average of `f16` or `bf16` does not overflow
    /// even if the sum would: with n ranks, and 2^k the smallest power of two that is at least n,
    /// contributions are multiplied by 2^-k, added, and the sum is divided by `n * 2^-k`, each time
    /// rounded to the nearest element. The multiplication is exact except for contributions below
    /// 2^k times the smallest normal number, which lose up to k bits; there is no division if n is
    /// a power of two. The error is at most `n u m + 2 n s`, up to a factor of `1 + n u`, where m
    /// is the average magnitude of the contributions, u is 2^-11 for `f16` and 2^-8 for `bf16`, and
    /// s is half of the smallest subnormal number: 2^-25 for `f16` and 2^-134 for `bf16`. On the
    /// host, 16-bit floats are added in the tree of
    /// [`ReduceOrder::Deterministic`](crate::ReduceOrder::Deterministic) unless an algorithm is
    /// named, so that the average of equal contributions from a power of two ranks is exact.
    Avg,
    /// The sum of the contributions, each first multiplied by its rank's factor. Floating point
    /// only. The factor may differ between ranks.
    PreMulSum(f64),
    /// Bitwise and. Integers only.
    BitAnd,
    /// Bitwise or. Integers only.
    BitOr,
    /// Bitwise exclusive or. Integers only.
    BitXor,
    /// A user-defined operator, on the element type for which it is defined. Created by
    /// [`ReduceOp::of`].
    User(UserOp),
}

impl ReduceOp {
    /// Returns the user-defined operator `O`, for calls on the host.
    #[must_use]
    pub const fn of<O: Operator>() -> Self {
        Self::User(UserOp::of::<O>())
    }

    /// Every built-in operator, with a factor of 0.5 for [`ReduceOp::PreMulSum`].
    pub const ALL: [Self; 9] = [
        Self::Sum,
        Self::Prod,
        Self::Min,
        Self::Max,
        Self::Avg,
        Self::PreMulSum(0.5),
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
    ];

    /// Returns whether the operator is defined on this element type.
    #[must_use]
    #[inline]
    pub const fn supports(self, dtype: DType) -> bool {
        match self {
            Self::User(operator) => operator.dtype().is(dtype),
            _ if matches!(dtype, DType::Plain(_)) => false,
            Self::Sum | Self::Prod | Self::Min | Self::Max => true,
            Self::Avg | Self::PreMulSum(_) => dtype.is_float(),
            Self::BitAnd | Self::BitOr | Self::BitXor => !dtype.is_float(),
        }
    }

    /// Returns an error if the operator is not defined on this element type.
    ///
    /// # Errors
    /// [`Invalid::Op`] naming both.
    #[inline]
    pub const fn check(self, dtype: DType) -> Result<(), Invalid> {
        if self.supports(dtype) { Ok(()) } else { Err(Invalid::Op { op: self, dtype }) }
    }

    /// Returns the code on the wire, never zero. It does not include the factor of
    /// [`ReduceOp::PreMulSum`].
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Sum => 1,
            Self::Prod => 2,
            Self::Min => 3,
            Self::Max => 4,
            Self::Avg => 5,
            Self::PreMulSum(_) => 6,
            Self::BitAnd => 7,
            Self::BitOr => 8,
            Self::BitXor => 9,
            Self::User(_) => Self::USER_CODE,
        }
    }

    /// The code of all user-defined operators, which are identified by their names.
    pub(crate) const USER_CODE: u8 = 10;

    /// Returns the built-in operator with this code on the wire; the factor of
    /// [`ReduceOp::PreMulSum`] is unknown and reads as NaN.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        match Self::ALL.get(usize::from(code).checked_sub(1)?)? {
            Self::PreMulSum(_) => Some(Self::PreMulSum(f64::NAN)),
            op => Some(*op),
        }
    }

    /// Returns the name: that of NCCL and c10d in lower case, or the name of a user-defined
    /// operator.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::PreMulSum(_) => "premul_sum",
            Self::BitAnd => "band",
            Self::BitOr => "bor",
            Self::BitXor => "bxor",
            Self::User(operator) => operator.name(),
        }
    }
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_positions_in_all() {
        for (at, op) in ReduceOp::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(op.code()), at + 1);
            assert_eq!(ReduceOp::from_code(op.code()).map(ReduceOp::code), Some(op.code()));
        }
        assert_eq!(ReduceOp::from_code(0), None);
        assert_eq!(ReduceOp::from_code(10), None);
    }

    #[test]
    fn an_operator_that_a_type_does_not_support_is_refused_by_name() {
        let refused = ReduceOp::BitAnd.check(DType::F32).unwrap_err().to_string();
        assert!(refused.contains("band") && refused.contains("f32"), "{refused}");
        assert!(ReduceOp::Avg.check(DType::I32).is_err());
        assert!(ReduceOp::PreMulSum(2.0).check(DType::U8).is_err());
        assert!(ReduceOp::Avg.check(DType::BF16).is_ok());
        assert!(ReduceOp::Sum.check(DType::F8E4M3).is_ok() && ReduceOp::BitOr.check(DType::F8E5M2).is_err());
    }
}
