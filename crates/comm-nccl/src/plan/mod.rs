//! What a call comes to: calls of NCCL, as data, and the memory that they use.
//!
//! Everything is checked here, before NCCL is asked for anything: shape, type, operator, device and root. A call that is
//! refused leaves its plan as it was.

mod exchange;
mod gather;
mod reduce;

use std::ops::Range;

use comm_core::{
    Call, CallOptions, Collective, DType, During, Error, Exchange, Group, Invalid, ReduceOp, Result, Shares,
};
use nccl_sys::ncclDataType_t;

use crate::allocation::Allocation;
use crate::dtype::Abilities;
use crate::error::NCCL;
use crate::handle::{Op, Verb};
use crate::memory::Cuda;
use crate::stream::Stream;
use crate::usage::{Access, Use};
use crate::view::Span;

/// Calls that are carried out together.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    group: Group,
    abilities: Abilities,
    stream: Stream,
    ops: Vec<Op>,
    uses: Vec<(Span<'a>, Access)>,
    /// Memory of the calls' own. It is freed on the communicator's stream, behind them.
    scratch: Vec<Allocation>,
    /// The collectives, in words of the caller.
    calls: Vec<Call>,
    /// The first message, and the other rank.
    message: Option<Subject>,
}

/// What is under way, as far as errors tell of it.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    /// A collective, or the first of several, with all of them in its detail. All ranks make it.
    Collective(Call),
    Send {
        to: usize,
    },
    Recv {
        from: usize,
    },
    Nothing,
}

impl Subject {
    /// What was under way, with the number of a collective.
    pub(crate) fn during(&self, sequence: u64) -> During {
        match self {
            Self::Collective(call) => During::Call { call: Box::new(call.clone()), sequence },
            Self::Send { to } => During::Send { to: *to, tag: 0 },
            Self::Recv { from } => During::Recv { from: *from, tag: 0 },
            Self::Nothing => During::Device,
        }
    }
}

/// What a collective is known by.
#[derive(Debug, Clone, Copy)]
struct Description {
    collective: Collective,
    op: Option<ReduceOp>,
    dtype: DType,
    count: usize,
    root: Option<usize>,
}

