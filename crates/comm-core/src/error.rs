//! The error type of all communication.

mod invalid;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::{Refusal, Signature, Source, TagMatch};

pub use invalid::Invalid;

/// The result of an operation that communicates.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a failed call.
///
/// An error of a communicator is fatal unless stated otherwise here: every later call returns it as
/// [`Error::Poisoned`], and no later call returns data. These errors are not fatal:
///
/// - [`Error::Invalid`]: the arguments are wrong; nothing was sent;
/// - [`Error::Timeout`] with [`During::Await`], and [`Error::PeerLost`] while a message is sent,
///   expected or received: they affect only that message;
/// - [`Error::NotConnected`]: the parent of the new group stays usable;
/// - [`Error::Cancelled`].
///
/// Collectives and messages fail separately: an error that is fatal to one leaves the other usable.
/// [`Error::is_fatal`] returns whether an error is fatal.
///
/// The text of an error includes its causes, so none of them is a
/// [`source`](std::error::Error::source), and a reporter that prints the chain of sources prints
/// nothing twice. `Debug` prints the same text, for programs whose `main` returns a [`Result`].
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arguments or the configuration are wrong. Nothing was sent, and the communicator stays
    /// usable.
    #[error("invalid: {0}")]
    Invalid(Invalid),
    /// A rank died, left, or can no longer be reached.
    #[error("rank {peer} was lost {during}: {loss}")]
    PeerLost {
        /// The lost rank. It need not be a rank that this one exchanges data with.
        peer: usize,
        /// The operation in progress on this rank.
        during: During,
        /// The way in which the loss was detected.
        loss: Loss,
    },
    /// The deadline passed.
    #[error("timed out after {:?} {during}{}", rounded(*.after), awaited(.waiting_for))]
    Timeout {
        /// The ranks that did not arrive, as far as this rank knows.
        waiting_for: Vec<usize>,
        /// The timeout of the operation.
        after: Duration,
        /// The operation in progress on this rank.
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
    /// One of the two sides refused a new connection.
    #[error("handshake with {with} failed: {refusal}")]
    Handshake {
        /// The address, or the rank if it is known.
        with: String,
        /// The reason.
        refusal: Refusal,
    },
    /// An operation of the operating system that involves no other rank failed, such as binding a
    /// port or reading a file.
    #[error("could not {doing}: {source}")]
    Io {
        /// The operation, as in "bind 10.0.0.1:29500".
        doing: String,
        /// The error of the operating system.
        r#source: Arc<io::Error>,
    },
    /// A backend's library failed with its own error code.
    #[error("{backend} failed with code {code}: {detail}")]
    Backend {
        /// The backend, as in "nccl".
        backend: &'static str,
        /// Its code.
        code: i64,
        /// Its message.
        detail: String,
    },
    /// A backend is not available on this machine.
    #[error("{backend} is not available: {detail}")]
    BackendUnavailable {
        /// The backend, as in "nccl".
        backend: &'static str,
        /// The reason, and the places in which the backend was searched for.
        detail: String,
    },
    /// The members of a new group agreed to create it, but could not be connected. Ranks in the
    /// cause are those of the parent communicator, which stays usable unless one of its members
    /// died.
    #[error("cannot connect the members of the new group: {0}")]
    NotConnected(Arc<Error>),
    /// Fewer ranks remain than the group needs to go on.
    #[error("{remaining} ranks remain, but at least {required} are required to go on")]
    TooFewRanks {
        /// The number of ranks that remain, including this one.
        remaining: usize,
        /// The required number.
        required: usize,
    },
    /// The caller's code panicked in a background operation: for example the `AsMut` of a buffer.
    /// If the operation was a collective, the communicator was aborted, because other ranks may be
    /// in the same call. If it was a send, all messages failed; if it was a receive, only that
    /// receive failed.
    #[error("a background operation panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// The last handle to the communicator was dropped before a message matched a background
    /// receive.
    #[error("the receive was cancelled: its communicator was dropped before a message arrived")]
    Cancelled,
    /// An earlier call failed with a fatal error; this call did nothing.
    #[error("the communicator is unusable after an earlier error: {0}")]
    Poisoned(Arc<Error>),
    /// A record in the store, or a reply during an agreement between ranks, is not one that this
    /// version of the library writes.
    #[error(
        "{what} is malformed: {content}; it comes from another program, or another version of this library"
    )]
    Malformed {
        /// The item that was read, as in "the record of rank 3".
        what: String,
        /// Its content, or its defect.
        content: String,
    },
    /// An invariant of the library does not hold. This is a bug: please report it.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

