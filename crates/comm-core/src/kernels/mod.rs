//! The computations of training on buffers in any kind of memory.

mod erased;
mod host;
mod squares;

use std::fmt;
use std::ops::Range;

pub use self::erased::ErasedBuffer;
use crate::{AsView, AsViewMut, Comm, DType, Groups, Memory, Result};

/// Memory in which a program allocates buffers and computes with their elements, as data parallel
/// training needs besides collectives.
///
/// Buffers passed to one function have the same length. On a device, functions are enqueued in the
/// order of the communicator's calls, and those that return a value to the host wait for it.
///
/// # Errors
/// All functions fail with [`Error::Invalid`](crate::Error::Invalid) if lengths differ or the
/// computation is not defined on the type, and with the error of a device.
pub trait Kernels: Memory<Communicator: Groups<Self>> {
    /// A buffer that the program owns, of a type that is known at run time.
    type Buffer: AsView<Self> + AsViewMut<Self> + fmt::Debug + Send + 'static;

    /// Allocates `len` zeros in the memory from which `comm` moves them fastest.
    fn allocate(comm: &Comm<Self>, dtype: DType, len: usize) -> Result<Self::Buffer>;

    /// Returns a range of elements, or `None` if the view is shorter.
    fn get(view: Self::View<'_>, range: Range<usize>) -> Option<Self::View<'_>>;

    /// Returns a range of elements for writing, or `None` if the view is shorter.
    fn get_mut(view: Self::ViewMut<'_>, range: Range<usize>) -> Option<Self::ViewMut<'_>>;

    /// Writes the bytes of elements from host memory.
    fn write(comm: &Comm<Self>, into: Self::ViewMut<'_>, bytes: &[u8]) -> Result<()>;

    /// Reads the bytes of elements into host memory.
    fn read(comm: &Comm<Self>, from: Self::View<'_>, bytes: &mut [u8]) -> Result<()>;

    /// Sets all elements to zero.
    fn zero(comm: &Comm<Self>, into: Self::ViewMut<'_>) -> Result<()>;

    /// Copies elements. Floats of another type are converted by way of `f32`, and rounded to
    /// nearest, ties to even. Every converted NaN becomes the positive quiet NaN.
    fn copy(comm: &Comm<Self>, into: Self::ViewMut<'_>, from: Self::View<'_>) -> Result<()>;

    /// Copies floats to another type, multiplied by a factor. They are converted to `f32`,
    /// multiplied, and converted to the other type, rounded each time as in [`Kernels::copy`].
    fn convert(comm: &Comm<Self>, into: Self::ViewMut<'_>, from: Self::View<'_>, factor: f32) -> Result<()>;

    /// Adds elements of the same type: `into[i] += from[i]`.
    fn add(comm: &Comm<Self>, into: Self::ViewMut<'_>, from: Self::View<'_>) -> Result<()>;

    /// Multiplies floats by a factor.
    fn scale(comm: &Comm<Self>, into: Self::ViewMut<'_>, factor: f64) -> Result<()>;

    /// Returns the sum of the squares of floats, computed in `f64`. The order of additions depends
    /// on the length alone, so the same elements give the same bits in any memory.
    fn sum_of_squares(comm: &Comm<Self>, from: Self::View<'_>) -> Result<f64>;

    /// Returns whether all floats are finite.
    fn is_finite(comm: &Comm<Self>, from: Self::View<'_>) -> Result<bool>;
}
