//! Operators that users define.

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;

use super::isa::Isa;
use super::ops::Combine;
use super::pass::{Pass, lent_operands};
use crate::{Call, DType, Element, Lent};

/// A reduction operator of your own: `MPI_Op_create`. [`ReduceOp::of`](crate::ReduceOp::of) makes it one for calls.
///
/// It must be associative and commutative, as the built-in operators are: algorithms combine contributions in different
/// orders, so that another operator gives results that depend on the algorithm and may differ between ranks. Operators on
/// floats are associative up to rounding, as a sum is, and must commute to the bit. It runs on the host, on whichever
/// thread carries out the call; a panic in it ends the communicator, on every rank.
///
/// All ranks must give operators of the same name on elements of the same size; ranks that do not get
/// [`Error::Desync`](crate::Error::Desync). The name is all that is compared: it is up to you that operators of one name
/// are the same.
///
/// ```no_run
/// use bytemuck::{Pod, Zeroable};
/// use comm_core::{Comm, Operator, Plain, ReduceOp, Result};
///
/// /// Count, mean and sum of squared distances from the mean: the variance of data on all ranks.
/// #[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
/// #[repr(C)]
/// struct Moments {
///     count: f64,
///     mean: f64,
///     squares: f64,
/// }
///
/// impl Plain for Moments {}
///
/// struct Merge;
///
/// impl Operator for Merge {
///     type Element = Moments;
///     const NAME: &'static str = "merge_moments";
///
///     fn combine(a: Moments, b: Moments) -> Moments {
///         let (count, distance) = (a.count + b.count, a.mean - b.mean);
///         Moments {
///             count,
///             mean: (a.count * a.mean + b.count * b.mean) / count,
///             squares: a.squares + b.squares + distance * distance * (a.count * b.count) / count,
///         }
///     }
/// }
///
/// fn variances(comm: &Comm, columns: &mut [Moments]) -> Result<()> {
///     comm.all_reduce(columns, ReduceOp::of::<Merge>())
/// }
/// ```
pub trait Operator: 'static {
    /// The type that is combined: a built-in element or a [`Plain`](crate::Plain) type.
    type Element: Element;

    /// The name, by which ranks compare their calls and errors name them: 1 to 40 bytes.
    const NAME: &'static str;

    /// Combines two contributions, or what contributions were combined to. Elements lie on the stack meanwhile: a few KiB
    /// are no problem, a MiB is.
    fn combine(left: Self::Element, right: Self::Element) -> Self::Element;
}

/// An [`Operator`] as a value: see [`ReduceOp::of`](crate::ReduceOp::of).
#[derive(Clone, Copy)]
pub struct UserOp(&'static Table);

struct Table {
    name: &'static str,
    dtype: DType,
    combine: fn(Isa, &mut [u8], Lent<'_>),
    id: fn() -> TypeId,
}

impl UserOp {
    /// The operator as a value.
    #[must_use]
    pub const fn of<O: Operator>() -> Self {
        Self(
            const {
                assert!(
                    matches!(O::NAME.len(), 1..=Call::NAME_MAX),
                    "the name of an operator has 1 to 40 bytes"
                );
                &Table { name: O::NAME, dtype: O::Element::DTYPE, combine: combine::<O>, id: TypeId::of::<O> }
            },
        )
    }

    /// The name that the operator gives itself.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// The type that it combines.
    #[must_use]
    pub const fn dtype(self) -> DType {
        self.0.dtype
    }

    pub(super) fn combine(self, isa: Isa, into: &mut [u8], from: Lent<'_>) {
        (self.0.combine)(isa, into, from);
    }
}

impl PartialEq for UserOp {
    fn eq(&self, other: &Self) -> bool {
        (self.0.id)() == (other.0.id)()
    }
}

impl fmt::Debug for UserOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UserOp").field(&self.0.name).field(&self.0.dtype).finish()
    }
}

struct Apply<O>(PhantomData<fn() -> O>);

impl<O: Operator> Combine<O::Element> for Apply<O> {
    #[inline(always)]
    fn combine(&self, left: O::Element, right: O::Element) -> O::Element {
        O::combine(left, right)
    }
}

fn combine<O: Operator>(isa: Isa, into: &mut [u8], from: Lent<'_>) {
    let apply = Apply::<O>(PhantomData);
    isa.run(Pass::<O::Element, _, _>::new(into, apply, lent_operands::<O::Element>(from)));
}
