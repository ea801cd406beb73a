//! Collectives on tensors in host memory, with a backward.
//!
//! Each takes a tensor with any strides and returns a new contiguous one of the same type. All
//! ranks call the same collectives in the same order. If the shape differs on some rank, the call
//! fails on all ranks, with an error that names both calls.
//!
//! Backward runs collectives as well, in the order of candle's traversal of the graph, which is a
//! function of the graph alone. So ranks whose forward passes built equal graphs agree, and all of
//! them must run backward. A failure in backward is a [`candle_core::Error::WrappedContext`] around
//! an [`Error`]. Nothing is recorded for tensors that depend on no variables.
//!
//! Gradients are those of the sum of the losses of all ranks. If instead all ranks compute the same
//! loss from the result, as tensor parallel layers do, use [`reduce_from_group`] and
//! [`copy_to_group`].
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! use comm_candle::{Result, collectives::all_reduce};
//! use comm_core::ReduceOp;
//!
//! comm::threads::run(3, |comm| -> Result<()> {
//!     let own = Var::from_tensor(&Tensor::full(comm.rank() as f32, 2, &Device::Cpu)?)?;
//!     let sum = all_reduce(&own, &comm, ReduceOp::Sum)?;
//!     assert_eq!(sum.to_vec1::<f32>()?, [3.0; 2]);
//!     // Every rank's loss depends on the sum: by 1, 2 and 3 per unit.
//!     let gradients = (sum * (comm.rank() as f64 + 1.0))?.sum_all()?.backward()?;
//!     assert_eq!(gradients.get(&own).unwrap().to_vec1::<f32>()?, [6.0; 2]);
//!     Ok(())
//! })?
//! .into_iter()
//! .collect::<Result<Vec<()>>>()?;
//! # Ok::<_, comm_candle::Error>(())
//! ```

use std::sync::{Mutex, PoisonError};

use candle_core::op::BackpropOp;
use candle_core::shape::Dim;
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Storage, Tensor};
use comm_core::{Comm, Host, ReduceOp, wire};

use crate::memory::{elements, view_mut};
use crate::place::Sealed;
use crate::variables::dtype;
use crate::{Error, Form, Result};

/// Combines the tensors of all ranks element by element. The result is the same on every rank.
/// Tensors of integers can be summed, but not averaged.
///
/// Backward combines the gradients of all ranks in the same way. It is defined only for sums and
/// averages.
///
/// # Errors
/// [`Error::Tensor`] for a tensor on another device or of 8-bit floats; [`Error::Ranks`] if the
/// operator is not defined on the type, or communication fails; [`Error::Candle`].
pub fn all_reduce(tensor: &Tensor, comm: &Comm, op: ReduceOp) -> Result<Tensor> {
    let backward = matches!(op, ReduceOp::Sum | ReduceOp::Avg).then_some(Kind::AllReduce(op));
    apply(tensor, comm, Kind::AllReduce(op), backward)
}

/// Returns the tensor of rank `root`. The tensors of the others must have the same shape and type;
/// their elements are ignored.
///
/// Backward gives the tensor of the root the sum of the gradients of all ranks, and those of the
/// others zeros.
///
/// # Errors
/// As [`all_reduce`].
pub fn broadcast(tensor: &Tensor, comm: &Comm, root: usize) -> Result<Tensor> {
    apply(tensor, comm, Kind::Broadcast(root), Some(Kind::Reduce(root)))
}

/// Concatenates the tensors of all ranks along a dimension, in rank order. All have the same shape.
///
/// Backward sums the gradients of all ranks, and returns this rank's part.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_gather(tensor: &Tensor, comm: &Comm, dim: impl Dim) -> Result<Tensor> {
    let dim = dim.to_index(tensor.shape(), "all_gather")?;
    let backward = Some(Kind::ReduceScatter(ReduceOp::Sum));
    along(tensor, dim, |tensor| apply(tensor, comm, Kind::AllGather, backward))
}

/// Combines the tensors of all ranks and returns this rank's part: an equal part of a dimension, in
/// rank order.
///
/// Backward concatenates the gradients of all ranks; for an average, it divides them by the number
/// of ranks. It is defined only for sums and averages.
///
/// # Errors
/// As [`all_reduce`]; [`Error::Indivisible`] if the length of the dimension is not a multiple of
/// the number of ranks.
pub fn reduce_scatter(tensor: &Tensor, comm: &Comm, op: ReduceOp, dim: impl Dim) -> Result<Tensor> {
    let dim = dim.to_index(tensor.shape(), "reduce_scatter")?;
    check_divisible("dimension", tensor.dims()[dim], comm.size())?;
    let backward = matches!(op, ReduceOp::Sum | ReduceOp::Avg).then_some(Kind::AllGather);
    along(tensor, dim, |tensor| apply(tensor, comm, Kind::ReduceScatter(op), backward))
}

/// Returns the same elements; backward sums the gradients of all ranks. This is the entry into
/// tensor parallel layers, called *f* by Shoeybi et al. (Megatron-LM, 2019): the input is the same
/// on all ranks, and each rank computes a part of the following layers.
///
/// # Errors
/// As [`all_reduce`].
pub fn copy_to_group(tensor: &Tensor, comm: &Comm) -> Result<Tensor> {
    apply(tensor, comm, Kind::Copy, Some(Kind::AllReduce(ReduceOp::Sum)))
}

