//! The parts of parameters that a rank updates, and their state.

use comm_core::{Comm, DType, Membership};

use crate::consensus::digest;
use crate::shard_state::{Content, ShardState};
use crate::transfer::{Copies, Transfer};
use crate::{BucketPlan, DataParallel, Error, Optimizer, Parameter, Result, Scalar};

/// The optimizers, and the state of this rank's blocks.
#[derive(Debug)]
pub(crate) struct Shards<T, O> {
    /// The optimizer of each slot.
    pub(crate) optimizers: Vec<O>,
    /// The state after the last update.
    pub(crate) state: ShardState<T>,
    /// With copies, the state that an update computes. Ranks keep the last one until all are able
    /// to complete the update, because some may have to go back to it.
    pub(crate) next: ShardState<T>,
    /// Whether each rank keeps a copy of the state of the rank before it.
    pub(crate) replicates: bool,
    /// Whether the parameters of all ranks have the same bits, because an update has shared them.
    pub(crate) parameters_are_shared: bool,
    /// Whether the parameters of this rank are those after the last update.
    pub(crate) has_parameters: bool,
}

/// A part of the state of an optimizer that this rank holds, for checkpoints.
#[derive(Debug)]
#[non_exhaustive]
pub struct StateShard<'a, T> {
    /// The parameter.
    pub parameter: &'a Parameter,
    /// The name of the number that the optimizer keeps per element, or `master`, the value of an
    /// element of a 16-bit parameter before it is rounded.
    pub state: &'static str,
    /// The position of the first element within the parameter.
    pub start: usize,
    /// The values.
    pub values: &'a mut [T],
}

/// Returns an error if an optimizer that computes in `T` cannot update the parameter.
pub(crate) fn check_type<T: Scalar>(parameter: &Parameter) -> Result<()> {
    let is_short = matches!(parameter.dtype(), DType::F16 | DType::BF16);
    if is_short || parameter.is_frozen() { Ok(()) } else { parameter.check_type::<T>() }
}

impl<T: Scalar, O: Optimizer<T>> Shards<T, O> {
    /// Creates the shards of this rank, with zeroed state.
    pub(crate) fn new(replicas: &DataParallel, optimizers: Vec<O>) -> Self {
        let member = replicas.member();
        let replicates = replicas.options.replicate_state;
        let state = ShardState::new(replicas.plan(), member, &optimizers, replicates);
        let next = ShardState::empty(member);
        Self { optimizers, state, next, replicates, parameters_are_shared: false, has_parameters: true }
    }

    /// Returns a digest of all settings.
    pub(crate) fn digest(&self) -> u32 {
        // Either half would do, because both are well mixed.
        (digest(format!("{:?}", self.optimizers).as_bytes()) >> 32) as u32
    }

    /// Gives each part as many states as its optimizer has.
    pub(crate) fn resize_states(&mut self) {
        self.state.resize(&self.optimizers);
        self.next.resize(&self.optimizers);
    }

    /// Returns the state of all parts. The copy on the next rank is no longer valid, because the
    /// caller can change the state.
    pub(crate) fn state<'s>(
        &'s mut self,
        parameters: &'s [Parameter],
    ) -> impl Iterator<Item = StateShard<'s, T>> {
        let Self { optimizers, state, .. } = self;
        state.has_replica = false;
        state.own.iter_mut().flatten().flat_map(move |part| {
            let (parameter, start) = (&parameters[part.slot], part.elements.start);
            let names = optimizers[part.slot].state_names().iter().copied();
            let master = (!part.master.is_empty()).then_some(("master", &mut part.master));
            let named = names.zip(&mut part.states).chain(master);
            named.map(move |(state, values)| StateShard { parameter, state, start, values })
        })
    }

    /// Returns whether this rank needs the state of the rank before it. Before the first update it
    /// does not: the parameters of the ranks may differ until then, so each updates its own block.
    pub(crate) const fn lacks_replica(&self) -> bool {
        let is_replicated = self.replicates && self.state.member.size > 1;
        is_replicated && self.parameters_are_shared && !self.state.has_replica
    }

    /// Gives each rank a copy of the state of the rank before it. This is a collective.
    pub(crate) fn refresh_replica(&mut self, comm: &Comm, plan: &BucketPlan) -> Result<()> {
        let Membership { size, .. } = self.state.member;
        let sources: Vec<usize> = (0..size).collect();
        let transfer = Transfer { plan, former_size: size, sources: &sources, copies: Copies::Neighbor };
        let mut copy = ShardState::empty(self.state.member);
        copy.neighbor.clone_from(&self.state.neighbor);
        self.state.has_replica = false;
        transfer.run(comm, Some(&mut self.state), &mut copy)?;
        self.state.neighbor = copy.neighbor;
        self.state.has_replica = true;
        Ok(())
    }

    /// Returns the state that an update changes: without copies, the only one.
    pub(crate) const fn updated_mut(&mut self) -> &mut ShardState<T> {
        if self.replicates { &mut self.next } else { &mut self.state }
    }

    /// Begins an update.
    pub(crate) fn begin_update(&mut self) {
        if self.replicates {
            self.next.copy_from(&self.state);
        } else {
            self.has_parameters = false;
        }
        self.updated_mut().content = Content::Partial;
    }

    /// Records that all blocks of this rank are updated, before it shares the last of them. Once a
    /// rank has the blocks of all others, it therefore knows that they can complete the update.
    pub(crate) const fn complete_blocks(&mut self) {
        let has_replica = self.parameters_are_shared && self.state.has_replica;
        let state = self.updated_mut();
        state.steps += 1;
        state.has_masters = true;
        state.has_replica = has_replica;
        state.content = Content::Complete;
    }

    /// Makes the update final, when this rank has the blocks of all others. Then it still has to
    /// copy the parameters.
    pub(crate) const fn commit(&mut self) {
        if self.replicates {
            std::mem::swap(&mut self.state, &mut self.next);
            self.next.content = Content::Partial;
        }
        self.has_parameters = false;
    }

    /// Records that this rank has all parameters of the last update.
    pub(crate) const fn complete_parameters(&mut self) {
        (self.has_parameters, self.parameters_are_shared) = (true, true);
    }
}

/// Returns the error for a parameter that does not match its part, which has been checked before.
pub(crate) fn inconsistent() -> Error {
    comm_core::Error::Internal("a parameter does not match its shard".into()).into()
}
