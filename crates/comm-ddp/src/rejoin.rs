//! Sharded optimizers that continue in another group.

use comm_core::{AsViewMut, Comm, Membership};

use crate::agreement::Leader;
use crate::claim::{self, Claim, StateId, Takeover};
use crate::consensus::digest;
use crate::shard_state::{Content, ShardState};
use crate::shards::{self, Shards, inconsistent};
use crate::transfer::{Copies, Transfer};
use crate::zero::reduce_scatter;
use crate::{
    Bucket, DataParallel, Error, Optimizer, Options, Parameter, ParameterSet, Result, Scalar, ZeroOptimizer,
};

/// The state of a rank in another group, until it knows that all ranks have theirs.
#[derive(Debug)]
pub(crate) struct Incoming<T: Scalar> {
    pub(crate) state: ShardState<T>,
    /// Its buckets hold the parameters.
    replicas: DataParallel,
}

impl<T: Scalar, O: Optimizer<T>> ZeroOptimizer<T, O> {
    /// Prepares an optimizer for a process that joins a running group. It has no state, and every
    /// step fails, until [`ZeroOptimizer::rejoin`] has returned. This is not a collective. All
    /// ranks use the options of those that have state; `optimizer` returns the settings that these
    /// have at the time.
    ///
    /// # Errors
    /// [`Error::WrongType`] as [`ZeroOptimizer::new`]; [`Error::Comm`] without a thread or memory.
    pub fn newcomer(
        comm: &Comm,
        parameters: ParameterSet,
        options: Options,
        optimizer: impl Fn(&Parameter) -> O,
    ) -> Result<Self> {
        parameters.sorted().iter().try_for_each(shards::check_type::<T>)?;
        let optimizers: Vec<O> = parameters.sorted().iter().map(optimizer).collect();
        let options = options.follow_first_step(false);
        let order = Leader::first(&parameters).order;
        let mut replicas =
            DataParallel::assemble(comm.clone(), parameters, options, (reduce_scatter, &order))?;
        replicas.reducer.poison(Error::NotJoined);
        let mut shards = Shards::new(&replicas, optimizers);
        shards.state = ShardState::empty(replicas.member());
        Ok(Self { replicas, shards, incoming: None, is_modified: true })
    }

    /// Continues in another group with the state of the optimizer, which is divided anew among its
    /// ranks: after [`Comm::shrink`], or with processes that have joined. This is a collective:
    /// every rank of the group calls it, on an optimizer that has been in use or on one from
    /// [`ZeroOptimizer::newcomer`]. `values` holds one buffer per parameter, in the order of
    /// registration, frozen ones included.
    ///
    /// When it returns, all ranks have the parameters and the state after the same number of
    /// updates, [`ZeroOptimizer::steps`], with the bits that they had. Some ranks may have
    /// completed one update more than others when the last group failed. If the last update is not
    /// complete on any rank that remains, then all return to the one before, and the step has to be
    /// repeated; otherwise all complete it, also those where
    /// [`ShardedAverages::update`](crate::ShardedAverages::update) has failed. If all ranks are
    /// new, the run begins with the parameters of rank 0.
    ///
    /// With [`Options::replicate_state`], the state of a rank that was lost comes from the next
    /// rank of the former group (rank 0 follows the last one). Consecutive ranks must therefore not
    /// be lost together. A rank has no copy of a state that was just set: copies are made in the
    /// second step after [`ZeroOptimizer::new`] or [`ZeroOptimizer::set_steps`], and in the next
    /// step after [`ZeroOptimizer::state`]. Without the option, no rank may be lost, but ranks may
    /// join.
    ///
    /// Communication hooks and the buffers of the model must be registered again.
    ///
    /// # Cost of copies
    /// For `n` parameters on `size` ranks, a step also sends the averages of `n / size` elements to
    /// the next rank while backward runs, and updates twice as many elements. A rank needs memory
    /// for another `n / size` gradients, and four times as much as before for states: for its own
    /// and a copy, each before and after an update. The second step after the state was set sends
    /// `n / size` elements per state.
    ///
    /// A call of this function sends the parameters to all ranks, and about `2 n / size` elements
    /// per state to each. It needs the memory of the buckets twice.
    ///
    /// ```
    /// use comm::{Comm, ShrinkOptions};
    /// use comm_ddp::{AdamW, Options, Parameter, ParameterSet, Result, ZeroOptimizer};
    ///
    /// fn update(zero: &mut ZeroOptimizer<f32, AdamW>, weight: &mut [f32]) -> Result<()> {
    ///     let mut step = zero.step()?;
    ///     step.ready(0, &[1.0_f32; 6])?;
    ///     step.finish()?.update([weight])
    /// }
    ///
    /// let steps = comm::threads::run(3, |comm| -> Result<u64> {
    ///     let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [3, 2])])?;
    ///     let options = Options::default().replicate_state(true);
    ///     let mut zero = ZeroOptimizer::<f32, _>::new(&comm, parameters, options, |_| AdamW::new(0.1))?;
    ///     let mut weight = vec![1.0_f32; 6];
    ///     for _ in 0..2 {
    ///         update(&mut zero, &mut weight)?;
    ///     }
    ///     if comm.rank() == 1 {
    ///         return Ok(0);
    ///     }
    ///     update(&mut zero, &mut weight).expect_err("rank 1 has left");
    ///     let comm = comm.shrink(&ShrinkOptions::default())?.comm;
    ///     zero.rejoin(&comm, [&mut weight[..]])?;
    ///     update(&mut zero, &mut weight)?;
    ///     Ok(zero.steps())
    /// })?;
    /// assert!(matches!(steps[..], [Ok(3), Ok(0), Ok(3)]));
    /// # Ok::<_, comm_ddp::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same on every rank: [`Error::StateLost`] if no rank has the state of some former rank,
    /// [`Error::Diverged`] if the optimizers of the ranks have other states, [`Error::Mismatch`] if
    /// the parameters differ. [`Error::Count`], [`Error::Length`] or [`Error::WrongType`] if
    /// `values` does not match the parameters of this rank, and then [`Error::Refused`] on the
    /// others. [`Error::Comm`] if communication fails.
    ///
    /// After an error this rank still has its state, and may call this again with another group,
    /// such as one without the ranks that were lost in the meantime.
    pub fn rejoin<V: AsViewMut>(&mut self, comm: &Comm, values: impl IntoIterator<Item = V>) -> Result<()> {
        self.apply_settings();
        let mut values: Vec<V> = values.into_iter().collect();
        let checked = self.parameters().check_values(&mut values);
        let comm = comm.duplicate()?;
        let claims = self.claim(checked.is_err()).all_gather(&comm)?;
        let takeover = match (checked, claim::choose(&claims)) {
            // The others know that this rank refuses, but not why.
            (Err(own), Ok(_) | Err(Error::Refused { .. })) => return Err(own),
            (_, chosen) => chosen?,
        };
        if takeover.target.is_some_and(|target| self.incoming_id().is_part_of(&target)) {
            // Another rank has learned that all had this state.
            self.enter(&mut values)?;
        }
        self.incoming = Some(Box::new(self.receive(comm, &takeover, &mut values)?));
        if let Some(incoming) = &self.incoming {
            incoming.replicas.comm.barrier()?;
        }
        self.enter(&mut values)
    }

