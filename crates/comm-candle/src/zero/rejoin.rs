//! Continues with another group of ranks, after one was lost or has joined.

use candle_nn::VarMap;
use comm_core::{Comm, Host};
use comm_ddp::{Optimizer, Parameter, ParameterSet, Scalar};

use super::{Sharded, Start, ZeroOptimizer};
use crate::error::or_abort;
use crate::memory::{read, write};
use crate::variables::{Variable, Variables};
use crate::{Options, Result};

/// The number of steps of a rank that has just joined.
const NO_STEPS: u64 = u64::MAX;

impl<O: Optimizer<f32> + Optimizer<f64>> ZeroOptimizer<O> {
    /// Prepares an optimizer for a process that joins a running group. It has no state, and every
    /// step fails, until [`ZeroOptimizer::rejoin`] has returned. This is not a collective. All
    /// ranks use the options of those that have state; `optimizer` returns the settings that these
    /// have at the time.
    ///
    /// # Errors
    /// [`Error::Type`](crate::Error::Type), [`Error::Place`](crate::Error::Place) and
    /// [`Error::NotUpdated`](crate::Error::NotUpdated) as [`ZeroOptimizer::new`];
    /// [`Error::Ranks`](crate::Error::Ranks) without a thread or memory.
    pub fn newcomer(
        variables: &VarMap,
        comm: &Comm,
        options: Options,
        optimizer: impl Fn(&Parameter) -> O,
    ) -> Result<Self> {
        let variables = Variables::local::<Host>(variables)?;
        Self::assemble(comm.clone(), variables, options, optimizer, Start::Newcomer)
    }

    /// Continues with another group of ranks, with the state of the optimizer divided anew among
    /// them, and returns the number of steps: after [`Comm::shrink`], or after an `ElasticGroup` of
    /// `comm` has grown. This is a collective: every rank of the group calls it, on an optimizer
    /// that has been in use or on one from [`ZeroOptimizer::newcomer`].
    ///
    /// When it returns, all ranks have the variables and the state after the same number of steps,
    /// with the bits that they had. Some ranks may have completed one step more than others when
    /// the last group failed, so a program has to continue from the number of steps that this
    /// returns. Variables of integers are those of a rank that has made as many.
    ///
    /// With [`Options::replicate_state`], one rank may be lost, or several that are not consecutive
    /// ranks of the former group; the last one precedes rank 0. The copies are made in the second
    /// step. Without the option ranks may join, but none may be lost.
    /// [`comm_ddp::ZeroOptimizer::rejoin`] describes this and the cost; besides, this needs memory
    /// for a copy of the variables.
    ///
    /// # Errors
    /// [`Error::Ranks`](crate::Error::Ranks) on every rank if the state of a lost rank is gone, if
    /// the models or the optimizers of the ranks differ, or if communication failed;
    /// [`Error::Changed`](crate::Error::Changed) and [`Error::Candle`](crate::Error::Candle), in
    /// which case the others get [`Error::Ranks`](crate::Error::Ranks). This rank still has its
    /// state, and may call this again with another group.
    pub fn rejoin(&mut self, comm: &Comm) -> Result<u64> {
        let comm = comm.duplicate()?;
        or_abort(&comm, self.variables.check_unchanged())?;
        let described = ParameterSet::new(self.variables.sorted().iter().map(Variable::parameter))?;
        comm_ddp::check_parameters(&comm, &described)?;
        let former_steps = comm.all_gather_scalar(if self.has_joined { self.steps() } else { NO_STEPS })?;
        let trained = &self.trained;
        let rejoined = with_sharded!(&mut self.sharded, |zero| rejoin(zero, trained, &comm));
        or_abort(&comm, rejoined)?;
        let source = source(&former_steps, self.steps());
        let Options { max_norm, lost_gradients, .. } = self.options().agree(&comm, source)?;
        (self.max_norm, self.lost_gradients) = (max_norm, lost_gradients);
        or_abort(&comm, self.broadcast_integers(&comm, source))?;
        (self.comm, self.has_joined) = (comm, true);
        Ok(self.steps())
    }

    /// Returns the options that `comm-ddp` does not have.
    fn options(&self) -> Options {
        Options::DEFAULT.max_norm(self.max_norm).lost_gradients(self.lost_gradients)
    }

    /// Broadcasts the variables that are not trained.
    fn broadcast_integers(&self, comm: &Comm, root: usize) -> Result<()> {
        let integers = self.variables.sorted().iter().filter(|variable| !variable.dtype.is_float());
        integers.into_iter().try_for_each(|variable| {
            Ok(write(&variable.var, |mut elements| comm.broadcast(root, &mut elements))??)
        })
    }
}

/// Returns a rank that has made this many steps, or else one that has been in a group before.
fn source(former_steps: &[u64], steps: u64) -> usize {
    let find = |is_it: &dyn Fn(u64) -> bool| former_steps.iter().position(|former| is_it(*former));
    find(&|former| former == steps).or_else(|| find(&|former| former != NO_STEPS)).unwrap_or_default()
}

/// Continues with copies of the variables, which candle gives access to one by one.
fn rejoin<T: Scalar, O: Optimizer<T>>(
    zero: &mut comm_ddp::ZeroOptimizer<T, O>,
    trained: &[Variable],
    comm: &Comm,
) -> Result<()> {
    let copy = |variable: &Variable| {
        read(&variable.var, |elements| elements.elements::<T>().unwrap_or_default().to_vec())
    };
    let mut values = trained.iter().map(copy).collect::<candle_core::Result<Vec<Vec<T>>>>()?;
    let rejoined = zero.rejoin(comm, values.iter_mut().map(|values| &mut values[..]));
    // Also after an error: if the rank has completed its last step here, the values are new.
    for (variable, values) in trained.iter().zip(&values) {
        write(&variable.var, |elements| {
            elements.into_elements().unwrap_or_default().copy_from_slice(values);
        })?;
    }
    Ok(rejoined?)
}
