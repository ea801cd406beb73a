//! The state of the blocks that a rank holds.

use std::ops::Range;

use comm_core::{Comm, Host, HostView, HostViewMut, Kernels, Membership};

use crate::shards::inconsistent;
use crate::{Bucket, BucketPlan, Optimizer, Result, Scalar};

/// The number of elements that are updated together, so that a copy of their gradients remains in
/// the cache.
const CHUNK: usize = 1024;

/// The state of the optimizer after an update, as far as this rank holds it.
#[derive(Debug)]
pub(crate) struct ShardState<T> {
    pub(crate) content: Content,
    /// The number of groups in which the run has continued since it began.
    pub(crate) rejoins: u64,
    /// The number of updates so far.
    pub(crate) steps: u64,
    /// The rank that this process had in the group among which the state is divided.
    pub(crate) member: Membership,
    /// Whether [`Part::master`] holds the values of 16-bit parameters.
    pub(crate) has_masters: bool,
    /// The parts of parameters in this rank's block of each bucket.
    pub(crate) own: Vec<Vec<Part<T>>>,
    /// Those in the block of the rank before this one. Empty without copies.
    pub(crate) neighbor: Vec<Vec<Part<T>>>,
    /// Whether `neighbor` equals the state of that rank.
    pub(crate) has_replica: bool,
}

/// Whether a [`ShardState`] can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// This process has joined the run and has no state yet.
    None,
    /// Some parts were updated and others were not.
    Partial,
    Complete,
}

/// The part of a parameter that is in a block of a bucket.
#[derive(Debug)]
pub(crate) struct Part<T> {
    pub(crate) slot: usize,
    /// Its elements within the parameter.
    pub(crate) elements: Range<usize>,
    /// Its elements within the bucket.
    pub(crate) located: Range<usize>,
    pub(crate) states: Vec<Vec<T>>,
    /// The values that the optimizer updates, if the parameter has 16 bits. Otherwise empty.
    pub(crate) master: Vec<T>,
}

/// Reuses memory in `clone_from`, which runs in every step.
impl<T: Scalar> Clone for Part<T> {
    fn clone(&self) -> Self {
        let Self { slot, elements, located, states, master } = self;
        Self {
            slot: *slot,
            elements: elements.clone(),
            located: located.clone(),
            states: states.clone(),
            master: master.clone(),
        }
    }

    fn clone_from(&mut self, other: &Self) {
        (self.slot, self.elements, self.located) =
            (other.slot, other.elements.clone(), other.located.clone());
        self.states.clone_from(&other.states);
        self.master.clone_from(&other.master);
    }
}

impl<T: Scalar> ShardState<T> {
    /// Creates the state of a member of a group, zeroed.
    pub(crate) fn new(
        plan: &BucketPlan,
        member: Membership,
        optimizers: &[impl Optimizer<T>],
        replicates: bool,
    ) -> Self {
        let block = |rank| {
            let owner = Membership { rank, ..member };
            let parts = |bucket| Part::of_bucket(plan, bucket, owner, optimizers);
            plan.buckets().iter().map(parts).collect()
        };
        let before = (replicates && member.size > 1).then(|| block(before(member)));
        Self {
            content: Content::Complete,
            rejoins: 0,
            steps: 0,
            member,
            has_masters: false,
            own: block(member.rank),
            neighbor: before.unwrap_or_default(),
            has_replica: false,
        }
    }

    /// Creates a state without parts.
    pub(crate) const fn empty(member: Membership) -> Self {
        Self {
            content: Content::None,
            rejoins: 0,
            steps: 0,
            member,
            has_masters: false,
            own: Vec::new(),
            neighbor: Vec::new(),
            has_replica: false,
        }
    }

    /// Copies another state, and reuses memory.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.own.clone_from(&other.own);
        self.neighbor.clone_from(&other.neighbor);
        let Self { content, rejoins, steps, member, has_masters, has_replica, .. } = *other;
        (self.content, self.rejoins, self.steps, self.member) = (content, rejoins, steps, member);
        (self.has_masters, self.has_replica) = (has_masters, has_replica);
    }

    /// Gives each part as many states as its optimizer has.
    pub(crate) fn resize(&mut self, optimizers: &[impl Optimizer<T>]) {
        for part in self.own.iter_mut().chain(&mut self.neighbor).flatten() {
            let states = optimizers[part.slot].state_names().len();
            part.states.resize_with(states, || vec![T::zeroed(); part.located.len()]);
        }
    }

    /// Returns the parts in the block of a rank, if this rank holds them.
    pub(crate) fn block_mut(&mut self, rank: usize) -> Option<&mut Vec<Vec<Part<T>>>> {
        if rank == self.member.rank {
            Some(&mut self.own)
        } else {
            (self.has_replica && rank == before(self.member)).then_some(&mut self.neighbor)
        }
    }
}

