//! What is under way: sends, receives and probes, and where their bytes lie.

use std::ops::Range;
use std::time::{Duration, Instant};

use comm_core::{
    DType, During, Error, HostView, Incoming, Invalid, Outgoing, Received, Result, Shape, Source, TagMatch,
};

use crate::point_to_point::matching::{Label, Pattern};

/// The number of an operation or of a message. Numbers grow with time.
pub(crate) type Ticket = u64;

/// The memory of the call on the thread that holds the engine. No other thread may touch it.
#[derive(Debug, Default)]
pub(crate) struct Mine<'a> {
    pub(crate) send: Option<(Ticket, &'a [u8])>,
    pub(crate) recv: Option<(Ticket, &'a mut [u8])>,
    pub(crate) probe: Option<Ticket>,
}

/// Where the bytes of a send lie.
pub(crate) enum Payload {
    /// In the memory of the caller, who drives the engine: see [`Mine`].
    RecvBuf,
    /// In the engine's memory, since the caller only waits.
    Copied(Vec<u8>),
    /// In memory that came with the send.
    Owned(Box<dyn Outgoing>),
}

/// Where the bytes of a receive go.
pub(crate) enum Space {
    /// To the memory of the caller, who drives the engine: see [`Mine`].
    RecvBuf,
    /// To the engine's memory, since the caller only waits.
    Staged(Vec<u8>),
    /// To memory that came with the receive.
    Owned(Box<dyn Incoming>),
    /// Nowhere, since the memory that came with the receive is no longer to be had, for this reason.
    Discarded { owner: Box<dyn Incoming>, reason: Error, bytes: Vec<u8> },
}

pub(crate) struct Send {
    pub(crate) to: usize,
    pub(crate) tag: u64,
    pub(crate) dtype: DType,
    /// In bytes.
    pub(crate) length: usize,
    pub(crate) payload: Payload,
    /// Whether some of its bytes may be on their way: then it cannot be moved.
    pub(crate) begun: bool,
    /// Whether somebody waits for the outcome.
    pub(crate) awaited: bool,
}

pub(crate) struct Recv {
    pub(crate) pattern: Pattern,
    /// How many elements fit, and of which type.
    pub(crate) room: usize,
    pub(crate) dtype: DType,
    pub(crate) space: Space,
    /// The message that it gets.
    pub(crate) matched: Option<Matched>,
}

/// The message that a receive gets, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matched {
    pub(crate) label: Label,
    pub(crate) length: usize,
}

pub(crate) enum Kind {
    Send(Send),
    Recv(Recv),
    Probe(Pattern),
}

/// An operation with its deadline, which is known when the thread that has the clock sees it first.
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Option<Instant>,
}

/// How a call of a thread that waits ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<Option<Received>>,
    /// What is to be copied to the front of the caller's buffer.
    pub(crate) staged: Vec<u8>,
}

/// An operation in the background that ended. Its owner is told when no lock is held, since telling runs foreign code.
pub(crate) enum Finished {
    Sent(Box<dyn Outgoing>, Result<()>),
    Received(Box<dyn Incoming>, Result<Received>),
}

impl Finished {
    pub(crate) fn tell(self) {
        match self {
            Self::Sent(message, outcome) => message.complete(outcome),
            Self::Received(buffer, outcome) => buffer.complete(outcome),
        }
    }
}

impl Operation {
    /// The rank with which it has to do; `None` if that may be any.
    pub(crate) fn peer(&self) -> Option<usize> {
        let of = |from: Source| match from {
            Source::Rank(rank) => Some(rank),
            Source::Any => None,
        };
        match &self.kind {
            Kind::Send(send) => Some(send.to),
            Kind::Recv(recv) => of(recv.pattern.from),
            Kind::Probe(pattern) => of(pattern.from),
        }
    }

    /// The rank for which it waits now; `None` if that may be any.
    pub(crate) fn waits_for(&self) -> Option<usize> {
        match &self.kind {
            Kind::Recv(Recv { matched: Some(Matched { label, .. }), .. }) => Some(label.source),
            _ => self.peer(),
        }
    }

    /// Whether it may end without a trace: nothing of it has been sent or received.
    pub(crate) const fn is_idle(&self) -> bool {
        matches!(&self.kind, Kind::Probe(_) | Kind::Recv(Recv { matched: None, .. }))
    }

    /// Whether it is in the background.
    pub(crate) const fn is_owned(&self) -> bool {
        matches!(
            &self.kind,
            Kind::Send(Send { payload: Payload::Owned(_), .. })
                | Kind::Recv(Recv { space: Space::Owned(_) | Space::Discarded { .. }, .. })
        )
    }

