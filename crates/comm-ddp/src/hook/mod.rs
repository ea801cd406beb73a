//! Communication hooks: other ways to average a bucket than an all-reduce of its elements.
//!
//! [`CastHook`] sends 16-bit floats, [`QuantizationHook`] integers of 8 or 4 bits, and
//! [`PowerSgdHook`] matrices of low rank. A program can have its own [`CommHook`].

mod cast;
mod host;
mod matrix;
mod power_sgd;
mod quantization;
mod registered;

use comm_core::{AsView, AsViewMut, Comm, DType, Erased, Host, Kernels, ReduceOp, Result, Shape};

pub use self::cast::CastHook;
pub use self::power_sgd::PowerSgdHook;
pub use self::quantization::QuantizationHook;
pub(crate) use self::registered::RegisteredHook;
use crate::bucket_buffer::BucketBuffer;
use crate::{BucketPlan, Parameter};

/// The error of a communication hook: a [`comm_core::Error`], or one of its own.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// A communication hook: it replaces the all-reduce that averages a bucket, as in PyTorch.
///
/// [`DataParallel::register_comm_hook`](crate::DataParallel::register_comm_hook) has an example.
/// Hooks in [`Host`] memory see gradients as slices, with [`GradBucket::elements_mut`].
pub trait CommHook<M: Kernels = Host>: Send + 'static {
    /// Returns the name of the hook and its settings. All ranks must register a hook with the same
    /// text.
    fn description(&self) -> String;

    /// Replaces the elements of a bucket by their average over all ranks. It is called on the
    /// communication thread, for every bucket of a step, in the same order on every rank.
    ///
    /// The average is the sum divided by the number of ranks, as with [`ReduceOp::Avg`]. With
    /// weights the elements have been multiplied by them, and the result is divided by their mean
    /// after the step. All ranks must make the same calls on `comm` and return the same bits:
    /// otherwise replicas diverge. If a gradient is infinite or NaN on any rank, the average should
    /// be so on all ranks. Otherwise they do not notice it unless
    /// [`Options::check_finite`](crate::Options::check_finite) is set.
    ///
    /// # Errors
    /// Any error ends training on all ranks: it is returned by
    /// [`Step::finish`](crate::Step::finish) on this rank, and the calls of the others fail because
    /// this rank aborted.
    fn average(&mut self, comm: &Comm<M>, bucket: &mut GradBucket<'_, M>) -> Result<(), HookError>;

    /// Adopts an assignment of gradients to buckets. It is called at registration, and between two
    /// steps if the buckets are rebuilt in the order of the first step. A hook that keeps state per
    /// bucket moves or drops it here. `parameters` has one entry per slot of the plan.
    fn set_plan(&mut self, parameters: &[Parameter], plan: &BucketPlan) {
        let _ = (parameters, plan);
    }

    /// Multiplies the parts of gradients that the hook keeps for later steps by a factor. It is
    /// called between two steps if the weights of ranks change so much that gradients are
    /// multiplied by another power of two, to keep them in range.
    fn rescale(&mut self, factor: f64) {
        let _ = factor;
    }
}

/// A bucket of gradients that a [`CommHook`] averages. It is a buffer for calls on the
/// communicator.
#[derive(Debug)]
pub struct GradBucket<'a, M: Kernels = Host> {
    buffer: &'a mut BucketBuffer<M>,
    index: usize,
    is_last: bool,
}

impl<'a, M: Kernels> GradBucket<'a, M> {
    pub(crate) const fn new(buffer: &'a mut BucketBuffer<M>, index: usize, is_last: bool) -> Self {
        Self { buffer, index, is_last }
    }

    /// Returns the position of the bucket in the plan.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// Returns whether it is the last bucket of a step.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.is_last
    }

    /// Returns the number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the type of the elements.
    ///
    /// # Errors
    /// [`comm_core::Error`] with the error of a device.
    pub fn dtype(&self) -> Result<DType> {
        Ok(self.as_view()?.dtype())
    }

    /// Averages the elements by an all-reduce, as without a hook.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_reduce(&mut self, comm: &Comm<M>) -> Result<()> {
        comm.all_reduce(self, ReduceOp::Avg)
    }
}

impl GradBucket<'_, Host> {
    /// Returns the elements, or `None` if they have another type.
    #[must_use]
    pub fn elements_mut<T: comm_core::Element>(&mut self) -> Option<&mut [T]> {
        self.as_view_mut().ok()?.into_elements()
    }
}

impl<M: Kernels> AsView<M> for GradBucket<'_, M> {
    type Element = Erased;

    fn as_view(&self) -> Result<M::View<'_>> {
        self.buffer.view(0..self.buffer.len())
    }
}

impl<M: Kernels> AsViewMut<M> for GradBucket<'_, M> {
    type Element = Erased;

    fn as_view_mut(&mut self) -> Result<M::ViewMut<'_>> {
        self.buffer.gradients().into_view()
    }
}