/// Returns the rank before a member, whose state the member copies.
pub(crate) const fn before(Membership { rank, size }: Membership) -> usize {
    (rank + size - 1) % size
}

/// Returns the elements of a bucket that a member updates.
pub(crate) fn block_of(bucket: &Bucket, Membership { rank, size }: Membership) -> Range<usize> {
    let length = bucket.len().div_ceil(size);
    (length * rank).min(bucket.len())..(length * (rank + 1)).min(bucket.len())
}

/// Returns the elements that are in both ranges.
pub(crate) fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

impl<T: Scalar> Part<T> {
    /// Creates the parts of parameters in a member's block of a bucket.
    fn of_bucket(
        plan: &BucketPlan,
        bucket: &Bucket,
        member: Membership,
        optimizers: &[impl Optimizer<T>],
    ) -> Vec<Self> {
        let block = block_of(bucket, member);
        let part = |slot: usize| {
            let whole = &plan.locations()[slot].elements;
            let located = overlap(whole, &block);
            let zeros = vec![T::zeroed(); located.len()];
            let master = if bucket.dtype() == T::DTYPE { Vec::new() } else { zeros.clone() };
            let elements = located.start.saturating_sub(whole.start)..located.end.saturating_sub(whole.start);
            let states = vec![zeros; optimizers[slot].state_names().len()];
            (!located.is_empty()).then_some(Self { slot, elements, located, states, master })
        };
        bucket.slots().iter().copied().filter_map(part).collect()
    }

    /// Returns the states, and the values of a 16-bit parameter after them.
    pub(crate) fn arrays_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        let arrays = self.states.iter_mut().chain(std::iter::once(&mut self.master));
        arrays.map(|array| &mut array[..]).filter(|array| !array.is_empty())
    }

    /// Copies the values of a 16-bit parameter.
    pub(crate) fn read_master(&mut self, comm: &Comm, value: HostView<'_>) -> Result<()> {
        if self.master.is_empty() {
            return Ok(());
        }
        Ok(Host::copy(comm, HostViewMut::new(&mut self.master), value)?)
    }

    /// Computes the next values of the elements of the parameter that this part covers, and
    /// replaces the gradient, which has the same type, by them.
    pub(crate) fn update(
        &mut self,
        comm: &Comm,
        (optimizer, step): (&impl Optimizer<T>, u64),
        value: HostView<'_>,
        mut gradient: HostViewMut<'_>,
    ) -> Result<()> {
        if self.master.is_empty() {
            let (Some(value), Some(gradient)) = (value.elements(), gradient.into_elements()) else {
                return Err(inconsistent());
            };
            update_chunks((optimizer, step), value, gradient, &mut self.states);
            return Ok(());
        }
        let mut states: Vec<&mut [T]> = self.states.iter_mut().map(|state| &mut state[..]).collect();
        let mut wide = vec![T::zeroed(); self.master.len()];
        Host::copy(comm, HostViewMut::new(&mut wide), gradient.as_view())?;
        optimizer.update(step, &mut self.master, &wide, &mut states);
        Ok(Host::copy(comm, gradient.reborrow(), HostView::new(&self.master))?)
    }
}

/// Replaces gradients by the next values of parameters, without memory for all of them.
fn update_chunks<T: Scalar>(
    (optimizer, step): (&impl Optimizer<T>, u64),
    values: &[T],
    gradients: &mut [T],
    states: &mut [Vec<T>],
) {
    let mut slopes = [T::zeroed(); CHUNK];
    let mut chunks: Vec<_> = states.iter_mut().map(|state| state.chunks_mut(CHUNK)).collect();
    for (values, gradients) in values.chunks(CHUNK).zip(gradients.chunks_mut(CHUNK)) {
        let slopes = &mut slopes[..gradients.len()];
        slopes.copy_from_slice(gradients);
        gradients.copy_from_slice(values);
        let mut states: Vec<&mut [T]> = chunks.iter_mut().filter_map(Iterator::next).collect();
        optimizer.update(step, gradients, slopes, &mut states);
    }
}
