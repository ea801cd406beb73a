//! Cases of invalid calls, which fail before NCCL is called.

use comm_core::{Buffers, Call, CallOptions, Communicator, Error, ReduceOp, ReduceOrder, Result};
use comm_nccl::{Cuda, NcclCommunicator};
use comm_sim::communicator_conformance::refuses_invalid_calls;

use super::conformance::DeviceMember;
use crate::context::{RankContext, in_place};
use crate::error::{Outcome, ensure, refused};

pub(super) fn refused_calls(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    for (what, outcome) in all(ctx, &comm)? {
        let error = refused(what, outcome)?;
        ensure(matches!(error, Error::Invalid(_)), || format!("{what}: {error}"))?;
    }
    refuses_invalid_calls(&DeviceMember::new(ctx, &comm))?;
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// Returns each call with its result.
fn all(ctx: &RankContext, comm: &NcclCommunicator) -> Result<Vec<(&'static str, Result<()>)>> {
    let (options, size) = (&ctx.options(), ctx.size);
    let (mut floats, mut words) = (ctx.zeros::<f32>(2)?, ctx.zeros::<i16>(2)?);
    let mut bytes = ctx.zeros::<u8>(2)?;
    let run = |buffers: Buffers<'_, Cuda>, op, options: &CallOptions| {
        comm.run(Call::AllReduce { buffers, op }, options)
    };
    let ring = options.clone().algorithm("ring");
    let ordered = options.clone().order(ReduceOrder::Deterministic);
    Ok(vec![
        ("a message to no rank", comm.send(size, floats.view(), options)),
        ("a message from no rank", comm.recv(size, floats.view_mut(), options)),
        ("a sum of i16", run(in_place(&mut words), ReduceOp::Sum, options)),
        ("bits of bytes", run(in_place(&mut bytes), ReduceOp::BitXor, options)),
        ("an average of bytes", run(in_place(&mut bytes), ReduceOp::Avg, options)),
        ("another backend's algorithm", run(in_place(&mut floats), ReduceOp::Sum, &ring)),
        ("an order", run(in_place(&mut floats), ReduceOp::Sum, &ordered)),
    ])
}
