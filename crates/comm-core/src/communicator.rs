//! The trait that backends implement.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Accumulate, Allocate, Call, Group, Groups, Host, LinkModel, Memory, PointToPoint, Result, Scheduler,
};

/// The timeout of a call unless the caller sets another: five minutes.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Options of a call. None of them changes its meaning, except for the rounding of floats.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    /// The time to the deadline, counted from when the call first waits for another rank, usually
    /// its start. It may differ from rank to rank.
    pub timeout: Duration,
    /// The algorithm to use instead of the one that the backend would choose. Equal on every rank.
    pub algorithm: Option<Cow<'static, str>>,
    /// The order in which contributions are combined. Equal on every rank.
    pub order: ReduceOrder,
    /// The type in which partial sums of 16-bit floats are kept. Equal on every rank.
    pub accumulate: Accumulate,
    /// The fingerprint of anything else that must be equal on every rank for the call to mean the
    /// same: [`Signature::fingerprint_of`] the lengths of coalesced buffers, for example. 0 if
    /// there is nothing. If ranks give unequal numbers, the call fails with [`Error::Desync`].
    ///
    /// [`Signature::fingerprint_of`]: crate::Signature::fingerprint_of
    /// [`Error::Desync`]: crate::Error::Desync
    pub extra_fingerprint: u64,
}

/// The order in which a reduction combines the contributions of the ranks. It affects the last bits
/// of floating point results, because their addition is not associative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOrder {
    /// The fastest order: the same for the same call on the same group, but another for another
    /// length.
    #[default]
    Any,
    /// One tree over the ranks for every element: the same bits for every length, division into
    /// calls, algorithm and collective. An algorithm that combines in another order is refused.
    Deterministic,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeout: DEFAULT_TIMEOUT,
            algorithm: None,
            order: ReduceOrder::Any,
            accumulate: Accumulate::Native,
            extra_fingerprint: 0,
        }
    }
}

/// Setters, as in `CallOptions::default().timeout(Duration::from_secs(10))`.
impl CallOptions {
    crate::setters!(timeout: Duration);

    /// Returns the options with the algorithm of this name.
    #[must_use]
    pub fn algorithm(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.algorithm = Some(name.into());
        self
    }

    crate::setters!(order: ReduceOrder, accumulate: Accumulate, extra_fingerprint: u64);
}

/// A group of ranks that runs collectives on buffers in memory `M`.
///
/// Every member makes the same calls in the same order; a member that does not gets
/// [`Error::Desync`] or [`Error::Timeout`], on itself and on the others. One call runs at a time:
/// calls from several threads queue, and their order must be the same on every rank. Any length is
/// valid, zero included, and so is a group of one.
///
/// Results are equal bit for bit on every rank and on every repetition with the same algorithm and
/// group, except for the payload of a NaN.
///
/// In a child that was made by `fork` every call is [`Invalid::Forked`](crate::Invalid::Forked).
///
/// After an error for which [`Error::is_fatal`] holds, every call fails with [`Error::Poisoned`],
/// and the contents of the buffer that was being written are unspecified.
///
/// [`Error::Desync`]: crate::Error::Desync
/// [`Error::Timeout`]: crate::Error::Timeout
/// [`Error::Poisoned`]: crate::Error::Poisoned
/// [`Error::is_fatal`]: crate::Error::is_fatal
pub trait Communicator<M: Memory = Host>: Send + Sync {
    /// Returns the group, seen by this member.
    fn group(&self) -> Group;

    /// Returns the cost model of messages between the members by which algorithms are chosen; the
    /// same on every rank. `None` from a backend that does not use one.
    fn links(&self) -> Option<LinkModel> {
        None
    }

    /// Returns the scheduler of the threads of this rank, in a simulation.
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        None
    }

    /// Makes a call, which returns when this rank has its result.
    ///
    /// A backend that lacks a collective returns
    /// [`Invalid::Unsupported`](crate::Invalid::Unsupported) on every rank, before anything is
    /// sent.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the call does not fit the group; the
    /// communicator and the buffers are unchanged. See [`Error`](crate::Error) for all others.
    fn run(&self, call: Call<'_, M>, options: &CallOptions) -> Result<()>;

    /// Ends the call in progress, here and on every other rank, and makes the communicator
    /// unusable. Any thread may call this while another is in a collective.
    fn abort(&self, reason: &str);
}

/// A communicator for the memory of this process, with all capabilities.
pub trait HostCommunicator: Communicator<Host> + Groups<Host> + PointToPoint + Allocate {}

impl<C> HostCommunicator for C where C: Communicator<Host> + Groups<Host> + PointToPoint + Allocate + ?Sized {}
