//! One rank of the communicator under test.

use comm_core::{
    AsView, AsViewMut, CallOptions, Collective, Communicator, DType, Element, Groups, Memory, ReduceOp,
    Result,
};

use super::{MISMATCHES, Mismatch};

/// One rank of a communicator under test, and buffers in its memory.
pub trait Member {
    /// The memory of the buffers.
    type Memory: Memory;
    /// A buffer.
    type Buffer<T: Element>: AsView<Self::Memory> + AsViewMut<Self::Memory>;

    /// Returns the communicator.
    fn communicator(&self) -> &dyn Communicator<Self::Memory>;

    /// Returns the features of the backend.
    fn features(&self) -> Features {
        Features::default()
    }

    /// Returns the communicator as one that creates groups, if it supports that.
    fn groups(&self) -> Option<&dyn Groups<Self::Memory>> {
        None
    }

    /// Creates a buffer with these elements.
    ///
    /// # Errors
    /// If there is not enough memory.
    fn buffer<T: Element>(&self, elements: &[T]) -> Result<Self::Buffer<T>>;

    /// Returns the elements of a buffer, after the calls that write it.
    ///
    /// # Errors
    /// The failure of a call that writes the buffer.
    fn read<T: Element>(&self, buffer: &Self::Buffer<T>) -> Result<Vec<T>>;

    /// Waits until the calls made so far have completed, if they run in the background, and returns
    /// errors that the backend reports only afterwards.
    ///
    /// # Errors
    /// The failure of a call.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// Leaves the group after the last call, and waits until the others have heard of it.
    ///
    /// # Errors
    /// If the group has failed before.
    fn leave(self) -> Result<()>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// The parts of the contract that a backend implements, and the extent of the checks.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Features {
    /// The options of every call that must succeed.
    pub options: CallOptions,
    /// Whether the backend supports the collective; it must reject all others.
    pub has: fn(Collective) -> bool,
    /// Whether the backend reduces elements of this type with this operator.
    pub reduces: fn(ReduceOp, DType) -> bool,
    /// The differences between the ranks' calls that the backend detects.
    pub mismatches: &'static [Mismatch],
    /// The algorithms of a collective. The suite runs each of them, and the one that the backend
    /// chooses.
    pub algorithms: fn(Collective) -> Vec<&'static str>,
    /// The lengths of blocks, for a number of ranks.
    pub lengths: fn(usize) -> Vec<usize>,
    /// The step between the combinations of type, operator, length and root that are checked; 1
    /// checks all. A step that is coprime to the number of values of each parameter reaches every
    /// value.
    pub step: usize,
}

impl Features {
    /// Returns the features of NCCL: no prefix reductions, no bitwise operators, and no reductions
    /// of 16-bit integers. It does not compare the ranks' calls.
    #[must_use]
    pub fn of_nccl() -> Self {
        Self {
            has: |collective| {
                !matches!(collective, Collective::Scan | Collective::Exscan | Collective::MonitoredBarrier)
            },
            reduces: |op, dtype| {
                let is_on_bits = matches!(op, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor);
                op.supports(dtype) && !is_on_bits && !matches!(dtype, DType::I16 | DType::U16)
            },
            mismatches: &[],
            ..Self::default()
        }
    }
}

impl Default for Features {
    /// Returns the features of host memory, with all collectives and without names of algorithms.
    fn default() -> Self {
        Self {
            options: CallOptions::default().timeout(std::time::Duration::from_secs(60)),
            has: |_| true,
            reduces: |op, dtype| op.supports(dtype) && !(dtype.is_float() && dtype.size() == 1),
            mismatches: &MISMATCHES,
            algorithms: |_| Vec::new(),
            lengths: |ranks| {
                let mut lengths = vec![0, 1, ranks - 1, ranks, ranks + 1, 67];
                lengths.sort_unstable();
                lengths.dedup();
                lengths
            },
            step: 1,
        }
    }
}
