//! The memory layout of gradients in a bucket.
//!
//! The gradients of a bucket are followed by one mark per parameter: 1 if this rank has a gradient
//! for it, else 0. Marks are averaged with the gradients, so every rank learns which parameters no
//! rank used, without another message.

use comm_core::{Buffer, Comm, Element, HostView, HostViewMut, RecvBuf, ReduceOp, Reduction};

use crate::{Bucket, Location, Result};

/// An element type of gradients: `f32`, `f64`, `f16` or `bf16`. Other types cause an error when
/// they are used.
pub trait Gradient: Element + From<i8> {}

impl<T: Element + From<i8>> Gradient for T {}

/// The gradients of one bucket, and their marks.
#[derive(Debug)]
pub(crate) struct Gradients<T> {
    /// Gradients, then one mark per parameter.
    elements: Buffer<T>,
    /// The number of marks.
    marks: usize,
}

impl<T: Gradient> Gradients<T> {
    /// Allocates zeros in memory of the communicator, which it can send without a copy.
    pub(crate) fn new(comm: &Comm, bucket: &Bucket) -> comm_core::Result<Self> {
        let marks = bucket.slots().len();
        Ok(Self { elements: comm.alloc(bucket.len() + marks)?, marks })
    }

    /// Returns all gradients.
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

    /// Sets whether this rank has a gradient.
    pub(crate) fn set_used(&mut self, location: &Location, used: bool) {
        let mark = self.mark(location);
        self.elements[mark] = T::from(i8::from(used));
    }

    /// Returns whether this rank has a gradient; after the reduction, whether any rank has.
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
    sum.combine(HostViewMut::new(into).into_bytes(), None, RecvBuf::from_slice(HostView::new(from).bytes()));
    Ok(())
}
