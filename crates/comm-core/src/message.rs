//! Messages between two ranks: the trait that backends implement, and its types.

use std::sync::Weak;

use crate::{CallOptions, DType, Error, HostView, HostViewMut, Invalid, Result};

/// The source of a message to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// This rank.
    Rank(usize),
    /// Any rank: MPI's `MPI_ANY_SOURCE`.
    Any,
}

impl From<usize> for Source {
    fn from(rank: usize) -> Self {
        Self::Rank(rank)
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Any => f.write_str("any rank"),
        }
    }
}

/// The tags of messages to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TagMatch {
    /// This tag.
    Is(u64),
    /// Any tag.
    Any,
}

/// Matches any tag: MPI's `MPI_ANY_TAG`.
pub const ANY_TAG: TagMatch = TagMatch::Any;

impl From<u64> for TagMatch {
    fn from(tag: u64) -> Self {
        Self::Is(tag)
    }
}

impl std::fmt::Display for TagMatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Is(tag) => write!(f, "tag {tag}"),
            Self::Any => f.write_str("any tag"),
        }
    }
}

/// The destination of a message: a rank and a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SendTo {
    /// The rank that receives the message.
    pub rank: usize,
    /// The tag of the message.
    pub tag: u64,
}

/// A message with tag 0.
impl From<usize> for SendTo {
    fn from(rank: usize) -> Self {
        Self { rank, tag: 0 }
    }
}

impl From<(usize, u64)> for SendTo {
    fn from((rank, tag): (usize, u64)) -> Self {
        Self { rank, tag }
    }
}

/// The messages that a receive matches: their source and their tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecvFrom {
    /// The rank that sends the message.
    pub source: Source,
    /// The tag of the message.
    pub tag: TagMatch,
}

/// Messages of any tag.
impl From<usize> for RecvFrom {
    fn from(rank: usize) -> Self {
        Self { source: rank.into(), tag: ANY_TAG }
    }
}

/// Messages of any tag.
impl From<Source> for RecvFrom {
    fn from(source: Source) -> Self {
        Self { source, tag: ANY_TAG }
    }
}

impl<S: Into<Source>, T: Into<TagMatch>> From<(S, T)> for RecvFrom {
    fn from((source, tag): (S, T)) -> Self {
        Self { source: source.into(), tag: tag.into() }
    }
}

/// The envelope of a message that has arrived.
#[must_use = "the message may be shorter than the buffer: `len` is its length, and `exactly` checks it"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The sender.
    pub source: usize,
    /// Its tag.
    pub tag: u64,
    /// The number of its elements, which may be less than the length of the buffer.
    pub len: usize,
    /// The type of its elements.
    pub dtype: DType,
}

impl Received {
    /// Creates the envelope of a message.
    pub const fn new(source: usize, tag: u64, dtype: DType, len: usize) -> Self {
        Self { source, tag, len, dtype }
    }

    /// Checks that the message has `len` elements, as in `comm.recv(0, 7, &mut
    /// buffer)?.exactly(buffer.len())?`: a receive also accepts a message shorter than its buffer,
    /// and leaves the rest of the buffer unchanged.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if it has another length. The message has been
    /// received nevertheless.
    pub fn exactly(self, len: usize) -> Result<()> {
        let Self { source, tag, len: got, .. } = self;
        let error = Invalid::MessageLength { source_rank: source, tag, expected: len, got };
        if got == len { Ok(()) } else { Err(error.into()) }
    }
}

/// A message that the communicator owns while it is sent in the background.
pub trait Outgoing: Send {
    /// Returns the elements to send, the same on every call.
    ///
    /// # Errors
    /// The reason why there are none. At the start of the operation, the error ends only this
    /// operation; later, it ends all messages, because no message can follow a partial one.
    fn view(&self) -> Result<HostView<'_>>;

    /// Called once, when the message no longer needs its memory or cannot be sent, on any thread
    /// that makes progress on messages.
    fn complete(self: Box<Self>, outcome: Result<()>);
}

