//! Cases of messages between two ranks, and of batches.

use comm_core::{Call, Counts, ReduceOp};

use crate::context::{RankContext, in_place, separate};
use crate::error::{During, Outcome, equal, refused, same_bits};

/// Every rank sends to the next one and receives from the previous one, which would deadlock
/// without a batch.
pub(super) fn ring(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    let (rank, size) = (ctx.rank, ctx.size);
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    for count in [1, 1025, 1 << 20] {
        let ours = ctx.buffer(&vec![rank as u64 + 1; count])?;
        let mut theirs = ctx.zeros::<u64>(count)?;
        let mut batch = comm.batch();
        batch.send(next, ours.view())?.recv(before, theirs.view_mut())?;
        batch.run(&ctx.options())?;
        same_bits(format!("{count} x u64"), &theirs.to_vec()?, &vec![before as u64 + 1; count])?;
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

pub(super) fn in_order(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    for value in 0..20_i16 {
        match ctx.rank {
            0 => comm.send(1, ctx.buffer(&[value, -value])?.view(), &ctx.options())?,
            1 => {
                let mut buffer = ctx.zeros::<i16>(2)?;
                comm.recv(0, buffer.view_mut(), &ctx.options())?;
                same_bits(format!("message {value}"), &buffer.to_vec()?, &[value, -value])?;
            }
            _ => {}
        }
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

pub(super) fn batch(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    let (rank, size) = (ctx.rank, ctx.size);
    let (mut total, mut largest) = (ctx.buffer(&[1_i32, 2])?, ctx.buffer(&[(size - rank) as u8])?);
    let (mut broadcast_buffer, ours) = (ctx.buffer(&[rank as i64 + 7])?, ctx.buffer(&[rank as u16])?);
    let (mut all, mut block) = (ctx.zeros::<u16>(size)?, ctx.zeros::<f64>(1)?);
    let blocks = ctx.buffer(&vec![1.5_f64; size])?;
    let mut halves = ctx.buffer(&[rank as f32])?;
    let mut batch = comm.batch();
    let wrong = batch.send(size, ours.view()).map(drop);
    refused("a message to a rank that does not exist", wrong)?;
    batch
        .add(Call::AllReduce { buffers: in_place(&mut total), op: ReduceOp::Sum })?
        .add(Call::Reduce { root: size - 1, buffers: in_place(&mut largest), op: ReduceOp::Max })?
        .add(Call::AllReduce { buffers: in_place(&mut halves), op: ReduceOp::PreMulSum(0.5) })?
        .add(Call::Broadcast { root: size - 1, buffer: broadcast_buffer.view_mut() })?
        .add(Call::AllGather { buffers: separate(&ours, &mut all), counts: Counts::Equal })?
        .add(Call::ReduceScatter {
            buffers: separate(&blocks, &mut block),
            counts: Counts::Equal,
            op: ReduceOp::Sum,
        })?;
    batch.run(&ctx.options()).during("the batch")?;
    let n = size as i32;
    equal("the sum", total.to_vec()?, vec![n, 2 * n])?;
    let kept = if rank == size - 1 { size } else { size - rank };
    equal("the maximum on its root", largest.to_vec()?, vec![kept as u8])?;
    equal("the sum of halves", halves.to_vec()?, vec![(size * (size - 1)) as f32 / 4.0])?;
    equal("the broadcast", broadcast_buffer.to_vec()?, vec![size as i64 + 6])?;
    equal("the gathered", all.to_vec()?, (0..size as u16).collect())?;
    equal("the block", block.to_vec()?, vec![size as f64 * 1.5])?;
    comm.batch().run(&ctx.options()).during("an empty batch")?;
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}