/// The operation in progress when an error occurred.
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
    /// Sending a message.
    Send {
        /// The receiver.
        to: usize,
        /// Its tag.
        tag: u64,
    },
    /// Waiting for a message that matches a receive or a probe. No part of it has arrived.
    Await {
        /// The senders that match.
        from: Source,
        /// The tags that match.
        tag: TagMatch,
    },
    /// Receiving a message that has matched.
    Recv {
        /// The sender.
        from: usize,
        /// Its tag.
        tag: u64,
    },
    /// Leaving the group.
    Finalize,
    /// The rendezvous of all ranks.
    Rendezvous,
    /// An operation on a store, with its key.
    Store {
        /// The key, or the keys.
        key: String,
    },
    /// Connecting the members of a group.
    Connect,
    /// Sending bytes in a transport, which does not know the call.
    Sending,
    /// Receiving bytes in a transport, which does not know the call.
    Receiving,
    /// Waiting for work on the device of this rank.
    Device,
    /// Creating a group.
    NewGroup,
    /// Creating a group of the ranks that remain after a failure.
    Shrink,
    /// Closing a communicator.
    Close,
    /// No call was under way.
    Idle,
}

impl During {
    /// Returns whether the operation concerns a single message.
    const fn is_message(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Await { .. } | Self::Recv { .. })
    }
}

impl std::fmt::Display for During {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Call { call, sequence } => write!(f, "during {call}, call {sequence}"),
            Self::Send { to, tag } => write!(f, "while sending to rank {to} with tag {tag}"),
            Self::Await { from, tag } => write!(f, "while waiting for a message from {from} with {tag}"),
            Self::Recv { from, tag } => write!(f, "while receiving from rank {from} with tag {tag}"),
            Self::Finalize => f.write_str("while leaving the group"),
            Self::Rendezvous => f.write_str("during rendezvous"),
            Self::Store { key } => write!(f, "during a store operation on {key:?}"),
            Self::Connect => f.write_str("while connecting the members of a group"),
            Self::Sending => f.write_str("while sending"),
            Self::Receiving => f.write_str("while receiving"),
            Self::Device => f.write_str("while waiting for the device of this rank"),
            Self::NewGroup => f.write_str("while creating a group"),
            Self::Shrink => f.write_str("while shrinking the group"),
            Self::Close => f.write_str("while closing the communicator"),
            Self::Idle => f.write_str("between calls"),
        }
    }
}

/// The way in which the loss of a rank was detected.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// Its connection closed without a goodbye message: the process has exited.
    #[error("its connection closed unexpectedly, so its process has exited or was killed")]
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
    /// Its host has not answered for this time: it is down, or the network between it and the
    /// reporting rank is. A process that is busy or stopped is not lost, because its kernel
    /// answers.
    #[error("its host has not answered for {after:?}, so it is down or cannot be reached")]
    HostUnreachable {
        /// The time after which a host that does not answer is lost.
        after: Duration,
    },
    /// The connection to the store that it serves broke.
    #[error("it serves the store, and the connection to the store broke: {0}")]
    Store(Arc<io::Error>),
    /// Another rank reported the loss.
    #[error("reported by rank {by}: {detail}")]
    Reported {
        /// The rank that reported.
        by: usize,
        /// Its message.
        detail: String,
    },
    /// Bytes that it sent did not arrive as it sent them. They were not delivered.
    #[error("{0}")]
    Corrupted(Corruption),
    /// It sent bytes that no correct peer sends.
    #[error("it violated the protocol: {0}")]
    Protocol(String),
}

/// The frame of a connection that shows that bytes did not arrive as they were sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "bytes that it sent were altered, lost, repeated or inserted on the way: frame {frame} has a \
     wrong {check}"
)]
#[non_exhaustive]
pub struct Corruption {
    /// The check that failed.
    pub check: IntegrityCheck,
    /// The number of the frame in its direction of the connection, counting from 0.
    pub frame: u64,
}

impl Corruption {
    /// Creates the error.
    #[must_use]
    pub const fn new(check: IntegrityCheck, frame: u64) -> Self {
        Self { check, frame }
    }
}

/// A check of the bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IntegrityCheck {
    /// A checksum, which detects accidents.
    Checksum,
    /// A message authentication code, which also detects attackers that do not know the secret.
    AuthenticationCode,
    /// The authentication tag of a record of TLS, or its form. Records are counted from the
    /// beginning of the connection.
    TlsRecord,
}

impl std::fmt::Display for IntegrityCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Checksum => "checksum",
            Self::AuthenticationCode => "authentication code",
            Self::TlsRecord => "TLS record",
        })
    }
}

