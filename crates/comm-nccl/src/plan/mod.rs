//! NCCL calls as data, and the memory that they use.
//!
//! Shapes, types, operators, devices and roots are checked here, before NCCL is called. An error
//! leaves the plan unchanged.

mod collective;
mod messages;

use comm_core::{CallOptions, DType, During, Group, Result, Signature};
use nccl_sys::ncclDataType_t;

use crate::allocation::Allocation;
use crate::dtype::ReduceSupport;
use crate::handle::{Op, OpKind};
use crate::stream::Stream;
use crate::usage::{Access, Use};
use crate::view::Span;
use collective::check_options;

/// Calls that are enqueued together.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    group: Group,
    abilities: ReduceSupport,
    stream: Stream,
    ops: Vec<Op>,
    uses: Vec<SpanUse<'a>>,
    /// Scratch memory of the calls. It is freed on the communicator's stream, after them.
    scratch: Vec<Allocation>,
    /// The collectives, for errors.
    calls: Vec<Signature>,
    /// The first message, and the other rank.
    message: Option<Pending>,
}

/// The operation in progress, as errors describe it.
#[derive(Debug, Clone)]
pub(crate) enum Pending {
    /// A collective, or the first of several with a fingerprint of all of them. All ranks make it.
    Collective(Signature),
    Send {
        to: usize,
    },
    Recv {
        from: usize,
    },
    Nothing,
}

impl Pending {
    /// Converts it for errors, with the number of the collective.
    pub(crate) fn during(&self, sequence: u64) -> During {
        match self {
            Self::Collective(call) => During::Call { call: Box::new(call.clone()), sequence },
            Self::Send { to } => During::Send { to: *to, tag: 0 },
            Self::Recv { from } => During::Recv { from: *from, tag: 0 },
            Self::Nothing => During::Device,
        }
    }
}

/// A buffer, and the access to it.
type SpanUse<'a> = (Span<'a>, Access);

impl<'a> Plan<'a> {
    /// Creates an empty plan for a communicator with this stream.
    pub(crate) fn new(group: Group, abilities: ReduceSupport, stream: &Stream) -> Self {
        let stream = stream.clone();
        Self {
            group,
            abilities,
            stream,
            ops: Vec::new(),
            uses: Vec::new(),
            scratch: Vec::new(),
            calls: Vec::new(),
            message: None,
        }
    }

    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Returns an error for options that NCCL does not support, for all calls so far.
    pub(crate) fn check_options(&self, options: &CallOptions) -> Result<()> {
        let mut calls = self.calls.iter();
        calls.try_for_each(|call| check_options(call.collective, call.op.zip(call.dtype), options))
    }

    pub(crate) fn pending(&self) -> Pending {
        match &self.calls[..] {
            [] => self.message.clone().unwrap_or(Pending::Nothing),
            [call] => Pending::Collective(call.clone()),
            [first, ..] => {
                let mut call = first.clone();
                call.extra_fingerprint =
                    Signature::fingerprint_of(self.calls.iter().map(Signature::fingerprint));
                Pending::Collective(call)
            }
        }
    }

    /// Makes the communicator's stream wait for earlier uses of the memory.
    pub(crate) fn before(&self) -> Result<()> {
        let scratch = self.scratch.iter().map(Allocation::usage);
        scratch.clone().try_for_each(|usage| usage.before(&self.stream, Access::Write))?;
        self.orders().try_for_each(|(span, access)| span.before(&self.stream, *access))
    }

    /// Makes later uses of the memory wait for the calls.
    pub(crate) fn after(&self, now: &Use) -> Result<()> {
        self.scratch.iter().for_each(|scratch| scratch.usage().after(Access::Write, now.clone()));
        // Marks all of them, even after an error.
        let marked = self.orders().map(|(span, access)| span.after(*access, now));
        marked.fold(Ok(()), Result::and)
    }

    /// Returns the uses, but only the first of consecutive ones that follow the order of the same
    /// stream: one wait serves them all.
    fn orders(&self) -> impl Iterator<Item = &SpanUse<'a>> {
        let before = [None].into_iter().chain(self.uses.iter().map(Some));
        let is_news = |before: Option<&SpanUse<'a>>, span: &Span<'a>| {
            before.is_none_or(|(before, _)| !before.shares_stream(span))
        };
        self.uses
            .iter()
            .zip(before)
            .filter(move |((span, _), before)| is_news(*before, span))
            .map(|(ours, _)| ours)
    }

    /// Returns an error for memory of other devices. Buffers without elements have no device.
    fn check_devices(&self, uses: &[SpanUse<'a>]) -> Result<()> {
        let spans = uses.iter().map(|(span, _)| span);
        spans.filter(|span| span.len > 0).try_for_each(|span| span.check_device(self.stream.ordinal()))
    }

    /// Adds an NCCL call, unless it moves nothing.
    fn push(&mut self, op: Op) {
        if op.count > 0 {
            self.ops.push(op);
        }
    }

    /// Copies elements on the device.
    fn copy(&mut self, from: u64, to: u64, bytes: usize) {
        if from != to {
            self.push(Op { kind: OpKind::Copy, send: from, recv: to, count: bytes, ..nothing() });
        }
    }

    /// Sends elements of a type, from an address.
    fn send_to(&mut self, peer: usize, from: u64, (dtype, elements): (DType, usize)) {
        let (dtype, times) = crate::dtype::moved(dtype);
        self.push(Op { kind: OpKind::Send, send: from, count: elements * times, dtype, peer, ..nothing() });
    }

    /// Receives elements of a type, at an address.
    fn recv_from(&mut self, peer: usize, to: u64, (dtype, elements): (DType, usize)) {
        let (dtype, times) = crate::dtype::moved(dtype);
        self.push(Op { kind: OpKind::Recv, recv: to, count: elements * times, dtype, peer, ..nothing() });
    }
}

/// Returns an empty call, whose fields the caller sets.
const fn nothing() -> Op {
    Op {
        kind: OpKind::Copy,
        send: 0,
        recv: 0,
        count: 0,
        dtype: ncclDataType_t::ncclUint8,
        reduction: None,
        peer: 0,
    }
}
