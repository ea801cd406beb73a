//! Calls that cannot be, which are refused before NCCL is asked.

use comm_core::{Communicator, Error, Exchange, ReduceOp, ReduceOrder, Result, Shares};
use comm_nccl::NcclCommunicator;

use crate::player::{Player, in_place, separate};
use crate::trouble::{Outcome, ensure, refused, same_bits};

pub(super) fn refused_calls(player: &Player) -> Outcome {
    let comm = player.connect()?;
    for (what, outcome) in all(player, &comm)? {
        let error = refused(what, outcome)?;
        ensure(matches!(error, Error::Invalid(_)), || format!("{what}: {error}"))?;
    }
    let mut buffer = player.buffer(&[1_u8])?;
    comm.all_reduce(in_place(&mut buffer), ReduceOp::Sum, &player.options())?;
    same_bits("a sum after all that", &buffer.to_vec()?, &[player.size as u8])?;
    Ok(comm.finalize(player.part.patience)?)
}

/// What each call was, and what it answered.
fn all(player: &Player, comm: &NcclCommunicator) -> Result<Vec<(&'static str, Result<()>)>> {
    let (rank, size) = (player.rank, player.size);
    let (options, equal) = (&player.options(), Shares::Equal);
    let (floats, mut short) = (player.zeros::<f32>(2)?, player.zeros::<f32>(2 * size + 1)?);
    let (numbers, mut words) = (player.zeros::<i32>(2)?, player.zeros::<i16>(2)?);
    let mut bytes = player.zeros::<u8>(2)?;
    let (mut ring, mut ordered) = (options.clone(), options.clone());
    ring.algorithm = Some("ring".into());
    ordered.order = ReduceOrder::Deterministic;
    let unlike = Exchange::Separate { send: numbers.view(), recv: short.view_mut() };
    let types = comm.all_reduce(unlike, ReduceOp::Sum, options);
    Ok(vec![
        ("a sum of integers into floats", types),
        ("a long buffer for a gather", comm.all_gather(separate(&floats, &mut short), equal, options)),
        ("a long buffer for a sum", comm.all_reduce(separate(&floats, &mut short), ReduceOp::Sum, options)),
        ("counts too few", comm.all_gather(separate(&floats, &mut short), Shares::Counts(&[]), options)),
        ("counts that overflow", {
            let counts = vec![usize::MAX; size];
            comm.all_gather(separate(&floats, &mut short), Shares::Counts(&counts), options)
        }),
        ("unequal lengths in a turn", {
            comm.all_to_all(separate(&floats, &mut short), equal, equal, options)
        }),
        ("a gather to a short buffer", comm.gather(rank, separate(&floats, &mut short), equal, options)),
        ("a root that is none", comm.broadcast(size + 3, short.view_mut(), options)),
        ("a message to nobody", comm.send(size, floats.view(), options)),
        ("a message from nobody", comm.recv(size, short.view_mut(), options)),
        ("a sum of i16", comm.all_reduce(in_place(&mut words), ReduceOp::Sum, options)),
        ("bits of bytes", comm.all_reduce(in_place(&mut bytes), ReduceOp::BitXor, options)),
        ("an average of bytes", comm.all_reduce(in_place(&mut bytes), ReduceOp::Avg, options)),
        ("another's algorithm", comm.all_reduce(in_place(&mut short), ReduceOp::Sum, &ring)),
        ("an order", comm.all_reduce(in_place(&mut short), ReduceOp::Sum, &ordered)),
    ])
}