/// A message that is about to be sent in the background.
pub trait Unsent {
    /// Returns the elements to send, the same on every call.
    ///
    /// # Errors
    /// The reason why there are none, which ends the operation.
    fn view(&self) -> Result<HostView<'_>>;

    /// Returns the message, to be owned until it is sent. Not called for a message that is sent at
    /// once.
    ///
    /// # Errors
    /// [`Error::Internal`] if it was called before.
    fn post(&mut self) -> Result<Box<dyn Outgoing>>;
}

/// A message that is owned before it is posted.
struct Owned(Option<Box<dyn Outgoing>>);

impl Unsent for Owned {
    fn view(&self) -> Result<HostView<'_>> {
        self.0.as_ref().ok_or_else(posted_before)?.view()
    }

    fn post(&mut self) -> Result<Box<dyn Outgoing>> {
        self.0.take().ok_or_else(posted_before)
    }
}

/// The error for a message that is posted a second time.
pub(crate) fn posted_before() -> Error {
    Error::Internal("a message was posted twice".into())
}

/// The state of a message after [`PointToPoint::start_send`].
#[must_use]
#[derive(Debug)]
#[non_exhaustive]
pub enum StartedSend {
    /// The message was sent at once, or cannot be sent. It was not posted.
    Ended(Result<()>),
    /// The message was posted.
    Pending {
        /// Whether a call of [`PointToPoint::drive`] must follow.
        needs_drive: bool,
    },
}

/// A buffer that the communicator owns while a message is received in the background.
pub trait Incoming: Send {
    /// Returns the memory for the message, the same on every call.
    ///
    /// # Errors
    /// The reason why there is none. The error ends this operation, and the rest of its message is
    /// discarded.
    fn view_mut(&mut self) -> Result<HostViewMut<'_>>;

    /// Called once, when the message has arrived or cannot arrive, on any thread that makes
    /// progress on messages.
    fn complete(self: Box<Self>, outcome: Result<Received>);
}

