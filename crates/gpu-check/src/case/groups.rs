//! Cases of groups created from groups, and of buffers registered with NCCL.

use comm_core::{Call, Communicator, Error, Groups, Invalid, ReduceOp};
use comm_nccl::{Cuda, DeviceBuffer, NcclCommunicator, ShrinkMode};
use comm_sim::communicator_conformance::splits_into_groups;

use super::conformance::DeviceMember;
use crate::context::{RankContext, in_place};
use crate::error::{Outcome, equal, same_bits, unless_unavailable};

/// Returns the sum of `ours` over all ranks of a group.
fn sum(comm: &dyn Communicator<Cuda>, ctx: &RankContext, ours: i64) -> Outcome<i64> {
    let mut buffer = ctx.buffer(&[ours])?;
    comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &ctx.options())?;
    Ok(buffer.to_vec()?[0])
}

pub(super) fn split(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    splits_into_groups(&DeviceMember::new(ctx, &comm))?;
    let all = comm.duplicate(&ctx.options())?;
    equal("the sum over the parent", sum(&comm, ctx, 1)?, ctx.size as i64)?;
    comm.finalize(ctx.spec.call_timeout)?;
    equal("the sum over a group without its parent", sum(&*all, ctx, 2)?, 2 * ctx.size as i64)
}

/// All ranks except the last shrink the group.
pub(super) fn shrink(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    let (last, size) = (ctx.size - 1, ctx.size);
    equal("the sum over all", sum(&comm, ctx, 1)?, size as i64)?;
    if ctx.rank < last {
        let left = unless_unavailable(comm.shrink(&[last], ShrinkMode::Default, &ctx.options()))?;
        equal("how many are left", left.group().size(), last)?;
        equal("the sum over them", sum(&left, ctx, 3)?, 3 * last as i64)?;
        ctx.set_flag("shrunk")?;
    } else {
        // The parent must exist until the others have created their group.
        ctx.wait_for_flag("shrunk")?;
    }
    Ok(())
}

/// Most devices allocate memory in the order of a stream, which cannot be registered.
fn check_unregistrable(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
    match comm.register(&ctx.buffer(&[1_u8])?) {
        Ok(_) | Err(Error::Invalid(Invalid::Register { .. })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn registration(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    let ours: Vec<f32> = (0..1 << 20).map(|index| (index % 100) as f32).collect();
    let wanted: Vec<f32> = ours.iter().map(|number| number * ctx.size as f32).collect();
    check_unregistrable(ctx, &comm)?;
    for buffer_goes_first in [false, true] {
        let zeros = DeviceBuffer::by_nccl(&ctx.library, &ctx.stream, ours.len());
        let mut buffer = unless_unavailable(zeros)?;
        buffer.copy_from_host(&ours)?;
        let registered = unless_unavailable(comm.register(&buffer))?;
        comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &ctx.options())?;
        same_bits("the sum of a registered buffer", &buffer.to_vec()?, &wanted)?;
        // The memory is deregistered before it is freed, whichever is dropped first.
        if buffer_goes_first {
            drop(buffer);
            drop(registered);
        } else {
            drop(registered);
            comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Max }, &ctx.options())?;
            same_bits("the maximum afterwards", &buffer.to_vec()?, &wanted)?;
        }
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}