    /// What it does, for errors.
    pub(crate) fn during(&self) -> During {
        match &self.kind {
            Kind::Send(send) => sending(send.to, send.tag),
            Kind::Recv(Recv { matched: Some(Matched { label, .. }), .. }) => {
                During::Recv { from: label.source, tag: label.tag }
            }
            Kind::Recv(Recv { pattern, .. }) | Kind::Probe(pattern) => awaiting(*pattern),
        }
    }
}

pub(crate) const fn awaiting(Pattern { from, tag }: Pattern) -> During {
    During::Await { from, tag }
}

pub(crate) const fn sending(to: usize, tag: u64) -> During {
    During::Send { to, tag }
}

impl Send {
    pub(crate) fn new((to, tag): (usize, u64), view: HostView<'_>, payload: Payload) -> Self {
        let (dtype, length) = (view.dtype(), view.bytes().len());
        Self { to, tag, dtype, length, payload, begun: false, awaited: true }
    }

    /// A send in the background, or its message and the reason why it has no bytes.
    pub(crate) fn owned(
        (to, tag): (usize, u64),
        message: Box<dyn Outgoing>,
    ) -> Result<Self, (Box<dyn Outgoing>, Error)> {
        match message.view().map(|view| (view.dtype(), view.bytes().len())) {
            Ok((dtype, length)) => {
                let payload = Payload::Owned(message);
                Ok(Self { to, tag, dtype, length, payload, begun: false, awaited: true })
            }
            Err(error) => Err((message, error)),
        }
    }

    pub(crate) const fn label(&self, source: usize) -> Label {
        Label { source, tag: self.tag }
    }

    /// Some of its bytes, if they are where they should be. `lent` are those of the caller who drives.
    pub(crate) fn bytes<'a>(
        &'a self,
        ticket: Ticket,
        range: Range<usize>,
        lent: Option<(Ticket, &'a [u8])>,
    ) -> Result<&'a [u8]> {
        match &self.payload {
            Payload::RecvBuf => {
                lent.filter(|(owner, _)| *owner == ticket).and_then(|(_, bytes)| bytes.get(range))
            }
            Payload::Copied(bytes) => bytes.get(range),
            Payload::Owned(message) => return within(message.view()?.bytes(), range),
        }
        .ok_or_else(misplaced)
    }
}

/// A part of the buffer that came with an operation, which the owner may have made shorter.
fn within(bytes: &[u8], range: Range<usize>) -> Result<&[u8]> {
    let got = bytes.len();
    bytes.get(range.clone()).ok_or_else(|| shrunk(range.end, got))
}

fn shrunk(expected: usize, got: usize) -> Error {
    Invalid::Length { what: "a buffer whose length changed while its message was under way", expected, got }
        .into()
}

/// The error for bytes that are lost.
pub(crate) fn misplaced() -> Error {
    Error::Internal("the bytes of a message are not where its operation says".into())
}

impl Recv {
    pub(crate) const fn new(
        (from, tag): (Source, TagMatch),
        (room, dtype): (usize, DType),
        space: Space,
    ) -> Self {
        Self { pattern: Pattern { from, tag }, room, dtype, space, matched: None }
    }

    /// The memory for some of its bytes, if it is where it should be.
    pub(crate) fn space<'a>(
        &'a mut self,
        ticket: Ticket,
        range: Range<usize>,
        mine: &'a mut Mine<'_>,
    ) -> Result<&'a mut [u8]> {
        match &mut self.space {
            Space::RecvBuf => match &mut mine.recv {
                Some((owner, buffer)) if *owner == ticket => buffer.get_mut(range),
                _ => None,
            },
            Space::Staged(bytes) => {
                bytes.resize(range.end.max(bytes.len()), 0);
                bytes.get_mut(range)
            }
            Space::Owned(buffer) => {
                let (bytes, end) = (buffer.view_mut()?.into_bytes(), range.end);
                let got = bytes.len();
                return bytes.get_mut(range).ok_or_else(|| shrunk(end, got));
            }
            Space::Discarded { bytes, .. } => {
                bytes.resize(range.len(), 0);
                bytes.get_mut(..)
            }
        }
        .ok_or_else(misplaced)
    }

    /// Throws away what still comes, for this reason, if the memory for it came with the receive.
    pub(crate) fn discard(&mut self, reason: &Error) -> bool {
        match std::mem::replace(&mut self.space, Space::RecvBuf) {
            Space::Owned(owner) => {
                self.space = Space::Discarded { owner, reason: reason.clone(), bytes: Vec::new() };
                true
            }
            other => {
                self.space = other;
                false
            }
        }
    }
}
