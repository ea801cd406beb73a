//! Gradients as integers of a few bits.

use comm_core::{Comm, Host, Kernels, ReduceOp};

use super::host::HostElements;
use super::{CommHook, GradBucket, HookError};
use crate::{BlockCodec, BucketPlan, EncodedAllReduce, Parameter};

/// Sends gradients through a [`BlockCodec`], by an [`EncodedAllReduce`] for each bucket.
///
/// Rounding errors are carried to the next step, which takes 4 bytes per element, unless
/// [`QuantizationHook::error_feedback`] is off. They are moved with their gradients if buckets are
/// rebuilt. If the loss is scaled and the scale changes, those of the previous step still have the
/// old scale.
///
/// Integers are computed in host memory in `f32`; gradients in other memory are copied there, and
/// those of other types converted.
#[derive(Debug)]
pub struct QuantizationHook<M: Kernels = Host> {
    codec: BlockCodec,
    feedback: bool,
    plan: Option<BucketPlan>,
    /// One per bucket.
    all_reduces: Vec<EncodedAllReduce<M>>,
    host: HostElements<M>,
}

impl<M: Kernels> QuantizationHook<M> {
    /// Sends integers of 8 bits: 0.27 of the bytes of `f32`.
    #[must_use]
    pub const fn int8() -> Self {
        Self::new(BlockCodec::Int8)
    }

    /// Sends integers of 4 bits: 0.15 of the bytes of `f32`.
    #[must_use]
    pub const fn int4() -> Self {
        Self::new(BlockCodec::Int4)
    }

    const fn new(codec: BlockCodec) -> Self {
        Self { codec, feedback: true, plan: None, all_reduces: Vec::new(), host: HostElements::new() }
    }

    /// Sets whether rounding errors are added to the gradients of the next step.
    #[must_use]
    pub const fn error_feedback(mut self, error_feedback: bool) -> Self {
        self.feedback = error_feedback;
        self
    }
}

impl<M: Kernels> CommHook<M> for QuantizationHook<M> {
    fn description(&self) -> String {
        format!("{} error_feedback={}", self.codec.name(), self.feedback)
    }

    fn average(&mut self, comm: &Comm<M>, bucket: &mut GradBucket<'_, M>) -> Result<(), HookError> {
        let Some(all_reduce) = self.all_reduces.get_mut(bucket.index()) else {
            return Ok(bucket.all_reduce(comm)?);
        };
        self.host.read(comm, bucket)?;
        all_reduce.all_reduce(comm, &mut self.host.elements, ReduceOp::Avg)?;
        Ok(self.host.write(comm, bucket)?)
    }

    fn set_plan(&mut self, _: &[Parameter], plan: &BucketPlan) {
        let old = std::mem::take(&mut self.all_reduces);
        let residuals: Vec<&[f32]> = old.iter().map(EncodedAllReduce::residual).collect();
        for (number, bucket) in plan.buckets().iter().enumerate() {
            let mut all_reduce = EncodedAllReduce::new(self.codec).error_feedback(self.feedback);
            if self.feedback {
                let mut residual = vec![0.0; bucket.len()];
                if let Some(old) = &self.plan {
                    collect(&mut residual, number, plan, old, &residuals);
                }
                all_reduce.set_residual(residual);
            }
            self.all_reduces.push(all_reduce);
        }
        self.plan = Some(plan.clone());
    }

    fn rescale(&mut self, factor: f64) {
        for all_reduce in &mut self.all_reduces {
            let scaled = all_reduce.residual().iter().map(|error| (f64::from(*error) * factor) as f32);
            all_reduce.set_residual(scaled.collect());
        }
    }
}

/// Copies the numbers of the gradients of bucket `number` from the buckets of another plan of the
/// same parameters.
fn collect(into: &mut [f32], number: usize, plan: &BucketPlan, old: &BucketPlan, from: &[&[f32]]) {
    for &slot in plan.buckets()[number].slots() {
        let (new, old) = (&plan.locations()[slot], &old.locations()[slot]);
        let numbers = from.get(old.bucket).and_then(|bucket| bucket.get(old.elements.clone()));
        if let (Some(into), Some(numbers)) = (into.get_mut(new.elements.clone()), numbers) {
            into.copy_from_slice(numbers);
        }
    }
}