/// Two ranks made different calls with the same sequence number.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "ranks made different calls with sequence number {sequence}: {}{}",
    calls(.rank, .ours, .peer, .theirs), mismatch(.rank, .peer, .lengths)
)]
#[non_exhaustive]
pub struct Desync {
    /// The sequence number of both calls.
    pub sequence: u64,
    /// One of the two ranks: the reporting rank if it is one of them.
    pub rank: usize,
    /// The call of `rank`; `None` if it is unknown.
    pub ours: Option<Signature>,
    /// The other rank.
    pub peer: usize,
    /// The call of `peer`; `None` if it is unknown.
    pub theirs: Option<Signature>,
    /// The message lengths that differ, if the signatures are equal: signatures do not include
    /// counts that not every rank knows.
    pub lengths: Option<Lengths>,
}

impl Desync {
    /// Creates the error from two ranks, each with its call of this sequence number, if known.
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
    /// The length that the receiver, [`Desync::rank`], expected.
    pub expected: u64,
    /// The length that the sender, [`Desync::peer`], announced.
    pub sent: u64,
}

impl Error {
    /// Returns whether all later calls fail as well: all collectives after an error of a
    /// collective, all messages after an error of a message. [`Error::PeerLost`] of a message is
    /// not fatal: messages with other ranks continue.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::NotConnected(_) | Self::Cancelled => false,
            Self::Timeout { during, .. } => !matches!(during, During::Await { .. }),
            Self::PeerLost { during, .. } => !during.is_message(),
            _ => true,
        }
    }

    /// Returns the cause of [`Error::Poisoned`] and [`Error::NotConnected`], and every other error
    /// itself.
    #[must_use]
    pub fn root_cause(&self) -> &Self {
        match self {
            Self::Poisoned(first) | Self::NotConnected(first) => first.root_cause(),
            other => other,
        }
    }

    /// Creates an [`Error::Io`]; `doing` is a verb and its object, as in "bind 10.0.0.1:29500".
    pub fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Io { doing: doing.into(), source: Arc::new(source) }
    }

    /// Creates an [`Error::Malformed`].
    pub fn malformed(what: impl Into<String>, content: impl std::fmt::Display) -> Self {
        Self::Malformed { what: what.into(), content: content.to_string() }
    }

    /// Creates an [`Invalid::Setting`].
    pub fn setting(
        name: impl Into<String>,
        value: impl Into<String>,
        reason: impl std::fmt::Display,
    ) -> Self {
        Invalid::Setting { name: name.into(), value: value.into(), reason: reason.to_string() }.into()
    }
}

/// Prints the `Display` text, for programs whose `main` returns this error. It is written at once,
/// so that the errors of several processes do not mix within a line.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_string())
    }
}

/// Not derived: a derived conversion would also make the cause a source, and the text already
/// includes it.
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

/// Rounds a time that was measured to a hundredth of a second, so that it is read with ease.
fn rounded(time: Duration) -> Duration {
    const UNIT: Duration = Duration::from_millis(10);
    let units = time.saturating_add(UNIT / 2).as_millis() / UNIT.as_millis();
    u32::try_from(units).ok().filter(|units| *units >= 100).map_or(time, |units| UNIT * units)
}

/// Formats the ranks that a rank waits for, if it waits for some.
fn awaited(waiting_for: &[usize]) -> String {
    if waiting_for.is_empty() { String::new() } else { format!(", waiting for {}", ranks(waiting_for)) }
}

/// Formats ranks as in "rank 3", "ranks 0, 2 and 7".
pub(crate) fn ranks(ranks: &[usize]) -> String {
    match ranks {
        [] => "no rank".into(),
        [one] => format!("rank {one}"),
        [init @ .., last] => {
            let init: Vec<String> = init.iter().map(ToString::to_string).collect();
            format!("ranks {} and {last}", init.join(", "))
        }
    }
}

/// Formats lengths as in ", where rank 0 expected 5 bytes and rank 1 sent 6".
fn mismatch(rank: &usize, peer: &usize, lengths: &Option<Lengths>) -> String {
    let text = |Lengths { expected, sent }: &Lengths| {
        format!(", where rank {rank} expected {expected} bytes and rank {peer} sent {sent}")
    };
    lengths.as_ref().map_or_else(String::new, text)
}

/// Formats the calls of two ranks in the order of the ranks, so that all ranks print the same.
fn calls(rank: &usize, ours: &Option<Signature>, peer: &usize, theirs: &Option<Signature>) -> String {
    let mut calls = [(rank, ours), (peer, theirs)];
    calls.sort_by_key(|(rank, _)| **rank);
    let [(first, one), (second, other)] = calls;
    format!("rank {first} is in {}, rank {second} in {}", known(one), known(other))
}

fn known(call: &Option<Signature>) -> String {
    call.as_ref().map_or_else(|| "an unknown call".into(), ToString::to_string)
}
