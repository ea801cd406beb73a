//! Data-parallel training over any communicator.
//!
//! Every rank holds a replica of the model and computes gradients on samples of its own; [`DataParallel`] averages the
//! gradients over all ranks, in buckets that are sent while backward still runs. It works on slices: no framework, no
//! tensor and no backend is known here.
//!
//! ```no_run
//! # fn example(comm: comm_core::Comm) -> comm_ddp::Result<()> {
//! # let (mut weight, mut bias) = (vec![0.0_f32; 640], vec![0.0_f32; 10]);
//! # fn backward(weight: &[f32], bias: &[f32]) -> (Vec<f32>, Vec<f32>) { (weight.into(), bias.into()) }
//! use comm_ddp::{DataParallel, Options, Parameter, ParameterSet};
//!
//! let parameters = [Parameter::new::<f32>("weight", [64, 10]), Parameter::new::<f32>("bias", [10])];
//! let mut replicas = DataParallel::new(&comm, ParameterSet::new(parameters)?, Options::default())?;
//! replicas.broadcast_parameters([&mut weight[..], &mut bias[..]])?;
//! for _ in 0..100 {
//!     let mut step = replicas.step()?;
//!     let (weight_gradient, bias_gradient) = backward(&weight, &bias);
//!     step.ready(1, &bias_gradient)?;
//!     step.ready(0, &weight_gradient)?;
//!     let averaged = step.finish()?;
//!     for (parameter, gradient) in [&mut weight, &mut bias].into_iter().zip(averaged.iter()) {
//!         parameter.iter_mut().zip(gradient).for_each(|(value, slope)| *value -= 0.1 * slope);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What each part knows: [`BucketPlan`] is a pure function that cuts gradients into buckets; [`Reducer`] sends them in
//! one order on all ranks, from any memory; [`DataParallel`] and [`Step`] are what users hold; [`DistributedSampler`]
//! shares out the samples.

#![forbid(unsafe_code)]

mod agreement;
mod data_parallel;
mod error;
mod gradients;
mod mismatch;
mod parameters;
mod plan;
mod ready;
mod reducer;
mod sampler;
mod step;
mod timeline;

pub use agreement::{check_parameters, check_parameters_by};
pub use data_parallel::{DataParallel, Options};
pub use error::{Difference, Error, Mismatch, Result};
pub use gradients::Gradient;
pub use parameters::{Parameter, ParameterSet};
pub use plan::{Bucket, BucketLimits, BucketPlan, Location};
pub use reducer::Reducer;
pub use sampler::{DistributedSampler, Remainder};
pub use step::{Averaged, Step};
pub use timeline::{BucketTimes, Clock, Timeline};
