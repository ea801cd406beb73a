//! The averages of a step of a sharded optimizer.

use comm_core::{AsViewMut, Host, HostViewMut, Kernels, Membership, ReduceOp};

use crate::shard_state::{before, block_of};
use crate::shards::{Shards, inconsistent};
use crate::{Averaged, Error, Optimizer, ParameterSet, Result, Scalar};

/// The averages of a step; each rank has its blocks.
///
/// Dropping them skips the update. All ranks must do the same, for example because
/// [`ShardedAverages::norm`], which is the same on all, is not finite.
#[derive(Debug)]
pub struct ShardedAverages<'a, T: Scalar, O> {
    averaged: Averaged<'a>,
    shards: &'a mut Shards<T, O>,
}

impl<'a, T: Scalar, O: Optimizer<T>> ShardedAverages<'a, T, O> {
    /// Creates the averages of a step. If any rank needs the state of the rank before it, this is a
    /// collective.
    pub(crate) fn new(averaged: Averaged<'a>, shards: &'a mut Shards<T, O>) -> Result<Self> {
        if averaged.status.lacks_replica {
            let owner = &mut *averaged.owner;
            let refreshed = shards.refresh_replica(&owner.comm, owner.reducer.plan());
            refreshed.map_err(|error| owner.reducer.poison(error))?;
        }
        Ok(Self { averaged, shards })
    }

    /// Returns the L2 norm of all gradients together, computed in `f64`. It is not finite if any
    /// gradient is not. This is a collective: one all-reduce of a number.
    ///
    /// # Errors
    /// [`Error::Comm`].
    pub fn norm(&mut self) -> Result<f64> {
        let owner = &mut *self.averaged.owner;
        let mut squares = 0.0;
        for bucket in 0..owner.plan().buckets().len() {
            let buffer = owner.reducer.buffer_mut(bucket)?;
            squares += Host::sum_of_squares(&owner.comm, buffer.view(buffer.block(&owner.comm))?)?;
        }
        if !self.averaged.status.is_finite {
            squares = f64::NAN;
        }
        let sum = owner.comm.all_reduce_scalar(squares, ReduceOp::Sum);
        Ok(sum.map_err(|error| owner.reducer.poison(error.into()))?.sqrt())
    }

    /// Returns whether all gradients are finite, and with
    /// [`Options::check_finite`](crate::Options::check_finite) whether the gradients of each rank
    /// were, too. The answer is the same on every rank, for example for
    /// [`LossScaler::update`](crate::LossScaler::update). This is a collective: one all-reduce of a
    /// byte.
    ///
    /// # Errors
    /// [`Error::Comm`].
    pub fn is_finite(&mut self) -> Result<bool> {
        let owner = &mut *self.averaged.owner;
        let mut is_finite = self.averaged.status.is_finite;
        for bucket in 0..owner.plan().buckets().len() {
            let buffer = owner.reducer.buffer_mut(bucket)?;
            is_finite = is_finite && Host::is_finite(&owner.comm, buffer.view(buffer.block(&owner.comm))?)?;
        }
        let all = owner.comm.all_reduce_scalar(u8::from(is_finite), ReduceOp::Min);
        Ok(all.map_err(|error| owner.reducer.poison(error.into()))? != 0)
    }

