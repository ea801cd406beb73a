//! The state and the position in the data with which a group of ranks continues.

use comm::Comm;
use comm::ddp::SamplerState;

use crate::error::Result;
use crate::real::Real;
use crate::replicas::Replica;

/// The position with which a group continues.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Agreement {
    /// The rank that is at this position.
    pub(crate) root: usize,
    /// The number of steps of all epochs up to the position.
    pub(crate) steps: u64,
    pub(crate) position: SamplerState,
}

/// Returns the position of the rank that has completed the most steps, with that rank and its
/// number of steps. A rank in epoch 0 has no state.
pub(crate) fn agree_on_position(
    comm: &Comm,
    position: SamplerState,
    steps: u64,
    images: usize,
) -> Result<Agreement> {
    let own = [position.epoch, steps, position.consumed as u64];
    let mut all = vec![0; own.len() * comm.size()];
    comm.all_gather(&own, &mut all)?;
    let positions: Vec<[u64; 3]> = all.chunks_exact(3).map(|words| [words[0], words[1], words[2]]).collect();
    let with_state = || positions.iter().enumerate().filter(|(_, [epoch, ..])| *epoch > 0);
    // A rank that completed the last step of an epoch may be in the next one already. It evaluates
    // again with those that have not.
    let epoch = with_state().map(|(_, [epoch, ..])| *epoch).min().unwrap_or(1);
    let ahead = |(_, [epoch, steps, _]): &(usize, &[u64; 3])| (*steps, *epoch);
    let (root, &[root_epoch, steps, consumed]) =
        with_state().rev().max_by_key(ahead).unwrap_or((0, &[epoch, 0, 0]));
    let mut position = SamplerState::default();
    position.epoch = epoch;
    position.consumed = if root_epoch > epoch { images } else { consumed as usize };
    Ok(Agreement { root, steps, position })
}

/// Gives every rank the weights and the whole state of the optimizer of one rank.
pub(crate) fn copy_state<T: Real>(comm: &Comm, replica: &mut Replica<T>, agreed: &Agreement) -> Result<()> {
    let Replica { model, optimizer, .. } = replica;
    // Received as a whole, so that a failure leaves the state of one step.
    let mut state = Vec::new();
    model.parameters_mut().chain(optimizer.states_mut()).for_each(|part| state.extend_from_slice(part));
    comm.broadcast(agreed.root, &mut state)?;
    let mut rest = &state[..];
    for part in model.parameters_mut().chain(optimizer.states_mut()) {
        let (received, others) = rest.split_at(part.len());
        part.copy_from_slice(received);
        rest = others;
    }
    optimizer.set_steps(agreed.steps);
    Ok(())
}
