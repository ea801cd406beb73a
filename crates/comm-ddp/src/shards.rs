//! The parts of parameters that a rank updates, and their state.

use std::ops::Range;

use comm_core::{Comm, DType, Host, HostView, HostViewMut, Kernels};

use crate::consensus::digest;
use crate::{Bucket, DataParallel, Error, Optimizer, Parameter, Result, Scalar};

/// The optimizers, and the state of this rank's blocks.
#[derive(Debug)]
pub(crate) struct Shards<T, O> {
    /// The optimizer of each slot.
    pub(crate) optimizers: Vec<O>,
    /// The parts of parameters in this rank's block of each bucket.
    pub(crate) parts: Vec<Vec<Part<T>>>,
    pub(crate) steps: u64,
    /// Whether [`Part::master`] holds the values of 16-bit parameters.
    pub(crate) has_masters: bool,
}

/// The part of a parameter that is in this rank's block of a bucket.
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
        let of_bucket = |bucket: &Bucket| {
            let slots = bucket.slots().iter().copied();
            slots.filter_map(|slot| Part::new(replicas, bucket, slot, &optimizers[slot])).collect()
        };
        let parts = replicas.plan().buckets().iter().map(of_bucket).collect();
        Self { optimizers, parts, steps: 0, has_masters: false }
    }

    /// Returns a digest of all settings.
    pub(crate) fn digest(&self) -> u32 {
        // Either half would do, because both are well mixed.
        (digest(format!("{:?}", self.optimizers).as_bytes()) >> 32) as u32
    }

    /// Gives each part as many states as its optimizer has.
    pub(crate) fn resize_states(&mut self) {
        for part in self.parts.iter_mut().flatten() {
            let states = self.optimizers[part.slot].state_names().len();
            part.states.resize_with(states, || vec![T::zeroed(); part.located.len()]);
        }
    }

    /// Returns the state of all parts.
    pub(crate) fn state<'s>(
        &'s mut self,
        parameters: &'s [Parameter],
    ) -> impl Iterator<Item = StateShard<'s, T>> {
        let Self { optimizers, parts, .. } = self;
        parts.iter_mut().flatten().flat_map(move |part| {
            let (parameter, start) = (&parameters[part.slot], part.elements.start);
            let names = optimizers[part.slot].state_names().iter().copied();
            let master = (!part.master.is_empty()).then_some(("master", &mut part.master));
            let named = names.zip(&mut part.states).chain(master);
            named.map(move |(state, values)| StateShard { parameter, state, start, values })
        })
    }
}

impl<T: Scalar> Part<T> {
    /// Creates the part of a parameter in this rank's block of its bucket, if there is one.
    fn new(
        replicas: &DataParallel,
        bucket: &Bucket,
        slot: usize,
        optimizer: &impl Optimizer<T>,
    ) -> Option<Self> {
        let comm = &replicas.comm;
        let length = bucket.len().div_ceil(comm.size());
        let block = length * comm.rank()..length * (comm.rank() + 1);
        let whole = &replicas.plan().locations()[slot].elements;
        let located = whole.start.max(block.start)..whole.end.min(block.end);
        if located.is_empty() {
            return None;
        }
        let zeros = vec![T::zeroed(); located.len()];
        let master = if bucket.dtype() == T::DTYPE { Vec::new() } else { zeros.clone() };
        let states = vec![zeros; optimizer.state_names().len()];
        let elements = located.start - whole.start..located.end - whole.start;
        Some(Self { slot, elements, located, states, master })
    }

    /// Copies the values of a 16-bit parameter.
    pub(crate) fn read_master(&mut self, comm: &Comm, value: HostView<'_>) -> Result<()> {
        if self.master.is_empty() {
            return Ok(());
        }
        Ok(Host::copy(comm, HostViewMut::new(&mut self.master), value)?)
    }

    /// Updates the elements of the parameter that this part covers, and replaces its gradient,
    /// which has the same type, by the new values.
    pub(crate) fn update(
        &mut self,
        comm: &Comm,
        (optimizer, step): (&impl Optimizer<T>, u64),
        value: HostViewMut<'_>,
        mut gradient: HostViewMut<'_>,
    ) -> Result<()> {
        let mut states: Vec<&mut [T]> = self.states.iter_mut().map(|state| &mut state[..]).collect();
        if self.master.is_empty() {
            let (Some(value), Some(gradient)) = (value.into_elements(), gradient.into_elements()) else {
                return Err(inconsistent());
            };
            optimizer.update(step, value, gradient, &mut states);
            gradient.copy_from_slice(value);
            return Ok(());
        }
        let mut wide = vec![T::zeroed(); self.master.len()];
        Host::copy(comm, HostViewMut::new(&mut wide), gradient.as_view())?;
        optimizer.update(step, &mut self.master, &wide, &mut states);
        Ok(Host::copy(comm, gradient.reborrow(), HostView::new(&self.master))?)
    }
}

/// Returns the error for a parameter that does not match its part, which has been checked before.
pub(crate) fn inconsistent() -> Error {
    comm_core::Error::Internal("a parameter does not match its shard".into()).into()
}
