//! Data parallel training over any communicator.
//!
//! Every rank holds a replica of the model and computes gradients on its own samples.
//! [`DataParallel`] averages the gradients over all ranks in buckets. A bucket is sent in the
//! background as soon as all its gradients are ready, so communication overlaps with the rest of
//! backward if the training loop reports each gradient when it is computed. The crate depends on no
//! framework, tensor type or backend; gradients may be in any memory that has
//! [`Kernels`](comm_core::Kernels).
//!
//! ```
//! use comm::Comm;
//! use comm::ddp::{DataParallel, Options, Parameter, ParameterSet, Result};
//!
//! fn train(comm: &Comm) -> Result<()> {
//!     // Ranks start with different values and continue with those of rank 0.
//!     let (mut weight, mut bias) = (vec![comm.rank() as f32; 640], vec![0.0; 10]);
//!     let parameters = [Parameter::new::<f32>("weight", [64, 10]), Parameter::new::<f32>("bias", [10])];
//!     let mut replicas = DataParallel::new(comm, ParameterSet::new(parameters)?, Options::default())?;
//!     replicas.broadcast_parameters([&mut weight[..], &mut bias[..]])?;
//!     for _ in 0..4 {
//!         let mut step = replicas.step()?;
//!         // Backward computes the gradients of this rank's samples, those of the last layer first.
//!         let (weight_gradient, bias_gradient) = ([comm.rank() as f32; 640], [1.0_f32; 10]);
//!         step.ready(1, &bias_gradient)?;
//!         step.ready(0, &weight_gradient)?;
//!         let averaged = step.finish()?;
//!         for (parameter, gradient) in [&mut weight, &mut bias].into_iter().zip(averaged.iter::<f32>()?) {
//!             parameter.iter_mut().zip(gradient).for_each(|(value, slope)| *value -= 0.25 * slope);
//!         }
//!     }
//!     assert_eq!((weight, bias), (vec![-0.5; 640], vec![-1.0; 10]));
//!     Ok(())
//! }
//!
//! comm::threads::run(2, |comm| train(&comm).unwrap())?;
//! # Ok::<_, comm::Error>(())
//! ```
//!
//! [`DataParallel`] and [`Step`] are the interface for training loops, and [`DistributedSampler`]
//! assigns samples to ranks. [`BucketPlan`] assigns gradients to buckets.
//!
//! Over slow links, [`LocalTraining`] communicates once in many steps instead.
//!
//! | PyTorch | here |
//! |---|---|
//! | `DistributedDataParallel(model)` | [`DataParallel::new`], [`DataParallel::broadcast_parameters`], [`DataParallel::step`] |
//! | `bucket_cap_mb`, `gradient_as_bucket_view` | [`BucketLimits`], [`Step::view_mut`] and [`Step::gradient_mut`] |
//! | `no_sync` | [`Step::accumulate`] |
//! | `find_unused_parameters`, `static_graph` | always on, see [`Averaged::is_unused`]; [`Options::static_graph`] |
//! | `broadcast_buffers` | [`DataParallel::register_buffers`], then [`broadcast_buffers`](DataParallel::broadcast_buffers) or [`average_buffers`](DataParallel::average_buffers) |
//! | `requires_grad=False` | [`Parameter::frozen`] |
//! | `Join`, `throw_on_early_termination` | [`DataParallel::join`], [`Divisor`], [`Uneven`], [`Step::request_stop`] |
//! | `ZeroRedundancyOptimizer` | [`ZeroOptimizer`], which continues after ranks were lost with [`ZeroOptimizer::rejoin`] |
//! | parameter groups, schedulers of learning rates | [`ZeroOptimizer::new`], [`ZeroOptimizer::settings_mut`] |
//! | `SyncBatchNorm` | [`BatchStatistics`] |
//! | `clip_grad_norm_`, `GradScaler` | [`Averaged::clip_norm`], [`LossScaler`] with [`Averaged::is_finite`] |
//! | `DistributedSampler` | [`DistributedSampler`] |
//! | none | [`DataParallel::stragglers`], [`check_replicas`] |

#![forbid(unsafe_code)]

mod agreement;
mod averaged;
mod batch_norm;
mod bucket_buffer;
mod bucket_ranges;
mod buffers;
mod claim;
mod codec;
mod consensus;
mod data_parallel;
mod error;
mod hook;
mod local;
mod loss_scale;
mod mismatch;
mod optimizer;
mod options;
mod packed;
mod parameters;
mod plan;
mod ready;
mod reducer;
mod rejoin;
mod sampler;
mod shard_state;
mod sharded_averages;
mod shards;
mod static_graph;
mod status;
mod step;
mod stragglers;
mod timeline;
mod transfer;
mod zero;

pub use agreement::{check_parameters, check_parameters_by};
pub use averaged::Averaged;
pub use batch_norm::BatchStatistics;
pub use codec::{BlockCodec, EncodedAllReduce};
pub use consensus::{any_rank, check_replicas, rank_seed};
pub use data_parallel::DataParallel;
pub use error::{Difference, Error, Mismatch, Result};
pub use hook::{CastHook, CommHook, GradBucket, HookError, PowerSgdHook, QuantizationHook};
pub use local::{Disagreement, LocalOptions, LocalProgress, LocalState, LocalStep, LocalTraining};
pub use loss_scale::LossScaler;
pub use optimizer::{AdamW, Optimizer, Scalar, Sgd};
pub use options::{Divisor, Options, Uneven};
pub use parameters::{Parameter, ParameterSet};
pub use plan::{Bucket, BucketLimits, BucketPlan, Location};
pub use sampler::{DistributedSampler, Remainder, SamplerState};
pub use sharded_averages::ShardedAverages;
pub use shards::StateShard;
pub use step::Step;
pub use stragglers::{Lateness, Stragglers};
pub use timeline::{BucketTimes, Clock, Timeline};
pub use zero::{ZeroOptimizer, ZeroStep};

/// Parts that the adapters of frameworks share. Not part of the API.
#[doc(hidden)]
pub mod __private {
    pub use crate::bucket_ranges::bucket_ranges;
}
