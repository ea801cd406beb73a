//! Collectives that move elements as they are, of every type.

use comm_core::{Call, Communicator, Counts};
use comm_nccl::{DeviceBuffer, NcclCommunicator};
use comm_sim::exact::{Small, block, joined};
use comm_sim::for_each_type;

use crate::context::{RankContext, in_place, separate};
use crate::error::{During, Outcome, same_bits};

/// Counts per rank, and whether they are told or equal.
type BlockLengths = (Vec<usize>, bool);

fn counts_of(size: usize) -> Vec<BlockLengths> {
    let equal = [0, 1, 1025].map(|count| (vec![count; size], true));
    let unequal = (0..size).map(|rank| (rank * 300 + 2) % 700).collect();
    equal.into_iter().chain([(unequal, false)]).collect()
}

fn shares((counts, equal): &BlockLengths) -> Counts<'_> {
    if *equal { Counts::Equal } else { Counts::PerRank(counts) }
}

/// All blocks of a buffer, of which this rank's is filled.
fn with_block<T: Small>(ctx: &RankContext, counts: &[usize], ours: &[T]) -> Outcome<DeviceBuffer<T>> {
    let start = counts[..ctx.rank].iter().sum::<usize>();
    let mut all = ctx.zeros(counts.iter().sum())?;
    all.slice_mut(start..start + ours.len())?.copy_from_host(ours)?;
    Ok(all)
}

