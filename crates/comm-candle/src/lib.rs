//! Data-parallel training of [candle](https://github.com/huggingface/candle) models, over any
//! communicator.
//!
//! Every rank holds a replica of a model, whose variables are in a [`VarMap`], and trains it on
//! samples of its own. [`sync_model`] gives all ranks the variables of rank 0; [`sync_gradients`]
//! averages the gradients of all ranks, between backward and the optimizer's step, so that equal
//! optimizers keep the replicas equal to the last bit. A loop does better with [`DataParallel`],
//! which prepares once what the two functions prepare in every call.
//!
//! ```no_run
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{AdamW, Linear, Module, Optimizer, VarBuilder, VarMap, linear, loss};
//! use comm_candle::DataParallel;
//!
//! # fn batch(_: usize) -> comm_candle::Result<(Tensor, Tensor)> { unreachable!() }
//! fn train(comm: &comm_core::Comm) -> comm_candle::Result<()> {
//!     let variables = VarMap::new();
//!     let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
//!     let model: Linear = linear(64, 10, builder)?;
//!     let mut replicas = DataParallel::new(&variables, comm)?;
//!     replicas.sync_model()?;
//!     let mut optimizer = AdamW::new_lr(variables.all_vars(), 1e-3)?;
//!     for step in 0..100 {
//!         // Each rank has other samples: `comm_ddp::DistributedSampler` shares them out.
//!         let (images, labels) = batch(step * comm.size() + comm.rank())?;
//!         let mut gradients = loss::cross_entropy(&model.forward(&images)?, &labels)?.backward()?;
//!         let report = replicas.sync_gradients(&mut gradients)?;
//!         assert!(report.without_gradient().is_empty(), "an operation without backward?");
//!         optimizer.step(&gradients)?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! - **Names decide** which variables meet. A `VarMap` has another order in every process, so
//!   variables are sorted by name, and names, shapes and element types of all ranks are compared
//!   before anything else is sent. What is missing, extra or different on one rank is named on
//!   every rank, as [`Mismatch`].
//! - **Gradients are averaged, not variables.** The two differ as soon as an optimizer remembers
//!   anything but a sum.
//! - **A gradient that no rank has** stays absent; one that only some ranks have counts as zero on
//!   the others, which get the average too. [`Report`] names both kinds, as candle loses gradients
//!   in silence: operations without backward, the fast `layer_norm`, `rms_norm` and
//!   `softmax_last_dim` of `candle_nn::ops` among them, leave the variables before them without
//!   any.
//! - **Element types are kept**, and gradients may be strided. `f16`, `bf16`, `f32` and `f64` are
//!   averaged; variables of integers take part in [`sync_model`].
//!
//! Tensors lie in the memory of the communicator: on the CPU for a `Comm`, and with feature `cuda`
//! on the GPU for a `Comm<comm_nccl::Cuda>`. Nothing is copied from one to the other.
//!
//! | subject | file |
//! |---|---|
//! | the variables, equal on all ranks | `variables.rs` |
//! | the agreement of all ranks before data moves | `agreement.rs` |
//! | the interface of users | `data_parallel.rs`, `report.rs`, `error.rs` |
//! | the gradients of one step | `call.rs` |
//! | averaging, per memory | `place.rs`, `host.rs`, `cuda.rs` |
//! | the broadcast of rank 0's variables | `broadcast.rs`, `cuda.rs` |
//! | access to the memory of a tensor | `memory.rs`, `cuda.rs` |

#![cfg_attr(not(feature = "cuda"), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod agreement;
mod broadcast;
mod call;
#[cfg(feature = "cuda")]
mod cuda;
mod data_parallel;
mod error;
mod host;
mod memory;
mod place;
mod report;
mod variables;

use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use comm_core::Comm;

pub use comm_ddp::{BucketLimits, Difference, Mismatch};
pub use data_parallel::DataParallel;
pub use error::{Error, Form, Result};
pub use place::Place;
pub use report::Report;

/// Gives every rank the variables of rank 0. A collective: every rank calls it, with the same
/// model.
///
/// Variables keep their identity, so that an optimizer may be made before or after. Besides at the
/// start, this is how variables that no optimizer sees, such as the running means of a batch norm,
/// become the same again.
///
/// # Errors
/// As [`DataParallel::new`] and [`DataParallel::sync_model`].
pub fn sync_model<M: Place>(variables: &VarMap, comm: &Comm<M>) -> Result<()> {
    variables::Variables::agree(variables, comm)?.broadcast(comm)
}

/// Replaces gradients by their averages over all ranks. A collective: every rank calls it, with the
/// same model, between backward and the step of its optimizer.
///
/// To accumulate over several backward passes, add up their gradients with `GradStore::extend` and
/// call this once.
///
/// # Errors
/// As [`DataParallel::new`] and [`DataParallel::sync_gradients`].
pub fn sync_gradients<M: Place>(
    variables: &VarMap,
    gradients: &mut GradStore,
    comm: &Comm<M>,
) -> Result<Report> {
    DataParallel::new(variables, comm)?.sync_gradients(gradients)
}
