//! The trait that backends implement.

use std::borrow::Cow;
use std::time::Duration;

use crate::{
    Accumulate, Allocate, Group, Groups, Host, LinkModel, Memory, PointToPoint, ReduceOp, Result, Scan,
    Shares,
};

/// How long a call may take unless the caller says otherwise: five minutes.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The buffers of a call: where a rank's contribution comes from and where its result goes.
#[derive(Debug)]
pub enum Exchange<'a, M: Memory = Host> {
    /// One buffer holds the contribution and then the result.
    InPlace(M::ViewMut<'a>),
    /// The contribution is read from one buffer, the result written to another; they do not overlap.
    Separate {
        /// The contribution.
        send: M::View<'a>,
        /// The result.
        recv: M::ViewMut<'a>,
    },
    /// The contribution of a rank that gets no result.
    SendOnly(M::View<'a>),
}

/// How a call is to be carried out. None of it changes what the call means, but for the rounding of floats.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    /// The time to the deadline from when the call first waits for another rank, which is at its start as a rule. It may
    /// differ from rank to rank.
    pub timeout: Duration,
    /// The algorithm to use instead of the one that the backend would choose, by its name. Equal on every rank.
    pub algorithm: Option<Cow<'static, str>>,
    /// In which order contributions are combined. Equal on every rank.
    pub order: ReduceOrder,
    /// In which type partial sums of 16-bit floats are kept. Equal on every rank.
    pub accumulate: Accumulate,
    /// What else must be equal on every rank for the call to mean the same, as a number: [`Call::detail_of`] the lengths
    /// of the buffers that were packed into one, for example. 0 if there is nothing. Ranks that give unequal numbers get
    /// [`Error::Desync`].
    ///
    /// [`Call::detail_of`]: crate::Call::detail_of
    /// [`Error::Desync`]: crate::Error::Desync
    pub detail: u64,
}

/// In which order a reduction combines the contributions of the ranks. It shows in the last bits of floating point
/// results, as their addition is not associative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOrder {
    /// Whichever is fastest: the same for the same call on the same group, but another for another length.
    #[default]
    Any,
    /// One tree over the ranks for every element: the same bits whatever the length, the way the data is cut into
    /// calls, the algorithm or the collective. An algorithm that combines in another order is refused.
    Deterministic,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeout: DEFAULT_TIMEOUT,
            algorithm: None,
            order: ReduceOrder::Any,
            accumulate: Accumulate::Native,
            detail: 0,
        }
    }
}

/// Setters, as in `CallOptions::default().timeout(Duration::from_secs(10))`.
impl CallOptions {
    /// The options with this timeout.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The options with the algorithm of this name.
    #[must_use]
    pub fn algorithm(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.algorithm = Some(name.into());
        self
    }

    /// The options with this order of reductions.
    #[must_use]
    pub const fn order(mut self, order: ReduceOrder) -> Self {
        self.order = order;
        self
    }

    /// The options with partial sums kept in this way.
    #[must_use]
    pub const fn accumulate(mut self, accumulate: Accumulate) -> Self {
        self.accumulate = accumulate;
        self
    }

    /// The options with this detail: see the field of this name.
    #[must_use]
    pub const fn detail(mut self, detail: u64) -> Self {
        self.detail = detail;
        self
    }
}

/// A group of ranks that runs collectives on buffers in memory `M`.
///
/// Every member makes the same calls in the same order; a member that does not gets [`Error::Desync`] or
/// [`Error::Timeout`], on itself and on the others. One call runs at a time: calls from several threads queue, and
/// their order must be the same on every rank. Any length is valid, zero included, and so is a group of one.
///
/// Results are equal bit for bit on every rank and on every repetition with the same algorithm and group, except for
/// the payload of a NaN.
///
/// In a child that was made by `fork` every call is [`Invalid::Forked`](crate::Invalid::Forked).
///
/// After an error for which [`Error::is_fatal`] holds, every call fails with [`Error::Poisoned`], and the contents of
/// the buffer that was being written are unspecified.
///
/// [`Error::Desync`]: crate::Error::Desync
/// [`Error::Timeout`]: crate::Error::Timeout
/// [`Error::Poisoned`]: crate::Error::Poisoned
/// [`Error::is_fatal`]: crate::Error::is_fatal
pub trait Communicator<M: Memory = Host>: Send + Sync {
    /// The group, seen by this member.
    fn group(&self) -> Group;

