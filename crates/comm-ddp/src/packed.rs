//! Values that are sent together, in a few large messages.

use comm_core::{AsViewMut, Comm, Kernels, ReduceOp};

use crate::bucket_buffer::{BucketBuffer, BucketCollective};
use crate::{BucketLimits, BucketPlan, ParameterSet, Result};

/// Memory into which values are copied to be sent, one type after another.
#[derive(Debug)]
pub(crate) struct Packed<M: Kernels> {
    pub(crate) set: ParameterSet,
    plan: BucketPlan,
    memory: Vec<BucketBuffer<M>>,
}

impl<M: Kernels> Packed<M> {
    /// Allocates memory for the values of a set, which are sent in messages of up to these sizes.
    pub(crate) fn new(comm: &Comm<M>, set: ParameterSet, limits: BucketLimits) -> Result<Self> {
        let plan = BucketPlan::new(set.sorted(), &[], limits);
        let buffer = |bucket: &crate::Bucket| {
            BucketBuffer::new(comm, bucket.dtype(), bucket.len(), 0, BucketCollective::AllReduce)
        };
        let memory = plan.buckets().iter().map(buffer).collect::<comm_core::Result<_>>()?;
        Ok(Self { set, plan, memory })
    }

    /// Sends the values of rank `root` to all. There is one value per parameter, in the order of
    /// registration.
    pub(crate) fn broadcast<V: AsViewMut<M>>(
        &mut self,
        comm: &Comm<M>,
        root: usize,
        values: &mut [V],
    ) -> Result<()> {
        for (number, memory) in self.memory.iter_mut().enumerate() {
            broadcast(comm, root, (&self.set, &self.plan, number), memory, values)?;
        }
        Ok(())
    }

    /// Gives all ranks the mean of the values of the ranks for which `counts` is true. Values
    /// without a mean, such as integers, are taken from the first of these ranks.
    pub(crate) fn average<V: AsViewMut<M>>(
        &mut self,
        comm: &Comm<M>,
        counts: &[bool],
        values: &mut [V],
    ) -> Result<()> {
        let counted = counts.iter().filter(|counts| **counts).count();
        let first = counts.iter().position(|counts| *counts).unwrap_or(0);
        for (number, memory) in self.memory.iter_mut().enumerate() {
            let bucket = (&self.set, &self.plan, number);
            if ReduceOp::Avg.check(self.plan.buckets()[number].dtype()).is_err() {
                broadcast(comm, first, bucket, memory, values)?;
                continue;
            }
            if counts[comm.rank()] {
                pack(comm, bucket, memory, values)?;
            } else {
                M::zero(comm, memory.gradients().into_view()?)?;
            }
            comm.all_reduce(&mut memory.gradients(), ReduceOp::Avg)?;
            if counted < counts.len() {
                let factor = counts.len() as f64 / counted.max(1) as f64;
                M::scale(comm, memory.gradients().into_view()?, factor)?;
            }
            unpack(comm, bucket, memory, values)?;
        }
        Ok(())
    }
}

/// Sends the values of rank `root` to all, through memory for one message at a time.
pub(crate) fn broadcast_once<M: Kernels, V: AsViewMut<M>>(
    comm: &Comm<M>,
    root: usize,
    (set, limits): (&ParameterSet, BucketLimits),
    values: &mut [V],
) -> Result<()> {
    let plan = BucketPlan::new(set.sorted(), &[], limits);
    for (number, bucket) in plan.buckets().iter().enumerate() {
        let mut memory =
            BucketBuffer::new(comm, bucket.dtype(), bucket.len(), 0, BucketCollective::AllReduce)?;
        broadcast(comm, root, (set, &plan, number), &mut memory, values)?;
    }
    Ok(())
}

/// A bucket: parameters, plan and number.
type BucketOf<'p> = (&'p ParameterSet, &'p BucketPlan, usize);

/// Sends the values of a bucket of rank `root` to all, through the memory of the bucket.
pub(crate) fn broadcast<M: Kernels, V: AsViewMut<M>>(
    comm: &Comm<M>,
    root: usize,
    bucket: BucketOf<'_>,
    memory: &mut BucketBuffer<M>,
    values: &mut [V],
) -> Result<()> {
    stage(comm, root, bucket, memory, values)?;
    if comm.rank() == root { Ok(()) } else { unpack(comm, bucket, memory, values) }
}

/// Sends the values of a bucket of rank `root` to the memory of the bucket on all ranks.
pub(crate) fn stage<M: Kernels, V: AsViewMut<M>>(
    comm: &Comm<M>,
    root: usize,
    bucket: BucketOf<'_>,
    memory: &mut BucketBuffer<M>,
    values: &mut [V],
) -> Result<()> {
    if comm.rank() == root {
        pack(comm, bucket, memory, values)?;
    }
    Ok(comm.broadcast(root, &mut memory.gradients())?)
}

fn pack<M: Kernels, V: AsViewMut<M>>(
    comm: &Comm<M>,
    bucket: BucketOf<'_>,
    memory: &mut BucketBuffer<M>,
    values: &mut [V],
) -> Result<()> {
    for_each(bucket, values, |elements, value| {
        Ok(M::copy(comm, memory.elements(elements).into_view()?, M::into_view(value))?)
    })
}

/// Copies the values of a bucket from its memory.
pub(crate) fn unpack<M: Kernels, V: AsViewMut<M>>(
    comm: &Comm<M>,
    bucket: BucketOf<'_>,
    memory: &BucketBuffer<M>,
    values: &mut [V],
) -> Result<()> {
    for_each(bucket, values, |elements, value| Ok(M::copy(comm, value, memory.view(elements)?)?))
}

/// Calls a function with the elements of each parameter of a bucket, and its value.
fn for_each<M: Kernels, V: AsViewMut<M>>(
    (set, plan, number): BucketOf<'_>,
    values: &mut [V],
    mut visit: impl FnMut(std::ops::Range<usize>, M::ViewMut<'_>) -> Result<()>,
) -> Result<()> {
    for (slot, value) in set.slots().iter().zip(values) {
        let location = &plan.locations()[*slot];
        if location.bucket == number {
            visit(location.elements.clone(), value.as_view_mut()?)?;
        }
    }
    Ok(())
}
