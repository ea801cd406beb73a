//! Data-parallel training of [candle](https://github.com/huggingface/candle) models, over any
//! communicator.
//!
//! Every rank holds a replica of a model, whose variables are in a [`VarMap`], and trains it on its
//! own samples. [`DataParallel`] gives all ranks the variables of rank 0, and averages the
//! gradients of all ranks between backward and the step of the optimizer, so equal optimizers keep
//! the replicas equal bit for bit.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Linear, Module, VarBuilder, VarMap, linear, loss};
//! use comm_candle::{DataParallel, ReplicatedOptimizer, Result};
//! use comm_ddp::AdamW;
//!
//! /// Samples that are different in each step and on each rank.
//! fn batch(number: usize) -> Result<(Tensor, Tensor)> {
//!     let inputs = Tensor::arange(number as f32, number as f32 + 32.0, &Device::Cpu)?;
//!     Ok((inputs.sin()?.reshape((4, 8))?, Tensor::new(&[0_u32, 1, 2, 1], &Device::Cpu)?))
//! }
//!
//! fn train(comm: &comm::Comm) -> Result<f32> {
//!     let variables = VarMap::new();
//!     let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
//!     let model: Linear = linear(8, 3, builder)?;
//!     let mut replicas = DataParallel::new(&variables, comm)?;
//!     replicas.sync_model()?;
//!     let mut optimizer = ReplicatedOptimizer::new(&variables, |_| AdamW::new(1e-2))?;
//!     for step in 0..10 {
//!         let (inputs, labels) = batch(step * comm.size() + comm.rank())?;
//!         let mut gradients = loss::cross_entropy(&model.forward(&inputs)?, &labels)?.backward()?;
//!         replicas.sync_gradients(&mut gradients)?;
//!         optimizer.step(&gradients)?;
//!     }
//!     Ok(model.weight().sum_all()?.to_scalar()?)
//! }
//!
//! let sums = comm::threads::run(2, |comm| train(&comm).unwrap())?;
//! assert_eq!(sums[0], sums[1]);
//! # Ok::<_, comm::Error>(())
//! ```
//!
//! - **Variables are matched by name.** A `VarMap` has a different order in every process, so
//!   variables are sorted by name, and names, shapes and element types of all ranks are compared
//!   before anything else is sent. A variable that is missing, extra or different on some rank is
//!   reported on every rank as a [`Mismatch`].
//! - **Gradients are averaged, not variables.** The two differ as soon as the state of an optimizer
//!   is more than a sum of gradients.
//! - **Lost gradients are reported.** candle's fast `layer_norm`, `rms_norm` and `softmax_last_dim`
//!   leave the variables before them without a gradient, and without an error. The first step warns
//!   of variables for which no rank has a gradient, or fails: see [`LostGradients`]. A gradient
//!   that only some ranks have counts as zero on the others, which also get the average.
//! - **Communication overlaps with backward** if it runs in [`Segments`].
//! - **Optimizers have state that can be saved.** [`ReplicatedOptimizer`] and [`ZeroOptimizer`],
//!   which divides the state among the ranks, update variables with the optimizers of `comm-ddp`;
//!   [`checkpoint`] saves variables and state, which can be restored on any number of ranks.
//! - **Ranks may come and go**: [`ReplicatedOptimizer::rejoin`] gives all ranks of another group
//!   the variables and the state.
//! - **Element types are kept**, and gradients may be strided. `f16`, `bf16`, `f32` and `f64` are
//!   averaged; variables of integers take part in [`sync_model`].
//! - **Models can be divided**: [`collectives`] on tensors have a backward, and
//!   [`ColumnParallelLinear`] and [`RowParallelLinear`] are linear layers of a group.
//!
//! Tensors must be in the memory of the communicator: on the CPU for a `Comm`, and with the feature
//! `cuda` on the GPU for a `Comm<comm_nccl::Cuda>`, which [`DataParallel`] accepts. Nothing is
//! copied between the two.
//!
//! | subject | file |
//! |---|---|
//! | the variables, equal on all ranks | `variables.rs` |
//! | the agreement of all ranks before data moves | `agreement.rs` |
//! | averages | `data_parallel.rs`, `options.rs`, `report.rs`, `lost.rs`, `error.rs` |
//! | the gradients of one step, and backward in segments | `call.rs`, `segments.rs` |
//! | averaging, per memory | `place.rs`, `host.rs`, `cuda.rs` |
//! | optimizers and checkpoints | `replicated.rs`, `zero.rs`, `checkpoint.rs` |
//! | continuing with another group of ranks | `replicated/rejoin.rs` |
//! | the broadcast of rank 0's variables | `broadcast.rs`, `cuda.rs` |
//! | collectives on tensors, and layers of a group | `collectives.rs`, `parallel.rs` |
//! | access to the memory of a tensor | `memory.rs`, `cuda.rs` |

