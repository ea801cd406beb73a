//! What can go wrong, whose fault it is, and what still works afterwards.

mod invalid;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::{Refusal, Signature, Source, TagMatch};

pub use invalid::Invalid;

/// The result of anything that communicates.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
///
/// [`Error::Invalid`] is the caller's fault, was found before anything was sent, and leaves everything usable; so do
/// the errors of messages that concern one of them alone: [`Error::Timeout`] [`During::Await`], and
/// [`Error::PeerLost`] while a message is sent, expected or received. [`Error::NotConnected`] leaves the communicator
/// usable of which a group was to be made. Every other error of a communicator is fatal: the same error comes back as
/// [`Error::Poisoned`] from every later call, and no later call returns data. Messages and collectives fail apart, so an
/// error that is fatal to one leaves the other usable. [`Error::is_fatal`] tells them apart.
///
/// The text of an error includes its causes, so none of them is a [`source`](std::error::Error::source) and a report of
/// the chain of sources prints nothing twice. `Debug` prints the same text, for programs whose `main` returns a [`Result`].
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for something that cannot be. Nothing was sent; go on.
    #[error("invalid: {0}")]
    Invalid(Invalid),
    /// A rank died, left, or can no longer be reached.
    #[error("rank {peer} was lost {during}: {loss}")]
    PeerLost {
        /// The rank that is gone, which need not be a neighbour.
        peer: usize,
        /// What this rank was doing.
        during: During,
        /// How the loss showed.
        loss: Loss,
    },
    /// The deadline passed.
    #[error("timed out after {after:?} {during}, waiting for {}", ranks(.waiting_for))]
    Timeout {
        /// The ranks that did not arrive, as far as this rank can know.
        waiting_for: Vec<usize>,
        /// How long the operation was given.
        after: Duration,
        /// What this rank was doing.
        during: During,
    },
    /// Two ranks are in different calls.
    #[error("{0}")]
    Desync(Box<Desync>),
    /// Another rank, or another thread of this one, aborted the communicator.
    #[error("aborted by rank {by}: {reason}")]
    Aborted {
        /// The rank that aborted.
        by: usize,
        /// The reason it gave.
        reason: String,
    },
    /// The other side of a new connection refused it, or was refused.
    #[error("handshake with {with} failed: {refusal}")]
    Handshake {
        /// The address, or the rank where it is known.
        with: String,
        /// Why.
        refusal: Refusal,
    },
    /// The operating system failed an operation that concerns no rank: binding a port, reading a file.
    #[error("could not {doing}: {source}")]
    Io {
        /// What was tried, as in "bind 10.0.0.1:29500".
        doing: String,
        /// What the system said.
        r#source: Arc<io::Error>,
    },
    /// A backend's library failed with a code of its own.
    #[error("{backend} failed with code {code}: {detail}")]
    Backend {
        /// The backend, as in "nccl".
        backend: &'static str,
        /// Its code.
        code: i64,
        /// Its words.
        detail: String,
    },
    /// A backend is not on this machine.
    #[error("{backend} is not available: {detail}")]
    BackendUnavailable {
        /// The backend, as in "nccl".
        backend: &'static str,
        /// What was tried.
        detail: String,
    },
    /// The members of a new group agreed to make it, and could then not be connected. Ranks in the cause are those of
    /// the communicator of which the group was to be made. It is as good as before, unless a member of it died.
    #[error("the members of a new group could not be connected: {0}")]
    NotConnected(Arc<Error>),
    /// The caller's code panicked in an operation in the background: a buffer in its `AsMut`, for example. In a
    /// collective the communicator was aborted, since other ranks may be in the call that was to be made; in the middle
    /// of a message that was being sent, messages have ended. A receive ends alone.
    #[error("an operation in the background panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// A receive in the background that no message had matched when the last handle to its communicator was dropped.
    #[error("the receive was cancelled: its communicator was dropped before a message came")]
    Cancelled,
    /// An earlier call failed for good; this one did nothing.
    #[error("the communicator is unusable since an earlier error: {0}")]
    Poisoned(Arc<Error>),
    /// Another process wrote what no process of this version of the library writes: a record in the store, or an answer
    /// during an agreement between ranks.
    #[error(
        "{what} is malformed: {content}; it comes from another program, or another version of this library"
    )]
    Malformed {
        /// What was read, as in "the record of rank 3".
        what: String,
        /// What it says, or what is wrong with it.
        content: String,
    },
    /// An invariant of the library does not hold. This is a bug: please report it.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