/// Sums the tensors of all ranks; backward passes on the gradient of the sum unchanged. This is the
/// exit of tensor parallel layers, called *g* by Shoeybi et al. (Megatron-LM, 2019): the following
/// layers are the same on all ranks, and so is the loss, which counts once.
///
/// # Errors
/// As [`all_reduce`].
pub fn reduce_from_group(tensor: &Tensor, comm: &Comm) -> Result<Tensor> {
    apply(tensor, comm, Kind::AllReduce(ReduceOp::Sum), Some(Kind::Copy))
}

/// Returns an error if ranks cannot have equal parts.
pub(crate) fn check_divisible(what: &'static str, len: usize, ranks: usize) -> Result<()> {
    if len.is_multiple_of(ranks) { Ok(()) } else { Err(Error::Indivisible { what, len, ranks }) }
}

/// Applies a function of the first dimension to another dimension.
fn along(tensor: &Tensor, dim: usize, call: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if dim == 0 {
        return call(tensor);
    }
    let result = call(&tensor.transpose(0, dim)?)?;
    Ok(result.transpose(0, dim)?.contiguous()?)
}

/// An exchange of elements. If a dimension is divided among the ranks, it is the first one.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// None.
    Copy,
    AllReduce(ReduceOp),
    Broadcast(usize),
    /// The sum on the root, and zeros on the others.
    Reduce(usize),
    AllGather,
    ReduceScatter(ReduceOp),
}

/// Runs a collective, and records its backward.
fn apply(tensor: &Tensor, comm: &Comm, forward: Kind, backward: Option<Kind>) -> Result<Tensor> {
    let result = forward.run(tensor, comm)?;
    // In a mean, the gradient of each operand is divided by their number.
    let divisor = match forward {
        Kind::ReduceScatter(ReduceOp::Avg) => comm.size() as f64,
        _ => 1.0,
    };
    let result = Mutex::new(Some(result));
    Ok(tensor.apply_op1(Collective { result, comm: comm.clone(), forward, backward, divisor })?)
}

impl Kind {
    /// Runs the collective on a copy of the elements. Returns the elements and the shape of the
    /// result.
    fn run(self, tensor: &Tensor, comm: &Comm) -> Result<(CpuStorage, Shape)> {
        if dtype(tensor.dtype()).is_none() || !Host::holds(tensor.device().location()) {
            return Err(Error::Tensor { form: Box::new(Form::of(tensor)) });
        }
        let shape = tensor.dims().iter().map(|len| *len as u64);
        let comm =
            comm.with_extra_fingerprint(wire::digest([comm.extra_fingerprint()].into_iter().chain(shape)));
        let tensor = tensor.contiguous()?;
        let elements = elements(&tensor)?;
        match self {
            Self::AllGather => {
                let mut all = elements.zeros(tensor.elem_count() * comm.size())?;
                comm.all_gather(&elements.view()?, &mut view_mut(&mut all)?)?;
                Ok((all, with_first(&tensor, |len| len * comm.size())))
            }
            Self::ReduceScatter(op) => {
                let mut part = elements.zeros(tensor.elem_count() / comm.size())?;
                comm.reduce_scatter(&elements.view()?, &mut view_mut(&mut part)?, op)?;
                Ok((part, with_first(&tensor, |len| len / comm.size())))
            }
            _ => {
                let mut copy = elements.copy()?;
                self.run_in_place(&mut copy, &comm)?;
                Ok((copy, tensor.shape().clone()))
            }
        }
    }

    fn run_in_place(self, elements: &mut CpuStorage, comm: &Comm) -> Result<()> {
        let mut view = view_mut(elements)?;
        match self {
            Self::AllReduce(op) => comm.all_reduce(&mut view, op)?,
            Self::Broadcast(root) => comm.broadcast(root, &mut view)?,
            Self::Reduce(root) => {
                comm.reduce(root, &mut view, ReduceOp::Sum)?;
                if comm.rank() != root {
                    view.into_bytes().fill(0);
                }
            }
            Self::Copy | Self::AllGather | Self::ReduceScatter(_) => {}
        }
        Ok(())
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::AllReduce(_) => "all_reduce",
            Self::Broadcast(_) => "broadcast",
            Self::Reduce(_) => "reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter(_) => "reduce_scatter",
        }
    }
}

/// Returns the shape of a tensor with a changed first dimension.
fn with_first(tensor: &Tensor, change: impl FnOnce(usize) -> usize) -> Shape {
    let mut dims = tensor.dims().to_vec();
    if let Some(first) = dims.first_mut() {
        *first = change(*first);
    }
    Shape::from(dims)
}

/// A collective in candle's graph. Its result is computed beforehand, so that errors keep their
/// types.
struct Collective {
    result: Mutex<Option<(CpuStorage, Shape)>>,
    comm: Comm,
    forward: Kind,
    backward: Option<Kind>,
    /// The number by which gradients are divided.
    divisor: f64,
}

impl CustomOp1 for Collective {
    fn name(&self) -> &'static str {
        self.forward.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.ok_or(candle_core::Error::UnwrapNone)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let op = self.name();
        let backward = self.backward.ok_or(candle_core::Error::BackwardNotSupported { op })?;
        if matches!(backward, Kind::Copy) {
            return Ok(Some(gradient.clone()));
        }
        let (elements, shape) = backward.run(gradient, &self.comm)?;
        let gradient = Tensor::from_storage(Storage::Cpu(elements), shape, BackpropOp::none(), false);
        if self.divisor == 1.0 { Ok(Some(gradient)) } else { Ok(Some((gradient / self.divisor)?)) }
    }
}
