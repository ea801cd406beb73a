//! The trait that backends implement.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Accumulate, Allocate, Call, FlightRecord, Group, Groups, Host, LinkModel, Memory, Metrics, PointToPoint,
    Result, Scheduler,
};

/// The timeout of a call unless the caller sets another: five minutes.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Options of a call. They do not change the meaning of the call, except for the rounding of
/// floats.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    /// The time until the deadline, counted from the moment at which the call first waits for
    /// another rank, usually its start. It may differ between ranks.
    pub timeout: Duration,
    /// The algorithm to use instead of the one that the backend would choose. Must be equal on
    /// every rank.
    pub algorithm: Option<Cow<'static, str>>,
    /// The order in which contributions are combined. Must be equal on every rank.
    pub order: ReduceOrder,
    /// The type in which partial sums of 16-bit floats are kept. Must be equal on every rank.
    pub accumulate: Accumulate,
    /// A fingerprint of anything else that must be equal on every rank, such as
    /// [`Signature::fingerprint_of`] the lengths of coalesced buffers. 0 if there is nothing else.
    /// If the numbers differ between ranks, the call fails with [`Error::Desync`].
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
    /// The fastest order. It is the same whenever a call is repeated on the same group, but depends
    /// on the length.
    #[default]
    Any,
    /// The same tree over the ranks for every element, so that results have the same bits for every
    /// length, division into calls, algorithm and collective. Algorithms that combine in another
    /// order are rejected.
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
/// Every member makes the same calls in the same order; if a member does not, it and the others get
/// [`Error::Desync`] or [`Error::Timeout`]. One call runs at a time: calls from several threads
/// queue, and their order must be the same on every rank. Any length is valid, including zero, and
/// so is a group of one rank.
///
/// Results are equal bit for bit on every rank and on every repetition with the same algorithm and
/// group, except for the payload of a NaN.
///
/// In a child that was created by `fork`, every call fails with
/// [`Invalid::Forked`](crate::Invalid::Forked).
///
/// After a fatal error (see [`Error::is_fatal`]), every call fails with [`Error::Poisoned`], and
/// the contents of the buffer that was being written are unspecified.
///
/// [`Error::Desync`]: crate::Error::Desync
/// [`Error::Timeout`]: crate::Error::Timeout
/// [`Error::Poisoned`]: crate::Error::Poisoned
/// [`Error::is_fatal`]: crate::Error::is_fatal
pub trait Communicator<M: Memory = Host>: Send + Sync {
    /// Returns the group, as seen by this member.
    fn group(&self) -> Group;

    /// Returns the cost model of messages between the members, which is used to choose algorithms
    /// and is the same on every rank. `None` if the backend does not use one.
    fn links(&self) -> Option<LinkModel> {
        None
    }

    /// Returns the scheduler of the threads of this rank, in a simulation.
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        None
    }

    /// Returns the last calls of this rank, also while another thread is in a call. `None` if the
    /// backend does not record them.
    fn flight_record(&self) -> Option<FlightRecord> {
        None
    }

    /// Returns the counters of the calls of this rank, also while another thread is in a call.
    /// `None` if the backend does not count them.
    fn metrics(&self) -> Option<Metrics> {
        None
    }

    /// Returns the error of a failure that is already known, without waiting for other ranks.
    /// Succeeds while another thread is in a call, and always for a backend that learns of failures
    /// only in calls, which is the default.
    ///
    /// # Errors
    /// As the next call.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the ranks that are known to have left in order. Waits for a call in progress in
    /// another thread. Empty for a backend that does not know it, which is the default.
    fn departed(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Leaves the group without waiting for the others. Later calls fail. The default does nothing,
    /// so that the group is left when the communicator is dropped.
    fn leave(&self) {}

    /// Makes a call, and returns when this rank has its result.
    ///
    /// A backend that lacks a collective returns
    /// [`Invalid::Unsupported`](crate::Invalid::Unsupported) on every rank, before anything is
    /// sent.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the call is not valid for the group; the
    /// communicator and the buffers are unchanged. See [`Error`](crate::Error) for all others.
    fn run(&self, call: Call<'_, M>, options: &CallOptions) -> Result<()>;

    /// Ends the call in progress, here and on every other rank, and makes the communicator
    /// unusable. Any thread may call this while another is in a collective.
    fn abort(&self, reason: &str);
}

/// A communicator for the memory of this process, with all capabilities.
pub trait HostCommunicator: Communicator<Host> + Groups<Host> + PointToPoint + Allocate {}

impl<C> HostCommunicator for C where C: Communicator<Host> + Groups<Host> + PointToPoint + Allocate + ?Sized {}