    /// Returns the states that this rank holds.
    fn claim(&self, refuses: bool) -> Claim {
        let Shards { optimizers, state, next, replicates, .. } = &self.shards;
        let next = if *replicates { StateId::of(next) } else { StateId::NONE };
        let names: Vec<_> = optimizers.iter().map(Optimizer::<T>::state_names).collect();
        Claim {
            refuses,
            digest: digest(format!("{names:?}").as_bytes()),
            has_parameters: self.shards.has_parameters,
            states: [StateId::of(state), next, self.incoming_id()],
        }
    }

    fn incoming_id(&self) -> StateId {
        self.incoming.as_ref().map_or(StateId::NONE, |incoming| StateId::of(&incoming.state))
    }

    /// Receives this rank's part of the state, and the parameters.
    fn receive<V: AsViewMut>(
        &mut self,
        comm: Comm,
        takeover: &Takeover,
        values: &mut [V],
    ) -> Result<Incoming<T>> {
        let order = self.replicas.plan().buckets().iter().flat_map(Bucket::slots).copied().collect();
        let leader = Leader { rank: takeover.root, order };
        let (parameters, options) = (self.parameters().clone(), self.replicas.options);
        let mut replicas =
            DataParallel::with_collective(comm, parameters, options, (reduce_scatter, &leader))?;
        let state = self.receive_state(&replicas, takeover)?;
        replicas.stage_parameters(takeover.root, values)?;
        Ok(Incoming { state, replicas })
    }

    fn receive_state(&mut self, replicas: &DataParallel, takeover: &Takeover) -> Result<ShardState<T>> {
        let member @ Membership { size, .. } = replicas.member();
        let copies = replicas.options.replicate_state && size > 1;
        let mut state = ShardState::new(
            replicas.plan(),
            member,
            &self.shards.optimizers,
            replicas.options.replicate_state,
        );
        if let Some(target) = &takeover.target {
            let former = self.shards.find_mut(target);
            // Both sides of a transfer compute the former blocks by the same plan.
            if former.is_some() && self.replicas.plan() != replicas.plan() {
                return Err(inconsistent());
            }
            let transfer = Transfer {
                plan: replicas.plan(),
                former_size: target.member.size,
                sources: &takeover.sources,
                copies: if copies { Copies::Both } else { Copies::Own },
            };
            transfer.run(&replicas.comm, former, &mut state)?;
            (state.steps, state.has_masters) = (target.steps, target.has_masters);
        }
        (state.rejoins, state.has_replica) = (takeover.rejoins, copies);
        Ok(state)
    }

    /// Continues in the group whose state was received, which all ranks have.
    fn enter<V: AsViewMut>(&mut self, values: &mut [V]) -> Result<()> {
        let Some(incoming) = self.incoming.take() else { return Ok(()) };
        let Incoming { state, replicas } = *incoming;
        self.shards.enter(state, replicas.options.replicate_state);
        self.replicas = replicas;
        self.is_modified = true;
        self.replicas.copy_staged(values).map_err(|error| self.replicas.reducer.poison(error))?;
        self.shards.complete_parameters();
        Ok(())
    }
}

impl<T: Scalar, O: Optimizer<T>> Shards<T, O> {
    /// Returns the part of a state that this rank holds.
    fn find_mut(&mut self, target: &StateId) -> Option<&mut ShardState<T>> {
        let states = [&mut self.state, &mut self.next];
        states.into_iter().find(|state| StateId::of(state).is_part_of(target))
    }

    /// Replaces the state by that in another group.
    fn enter(&mut self, state: ShardState<T>, replicates: bool) {
        self.next.content = Content::None;
        (self.state, self.replicates, self.has_parameters) = (state, replicates, false);
    }
}

#[cfg(test)]
mod tests;
