//! How gradients lie in the memory of their buckets.
//!
//! Behind the gradients of a bucket lies one more element per parameter, which is one if this rank has a gradient for
//! it and zero if not. It is averaged with the rest, so that afterwards every rank knows, at the price of a few bytes
//! and no message, which parameters nobody used.

use comm_core::{Buffer, Comm, Element, HostView, HostViewMut, Lent, ReduceOp, Reduction};

use crate::{Bucket, Location, Result};

/// An element that gradients can have: `f32`, `f64`, `f16` or `bf16`. Other types are refused when they are used.
pub trait Gradient: Element + From<i8> {}

impl<T: Element + From<i8>> Gradient for T {}

/// The gradients of one bucket, and who has them.
#[derive(Debug)]
pub(crate) struct Gradients<T> {
    /// Gradients, then one mark per parameter.
    elements: Buffer<T>,
    /// How many of the elements are marks.
    marks: usize,
}

impl<T: Gradient> Gradients<T> {
    /// Zeros, in memory from where the communicator sends them best.
    pub(crate) fn new(comm: &Comm, bucket: &Bucket) -> comm_core::Result<Self> {
        let marks = bucket.slots().len();
        Ok(Self { elements: comm.alloc(bucket.len() + marks)?, marks })
    }

    /// All gradients, one after the other.
    pub(crate) fn all_mut(&mut self) -> &mut [T] {
        let end = self.elements.len() - self.marks;
        &mut self.elements[..end]
    }

    pub(crate) fn get(&self, location: &Location) -> &[T] {
        &self.elements[location.elements.clone()]
    }

    pub(crate) fn get_mut(&mut self, location: &Location) -> &mut [T] {
        &mut self.elements[location.elements.clone()]
    }

    /// Notes whether this rank has a gradient.
    pub(crate) fn set_used(&mut self, location: &Location, used: bool) {
        let mark = self.mark(location);
        self.elements[mark] = T::from(i8::from(used));
    }

    /// Before the reduction, whether this rank has a gradient; after it, whether any rank has.
    pub(crate) fn is_used(&self, location: &Location) -> bool {
        self.elements[self.mark(location)] != T::zeroed()
    }

    fn mark(&self, location: &Location) -> usize {
        self.elements.len() - self.marks + location.position
    }
}

impl<T: Gradient> comm_core::AsViewMut for Gradients<T> {
    type Element = T;

    fn as_view_mut(&mut self) -> comm_core::Result<HostViewMut<'_>> {
        Ok(HostViewMut::new(&mut self.elements))
    }
}

/// Adds `from` to `into`, element by element.
pub(crate) fn add<T: Element>(into: &mut [T], from: &[T]) -> Result<()> {
    let sum = Reduction::new(ReduceOp::Sum, T::DTYPE)?;
    sum.combine(HostViewMut::new(into).into_bytes(), None, Lent::from_slice(HostView::new(from).bytes()));
    Ok(())
}
