//! User-defined operators.

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;

use super::isa::Isa;
use super::ops::Combine;
use super::pass::PassBuffers;
use crate::{DType, Element, Signature};

/// A user-defined reduction operator: `MPI_Op_create`. [`ReduceOp::of`](crate::ReduceOp::of)
/// converts it to an operator for calls.
///
/// It must be associative and commutative, as the built-in operators are: algorithms combine
/// contributions in different orders, so the results of any other operator depend on the algorithm
/// and may differ between ranks. Operators on floats may be associative only up to rounding, like
/// sums, but must commute bit for bit. They run on the host, on the thread that runs the call; a
/// panic aborts the communicator on every rank.
///
/// All ranks must use operators of the same name on elements of the same size; otherwise they get
/// [`Error::Desync`](crate::Error::Desync). Only the name is compared: you must ensure that
/// operators of the same name are the same.
///
/// The largest value of all ranks with its location, like `MPI_MAXLOC`, on your own struct:
///
/// ```
/// use comm::bytemuck::{Pod, Zeroable};
/// use comm::{Operator, Plain, ReduceOp};
///
/// #[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
/// #[bytemuck(crate = "comm::bytemuck")]
/// #[repr(C)]
/// struct Best {
///     score: f64,
///     rank: u32,
///     index: u32,
/// }
///
/// impl Plain for Best {}
///
/// struct ArgMax;
///
/// impl Operator for ArgMax {
///     type Element = Best;
///     const NAME: &'static str = "argmax";
///
///     fn combine(a: Best, b: Best) -> Best {
///         // Equal scores need an order too; otherwise the operator does not commute.
///         let place = |best: Best| (best.rank, best.index);
///         if a.score > b.score || a.score == b.score && place(a) < place(b) { a } else { b }
///     }
/// }
///
/// comm::threads::run(4, |comm| {
///     let score = [0.5, 2.0, 0.25, 2.0][comm.rank()];
///     let mut best = [Best { score, rank: comm.rank() as u32, index: 7 }];
///     comm.all_reduce(&mut best, ReduceOp::of::<ArgMax>()).unwrap();
///     assert_eq!(best, [Best { score: 2.0, rank: 1, index: 7 }]);
/// })?;
/// # Ok::<_, comm::Error>(())
/// ```
///
/// The product of complex numbers:
///
/// ```
/// # use comm::bytemuck::{Pod, Zeroable};
/// # use comm::{Operator, Plain, ReduceOp};
/// #[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
/// #[bytemuck(crate = "comm::bytemuck")]
/// #[repr(C)]
/// struct Complex(f64, f64);
///
/// impl Plain for Complex {}
///
/// struct Product;
///
/// impl Operator for Product {
///     type Element = Complex;
///     const NAME: &'static str = "complex_product";
///
///     fn combine(a: Complex, b: Complex) -> Complex {
///         Complex(a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
///     }
/// }
///
/// comm::threads::run(3, |comm| {
///     let mut signal = [Complex(0.0, 1.0), Complex(1.0, comm.rank() as f64)];
///     comm.all_reduce(&mut signal, ReduceOp::of::<Product>()).unwrap();
///     assert_eq!(signal, [Complex(0.0, -1.0), Complex(-1.0, 3.0)]); // i * i * i, 1 * (1 + i) * (1 + 2i)
/// })?;
/// # Ok::<_, comm::Error>(())
/// ```
///
/// A sum of complex numbers needs no user-defined operator: it is the sum of their parts.
///
/// ```
/// # use comm::bytemuck::{Pod, Zeroable};
/// # use comm::ReduceOp;
/// # #[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
/// # #[bytemuck(crate = "comm::bytemuck")]
/// # #[repr(C)]
/// # struct Complex(f64, f64);
/// comm::threads::run(3, |comm| {
///     let mut signal = vec![Complex(1.0, comm.rank() as f64); 2];
///     comm.all_reduce(comm::bytemuck::cast_slice_mut::<_, f64>(&mut signal), ReduceOp::Sum).unwrap();
///     assert_eq!(signal, [Complex(3.0, 3.0); 2]);
/// })?;
/// # Ok::<_, comm::Error>(())
/// ```
pub trait Operator: 'static {
    /// The type that is combined: a built-in element or a [`Plain`](crate::Plain) type.
    type Element: Element;

    /// The name, which ranks compare and which errors contain: 1 to 40 bytes.
    const NAME: &'static str;

    /// Combines two contributions or partial results. Elements are passed on the stack, so they may
    /// have a few KiB but not a MiB.
    fn combine(left: Self::Element, right: Self::Element) -> Self::Element;
}

/// An [`Operator`] as a value: see [`ReduceOp::of`](crate::ReduceOp::of).
#[derive(Clone, Copy)]
pub struct UserOp(&'static Table);

struct Table {
    name: &'static str,
    dtype: DType,
    combine: fn(Isa, PassBuffers<'_>),
    id: fn() -> TypeId,
}

impl UserOp {
    /// Returns the operator as a value.
    #[must_use]
    pub const fn of<O: Operator>() -> Self {
        Self(
            const {
                assert!(
                    matches!(O::NAME.len(), 1..=Signature::NAME_MAX),
                    "the name of an operator has 1 to 40 bytes"
                );
                &Table { name: O::NAME, dtype: O::Element::DTYPE, combine: combine::<O>, id: TypeId::of::<O> }
            },
        )
    }

    /// Returns the name of the operator.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the element type of the operator.
    #[must_use]
    pub const fn dtype(self) -> DType {
        self.0.dtype
    }

    pub(super) fn combine(self, isa: Isa, operands: PassBuffers<'_>) {
        (self.0.combine)(isa, operands);
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

fn combine<O: Operator>(isa: Isa, operands: PassBuffers<'_>) {
    operands.combine::<O::Element, _>(isa, Apply::<O>(PhantomData));
}