    /// What messages cost between the members, as far as algorithms are chosen by it; the same on every rank. `None` from
    /// a backend that chooses by something else.
    fn links(&self) -> Option<LinkModel> {
        None
    }

    /// Combines the contributions of all ranks; every rank gets the result. All buffers have the same length.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn all_reduce(&self, buffers: Exchange<'_, M>, op: ReduceOp, options: &CallOptions) -> Result<()>;

    /// Combines the contributions of all ranks; `root` gets the result. On other ranks every buffer is only read.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn reduce(
        &self,
        root: usize,
        buffers: Exchange<'_, M>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()>;

    /// Every rank gets the contents of `root`'s buffer. All buffers have the same length.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn broadcast(&self, root: usize, buffer: M::ViewMut<'_>, options: &CallOptions) -> Result<()>;

    /// Every rank gets the contributions of all ranks, in rank order. A receive buffer has the length of all
    /// contributions together; in place, a rank's contribution lies where its block of the result goes. Every rank
    /// gives the same `shares`.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn all_gather(&self, buffers: Exchange<'_, M>, shares: Shares<'_>, options: &CallOptions) -> Result<()>;

    /// Combines the contributions of all ranks; each rank gets the block with its number. A send buffer has the
    /// length of all results together. In place, the result lies in this rank's block and the other blocks are
    /// unspecified. Every rank gives the same `shares`.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn reduce_scatter(
        &self,
        buffers: Exchange<'_, M>,
        shares: Shares<'_>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()>;

    /// `root` gets the contributions of all ranks, in rank order. On other ranks every buffer is only read. In place,
    /// the root's contribution lies where its block of the result goes. Only the root's `shares` are looked at.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn gather(
        &self,
        root: usize,
        buffers: Exchange<'_, M>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()>;

    /// Every rank gets its block of `root`'s data, which has one block per rank. Other ranks than the root give a
    /// buffer to receive into; what they give to send is ignored. The root keeps its own block where it is if it gives
    /// no separate buffer to receive into. Only the root's `shares` are looked at.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn scatter(
        &self,
        root: usize,
        buffers: Exchange<'_, M>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()>;

    /// Every rank sends block `i` of its send buffer to rank `i`, where it becomes the block with the sender's number.
    /// Each rank's `send` shares are what the others expect of it in their `recv` shares; no rank knows all of them.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn all_to_all(
        &self,
        buffers: Exchange<'_, M>,
        send: Shares<'_>,
        recv: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()>;

    /// Returns once every rank has called it.
    ///
    /// Backends for the memory of this process know the algorithm `star`, in which rank 0 hears from every other rank
    /// itself, and after a timeout name exactly the ranks that did not arrive.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn barrier(&self, options: &CallOptions) -> Result<()>;

    /// The last call: leaves the group, and returns once every rank has done so. Every later call fails.
    ///
    /// Backends that count calls compare here what all ranks called last. By default this is a barrier.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn finalize(&self, options: &CallOptions) -> Result<()> {
        self.barrier(options)
    }

    /// Ends the call in progress, here and on every other rank, and makes the communicator unusable. Any thread may
    /// call this while another is in a collective.
    fn abort(&self, reason: &str);
}

/// What every backend for the memory of this process can do.
pub trait HostCommunicator: Communicator<Host> + Groups<Host> + PointToPoint + Scan<Host> + Allocate {}

impl<C> HostCommunicator for C where
    C: Communicator<Host> + Groups<Host> + PointToPoint + Scan<Host> + Allocate + ?Sized
{
}
