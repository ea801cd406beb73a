//! Pending operations (sends, receives and probes), and the location of their bytes.

use std::ops::Range;
use std::time::Duration;

use comm_core::{DType, During, Error, Incoming, Invalid, Outgoing, Received, Result, Source, TagMatch};

use crate::point_to_point::matching::{Envelope, MatchKey};

/// The number of an operation or of a message. Later ones have larger numbers.
pub(crate) type RequestId = u64;

/// The memory of the call on the thread that holds the engine. No other thread may access it.
#[derive(Debug, Default)]
pub(crate) struct CallerBuffers<'a> {
    pub(crate) send: Option<(RequestId, &'a [u8])>,
    pub(crate) recv: Option<(RequestId, &'a mut [u8])>,
    pub(crate) probe: Option<RequestId>,
}

/// The location of the bytes of a send.
pub(crate) enum Payload {
    /// In the memory of the caller, which drives the engine: see [`CallerBuffers`].
    Caller,
    /// In the engine's memory, because the caller only waits.
    Copied(Vec<u8>),
    /// In a buffer that was passed with the send.
    Owned(Box<dyn Outgoing>),
}

/// The destination of the bytes of a receive.
pub(crate) enum RecvBuffer {
    /// The memory of the caller, which drives the engine: see [`CallerBuffers`].
    Caller,
    /// The engine's memory, because the caller only waits.
    Staged(Vec<u8>),
    /// A buffer that was passed with the receive.
    Owned(Box<dyn Incoming>),
    /// No memory: the buffer that was passed with the receive failed for this reason.
    Discarded(Box<Discarded>),
}

/// A buffer that has failed, of a receive whose message still arrives.
pub(crate) struct Discarded {
    pub(crate) owner: Box<dyn Incoming>,
    pub(crate) reason: Error,
    /// The memory for the bytes that are discarded.
    bytes: Vec<u8>,
}

pub(crate) struct SendRequest {
    pub(crate) to: usize,
    pub(crate) tag: u64,
    pub(crate) dtype: DType,
    /// In bytes.
    pub(crate) length: usize,
    pub(crate) payload: Payload,
    /// Whether some of its bytes may have been sent, so that they must stay at their location.
    pub(crate) begun: bool,
    /// Whether a thread waits for the outcome.
    pub(crate) has_owner: bool,
}

pub(crate) struct RecvRequest {
    pub(crate) key: MatchKey,
    /// The number of elements that fit.
    pub(crate) capacity: usize,
    pub(crate) dtype: DType,
    pub(crate) dst: RecvBuffer,
    /// The message that it matched.
    pub(crate) matched: Option<Matched>,
}

/// The message that a receive matched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matched {
    pub(crate) envelope: Envelope,
    pub(crate) length: usize,
}

pub(crate) enum Kind {
    Send(SendRequest),
    Recv(RecvRequest),
    Probe(MatchKey),
}

/// An operation. The thread that drives the engine sets its deadline.
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) timeout: Duration,
    pub(crate) has_deadline: bool,
}

/// The outcome of a call that a thread waits for.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<Option<Received>>,
    /// The bytes to copy to the front of the caller's buffer.
    pub(crate) staged: Vec<u8>,
}

/// A background operation that has ended. Its owner is notified without holding a lock, because the
/// notification runs the owner's code.
pub(crate) enum Finished {
    Sent(Box<dyn Outgoing>, Result<()>),
    Received(Box<dyn Incoming>, Result<Received>),
}

impl Finished {
    /// Returns the buffer to its owner, and an error with its cause.
    pub(crate) fn notify_owner(self, explain: impl Fn(Error) -> Error) {
        match self {
            Self::Sent(message, outcome) => message.complete(outcome.map_err(explain)),
            Self::Received(buffer, outcome) => buffer.complete(outcome.map_err(explain)),
        }
    }
}

impl Operation {
    /// Returns the rank that it involves; `None` if that may be any.
    pub(crate) fn peer(&self) -> Option<usize> {
        let of = |from: Source| match from {
            Source::Rank(rank) => Some(rank),
            Source::Any => None,
        };
        match &self.kind {
            Kind::Send(send) => Some(send.to),
            Kind::Recv(recv) => of(recv.key.from),
            Kind::Probe(key) => of(key.from),
        }
    }

    /// Returns the rank that it is waiting for; `None` if that may be any.
    pub(crate) fn waits_for(&self) -> Option<usize> {
        match &self.kind {
            Kind::Recv(RecvRequest { matched: Some(Matched { envelope, .. }), .. }) => Some(envelope.source),
            _ => self.peer(),
        }
    }

    /// Returns whether it can end without affecting the streams, because no part of it has been
    /// sent or received.
    pub(crate) const fn is_idle(&self) -> bool {
        matches!(&self.kind, Kind::Probe(_) | Kind::Recv(RecvRequest { matched: None, .. }))
    }

