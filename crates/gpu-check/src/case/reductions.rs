//! Cases of reductions, compared bit for bit.

use comm_core::{Buffers, Call, Communicator, Counts, Error, ReduceOp};
use comm_nccl::NcclCommunicator;
use comm_sim::exact::{Small, arithmetic, contribution, elements, of_rank, reduced};
use comm_sim::for_each_reduced;

use crate::context::{RankContext, in_place, separate};
use crate::error::{CaseError, During, Outcome, same_bits};

/// Zero, one, and counts around the size of a thread block.
const COUNTS: [usize; 5] = [0, 1, 1023, 1024, 1025];

/// Returns the contribution of this rank and the expected result.
fn both<T: Small>(ctx: &RankContext, op: ReduceOp, count: usize) -> (Vec<T>, Vec<T>) {
    let ours = elements(0..count, |index| contribution(op, ctx.size, ctx.rank, index));
    (ours, elements(0..count, |index| reduced(op, ctx.size, index)))
}

pub(super) fn all_reduce(ctx: &RankContext) -> Outcome {
    fn of_type<T: Small>(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
        for (op, count) in arithmetic::<T>().flat_map(|op| COUNTS.map(|count| (op, count))) {
            let what = format!("{op} of {count} x {}", T::DTYPE);
            sum_twice::<T>(ctx, comm, op, count).during(what)?;
        }
        Ok(())
    }
    let comm = ctx.connect()?;
    for_each_reduced!(T => of_type::<T>(ctx, &comm)?);
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// In place, and out of place.
fn sum_twice<T: Small>(ctx: &RankContext, comm: &NcclCommunicator, op: ReduceOp, count: usize) -> Outcome {
    let (ours, wanted) = both::<T>(ctx, op, count);
    let op = of_rank(op, ctx.rank);
    let (mut buffer, mut recv) = (ctx.buffer(&ours)?, ctx.zeros(count)?);
    comm.run(Call::AllReduce { buffers: separate(&buffer, &mut recv), op }, &ctx.options())?;
    same_bits("what was received", &recv.to_vec()?, &wanted)?;
    same_bits("what was sent", &buffer.to_vec()?, &ours)?;
    comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op }, &ctx.options())?;
    same_bits("in place", &buffer.to_vec()?, &wanted)
}

pub(super) fn reduce(ctx: &RankContext) -> Outcome {
    fn of_type<T: Small>(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
        for (op, root) in arithmetic::<T>().flat_map(|op| (0..ctx.size).map(move |root| (op, root))) {
            reduce_to::<T>(ctx, comm, op, root).during(format!("{op} of {} to {root}", T::DTYPE))?;
        }
        Ok(())
    }
    let comm = ctx.connect()?;
    for_each_reduced!(T => of_type::<T>(ctx, &comm)?);
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

fn reduce_to<T: Small>(ctx: &RankContext, comm: &NcclCommunicator, op: ReduceOp, root: usize) -> Outcome {
    let count = 1025;
    let (ours, result) = both::<T>(ctx, op, count);
    let (is_root, op) = (ctx.rank == root, of_rank(op, ctx.rank));
    let (mut buffer, mut recv) = (ctx.buffer(&ours)?, ctx.zeros::<T>(count)?);
    let buffers = if is_root { separate(&buffer, &mut recv) } else { Buffers::SendOnly(buffer.view()) };
    comm.run(Call::Reduce { root, buffers, op }, &ctx.options())?;
    let untouched = elements(0..count, |_| 0);
    same_bits("what was received", &recv.to_vec()?, if is_root { &result } else { &untouched })?;
    same_bits("what was sent", &buffer.to_vec()?, &ours)?;
    comm.run(Call::Reduce { root, buffers: in_place(&mut buffer), op }, &ctx.options())?;
    same_bits("in place", &buffer.to_vec()?, if is_root { &result } else { &ours })
}

pub(super) fn reduce_scatter(ctx: &RankContext) -> Outcome {
    fn of_type<T: Small>(
        ctx: &RankContext,
        comm: &NcclCommunicator,
        (counts, shares): (&[usize], Counts<'_>),
    ) -> Outcome {
        for op in arithmetic::<T>() {
            let what = format!("{op} of {counts:?} x {}", T::DTYPE);
            scatter_twice::<T>(ctx, comm, op, (counts, shares)).during(what)?;
        }
        Ok(())
    }
    let comm = ctx.connect()?;
    for count in [0, 1, 1023] {
        let counts = vec![count; ctx.size];
        for_each_reduced!(T => of_type::<T>(ctx, &comm, (&counts, Counts::Equal))?);
    }
    let counts: Vec<usize> = (0..ctx.size).map(|rank| (rank * 700 + 3) % 1100).collect();
    for_each_reduced!(T => of_type::<T>(ctx, &comm, (&counts, Counts::PerRank(&counts)))?);
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

fn scatter_twice<T: Small>(
    ctx: &RankContext,
    comm: &NcclCommunicator,
    op: ReduceOp,
    (counts, shares): (&[usize], Counts<'_>),
) -> Outcome {
    let start: usize = counts[..ctx.rank].iter().sum();
    let block = start..start + counts[ctx.rank];
    let (ours, all) = both::<T>(ctx, op, counts.iter().sum());
    let wanted = &all[block.clone()];
    let op = of_rank(op, ctx.rank);
    let (mut send, mut recv) = (ctx.buffer(&ours)?, ctx.zeros(block.len())?);
    comm.run(
        Call::ReduceScatter { buffers: separate(&send, &mut recv), counts: shares, op },
        &ctx.options(),
    )?;
    same_bits("what was received", &recv.to_vec()?, wanted)?;
    same_bits("what was sent", &send.to_vec()?, &ours)?;
    comm.run(Call::ReduceScatter { buffers: in_place(&mut send), counts: shares, op }, &ctx.options())?;
    same_bits("in place", &send.slice(block)?.to_vec()?, wanted)
}

pub(super) fn eight_bits(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    small::<float8::F8E4M3>(ctx, &comm)?;
    small::<float8::F8E5M2>(ctx, &comm)?;
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// Ones and twos: the sum of four of them has no more bits than the smallest type.
fn small<T: Small>(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
    let number = |rank: usize, index: usize| 1 + ((rank + index) % 2) as i64;
    for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
        let all = |index| (0..ctx.size).map(move |rank| number(rank, index));
        let wanted: Vec<T> = elements(0..1025, |index| match op {
            ReduceOp::Min => all(index).fold(i64::MAX, i64::min),
            ReduceOp::Max => all(index).fold(i64::MIN, i64::max),
            _ => all(index).sum(),
        });
        let mut buffer = ctx.buffer(&elements::<T>(0..1025, |index| number(ctx.rank, index)))?;
        match comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op }, &ctx.options()) {
            // An older library, or a device that cannot.
            Err(error @ Error::Invalid(_)) => return Err(CaseError::NotRun(error.to_string())),
            outcome => outcome?,
        }
        same_bits(format!("{op} of {}", T::DTYPE), &buffer.to_vec()?, &wanted)?;
    }
    Ok(())
}

/// Long enough that it is cut into pieces, on every path that there is between ranks.
pub(super) fn large(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    for count in [(4 << 20) - 1, (16 << 20) + 5] {
        sum_twice::<f32>(ctx, &comm, ReduceOp::Sum, count).during(format!("{count} x f32"))?;
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}