    /// Multiplies all gradients by a factor, the same on every rank.
    ///
    /// # Errors
    /// None for a type whose gradients can be averaged.
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        self.averaged.scale(factor)
    }

    /// Scales all gradients so that their norm is at most `max_norm`. Returns the norm before
    /// scaling, like [`Averaged::clip_norm`]. This is a collective, like [`ShardedAverages::norm`].
    ///
    /// # Errors
    /// As [`ShardedAverages::norm`].
    pub fn clip_norm(&mut self, max_norm: f64) -> Result<f64> {
        let norm = self.norm()?;
        if norm.is_finite() && norm > max_norm {
            self.scale(max_norm / norm)?;
        }
        Ok(norm)
    }

    /// Returns the other results of the step. Its gradients are only this rank's blocks.
    #[must_use]
    pub const fn averaged(&self) -> &Averaged<'_> {
        &self.averaged
    }

    /// Updates the parameters. Pass one buffer for each parameter that is not frozen, in the order
    /// of registration. This is a collective. A parameter for which no rank had a gradient in this
    /// step remains unchanged.
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::Length`] and [`Error::WrongType`] if buffers do not match the
    /// parameters, before anything is sent; the call can be repeated. [`Error::Comm`].
    pub fn update<V: AsViewMut>(&mut self, parameters: impl IntoIterator<Item = V>) -> Result<()> {
        let mut values = by_slot(self.averaged.owner.parameters(), parameters)?;
        self.update_slots(&mut |slot, visit| {
            let value = values.get_mut(slot).and_then(Option::as_mut).ok_or_else(inconsistent)?;
            visit(value.as_view_mut()?);
            Ok(())
        })
    }

    /// Does the same as [`ShardedAverages::update`] for parameters in memory that can be written
    /// only one at a time, such as the tensors of a framework. All have elements of type `T`.
    ///
    /// `access` is called with the index of a parameter, several times for each, and must call the
    /// function that it receives with the elements of that parameter.
    ///
    /// # Errors
    /// The error of `access`, or [`Error::Length`] if it passes another number of elements. Either
    /// aborts the communicator, so that the other ranks do not wait. So does [`Error::WrongType`]
    /// for a parameter that does not hold `T`. [`Error::Comm`].
    pub fn update_with(
        &mut self,
        mut access: impl FnMut(usize, &mut dyn FnMut(&mut [T])) -> Result<()>,
    ) -> Result<()> {
        let set = self.averaged.owner.parameters();
        let (sorted, mut indices) = (set.sorted().to_vec(), vec![0; set.len()]);
        for (index, slot) in set.slots().iter().enumerate() {
            indices[*slot] = index;
        }
        self.update_slots(&mut |slot, visit| {
            sorted[slot].check_type::<T>()?;
            let (expected, mut got) = (sorted[slot].len(), None);
            access(indices[slot], &mut |elements| {
                got = Some(elements.len());
                if got == Some(expected) {
                    visit(HostViewMut::new(elements));
                }
            })?;
            let (name, got) = (sorted[slot].name().to_owned(), got.unwrap_or(0));
            if got == expected { Ok(()) } else { Err(Error::Length { name, expected, got }) }
        })
    }

    /// Updates the parameters, whose memory `access` passes to the function that it receives.
    fn update_slots(&mut self, access: Access<'_>) -> Result<()> {
        let buckets = self.averaged.owner.plan().buckets().len();
        self.shards.begin_update();
        for bucket in 0..buckets {
            self.update_blocks(bucket, access).map_err(|error| self.abandon(error))?;
            if bucket + 1 < buckets {
                // The next block is updated while this one is sent.
                self.averaged.owner.reducer.share(bucket);
            }
        }
        self.shards.complete_blocks();
        if let Some(last) = buckets.checked_sub(1) {
            self.averaged.owner.reducer.share(last);
        }
        if self.shards.replicates {
            // Until this rank has all blocks, it must be able to return to the last update.
            (0..buckets).try_for_each(|bucket| self.averaged.owner.reducer.wait_shared(bucket))?;
        }
        self.shards.commit();
        for bucket in 0..buckets {
            if !self.shards.replicates {
                self.averaged.owner.reducer.wait_shared(bucket)?;
            }
            self.copy_parameters(bucket, access).map_err(|error| self.abandon(error))?;
        }
        self.shards.complete_parameters();
        Ok(())
    }

    fn abandon(&mut self, error: Error) -> Error {
        self.averaged.owner.abandon();
        error
    }

    /// Copies the parameters of a bucket from its memory.
    fn copy_parameters(&self, bucket: usize, access: Access<'_>) -> Result<()> {
        let owner = &*self.averaged.owner;
        for &slot in owner.plan().buckets()[bucket].slots() {
            let shared = owner.reducer.view(&owner.plan().locations()[slot])?;
            let mut copied = Ok(());
            access(slot, &mut |value| copied = Host::copy(&owner.comm, value, shared))?;
            copied?;
        }
        Ok(())
    }

    /// Updates this rank's block of a bucket, and leaves the new values in the bucket. Also updates
    /// the copy of the state of the rank before this one.
    fn update_blocks(&mut self, bucket: usize, access: Access<'_>) -> Result<()> {
        self.update_block(bucket, Holder::Own, access)?;
        if self.shards.parameters_are_shared && self.shards.state.has_replica {
            self.update_block(bucket, Holder::Neighbor, access)?;
        }
        Ok(())
    }

    fn update_block(&mut self, bucket: usize, holder: Holder, access: Access<'_>) -> Result<()> {
        let (owner, used) = (&mut *self.averaged.owner, &self.averaged.status.used);
        let neighbor = Membership { rank: before(owner.member()), ..owner.member() };
        let neighbor = block_of(&owner.plan().buckets()[bucket], neighbor);
        let Shards { optimizers, state, next, replicates, .. } = &mut *self.shards;
        let state = if *replicates { next } else { state };
        let (step, has_masters) = (state.steps + 1, state.has_masters);
        let parts = match holder {
            Holder::Own => state.own.get_mut(bucket),
            Holder::Neighbor => state.neighbor.get_mut(bucket),
        };
        for part in parts.into_iter().flatten() {
            let buffer = owner.reducer.buffer_mut(bucket)?;
            let gradient = match holder {
                Holder::Own => Some(buffer.elements(part.located.clone()).into_view()?),
                Holder::Neighbor => buffer.neighbor_mut()?.and_then(|block| {
                    let start = part.located.start - neighbor.start;
                    block.get_mut(start..start + part.located.len())
                }),
            };
            let mut gradient = gradient.ok_or_else(inconsistent)?;
            let mut updated = Err(inconsistent());
            access(part.slot, &mut |value| {
                let Some(value) = value.into_read_only().get(part.elements.clone()) else { return };
                let read = if has_masters { Ok(()) } else { part.read_master(&owner.comm, value) };
                updated = read.and_then(|()| {
                    if used.get(part.slot) == Some(&true) {
                        let optimizer = (&optimizers[part.slot], step);
                        part.update(&owner.comm, optimizer, value, gradient.reborrow())
                    } else {
                        Ok(Host::copy(&owner.comm, gradient.reborrow(), value)?)
                    }
                });
            })?;
            updated?;
        }
        Ok(())
    }
}

/// The rank whose block is updated.
#[derive(Debug, Clone, Copy)]
enum Holder {
    Own,
    /// The rank before this one.
    Neighbor,
}

/// Passes the memory of the parameter of a slot to the function that it receives.
type Access<'f> = &'f mut dyn FnMut(usize, &mut dyn FnMut(HostViewMut<'_>)) -> Result<()>;

/// Sorts buffers by slot; `None` for parameters that are frozen. Returns an error if they do not
/// match the parameters.
fn by_slot<V: AsViewMut>(set: &ParameterSet, buffers: impl IntoIterator<Item = V>) -> Result<Vec<Option<V>>> {
    let mut buffers: Vec<V> = buffers.into_iter().collect();
    let trained: Vec<usize> =
        set.slots().iter().copied().filter(|slot| !set.sorted()[*slot].is_frozen()).collect();
    let (expected, got) = (trained.len(), buffers.len());
    if expected != got {
        return Err(Error::Count { expected, got });
    }
    for (slot, buffer) in trained.iter().zip(&mut buffers) {
        set.check_value(*slot, &buffer.as_view_mut()?)?;
    }
    let mut sorted: Vec<Option<V>> = (0..set.len()).map(|_| None).collect();
    for (slot, buffer) in trained.into_iter().zip(buffers) {
        sorted[slot] = Some(buffer);
    }
    Ok(sorted)
}