    /// Returns whether it is a background operation.
    pub(crate) const fn is_owned(&self) -> bool {
        matches!(
            &self.kind,
            Kind::Send(SendRequest { payload: Payload::Owned(_), .. })
                | Kind::Recv(RecvRequest { dst: RecvBuffer::Owned(_) | RecvBuffer::Discarded(_), .. })
        )
    }

    /// Returns the description of the operation in errors.
    pub(crate) fn during(&self) -> During {
        match &self.kind {
            Kind::Send(send) => sending(send.to, send.tag),
            Kind::Recv(RecvRequest { matched: Some(Matched { envelope, .. }), .. }) => {
                During::Recv { from: envelope.source, tag: envelope.tag }
            }
            Kind::Recv(RecvRequest { key, .. }) | Kind::Probe(key) => awaiting(*key),
        }
    }
}

pub(crate) const fn awaiting(MatchKey { from, tag }: MatchKey) -> During {
    During::Await { from, tag }
}

pub(crate) const fn sending(to: usize, tag: u64) -> During {
    During::Send { to, tag }
}

impl SendRequest {
    pub(crate) fn new((to, tag): (usize, u64), (dtype, length): (DType, usize), payload: Payload) -> Self {
        Self { to, tag, dtype, length, payload, begun: false, has_owner: true }
    }

    pub(crate) const fn envelope(&self, source: usize) -> Envelope {
        Envelope { source, tag: self.tag }
    }

    /// Returns a range of its bytes. `borrowed` are those of the driving caller.
    pub(crate) fn bytes<'a>(
        &'a self,
        request: RequestId,
        range: Range<usize>,
        borrowed: Option<(RequestId, &'a [u8])>,
    ) -> Result<&'a [u8]> {
        match &self.payload {
            Payload::Caller => {
                borrowed.filter(|(owner, _)| *owner == request).and_then(|(_, bytes)| bytes.get(range))
            }
            Payload::Copied(bytes) => bytes.get(range),
            Payload::Owned(message) => return within(message.view()?.bytes(), range),
        }
        .ok_or_else(misplaced)
    }
}

/// Returns a range of a buffer that was passed with an operation, which the owner may have made
/// shorter.
fn within(bytes: &[u8], range: Range<usize>) -> Result<&[u8]> {
    let got = bytes.len();
    bytes.get(range.clone()).ok_or_else(|| shrunk(range.end, got))
}

fn shrunk(expected: usize, got: usize) -> Error {
    Invalid::Length { what: "a buffer whose length changed while its message was under way", expected, got }
        .into()
}

/// Returns the error for bytes that are not at their location.
pub(crate) fn misplaced() -> Error {
    Error::Internal("the bytes of a message are missing from its operation".into())
}

impl RecvRequest {
    pub(crate) const fn new(
        (from, tag): (Source, TagMatch),
        (capacity, dtype): (usize, DType),
        dst: RecvBuffer,
    ) -> Self {
        Self { key: MatchKey { from, tag }, capacity, dtype, dst, matched: None }
    }

    /// Returns the message that it matched.
    pub(crate) fn received(&self) -> Option<Received> {
        let Matched { envelope: Envelope { source, tag }, length } = self.matched?;
        Some(Received::new(source, tag, self.dtype, length / self.dtype.size()))
    }

    /// Returns the memory for a range of its bytes.
    pub(crate) fn bytes_mut<'a>(
        &'a mut self,
        request: RequestId,
        range: Range<usize>,
        caller: &'a mut CallerBuffers<'_>,
    ) -> Result<&'a mut [u8]> {
        match &mut self.dst {
            RecvBuffer::Caller => match &mut caller.recv {
                Some((owner, buffer)) if *owner == request => buffer.get_mut(range),
                _ => None,
            },
            RecvBuffer::Staged(bytes) => {
                bytes.resize(range.end.max(bytes.len()), 0);
                bytes.get_mut(range)
            }
            RecvBuffer::Owned(buffer) => {
                let (bytes, end) = (buffer.view_mut()?.into_bytes(), range.end);
                let got = bytes.len();
                return bytes.get_mut(range).ok_or_else(|| shrunk(end, got));
            }
            RecvBuffer::Discarded(discarded) => {
                discarded.bytes.resize(range.len(), 0);
                discarded.bytes.get_mut(..)
            }
        }
        .ok_or_else(misplaced)
    }

    /// Discards the remaining bytes, for this reason, if the buffer for them was passed with the
    /// receive.
    pub(crate) fn discard(&mut self, reason: &Error) -> bool {
        match std::mem::replace(&mut self.dst, RecvBuffer::Caller) {
            RecvBuffer::Owned(owner) => {
                let discarded = Discarded { owner, reason: reason.clone(), bytes: Vec::new() };
                self.dst = RecvBuffer::Discarded(Box::new(discarded));
                true
            }
            other => {
                self.dst = other;
                false
            }
        }
    }
}