/// What was under way when an error showed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum During {
    /// A collective call, with its sequence number.
    Call {
        /// The call.
        call: Box<Signature>,
        /// Its sequence number on its communicator, counting from 1.
        sequence: u64,
    },
    /// The sending of a message.
    Send {
        /// The rank to which it is sent.
        to: usize,
        /// Its tag.
        tag: u64,
    },
    /// The wait for a message that matches a receive or a probe. None of it has come.
    Await {
        /// From whom it may be.
        from: Source,
        /// Which tag it may have.
        tag: TagMatch,
    },
    /// The receiving of a message that matched.
    Recv {
        /// The rank from which it comes.
        from: usize,
        /// Its tag.
        tag: u64,
    },
    /// The leaving of the group.
    Finalize,
    /// The meeting of all ranks.
    Rendezvous,
    /// An operation on a store, with its key.
    Store {
        /// The key, or the keys.
        key: String,
    },
    /// The opening of connections between the members of a group.
    Connect,
    /// The sending of bytes, as a transport sees it, which knows no calls.
    Sending,
    /// The receiving of bytes, as a transport sees it, which knows no calls.
    Receiving,
    /// The wait for work on the device of this rank.
    Device,
    /// The making of a group.
    NewGroup,
    /// The closing of a communicator.
    Close,
    /// Nothing: no call was under way.
    Idle,
}

impl During {
    /// Whether it has to do with one message.
    const fn is_message(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Await { .. } | Self::Recv { .. })
    }
}

impl std::fmt::Display for During {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Call { call, sequence } => write!(f, "during {call}, call {sequence}"),
            Self::Send { to, tag } => write!(f, "while sending to rank {to} with tag {tag}"),
            Self::Await { from, tag } => write!(f, "while expecting a message from {from} with {tag}"),
            Self::Recv { from, tag } => write!(f, "while receiving from rank {from} with tag {tag}"),
            Self::Finalize => f.write_str("while leaving the group"),
            Self::Rendezvous => f.write_str("during rendezvous"),
            Self::Store { key } => write!(f, "during a store operation on {key:?}"),
            Self::Connect => f.write_str("while connecting the members of a group"),
            Self::Sending => f.write_str("while sending"),
            Self::Receiving => f.write_str("while receiving"),
            Self::Device => f.write_str("while waiting for the device of this rank"),
            Self::NewGroup => f.write_str("while making a group"),
            Self::Close => f.write_str("while closing the communicator"),
            Self::Idle => f.write_str("between calls"),
        }
    }
}

/// How the loss of a rank showed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// Its connection ended without a goodbye: the process died.
    #[error("its connection ended without a goodbye")]
    Closed,
    /// It closed its communicator in order, before this call.
    #[error("it closed its communicator after call {after}")]
    Left {
        /// The last call it took part in.
        after: u64,
    },
    /// It closed its communicator in order, and sends no more messages.
    #[error("it closed its communicator")]
    Finished,
    /// Its connection broke.
    #[error("its connection broke: {0}")]
    Io(Arc<io::Error>),
    /// The store broke that it served for the other ranks.
    #[error("it served the store, and the connection to the store broke: {0}")]
    Store(Arc<io::Error>),
    /// Another rank reported the loss.
    #[error("reported by rank {by}: {detail}")]
    Reported {
        /// The rank that reported.
        by: usize,
        /// Its words.
        detail: String,
    },
    /// It sent bytes that no correct peer sends.
    #[error("it sent bytes that make no sense: {0}")]
    Garbage(String),
}