/// Messages between two ranks of a group.
///
/// # Order
/// A receive gets the oldest message that matches its source and tag, and a message goes to the
/// oldest receive that matches it. Messages between two ranks do not overtake each other: of two
/// that match the same receive, the one sent first is received first. A message that no receive
/// matches does not block other messages.
///
/// # Independence
/// Any number of threads may make these calls concurrently, also while other threads are in
/// collectives; neither kind of call waits for the other. Messages and collectives also fail
/// separately: only [`Communicator::abort`](crate::Communicator::abort) ends both.
///
/// # Progress
/// A small message is sent eagerly, as long as the receiver has memory for unexpected messages:
/// [`PointToPoint::send`] returns once the message is buffered. Any other send returns only once a
/// matching receive takes the message. So two ranks that send to each other before they receive may
/// block each other until their deadlines: use [`PointToPoint::send_recv`].
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): a rank outside the group; or a message that is
///   longer than the buffer or of another type, which is kept for the next receive that matches it.
/// - [`Error::Timeout`](crate::Error::Timeout) of a receive or probe that no message matched: it
///   names the ranks that did not send, and is not fatal; see
///   [`Error::is_fatal`](crate::Error::is_fatal). In every other call the deadline may pass in the
///   middle of a message. Then no more messages can be sent or received on this communicator,
///   neither here nor on other ranks, which get [`Error::Aborted`](crate::Error::Aborted).
/// - [`Error::PeerLost`](crate::Error::PeerLost) from every call that needs the lost rank, and only
///   from those: it is not fatal. Messages that arrived earlier are received first. A send that
///   only buffers its message may leave the error to the next call. A receive from any source fails
///   as soon as any rank has died, because that rank may be the expected sender; ranks that closed
///   the communicator in order do not matter as long as another rank remains.
/// - [`Error::Aborted`](crate::Error::Aborted), and [`Error::Poisoned`](crate::Error::Poisoned)
///   afterwards.
///
/// After an error the contents of a receive buffer are unspecified.
pub trait PointToPoint: Send + Sync {
    /// Sends a message to a rank, which may be this one. The buffer may be reused when this
    /// returns.
    ///
    /// # Errors
    /// See [`PointToPoint`].
    fn send(&self, to: usize, tag: u64, message: HostView<'_>, options: &CallOptions) -> Result<()>;

    /// Receives a message into a buffer that is long enough for it.
    ///
    /// # Errors
    /// See [`PointToPoint`].
    fn recv(
        &self,
        from: Source,
        tag: TagMatch,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received>;

    /// Sends one message and receives another at the same time, so that a cycle of ranks that all
    /// do this does not deadlock. If either half fails, so does the call, and the state of the
    /// other half is unspecified.
    ///
    /// # Errors
    /// See [`PointToPoint`].
    fn send_recv(
        &self,
        to: SendTo,
        message: HostView<'_>,
        from: RecvFrom,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received>;

    /// Waits for a message that matches, and returns its envelope without receiving it. Another
    /// thread may receive it first.
    ///
    /// # Errors
    /// See [`PointToPoint`].
    fn probe(&self, from: Source, tag: TagMatch, options: &CallOptions) -> Result<Received>;

    /// Returns the envelope of a message that matches, if one has arrived.
    ///
    /// # Errors
    /// See [`PointToPoint`], except that there is no deadline, and a lost rank is not an error.
    fn try_probe(&self, from: Source, tag: TagMatch) -> Result<Option<Received>>;

    /// Starts sending a message, and posts it unless that ends at once. Any thread that makes
    /// progress on messages may complete a posted message; a call of [`PointToPoint::drive`] does
    /// so at the latest.
    fn start_send(&self, to: usize, tag: u64, message: &mut dyn Unsent, options: &CallOptions)
    -> StartedSend;

    /// Starts sending a message that is owned already, like [`PointToPoint::start_send`]. Returns
    /// whether a call of [`PointToPoint::drive`] must follow.
    #[must_use = "the message may need a call of `drive`"]
    fn post_send(&self, to: usize, tag: u64, message: Box<dyn Outgoing>, options: &CallOptions) -> bool {
        let mut message = Owned(Some(message));
        match self.start_send(to, tag, &mut message, options) {
            StartedSend::Ended(outcome) => {
                if let Some(message) = message.0 {
                    message.complete(outcome);
                }
                false
            }
            StartedSend::Pending { needs_drive } => needs_drive,
        }
    }

    /// Starts receiving a message, like [`PointToPoint::post_send`].
    #[must_use = "the message may need a call of `drive`"]
    fn post_recv(
        &self,
        from: Source,
        tag: TagMatch,
        buffer: Box<dyn Incoming>,
        options: &CallOptions,
    ) -> bool;

    /// Makes progress on messages until every posted operation has completed. Other threads that
    /// make calls may make the progress instead.
    fn drive(&self);

    /// Returns that with which a thread makes progress while it waits for a posted operation;
    /// `None` if only [`PointToPoint::drive`] does.
    fn progress(&self) -> Option<Weak<dyn Progress>> {
        None
    }

    /// Cancels every posted receive that no message has matched, with
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    fn cancel_recvs(&self);
}

/// Progress on posted operations by the threads that wait for them. Any number of threads may call
/// this.
pub trait Progress: Send + Sync {
    /// Makes progress, or waits while another thread does, until `is_done` returns `true`. Returns
    /// early once all operations have ended.
    fn progress_until(&self, is_done: &dyn Fn() -> bool);

    /// Lets the thread that is in [`PointToPoint::drive`] make progress, because a thread waits
    /// that does not.
    fn drive_now(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(from: impl Into<Source>, tag: impl Into<TagMatch>) -> String {
        format!("{}, {}", from.into(), tag.into())
    }

    #[test]
    fn numbers_convert_to_ranks_and_tags() {
        assert_eq!(matched(3, 7), "rank 3, tag 7");
        assert_eq!(matched(Source::Any, ANY_TAG), "any rank, any tag");
    }
}
