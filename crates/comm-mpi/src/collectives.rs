//! Collectives of the caller's buffers.

use std::ops::Range;

use comm_core::{Access, Allocation, Call, Collective, Counts, Error, Host, Operands, Result, Signature};

use crate::config::CallMemoryMode;
use crate::numerics::Numerics;
use crate::raw::{Area, BlockCounts, CallMemory, Routine, count_of};
use crate::session::{CallContext, Session};

/// The largest part of a buffer that is reduced or broadcast at a time, in bytes. Longer buffers
/// are divided, so that counts stay below the limit of MPI. Must be equal on every rank.
const PART_BYTES: usize = 256 << 20;

/// Memory that is kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    input: Option<Allocation>,
    output: Option<Allocation>,
}

/// The buffers of a caller.
#[derive(Debug)]
enum CallerBytes<'a> {
    Nothing,
    InPlace(&'a mut [u8]),
    Pair(&'a [u8], &'a mut [u8]),
    Read(&'a [u8]),
    Write(&'a mut [u8]),
}

/// The part of the caller's buffers in one call of MPI, in bytes.
#[derive(Debug)]
struct Part {
    input: Range<usize>,
    output: Range<usize>,
    /// The size of a result that the caller does not get, although MPI writes it.
    discarded: usize,
}

/// A call that has passed all checks.
#[derive(Debug)]
pub(crate) struct CheckedCall<'a> {
    bytes: CallerBytes<'a>,
    counts: (Counts<'a>, Counts<'a>),
    numerics: Numerics,
}

impl<'a> CheckedCall<'a> {
    /// Prepares a call with this signature.
    ///
    /// # Errors
    /// [`Invalid`](comm_core::Invalid) for reductions that the host cannot compute.
    pub(crate) fn new(signature: &Signature, call: Call<'a>, session: &Session) -> Result<Self> {
        let (counts, group) = (call.counts(), session.group);
        let numerics = Numerics::of(signature, group.size())?;
        Ok(Self { bytes: CallerBytes::of(call.into_operands(group.rank())), counts, numerics })
    }

    /// Makes the call.
    pub(crate) fn run(
        mut self,
        session: &Session,
        staging: &mut Staging,
        context: &CallContext<'_>,
    ) -> Result<()> {
        let collective = context.signature.collective;
        match collective.base() {
            Collective::Barrier => session.barrier(context),
            base if base.has_blocks() => {
                let (part, routine) = self.blocks(session, context.signature)?;
                self.transfer(part, routine, (session, staging, context))
            }
            _ => self.parts(session, staging, context),
        }?;
        self.numerics.check(session, context)
    }

    /// Reduces or broadcasts a buffer, part by part.
    fn parts(&mut self, session: &Session, staging: &mut Staging, context: &CallContext<'_>) -> Result<()> {
        let signature = context.signature;
        let size = self.numerics.element_bytes();
        let len = self.bytes.input().len().max(self.bytes.output_len());
        let step = (PART_BYTES / size).max(1) * size;
        let (rank, root) = (session.group.rank(), signature.root.unwrap_or(0));
        let is_root = rank == root;
        let (reads, writes) = match signature.collective {
            Collective::Broadcast => (is_root, !is_root),
            Collective::Reduce => (true, is_root),
            Collective::Exscan => (true, rank != 0),
            _ => (true, true),
        };
        // An empty buffer takes one call, too, because ranks wait for each other in a reduction.
        for start in (0..len.max(1)).step_by(step) {
            let range = start.min(len)..(start + step).min(len);
            let only = |applies: bool| if applies { range.clone() } else { 0..0 };
            let is_first_of_exscan = signature.collective == Collective::Exscan && !writes;
            let discarded = if is_first_of_exscan { range.len() } else { 0 };
            let part = Part { input: only(reads), output: only(writes), discarded };
            let count = BlockCounts::Equal(count_of("the buffer", range.len() / size)?);
            let routine = self.numerics.routine(signature, [count.clone(), count])?;
            self.transfer(part, routine, (session, staging, context))?;
        }
        Ok(())
    }

    /// Describes a collective whose buffers have a block per rank.
    fn blocks(&self, session: &Session, signature: &Signature) -> Result<(Part, Routine)> {
        let (rank, ranks, size) = (session.group.rank(), session.group.size(), self.numerics.element_bytes());
        let is_root = signature.root == Some(rank);
        let (input, output) = (self.bytes.input().len() / size, self.bytes.output_len() / size);
        let all = |counts: Counts<'_>, len: usize| counts.blocks(len, ranks).collect::<Vec<_>>();
        let has_counts = signature.collective != signature.collective.base();
        let counts_of = |blocks: &[Range<usize>]| {
            if has_counts {
                return BlockCounts::each(blocks);
            }
            // The total must be below the limit, too.
            count_of("the buffer", blocks.last().map_or(0, |last| last.end))?;
            Ok(BlockCounts::Equal(count_of("a block", blocks.first().map_or(0, ExactSizeIterator::len))?))
        };
        let one = |len: usize| Ok::<_, Error>(BlockCounts::Equal(count_of("a block", len)?));
        let is_in_place = matches!(self.bytes, CallerBytes::InPlace(_));
        let own =
            |blocks: &[Range<usize>]| if is_in_place { blocks[rank].clone() } else { 0..blocks[rank].len() };
        let (send, recv) = self.counts;
        let (from, to, counts, discarded) = match signature.collective.base() {
            Collective::AllGather => {
                let blocks = all(recv, output);
                let own = own(&blocks);
                (own.clone(), 0..output, [one(own.len())?, counts_of(&blocks)?], 0)
            }
            Collective::ReduceScatter => {
                let blocks = all(send, input);
                let own = own(&blocks);
                (0..input, own.clone(), [counts_of(&blocks)?, one(own.len())?], 0)
            }
            Collective::Gather if is_root => {
                let blocks = all(recv, output);
                let own = own(&blocks);
                (own.clone(), 0..output, [one(own.len())?, counts_of(&blocks)?], 0)
            }
            Collective::Gather => (0..input, 0..0, [one(input)?, one(0)?], 0),
            Collective::Scatter if is_root => {
                let blocks = all(send, input);
                let len = blocks[rank].len();
                let counts = [counts_of(&blocks)?, one(len)?];
                // The root's own block stays where it is if there is no receive buffer.
                match self.bytes {
                    CallerBytes::Pair(..) => (0..input, 0..output, counts, 0),
                    _ => (0..input, 0..0, counts, len),
                }
            }
            Collective::Scatter => (0..0, 0..output, [one(0)?, one(output)?], 0),
            _ => {
                let counts = [counts_of(&all(send, input))?, counts_of(&all(recv, output))?];
                (0..input, 0..output, counts, 0)
            }
        };
        let bytes = |elements: Range<usize>| elements.start * size..elements.end * size;
        let part = Part { input: bytes(from), output: bytes(to), discarded: discarded * size };
        Ok((part, self.numerics.routine(signature, counts)?))
    }

    /// Makes one call of MPI on a part of the buffers.
    fn transfer(
        &mut self,
        part: Part,
        routine: Routine,
        (session, staging, context): (&Session, &mut Staging, &CallContext<'_>),
    ) -> Result<()> {
        let lends = session.config.memory == CallMemoryMode::Borrowed && !self.numerics.converts();
        let is_in_place = matches!(self.bytes, CallerBytes::InPlace(_));
        let lends_input = lends && !is_in_place && !self.numerics.has_start() && !part.input.is_empty();
        let lends_output = lends && !part.output.is_empty();
        let send = if lends_input {
            lend(&self.bytes.input()[part.input])
        } else {
            let input = &self.bytes.input()[part.input];
            let mut memory = take(&mut staging.input, self.numerics.staged_bytes(input.len()))?;
            self.numerics.stage(input, memory.bytes_mut());
            Area::Staged(memory)
        };
        let recv = if lends_output {
            lend_mut(&mut self.bytes.output()[part.output.clone()])
        } else {
            let len = part.output.len().max(part.discarded);
            Area::Staged(take(&mut staging.output, self.numerics.staged_bytes(len))?)
        };
        let operation = session.handle.start(CallMemory { routine, send, recv })?;
        let CallMemory { send, recv, .. } = session.wait(operation, context)?;
        if let Area::Staged(memory) = send {
            staging.input = Some(memory);
        }
        let output = &mut self.bytes.output()[part.output];
        match recv {
            Area::Staged(mut memory) => {
                self.numerics.unstage(memory.bytes_mut(), output);
                staging.output = Some(memory);
            }
            Area::Borrowed { .. } => self.numerics.finish(output),
        }
        Ok(())
    }
}

impl<'a> CallerBytes<'a> {
    fn of(operands: Operands<'a, Host>) -> Self {
        match operands {
            Operands::Nothing => Self::Nothing,
            Operands::Single { buffer, access: Access::Read } => Self::Read(buffer.into_bytes()),
            Operands::Single { buffer, access: Access::Write } => Self::Write(buffer.into_bytes()),
            Operands::Single { buffer, access: Access::ReadWrite } => Self::InPlace(buffer.into_bytes()),
            Operands::Pair { send, recv } => Self::Pair(send.bytes(), recv.into_bytes()),
            Operands::ReadOnly(send) => Self::Read(send.bytes()),
        }
    }

    const fn input(&self) -> &[u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Pair(buffer, _) | Self::Read(buffer) => buffer,
            Self::Nothing | Self::Write(_) => &[],
        }
    }

    const fn output(&mut self) -> &mut [u8] {
        match self {
            Self::InPlace(buffer) | Self::Pair(_, buffer) | Self::Write(buffer) => buffer,
            Self::Nothing | Self::Read(_) => &mut [],
        }
    }

    const fn output_len(&self) -> usize {
        match self {
            Self::InPlace(buffer) | Self::Pair(_, buffer) | Self::Write(buffer) => buffer.len(),
            Self::Nothing | Self::Read(_) => 0,
        }
    }
}

/// Returns kept memory of at least this many bytes, or more of it.
fn take(kept: &mut Option<Allocation>, bytes: usize) -> Result<Allocation> {
    match kept.take() {
        Some(memory) if memory.bytes().len() >= bytes => Ok(memory),
        // Buffers without elements have different addresses, too.
        _ => Allocation::on_heap(bytes.max(64).next_multiple_of(4096)),
    }
}

/// Lends a buffer to an operation, for which [`CheckedCall::transfer`] waits.
fn lend(bytes: &[u8]) -> Area {
    // SAFETY: the caller's buffer is borrowed until the call returns. Before that, the operation
    // ends, or is dropped, which ends the job.
    unsafe { Area::lend(bytes) }
}

/// Lends a buffer for a result, like [`lend`].
fn lend_mut(bytes: &mut [u8]) -> Area {
    // SAFETY: as above, and `CheckedCall::transfer` does not use the buffer in the meantime.
    unsafe { Area::lend_mut(bytes) }
}
