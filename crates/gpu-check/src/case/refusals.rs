//! Cases of invalid calls, which fail before NCCL is called.

use comm_core::{Buffers, Call, Communicator, Counts, Error, ReduceOp, ReduceOrder, Result};
use comm_nccl::NcclCommunicator;

use crate::context::{RankContext, in_place, separate};
use crate::error::{Outcome, ensure, refused, same_bits};

pub(super) fn refused_calls(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    for (what, outcome) in all(ctx, &comm)? {
        let error = refused(what, outcome)?;
        ensure(matches!(error, Error::Invalid(_)), || format!("{what}: {error}"))?;
    }
    let mut buffer = ctx.buffer(&[1_u8])?;
    comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &ctx.options())?;
    same_bits("a sum after all that", &buffer.to_vec()?, &[ctx.size as u8])?;
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// Returns each call with its result.
fn all(ctx: &RankContext, comm: &NcclCommunicator) -> Result<Vec<(&'static str, Result<()>)>> {
    let (rank, size) = (ctx.rank, ctx.size);
    let (options, equal) = (&ctx.options(), Counts::Equal);
    let (floats, mut short) = (ctx.zeros::<f32>(2)?, ctx.zeros::<f32>(2 * size + 1)?);
    let (numbers, mut words) = (ctx.zeros::<i32>(2)?, ctx.zeros::<i16>(2)?);
    let mut bytes = ctx.zeros::<u8>(2)?;
    let (mut ring, mut ordered) = (options.clone(), options.clone());
    ring.algorithm = Some("ring".into());
    ordered.order = ReduceOrder::Deterministic;
    let unlike = Buffers::Separate { send: numbers.view(), recv: short.view_mut() };
    let types = comm.run(Call::AllReduce { buffers: unlike, op: ReduceOp::Sum }, options);
    Ok(vec![
        ("a sum of integers into floats", types),
        (
            "a long buffer for a gather",
            comm.run(Call::AllGather { buffers: separate(&floats, &mut short), counts: equal }, options),
        ),
        (
            "a long buffer for a sum",
            comm.run(Call::AllReduce { buffers: separate(&floats, &mut short), op: ReduceOp::Sum }, options),
        ),
        (
            "counts too few",
            comm.run(
                Call::AllGather { buffers: separate(&floats, &mut short), counts: Counts::PerRank(&[]) },
                options,
            ),
        ),
        ("counts that overflow", {
            let counts = vec![usize::MAX; size];
            comm.run(
                Call::AllGather { buffers: separate(&floats, &mut short), counts: Counts::PerRank(&counts) },
                options,
            )
        }),
        ("unequal lengths in a turn", {
            comm.run(
                Call::AllToAll { buffers: separate(&floats, &mut short), send: equal, recv: equal },
                options,
            )
        }),
        (
            "a gather to a short buffer",
            comm.run(
                Call::Gather { root: rank, buffers: separate(&floats, &mut short), counts: equal },
                options,
            ),
        ),
        (
            "a root that is none",
            comm.run(Call::Broadcast { root: size + 3, buffer: short.view_mut() }, options),
        ),
        ("a message to nobody", comm.send(size, floats.view(), options)),
        ("a message from nobody", comm.recv(size, short.view_mut(), options)),
        (
            "a sum of i16",
            comm.run(Call::AllReduce { buffers: in_place(&mut words), op: ReduceOp::Sum }, options),
        ),
        (
            "bits of bytes",
            comm.run(Call::AllReduce { buffers: in_place(&mut bytes), op: ReduceOp::BitXor }, options),
        ),
        (
            "an average of bytes",
            comm.run(Call::AllReduce { buffers: in_place(&mut bytes), op: ReduceOp::Avg }, options),
        ),
        (
            "another's algorithm",
            comm.run(Call::AllReduce { buffers: in_place(&mut short), op: ReduceOp::Sum }, &ring),
        ),
        (
            "an order",
            comm.run(Call::AllReduce { buffers: in_place(&mut short), op: ReduceOp::Sum }, &ordered),
        ),
    ])
}
