//! Data-parallel training of [burn](https://github.com/tracel-ai/burn) modules, over any
//! communicator.
//!
//! Every rank holds a replica of a module and trains it on its own samples.
//! [`DataParallel::sync_module`] gives all ranks the parameters of rank 0;
//! [`DataParallel::sync_gradients`] averages the gradients of all ranks, between backward and the
//! optimizer's step, so equal optimizers keep the replicas equal bit for bit.
//!
//! ```no_run
//! use burn::nn::loss::CrossEntropyLoss;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{AdamWConfig, GradientsParams};
//! use burn::tensor::{Device, Int, Tensor};
//! use comm_burn::DataParallel;
//!
//! # fn batch(_: usize, _: &Device) -> (Tensor<2>, Tensor<1, Int>) { unreachable!() }
//! fn train(comm: &comm_core::Comm, device: &Device) -> comm_burn::Result<Linear> {
//!     let device = device.clone().autodiff();
//!     let mut module = LinearConfig::new(64, 10).init(&device);
//!     let mut replicas = DataParallel::new(&module, comm)?;
//!     module = replicas.sync_module(module)?;
//!     let mut optimizer = AdamWConfig::new().init();
//!     let loss = CrossEntropyLoss::new(None, &device);
//!     for step in 0..100 {
//!         // Each rank has its own samples, which `comm_ddp::DistributedSampler` can assign.
//!         let (images, labels) = batch(step * comm.size() + comm.rank(), &device);
//!         let gradients = loss.forward(module.forward(images), labels).backward();
//!         let mut gradients = GradientsParams::from_grads(gradients, &module);
//!         replicas.sync_gradients(&module, &mut gradients)?;
//!         module = optimizer.step(1e-3, module, gradients);
//!     }
//!     Ok(module)
//! }
//! ```
//!
//! - **Parameters are matched by path**, as in `encoder.0.weight`. burn's ids are different in
//!   every process, and the order of fields does not matter. Paths, shapes and element types of all
//!   ranks are compared before anything else is sent. A parameter that is missing, extra or
//!   different on some rank is reported on every rank as a [`Mismatch`].
//! - **Ids are kept.** A module from [`sync_module`] has the ids that it had before, so the state
//!   of an optimizer stays with it.
//! - **Gradients are averaged, not parameters.** The two differ as soon as the state of an
//!   optimizer is more than a sum of gradients.
//! - **A gradient that no rank has** remains absent, and is an error in the first step, because a
//!   parameter without a gradient is never trained. One that only some ranks have counts as zero on
//!   the others, which also get the average. [`Report`] names both kinds.
//! - **Element types are kept.** `f16`, `bf16`, `f32` and `f64` are averaged in their own type;
//!   integers and booleans take part in [`sync_module`].
//!
//! Communicators are for host memory, but tensors may be on any device of burn: gradients on other
//! devices are copied to the host and back.
//!
//! | subject | file |
//! |---|---|
//! | the public interface | `data_parallel.rs`, `report.rs`, `error.rs` |
//! | the parameters, equal on all ranks, and which of them are trained | `parameters.rs` |
//! | the agreement of all ranks before data moves | `agreement.rs` |
//! | the gradients of one step | `gradients.rs` |
//! | averages in the buckets of `comm-ddp` | `averager.rs` |
//! | the broadcast of rank 0's values | `values.rs` |
//! | element types and bytes | `elements.rs` |
//! | walks over modules, with paths | `walk.rs` |

#![forbid(unsafe_code)]

mod agreement;
mod averager;
mod data_parallel;
mod elements;
mod error;
mod gradients;
mod parameters;
mod report;
mod values;
mod walk;

use burn::module::Module;
use burn::tensor::TensorData;
use comm_core::Comm;

use crate::parameters::Parameters;

pub use comm_ddp::{BucketLimits, Difference, Mismatch};
pub use data_parallel::{DataParallel, Options};
pub use error::{Error, Form, Result};
pub use report::Report;

/// Compares paths, shapes and element types of the parameters of a module across all ranks. This is
/// a collective.
///
/// # Errors
/// [`Error::Ranks`] with a [`Mismatch`], the same on every rank, if the modules differ, or if
/// communication fails; [`Error::Type`] for parameters that cannot be communicated, and
/// [`Error::Refused`] on the other ranks.
pub fn check_parameters<M: Module>(module: &M, comm: &Comm) -> Result<()> {
    Parameters::agree(module, comm).map(drop)
}

/// Returns the module with the values of rank 0, as [`DataParallel::sync_module`] does, without
/// preparing to train it. This is a collective: every rank calls it with the same module.
///
/// # Errors
/// As [`check_parameters`] and [`DataParallel::sync_module`].
pub fn sync_module<M: Module>(module: M, comm: &Comm) -> Result<M> {
    let parameters = Parameters::agree(&module, comm)?;
    let all = vec![true; parameters.sorted.len()];
    data_parallel::broadcast(comm, module, &parameters, &all)
}

/// Returns an error if the ranks have different bits in a parameter, for example because one of
/// them skipped a step of its optimizer. This is a collective: every rank calls it with the same
/// module, between other calls.
///
/// Frozen parameters, integers and booleans are also compared. So are running statistics, which are
/// those of each rank's samples until [`DataParallel::broadcast_buffers`] copies them.
///
/// # Errors
/// [`Error::Ranks`] with [`comm_ddp::Error::Diverged`], the same on every rank, which names the
/// first parameter that differs; [`Error::Read`] if burn cannot read a tensor, which aborts the
/// communicator; otherwise as [`check_parameters`].
pub fn check_replicas<M: Module>(module: &M, comm: &Comm) -> Result<()> {
    let parameters = Parameters::agree(module, comm)?;
    values::flush_statistics(module);
    let all = vec![true; parameters.sorted.len()];
    let values = error::or_abort(comm, values::read(module, &parameters, &all))?;
    let bytes = values.iter().map(|value| value.as_ref().map(TensorData::as_bytes).unwrap_or_default());
    let names = parameters.sorted.iter().map(|parameter| parameter.name.as_str());
    Ok(comm_ddp::check_replicas(comm, names.zip(bytes))?)
}