#![cfg_attr(not(feature = "cuda"), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod agreement;
mod broadcast;
mod call;
pub mod checkpoint;
pub mod collectives;
#[cfg(feature = "cuda")]
mod cuda;
mod data_parallel;
mod error;
mod host;
mod lost;
mod memory;
mod options;
mod parallel;
mod place;
mod replicated;
mod report;
mod segments;
mod variables;
mod zero;

use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use comm_core::Comm;

use crate::error::or_abort;

pub use comm_ddp::{BucketLimits, Difference, Mismatch};
pub use data_parallel::DataParallel;
pub use error::{Error, Form, Result};
pub use lost::LostGradients;
pub use options::Options;
pub use parallel::{ColumnParallelLinear, RowParallelLinear, column_parallel_linear, row_parallel_linear};
pub use place::Place;
pub use replicated::ReplicatedOptimizer;
pub use report::Report;
pub use segments::Segments;
pub use zero::ZeroOptimizer;

/// Gives every rank the variables of rank 0. This is a collective: every rank calls it with the
/// same model.
///
/// Variables keep their identity, so an optimizer may be created before or after. It is called at
/// the start, and whenever variables that no optimizer updates, such as the running means of a
/// batch norm, are to become the same again.
///
/// # Errors
/// As [`DataParallel::new`] and [`DataParallel::sync_model`].
pub fn sync_model<M: Place>(variables: &VarMap, comm: &Comm<M>) -> Result<()> {
    variables::Variables::agree(variables, comm)?.broadcast(comm)
}

/// Returns an error if the ranks have different bits in a variable, for example because one of them
/// skipped a step of its optimizer. This is a collective: every rank calls it with the same model,
/// at any time between other calls. After a training loop, [`DataParallel::check_replicas`] also
/// finds ranks that made another number of steps.
///
/// Variables that no optimizer updates are also compared. The running means of a batch norm, for
/// example, are those of each rank's samples until [`sync_model`] copies them.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{Init, VarBuilder, VarMap};
/// use comm_candle::{check_replicas, sync_model};
///
/// comm::threads::run(2, |comm| -> comm_candle::Result<()> {
///     let variables = VarMap::new();
///     let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
///     builder.get_with_hints(3, "weight", Init::Const(comm.rank() as f64))?;
///     let error = check_replicas(&variables, &comm).unwrap_err();
///     assert_eq!(error.to_string(), "\"weight\" has other bits on rank 1 than on most ranks");
///     sync_model(&variables, &comm)?;
///     check_replicas(&variables, &comm)
/// })?
/// .into_iter()
/// .collect::<comm_candle::Result<Vec<()>>>()?;
/// # Ok::<_, comm_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Ranks`] with [`comm_ddp::Error::Diverged`], the same on every rank, which names the
/// first variable that differs; otherwise as [`DataParallel::new`].
pub fn check_replicas(variables: &VarMap, comm: &Comm) -> Result<()> {
    compare_replicas(&variables::Variables::agree(variables, comm)?, comm)
}

/// Returns an error if the ranks have different bits in a variable, of those that they agreed on.
fn compare_replicas(variables: &variables::Variables, comm: &Comm) -> Result<()> {
    let values = variables.sorted().iter().map(|variable| variable.var.contiguous());
    let values: Vec<Tensor> = or_abort(comm, collect(values))?;
    let elements = or_abort(comm, collect(values.iter().map(memory::elements)))?;
    let names = variables.sorted().iter().map(|variable| variable.name.as_str());
    Ok(comm_ddp::check_replicas(comm, names.zip(&elements))?)
}

fn collect<T>(results: impl Iterator<Item = candle_core::Result<T>>) -> Result<Vec<T>> {
    Ok(results.collect::<candle_core::Result<_>>()?)
}

/// Whether [`sync_gradients`] was called before. Its first call warns of lost gradients.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Replaces gradients with their averages over all ranks. This is a collective: every rank calls it
/// with the same model, between backward and the step of its optimizer.
///
/// To accumulate over several backward passes, add up their gradients with `GradStore::extend` and
/// call this once. The communicator must not be used for anything else during the call. The first
/// call in a process warns of lost gradients: see [`LostGradients`].
///
/// # Errors
/// As [`DataParallel::new`] and [`DataParallel::sync_gradients`].
pub fn sync_gradients<M: Place>(
    variables: &VarMap,
    gradients: &mut GradStore,
    comm: &Comm<M>,
) -> Result<Report> {
    let mut replicas = DataParallel::over(variables, comm.clone())?;
    if WARNED.swap(true, Ordering::Relaxed) {
        replicas.set_lost_gradients(LostGradients::Allow);
    }
    replicas.sync_gradients(gradients)
}
