//! Messages between two ranks: the trait that backends implement, and its words.

use crate::{CallOptions, DType, HostView, HostViewMut, Invalid, Result};

/// From whom a message is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// From this rank.
    Rank(usize),
    /// From whoever sends.
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

/// Which tag a message must have to be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TagMatch {
    /// This one.
    Is(u64),
    /// Whichever it has.
    Any,
}

/// Takes a message whatever its tag is.
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

/// The messages that a receive takes: their source and their tag.
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

/// What is known of a message that came.
#[must_use = "the message may be shorter than the buffer: `len` says how long it is, and `exactly` insists"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Who sent it.
    pub source: usize,
    /// Its tag.
    pub tag: u64,
    /// How many elements it has, which may be fewer than the buffer has room for.
    pub len: usize,
    /// The type of its elements.
    pub dtype: DType,
}

impl Received {
    /// A message from this rank, with this tag, of so many elements.
    pub const fn new(source: usize, tag: u64, dtype: DType, len: usize) -> Self {
        Self { source, tag, len, dtype }
    }

    /// Insists that the message has `len` elements, as in `comm.recv(0, 7, &mut buffer)?.exactly(buffer.len())?`: a
    /// receive also takes a shorter one than its buffer, the rest of which it leaves as it was.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if it has another length. It has been received all the same.
    pub fn exactly(self, len: usize) -> Result<()> {
        let Self { source, tag, len: got, .. } = self;
        let unlike = Invalid::MessageLength { source_rank: source, tag, expected: len, got };
        if got == len { Ok(()) } else { Err(unlike.into()) }
    }
}

/// A message that the communicator owns while it is sent in the background.
pub trait Outgoing: Send {
    /// What is to be sent: the same elements whenever this is asked.
    ///
    /// # Errors
    /// The reason why there is none. It ends this operation when it begins, and all messages later, since nothing can
    /// follow half a message.
    fn view(&self) -> Result<HostView<'_>>;

    /// Called once, when the message no longer needs its memory or cannot be sent, on any thread that communicates.
    fn complete(self: Box<Self>, outcome: Result<()>);
}

/// A buffer that the communicator owns while a message is received in the background.
pub trait Incoming: Send {
    /// Where the message goes: the same memory whenever this is asked.
    ///
    /// # Errors
    /// The reason why there is none, which ends this operation. The rest of its message is thrown away.
    fn view_mut(&mut self) -> Result<HostViewMut<'_>>;

    /// Called once, when the message is there or cannot come, on any thread that communicates.
    fn complete(self: Box<Self>, outcome: Result<Received>);
}

/// Messages between two ranks of a group.
///
/// # Order
/// A receive takes the oldest message that matches its source and tag; a message goes to the oldest receive that
/// matches it. Between two ranks messages are in the order in which they were sent, so of two that match the same
/// receive the first sent is received first. Messages that do not match are not in each other's way.
///
/// # Independence
/// Any number of threads may make these calls at once, and while others are in collectives; neither waits for the
/// other. Messages and collectives also fail apart: only [`Communicator::abort`](crate::Communicator::abort) ends both.
///
/// # Progress
/// A small message is sent whether or not it is received, while the receiver's memory for unexpected messages lasts:
/// [`PointToPoint::send`] returns once it is on its way. Any other send returns when the message is being received, so
/// two ranks that send to each other before they receive may wait for each other for good, up to their deadlines: use
/// [`PointToPoint::send_recv`].
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): a rank outside the group; or a message that is longer than the buffer or
///   of another type, which is then not lost, and comes with the next receive that matches it.
/// - [`Error::Timeout`](crate::Error::Timeout) of a receive or probe that no message matched names the ranks that did
///   not send. It leaves everything usable, and [`Error::is_fatal`](crate::Error::is_fatal) says so. In every other call
///   the deadline may pass in the middle of a message: then no more messages can be sent or received on this
///   communicator, here and, as [`Error::Aborted`](crate::Error::Aborted), on every other rank.
/// - [`Error::PeerLost`](crate::Error::PeerLost) from every call that needs the rank that is gone, and only from those:
///   it is not fatal. Messages that came before are received first. A receive from any source fails as soon as some rank has died,
///   since that rank may be the one that was to send; of ranks that leave in order it takes no notice while another is
///   left.
/// - [`Error::Aborted`](crate::Error::Aborted), and [`Error::Poisoned`](crate::Error::Poisoned) afterwards.
///
/// After an error the contents of a buffer that was to be received into are unspecified.
pub trait PointToPoint: Send + Sync {
    /// Sends a message, to this rank itself too. The buffer may be used again when this returns.
    ///
    /// # Errors
    /// As written at [`PointToPoint`].
    fn send(&self, to: usize, tag: u64, message: HostView<'_>, options: &CallOptions) -> Result<()>;

    /// Receives a message into a buffer that has room for it.
    ///
    /// # Errors
    /// As written at [`PointToPoint`].
    fn recv(
        &self,
        from: Source,
        tag: TagMatch,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received>;

    /// Sends one message and receives another at once, so that ranks which do this in a circle do not wait for each
    /// other. If one half fails, so does the call; what became of the other half is unspecified.
    ///
    /// # Errors
    /// As written at [`PointToPoint`].
    fn send_recv(
        &self,
        to: SendTo,
        message: HostView<'_>,
        from: RecvFrom,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received>;

    /// Waits until a message that matches is there, and tells of it without receiving it. Another thread may receive
    /// it first.
    ///
    /// # Errors
    /// As written at [`PointToPoint`].
    fn probe(&self, from: Source, tag: TagMatch, options: &CallOptions) -> Result<Received>;

    /// Tells of a message that matches, if one is there.
    ///
    /// # Errors
    /// As written at [`PointToPoint`], but for the deadline. That a rank is gone is no error here.
    fn try_probe(&self, from: Source, tag: TagMatch) -> Result<Option<Received>>;

    /// Begins to send a message. It is completed by whichever thread then communicates, in [`PointToPoint::drive`] at
    /// the latest.
    fn post_send(&self, to: usize, tag: u64, message: Box<dyn Outgoing>, options: &CallOptions);

    /// Begins to receive a message, as [`PointToPoint::post_send`].
    fn post_recv(&self, from: Source, tag: TagMatch, buffer: Box<dyn Incoming>, options: &CallOptions);

    /// Communicates until everything that was begun has completed.
    fn drive(&self);

    /// Ends every receive that was begun in the background and that no message has matched, with
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    fn cancel_recvs(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(from: impl Into<Source>, tag: impl Into<TagMatch>) -> String {
        format!("{}, {}", from.into(), tag.into())
    }

    #[test]
    fn numbers_are_ranks_and_tags() {
        assert_eq!(matched(3, 7), "rank 3, tag 7");
        assert_eq!(matched(Source::Any, ANY_TAG), "any rank, any tag");
    }
}
