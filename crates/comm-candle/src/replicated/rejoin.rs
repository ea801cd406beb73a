//! Continues with another group of ranks, after one was lost or has joined.

use comm_core::{Comm, HostView, HostViewMut};
use comm_ddp::{Optimizer, Parameter, ParameterSet};

use super::{ReplicatedOptimizer, States, Trained};
use crate::Result;
use crate::checkpoint::state_name;
use crate::error::or_abort;
use crate::memory::{read, write};

impl<O: Optimizer<f32> + Optimizer<f64>> ReplicatedOptimizer<O> {
    /// Continues with another group of ranks, for example after [`Comm::shrink`], or after an
    /// `ElasticGroup` of `comm` has grown. Gives all ranks the variables, the state and the number
    /// of steps of the rank with the most steps, and returns that number. A rank that has just
    /// joined has made none.
    ///
    /// This is a collective: all ranks of the group call it in the same place. Afterwards, create
    /// another [`DataParallel`](crate::DataParallel) for the group.
    ///
    /// A rank that is lost in a step leaves others that have made the step, and some that have not,
    /// so a program has to continue from the number of steps that this returns. A rank changes its
    /// variables and state only once it has received all of those of the other rank. So after an
    /// error, the ranks that remain shrink their group, and call this again.
    ///
    /// This takes memory for a copy of all variables and the state, and sends that in one
    /// broadcast.
    ///
    /// # Errors
    /// [`Error::Ranks`](crate::Error::Ranks) if the models or the optimizers of the ranks differ,
    /// or if communication failed; [`Error::Changed`](crate::Error::Changed), in which case the
    /// other ranks get [`Error::Ranks`](crate::Error::Ranks).
    pub fn rejoin(&mut self, comm: &Comm) -> Result<u64> {
        or_abort(comm, self.variables.check_unchanged())?;
        self.trained.iter_mut().for_each(Trained::resize_states);
        let parameters = ParameterSet::new(self.described())?;
        comm_ddp::check_parameters(comm, &parameters)?;
        let steps = comm.all_gather_scalar(self.steps)?;
        let most = steps.iter().copied().max().unwrap_or_default();
        let source = steps.iter().position(|steps| *steps == most).unwrap_or_default();
        let mut packed = or_abort(comm, self.packed())?;
        comm.broadcast(source, &mut packed[..])?;
        if comm.rank() != source {
            self.unpack(&packed)?;
            self.steps = most;
        }
        Ok(most)
    }

    /// Describes the variables and the state.
    fn described(&self) -> Vec<Parameter> {
        let variables = self.variables.sorted().iter().map(crate::variables::Variable::parameter);
        let states = self.trained.iter().flat_map(|trained| {
            let (dims, dtype) = (trained.variable.var.dims(), trained.variable.dtype);
            let name = |state| state_name(state, &trained.variable.name);
            trained.state_names().iter().map(move |state| Parameter::with_dtype(name(state), dims, dtype))
        });
        variables.chain(states).collect()
    }

    /// Returns a copy of the bytes of the variables and the state.
    fn packed(&self) -> Result<Vec<u8>> {
        let mut packed = Vec::new();
        for variable in self.variables.sorted() {
            read(&variable.var, |value| packed.extend_from_slice(value.bytes()))?;
        }
        for trained in &self.trained {
            match &trained.states {
                States::F32(states) => {
                    states.iter().for_each(|state| packed.extend_from_slice(HostView::new(state).bytes()));
                }
                States::F64(states) => {
                    states.iter().for_each(|state| packed.extend_from_slice(HostView::new(state).bytes()));
                }
            }
        }
        Ok(packed)
    }

    /// Replaces the variables and the state with another rank's, which has the same ones.
    fn unpack(&mut self, mut packed: &[u8]) -> Result<()> {
        let mut copy = |part: &mut [u8]| {
            if let Some((bytes, rest)) = packed.split_at_checked(part.len()) {
                part.copy_from_slice(bytes);
                packed = rest;
            }
        };
        for variable in self.variables.sorted() {
            write(&variable.var, |value| copy(value.into_bytes()))?;
        }
        for trained in &mut self.trained {
            match &mut trained.states {
                States::F32(states) => {
                    states.iter_mut().for_each(|state| copy(HostViewMut::new(state).into_bytes()));
                }
                States::F64(states) => {
                    states.iter_mut().for_each(|state| copy(HostViewMut::new(state).into_bytes()));
                }
            }
        }
        Ok(())
    }
}