/// Two ranks made different calls under the same sequence number.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "ranks are in different calls at number {sequence}: rank {rank} in {}, rank {peer} in {}{}",
    known(.ours), known(.theirs), told(.rank, .peer, .lengths)
)]
#[non_exhaustive]
pub struct Desync {
    /// The sequence number of both calls.
    pub sequence: u64,
    /// One rank; the one that reports where it is among the two.
    pub rank: usize,
    /// What that rank called; `None` if it could not be learnt.
    pub ours: Option<Signature>,
    /// The other rank.
    pub peer: usize,
    /// What the other rank called; `None` if it could not be learnt.
    pub theirs: Option<Signature>,
    /// Where the calls differ if their descriptions do not: in counts that not every rank knows.
    pub lengths: Option<Lengths>,
}

impl Desync {
    /// Two ranks, each with the call that it made under this sequence number, if that could be learnt.
    #[must_use]
    pub fn new(
        sequence: u64,
        (rank, ours): (usize, Option<Signature>),
        (peer, theirs): (usize, Option<Signature>),
    ) -> Self {
        Self { sequence, rank, ours, peer, theirs, lengths: None }
    }
}

/// The lengths of a message, in bytes, on which two ranks disagree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// What the receiver, [`Desync::rank`], expected.
    pub expected: u64,
    /// What the sender, [`Desync::peer`], announced.
    pub sent: u64,
}

impl Error {
    /// Whether every later call fails as well: every collective after an error of a collective, every message after
    /// an error of a message. [`Error::PeerLost`] of a message is not fatal: messages with other ranks go on.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::NotConnected(_) | Self::Cancelled => false,
            Self::Timeout { during, .. } => !matches!(during, During::Await { .. }),
            Self::PeerLost { during, .. } => !during.is_message(),
            _ => true,
        }
    }

    /// The error behind this one: that made a communicator unusable, or kept a group from being made; or this one.
    #[must_use]
    pub fn root_cause(&self) -> &Self {
        match self {
            Self::Poisoned(first) | Self::NotConnected(first) => first.root_cause(),
            other => other,
        }
    }

    /// An error of the operating system while `doing` something, as in "bind 10.0.0.1:29500".
    pub fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Io { doing: doing.into(), source: Arc::new(source) }
    }

    /// Something that another process wrote, and that no process of this version writes.
    pub fn malformed(what: impl Into<String>, content: impl std::fmt::Display) -> Self {
        Self::Malformed { what: what.into(), content: content.to_string() }
    }

    /// A setting that cannot be used.
    pub fn setting(
        name: impl Into<String>,
        value: impl Into<String>,
        reason: impl std::fmt::Display,
    ) -> Self {
        Invalid::Setting { name: name.into(), value: value.into(), reason: reason.to_string() }.into()
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Not derived: a derived conversion also makes the cause a source, and the text already includes it.
impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<Desync> for Error {
    fn from(desync: Desync) -> Self {
        Self::Desync(Box::new(desync))
    }
}

/// As in "rank 3", "ranks 0, 2 and 7".
pub(crate) fn ranks(ranks: &[usize]) -> String {
    match ranks {
        [] => "the operating system".into(),
        [one] => format!("rank {one}"),
        [init @ .., last] => {
            let init: Vec<String> = init.iter().map(ToString::to_string).collect();
            format!("ranks {} and {last}", init.join(", "))
        }
    }
}

/// As in ", where rank 0 expected 5 bytes and rank 1 sent 6".
fn told(rank: &usize, peer: &usize, lengths: &Option<Lengths>) -> String {
    let told = |Lengths { expected, sent }: &Lengths| {
        format!(", where rank {rank} expected {expected} bytes and rank {peer} sent {sent}")
    };
    lengths.as_ref().map_or_else(String::new, told)
}

fn known(call: &Option<Signature>) -> String {
    call.as_ref().map_or_else(|| "an unknown call".into(), ToString::to_string)
}