pub(super) fn broadcast(ctx: &RankContext) -> Outcome {
    fn of_type<T: Small>(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
        for (root, count) in (0..ctx.size).flat_map(|root| [0, 1, 1025].map(|count| (root, count))) {
            let mut buffer = ctx.buffer(&block::<T>(ctx.rank, 0, count))?;
            comm.run(Call::Broadcast { root, buffer: buffer.view_mut() }, &ctx.options())?;
            let what = format!("{count} x {} from {root}", T::DTYPE);
            same_bits(what, &buffer.to_vec()?, &block::<T>(root, 0, count))?;
        }
        Ok(())
    }
    let comm = ctx.connect()?;
    for_each_type!(T => of_type::<T>(ctx, &comm)?);
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

pub(super) fn all_gather(ctx: &RankContext) -> Outcome {
    fn of_type<T: Small>(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
        for told in counts_of(ctx.size) {
            let counts = &told.0;
            let ours: Vec<T> = block(ctx.rank, 0, counts[ctx.rank]);
            let wanted = joined(counts, |from, count| block::<T>(from, 0, count));
            let what = format!("{counts:?} x {}", T::DTYPE);
            let (send, mut recv) = (ctx.buffer(&ours)?, ctx.zeros(wanted.len())?);
            comm.run(
                Call::AllGather { buffers: separate(&send, &mut recv), counts: shares(&told) },
                &ctx.options(),
            )?;
            same_bits(&what, &recv.to_vec()?, &wanted)?;
            let mut all = with_block(ctx, counts, &ours)?;
            comm.run(Call::AllGather { buffers: in_place(&mut all), counts: shares(&told) }, &ctx.options())?;
            same_bits(format!("{what} in place"), &all.to_vec()?, &wanted)?;
        }
        Ok(())
    }
    let comm = ctx.connect()?;
    for_each_type!(T => of_type::<T>(ctx, &comm)?);
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// Every root, with all counts.
fn rooted(size: usize) -> impl Iterator<Item = (usize, BlockLengths)> {
    (0..size).flat_map(move |root| counts_of(size).into_iter().map(move |counts| (root, counts)))
}

pub(super) fn gather(ctx: &RankContext) -> Outcome {
    fn of_type<T: Small>(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
        for (root, told) in rooted(ctx.size) {
            let (counts, is_root) = (&told.0, ctx.rank == root);
            let ours: Vec<T> = block(ctx.rank, root, counts[ctx.rank]);
            let all = joined(counts, |from, count| block::<T>(from, root, count));
            // Others than the root are not asked for counts, and get nothing.
            let (said, wanted) = if is_root { (shares(&told), &all[..]) } else { (Counts::Equal, &[][..]) };
            let what = format!("{counts:?} x {} at {root}", T::DTYPE);
            let (send, mut recv) = (ctx.buffer(&ours)?, ctx.zeros(wanted.len())?);
            comm.run(
                Call::Gather { root, buffers: separate(&send, &mut recv), counts: said },
                &ctx.options(),
            )?;
            same_bits(&what, &recv.to_vec()?, wanted)?;
            let mut buffer = if is_root { with_block(ctx, counts, &ours)? } else { send };
            comm.run(Call::Gather { root, buffers: in_place(&mut buffer), counts: said }, &ctx.options())?;
            let wanted = if is_root { wanted } else { &ours[..] };
            same_bits(format!("{what} in place"), &buffer.to_vec()?, wanted)?;
        }
        Ok(())
    }
    let comm = ctx.connect()?;
    for_each_type!(T => of_type::<T>(ctx, &comm)?);
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

pub(super) fn scatter(ctx: &RankContext) -> Outcome {
    fn of_type<T: Small>(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
        for (root, told) in rooted(ctx.size) {
            let (counts, is_root) = (&told.0, ctx.rank == root);
            let all = joined(counts, |to, count| block::<T>(root, to, count));
            let wanted: Vec<T> = block(root, ctx.rank, counts[ctx.rank]);
            let (said, given) = if is_root { (shares(&told), &all[..]) } else { (Counts::Equal, &[][..]) };
            let what = format!("{counts:?} x {} from {root}", T::DTYPE);
            let (mut send, mut recv) = (ctx.buffer(given)?, ctx.zeros(wanted.len())?);
            comm.run(
                Call::Scatter { root, buffers: separate(&send, &mut recv), counts: said },
                &ctx.options(),
            )?;
            same_bits(&what, &recv.to_vec()?, &wanted)?;
            let mut again = ctx.zeros::<T>(wanted.len())?;
            let buffers = if is_root { in_place(&mut send) } else { in_place(&mut again) };
            comm.run(Call::Scatter { root, buffers, counts: said }, &ctx.options())?;
            let (kept, got) = (send.to_vec()?, again.to_vec()?);
            let (got, wanted) = if is_root { (&kept, &all) } else { (&got, &wanted) };
            same_bits(format!("{what} in place"), got, wanted)?;
        }
        Ok(())
    }
    let comm = ctx.connect()?;
    for_each_type!(T => of_type::<T>(ctx, &comm)?);
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

pub(super) fn all_to_all(ctx: &RankContext) -> Outcome {
    fn of_type<T: Small>(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
        let (rank, size) = (ctx.rank, ctx.size);
        let equal = [0, 1, 1025].map(|count| (vec![count; size], true));
        // As long to a rank as from it, so that it can be done in place.
        let unequal = (0..size).map(|peer| (peer.abs_diff(rank) * 300 + 2) % 700).collect();
        for told in equal.into_iter().chain([(unequal, false)]) {
            let counts = &told.0;
            let ours = joined(counts, |to, count| block::<T>(rank, to, count));
            let wanted = joined(counts, |from, count| block::<T>(from, rank, count));
            let what = format!("{counts:?} x {}", T::DTYPE);
            let (mut send, mut recv) = (ctx.buffer(&ours)?, ctx.zeros(ours.len())?);
            let (buffers, said) = (separate(&send, &mut recv), shares(&told));
            comm.run(Call::AllToAll { buffers, send: said, recv: said }, &ctx.options()).during(&what)?;
            same_bits(&what, &recv.to_vec()?, &wanted)?;
            comm.run(
                Call::AllToAll { buffers: in_place(&mut send), send: said, recv: said },
                &ctx.options(),
            )?;
            same_bits(format!("{what} in place"), &send.to_vec()?, &wanted)?;
        }
        Ok(())
    }
    let comm = ctx.connect()?;
    for_each_type!(T => of_type::<T>(ctx, &comm)?);
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}
