//! Groups of the ranks that remain after a failure.

use std::time::Duration;

use crate::{Comm, DEFAULT_TIMEOUT, Error, Groups, Memory, Result};

/// Options of [`Comm::shrink`]. They may differ between ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShrinkOptions {
    /// The time until the deadline of the whole operation.
    pub timeout: Duration,
    /// The time for which a rank whose process is alive, but which does not take part, is waited
    /// for. After that it is left out. It applies to each step of the agreement.
    ///
    /// A rank that is in the middle of a long computation learns of the failure only in its next
    /// call, so this must exceed the longest time between two calls.
    pub patience: Duration,
    /// The smallest group with which to go on.
    ///
    /// If the network splits, the ranks of each side regard those of the other as dead. With more
    /// than half of the ranks as the minimum, at most one side goes on.
    pub size_min: usize,
}

impl Default for ShrinkOptions {
    /// Returns a timeout of [`DEFAULT_TIMEOUT`], a patience of one minute, and any number of ranks.
    fn default() -> Self {
        Self { timeout: DEFAULT_TIMEOUT, patience: Duration::from_mins(1), size_min: 1 }
    }
}

/// Setters, as in `ShrinkOptions::default().size_min(3)`.
impl ShrinkOptions {
    crate::setters!(timeout: Duration, patience: Duration, size_min: usize);

    /// Checks the number of ranks that remain.
    ///
    /// # Errors
    /// [`Error::TooFewRanks`].
    pub const fn check_size(&self, remaining: usize) -> Result<()> {
        let required = self.size_min;
        if remaining < required { Err(Error::TooFewRanks { remaining, required }) } else { Ok(()) }
    }
}

/// The result of a shrink, which is the same on every member of the new group.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Shrunk<C> {
    /// The communicator of the new group.
    pub comm: C,
    /// The former rank of each member. The members keep their order.
    pub ranks: Vec<usize>,
    /// The number of the last collective call on the old communicator that every member completed,
    /// counting from 1; 0 if there is none. Some members may have completed more.
    pub completed: u64,
}

impl<C> Shrunk<C> {
    /// Creates a result.
    #[must_use]
    pub const fn new(comm: C, ranks: Vec<usize>, completed: u64) -> Self {
        Self { comm, ranks, completed }
    }

    /// Returns the result with another communicator for the same ranks.
    ///
    /// # Errors
    /// Those of `replace`.
    pub fn try_map<D>(self, replace: impl FnOnce(C) -> Result<D>) -> Result<Shrunk<D>> {
        Ok(Shrunk { comm: replace(self.comm)?, ranks: self.ranks, completed: self.completed })
    }
}

/// Continuing after a failure.
impl<M: Memory> Comm<M>
where
    M::Communicator: Groups<M>,
{
    /// Creates a group of the ranks that remain after a failure. Every remaining rank calls this,
    /// usually after a call has failed. This is `MPIX_Comm_shrink` of ULFM.
    ///
    /// The ranks agree among themselves: there is no coordinator, and no store is needed, so any
    /// rank may have died, also in the meantime. Ranks that have exited, closed this communicator
    /// or do not take part within [`ShrinkOptions::patience`] are left out. One that was only
    /// stopped, and continues later, gets [`Error::Aborted`].
    ///
    /// This communicator is of no use afterwards: a call in progress on it, here or on another
    /// rank, and every later one return an error. A rank that dies just as this call returns is
    /// named by the first call on the new communicator, which can be shrunk in turn.
    ///
    /// ```
    /// use comm::{ReduceOp, ShrinkOptions};
    ///
    /// comm::threads::run(3, |comm| {
    ///     if comm.rank() == 0 {
    ///         return; // Leaves while the others go on.
    ///     }
    ///     let mut one = [1];
    ///     assert!(comm.all_reduce(&mut one, ReduceOp::Sum).is_err());
    ///     let shrunk = comm.shrink(&ShrinkOptions::default()).unwrap();
    ///     assert_eq!((shrunk.ranks, shrunk.completed), (vec![1, 2], 0));
    ///     assert_eq!(shrunk.comm.all_reduce_scalar(1, ReduceOp::Sum).unwrap(), 2);
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TooFewRanks`] if fewer than [`ShrinkOptions::size_min`] ranks remain;
    /// [`Error::Aborted`] if the others have left this rank out; [`Error::Timeout`] with the ranks
    /// that did not agree before the deadline; [`Error::Io`] if this rank cannot open channels. A
    /// rank that gets an error is left out by the others.
    /// [`Invalid::Finalized`](crate::Invalid::Finalized) after [`Comm::finalize`], and
    /// [`Invalid::Unsupported`](crate::Invalid::Unsupported) for a backend that cannot do this.
    pub fn shrink(&self, options: &ShrinkOptions) -> Result<Shrunk<Self>> {
        self.communicator().shrink(options)?.try_map(|group| Ok(self.sibling(group)))
    }
}
