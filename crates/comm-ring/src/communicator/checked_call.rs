//! A checked call, and the layout of its data.

use comm_core::{
    Accumulate, Collective, Counts, DType, Group, Host, HostViewMut, Layout, Operands, Partition, ReduceOp,
    ReduceOrder, Reduction, Result, Signature, Widening, copy,
};

use super::engine::READ_IN_PLACE_MIN;
use crate::choose::CallShape;
use crate::schedule::{Algorithm, Chunks, Params};

/// A checked call without its buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckedCall<'a> {
    pub(super) signature: &'a Signature,
    /// In an all-to-all, the numbers of elements sent to and received from each rank; otherwise
    /// both are the same.
    pub(super) counts: (Counts<'a>, Counts<'a>),
    /// Equal in calls that differ only in the place of their buffers; 0 if nothing is known.
    pub(super) number: u64,
}

impl<'a> CheckedCall<'a> {
    /// Creates a call with blocks of one length.
    pub(super) const fn equal(signature: &'a Signature) -> Self {
        Self { signature, counts: (Counts::Equal, Counts::Equal), number: 0 }
    }

    /// Returns the reduction if the collective reduces. A barrier combines empty blocks, so any
    /// operator will do.
    #[inline]
    pub(super) fn reduction(&self) -> Result<Option<Reduction>> {
        match (self.signature.op, self.moved_dtype()) {
            (Some(op), Some(dtype)) => Reduction::new(op, dtype).map(Some),
            _ if self.signature.collective.base() == Collective::Barrier => {
                Reduction::new(ReduceOp::Sum, DType::U8).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the type in which elements are sent and combined.
    #[inline]
    fn moved_dtype(&self) -> Option<DType> {
        let Signature { op, dtype, accumulate, .. } = self.signature;
        op.zip(*dtype).map(|(op, dtype)| accumulate.dtype(op, dtype)).or(*dtype)
    }

    /// Returns the conversion of 16-bit floats to the type in which they are sent, if that differs.
    #[inline]
    pub(super) fn widening(&self) -> Option<Widening> {
        if self.signature.accumulate == Accumulate::Native {
            None
        } else {
            self.signature.dtype.and_then(Widening::of)
        }
    }

    /// Returns whether the operator may multiply contributions first.
    #[inline]
    pub(super) const fn may_multiply(&self) -> bool {
        matches!(self.signature.op, Some(ReduceOp::PreMulSum(_) | ReduceOp::Avg))
    }

    /// Returns whether the algorithm decides if the contribution in this input is copied into the
    /// output. A long one is copied before: whether peers can read it depends on where it lies.
    #[inline]
    pub(super) const fn may_start_from(&self, input: &[u8]) -> bool {
        matches!(self.signature.collective.base(), Collective::AllReduce) && input.len() < READ_IN_PLACE_MIN
    }

    /// Returns the reduction if it multiplies contributions first.
    pub(super) fn premultiplication(&self, ranks: usize) -> Result<Option<Reduction>> {
        Ok(self.reduction()?.filter(|reduction| reduction.has_start(ranks)))
    }

    fn element_bytes(&self) -> usize {
        self.moved_dtype().map_or(1, DType::size)
    }

    const fn count(&self) -> usize {
        self.signature.count as usize
    }

    /// Returns the total number of elements of all ranks if each has its own chunk, otherwise the
    /// number of elements of the buffer.
    fn elements(&self, group: Group) -> usize {
        match (self.signature.collective.base(), self.counts.0) {
            (
                Collective::AllGather
                | Collective::ReduceScatter
                | Collective::Gather
                | Collective::Scatter
                | Collective::AllToAll,
                Counts::Equal,
            ) => self.count() * group.size(),
            _ => self.count(),
        }
    }

    /// Returns whether the count determines the blocks of all ranks.
    #[inline]
    pub(super) const fn has_equal_blocks(&self) -> bool {
        matches!(self.counts, (Counts::Equal, Counts::Equal))
    }

    /// Returns the partition of the elements of all ranks.
    fn partition(&self, group: Group, chunks: usize) -> Partition {
        let is_not_root = self.signature.root.is_some_and(|root| root != group.rank());
        match self.counts.0 {
            Counts::Equal => Partition::even(self.elements(group), chunks),
            // Ranks other than the root know only their own block.
            Counts::PerRank(_) if is_not_root => {
                let mut counts = vec![0; group.size()];
                counts[group.rank()] = self.count();
                Partition::given(&counts)
            }
            Counts::PerRank(counts) => Partition::given(counts),
        }
    }

    /// Returns the algorithm that the call requires, if it requires one.
    #[inline]
    pub(super) fn forced(&self) -> Option<&str> {
        match self.signature.collective {
            // Rank 0 must receive a message from every other rank.
            Collective::MonitoredBarrier => Some("linear"),
            _ => Some(&*self.signature.algorithm).filter(|name| !name.is_empty()),
        }
    }

    /// Returns the order of combination. An average of 16-bit floats rounds at every step. If the
    /// number of ranks is a power of two, equal contributions keep their value in a tree, but not
    /// in a chain of eight.
    fn order(&self) -> ReduceOrder {
        let is_average = self.signature.op == Some(ReduceOp::Avg);
        let rounds = is_average && self.moved_dtype().is_some_and(DType::is_float16);
        if rounds && self.forced().is_none() { ReduceOrder::Deterministic } else { self.signature.order }
    }

    /// Returns the input of the selection of an algorithm.
    pub(super) fn shape(&self, group: Group) -> CallShape {
        let collective = self.signature.collective;
        // If only some ranks know the length, no rank may select by it.
        let elements = if collective.is_known_everywhere() { self.elements(group) } else { 0 };
        let bytes = elements * self.element_bytes();
        CallShape::new(collective).ranks(group.size()).bytes(bytes).order(self.order())
    }

    /// Returns the layout of an all-to-all: the input is a row of the matrix of all pairs, the
    /// output a column.
    fn matrix(&self, group: Group, gapless: bool) -> Layout {
        let (rank, ranks) = (group.rank(), group.size());
        let list = |counts| match counts {
            Counts::Equal => Partition::given(&vec![self.count(); ranks]),
            Counts::PerRank(counts) => Partition::given(counts),
        };
        let bytes = self.element_bytes();
        let input = list(self.counts.0).every(1, rank * ranks).element_bytes(bytes);
        let output = list(self.counts.1).every(ranks, rank).element_bytes(bytes);
        // Any block may pass through scratch.
        let blocks = ranks * ranks;
        let scratch = Partition::even(self.count().saturating_mul(blocks), blocks).element_bytes(bytes);
        Layout { input, output, scratch, gapless }
    }

    /// Returns the layout of the call.
    pub(super) fn layout(&self, group: Group, algorithm: &Algorithm, params: &Params) -> Layout {
        let chunks = match algorithm.chunks {
            Chunks::PerPair => return self.matrix(group, algorithm.traits.equal),
            chunks => chunks.count(group.size()),
        };
        let all = self.partition(group, chunks).segments(params.segments).element_bytes(self.element_bytes());
        let mut layout = Layout { gapless: algorithm.traits.equal, ..Layout::uniform(&all) };
        // The buffer that concerns only this rank holds only its chunk.
        let is_root = self.signature.root == Some(group.rank());
        let own = all.starting_at(group.rank());
        match self.signature.collective.base() {
            Collective::AllGather if !params.in_place => layout.input = own,
            Collective::ReduceScatter if !params.in_place => layout.output = own,
            Collective::Gather if !(is_root && params.in_place) => layout.input = own,
            Collective::Scatter if !(is_root && params.in_place) => layout.output = own,
            _ => {}
        }
        layout
    }
}

/// The memory of a call: a part that is only read, and a part that is written.
pub(super) struct Bytes<'a> {
    pub(super) input: &'a [u8],
    pub(super) output: &'a mut [u8],
    /// Whether the contribution lies in the output, or the root's own block of a scatter stays in
    /// place.
    pub(super) in_place: bool,
}

impl<'a> Bytes<'a> {
    #[inline]
    pub(super) fn new(operands: Operands<'a, Host>, collective: Collective) -> Self {
        match operands {
            Operands::Nothing => Self { input: &[], output: &mut [], in_place: true },
            Operands::Single { buffer, .. } => Self::in_place(buffer),
            Operands::Pair { send, recv } => {
                Self { input: send.bytes(), output: recv.into_bytes(), in_place: false }
            }
            Operands::ReadOnly(send) => {
                let in_place = matches!(collective.base(), Collective::Scatter);
                Self { input: send.bytes(), output: &mut [], in_place }
            }
        }
    }

    #[inline]
    pub(super) const fn in_place(buffer: HostViewMut<'a>) -> Self {
        Self { input: &[], output: buffer.into_bytes(), in_place: true }
    }

    /// Moves the contribution into the output.
    #[inline]
    pub(super) fn copy_in(&mut self) {
        copy(self.output, self.input);
        (self.input, self.in_place) = (&[], true);
    }
}
