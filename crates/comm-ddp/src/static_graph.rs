//! The set of parameters that are used in every step.

use comm_core::{Comm, Kernels, wire};

use crate::agreement::all_gather;
use crate::{Error, ParameterSet, Result};

/// The set of used parameters, learned in the first step in which all ranks have a batch. From then
/// on it is no longer exchanged.
#[derive(Debug)]
pub(crate) struct StaticGraph {
    /// Whether this rank uses a parameter, by slot.
    pub(crate) own: Vec<bool>,
    /// Whether any rank uses it.
    pub(crate) any: Vec<bool>,
}

impl StaticGraph {
    /// Returns the error for a step in which some rank used other parameters than before. This is a
    /// collective. `used` are the parameters of this rank, or `None` if it has no batch.
    pub(crate) fn deviation<M: Kernels>(
        &self,
        comm: &Comm<M>,
        parameters: &ParameterSet,
        used: Option<&[bool]>,
    ) -> Result<Error> {
        let differs = |slot: &usize| used.is_some_and(|used| used[*slot] != self.own[*slot]);
        let slot = (0..self.own.len()).find(differs);
        let is_used = slot.is_some_and(|slot| !self.own[slot]);
        let own: [u8; 16] = wire::words([slot.map_or(u64::MAX, |slot| slot as u64), u64::from(is_used)]);
        let mut all = vec![0; own.len() * comm.size()];
        all_gather(comm, &own, &mut all)?;
        let all: Vec<[u64; 2]> = all.as_chunks::<16>().0.iter().map(wire::read_words).collect();
        let [slot, is_used] = all.iter().copied().min().unwrap_or([u64::MAX, 0]);
        let ranks = (0..all.len()).filter(|rank| all[*rank] == [slot, is_used]).collect();
        let parameter = usize::try_from(slot).ok().and_then(|slot| parameters.sorted().get(slot));
        Ok(parameter.map_or(Error::Abandoned, |parameter| Error::GraphChanged {
            name: parameter.name().to_owned(),
            is_used: is_used != 0,
            ranks,
        }))
    }
}