/// A part of a buffer.
#[derive(Debug, Clone, Copy)]
enum Part<'a> {
    Read(Span<'a>),
    Write(Span<'a>),
}

impl<'a> Plan<'a> {
    /// Nothing yet, for a communicator with this stream.
    pub(crate) fn new(group: Group, abilities: Abilities, stream: &Stream) -> Self {
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

    /// Refuses partial sums in another type than that of the elements, which NCCL does not have.
    pub(crate) fn check_accumulate(&self, options: &CallOptions) -> Result<()> {
        let native = |call: &&Call| {
            let combined = call.op.zip(call.dtype).map(|(op, dtype)| options.accumulate.dtype(op, dtype));
            combined.is_none() || combined == call.dtype
        };
        match self.calls.iter().find(|call| !native(call)) {
            None => Ok(()),
            Some(call) => {
                let reason = format!(
                    "{NCCL} keeps partial sums in the type of the elements, here in {}; convert them to f32, or take the \
                     way through the host",
                    call.dtype.map_or("", DType::name)
                );
                Err(Error::setting("accumulate", format!("{:?}", options.accumulate), reason))
            }
        }
    }

    pub(crate) fn subject(&self) -> Subject {
        match &self.calls[..] {
            [] => self.message.clone().unwrap_or(Subject::Nothing),
            [call] => Subject::Collective(call.clone()),
            [first, ..] => {
                let mut call = first.clone();
                call.detail = Call::detail_of(self.calls.iter().map(Call::fingerprint));
                Subject::Collective(call)
            }
        }
    }

    /// Makes the communicator's stream wait for what was done with the memory before.
    pub(crate) fn before(&self) -> Result<()> {
        let scratch = self.scratch.iter().map(Allocation::usage);
        scratch.clone().try_for_each(|usage| usage.before(&self.stream, Access::Write))?;
        self.orders().try_for_each(|(span, access)| span.before(&self.stream, *access))
    }

    /// Lets whoever uses the memory next wait for the calls.
    pub(crate) fn after(&self, now: &Use) -> Result<()> {
        self.scratch.iter().for_each(|scratch| scratch.usage().after(Access::Write, now.clone()));
        // All of them, also if one fails.
        let marked = self.orders().map(|(span, access)| span.after(*access, now));
        marked.fold(Ok(()), Result::and)
    }

    /// The uses, without those that come in the order of the same stream as the one before: it is joined once for all of them.
    fn orders(&self) -> impl Iterator<Item = &(Span<'a>, Access)> {
        let before = [None].into_iter().chain(self.uses.iter().map(Some));
        let is_news = |before: Option<&(Span<'a>, Access)>, span: &Span<'a>| {
            before.is_none_or(|(before, _)| !before.shares_stream(span))
        };
        self.uses
            .iter()
            .zip(before)
            .filter(move |((span, _), before)| is_news(*before, span))
            .map(|(ours, _)| ours)
    }

    /// Refuses memory of other devices. Buffers without elements are nowhere.
    fn check_devices(&self, parts: &[Part<'a>]) -> Result<()> {
        let spans = parts.iter().map(|(Part::Read(span) | Part::Write(span))| span);
        spans.filter(|span| span.len > 0).try_for_each(|span| span.check_device(self.stream.ordinal()))
    }

    /// Takes a collective in, which has been checked.
    fn enter(&mut self, description: Description, parts: &[Part<'a>]) {
        let Description { collective, op, dtype, count, root } = description;
        // Where only the root knows the lengths of all, the count is not the same everywhere.
        let known = !matches!(collective, Collective::GatherV | Collective::ScatterV | Collective::AllToAllV);
        let mut call = Call::new(self.group.id(), collective, NCCL);
        (call.op, call.dtype, call.root) = (op, Some(dtype), root);
        call.count = if known { count as u64 } else { 0 };
        self.calls.push(call);
        self.use_parts(parts);
    }

    fn use_parts(&mut self, parts: &[Part<'a>]) {
        self.uses.extend(parts.iter().map(|part| match part {
            Part::Read(span) => (*span, Access::Read),
            Part::Write(span) => (*span, Access::Write),
        }));
    }

    /// Adds a call of NCCL, unless nothing would move.
    fn push(&mut self, op: Op) {
        if op.count > 0 {
            self.ops.push(op);
        }
    }

    /// Copies elements on the device.
    fn copy(&mut self, from: u64, to: u64, bytes: usize) {
        if from != to {
            self.push(Op { verb: Verb::Copy, send: from, recv: to, count: bytes, ..nothing() });
        }
    }

    /// Sends elements of a type, from an address.
    fn send_to(&mut self, peer: usize, from: u64, (dtype, elements): (DType, usize)) {
        let (dtype, times) = crate::dtype::moved(dtype);
        self.push(Op { verb: Verb::Send, send: from, count: elements * times, dtype, peer, ..nothing() });
    }

    /// Receives elements of a type, at an address.
    fn recv_from(&mut self, peer: usize, to: u64, (dtype, elements): (DType, usize)) {
        let (dtype, times) = crate::dtype::moved(dtype);
        self.push(Op { verb: Verb::Recv, recv: to, count: elements * times, dtype, peer, ..nothing() });
    }
}

/// A call without data, to be filled in.
const fn nothing() -> Op {
    Op {
        verb: Verb::Copy,
        send: 0,
        recv: 0,
        count: 0,
        dtype: ncclDataType_t::ncclUint8,
        reduction: None,
        peer: 0,
    }
}

/// Where a call reads and where it writes, if both are needed on this rank.
fn read_and_write<'a>(buffers: Exchange<'a, Cuda>) -> Result<(Span<'a>, Span<'a>)> {
    match buffers {
        Exchange::InPlace(buffer) => Ok((buffer.span, buffer.span)),
        Exchange::Separate { send, recv } => Ok((send.span, recv.span)),
        Exchange::SendOnly(_) => Err(Invalid::WithoutRecv.into()),
    }
}

/// The parts of a call that reads one buffer and writes another, or the same.
fn parts<'a>(read: Span<'a>, write: Span<'a>) -> Vec<Part<'a>> {
    if read.pointer == write.pointer && read.len == write.len {
        vec![Part::Write(write)]
    } else {
        vec![Part::Read(read), Part::Write(write)]
    }
}

/// Which elements of a buffer for all ranks are whose.
fn blocks(shares: Shares<'_>, total: usize, ranks: usize) -> Vec<Range<usize>> {
    let mut end = 0;
    let mut next = |len: usize| {
        let start = end;
        end += len;
        start..end
    };
    match shares {
        Shares::Equal => (0..ranks).map(|_| next(total / ranks)).collect(),
        Shares::Counts(counts) => counts.iter().map(|count| next(*count)).collect(),
    }
}

/// The rooted collective's name, or that of its sibling with counts.
const fn named(shares: Shares<'_>, equal: Collective, counted: Collective) -> Collective {
    match shares {
        Shares::Equal => equal,
        Shares::Counts(_) => counted,
    }
}
