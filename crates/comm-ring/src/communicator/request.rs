//! What a caller asked for, and how it is laid out.

use comm_core::{
    Accumulate, Call, CallOptions, Collective, DType, Exchange, Group, Host, HostView, HostViewMut, Layout,
    Partition, ReduceOp, ReduceOrder, Reduction, Result, Shape, Shares, Widening,
};

use crate::choose::Question;
use crate::schedule::{Algorithm, Chunks, Params};

/// A checked call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) collective: Collective,
    pub(super) op: Option<ReduceOp>,
    pub(super) dtype: Option<DType>,
    /// In which type the call keeps partial sums.
    pub(super) accumulate: Accumulate,
    /// Elements as in [`Call::count`].
    pub(super) count: usize,
    pub(super) root: Option<usize>,
    /// As in [`Call::detail`].
    pub(super) detail: u64,
    shares: Shares<'a>,
    /// In an all-to-all, how much comes from each rank; `shares` is how much goes to each.
    incoming: Shares<'a>,
}

impl<'a> Request<'a> {
    #[inline]
    pub(super) const fn new(collective: Collective, count: usize) -> Self {
        Self {
            collective,
            op: None,
            dtype: None,
            accumulate: Accumulate::Native,
            count,
            root: None,
            detail: 0,
            shares: Shares::Equal,
            incoming: Shares::Equal,
        }
    }

    /// With shares of these lengths in either direction.
    pub(super) const fn exchange(mut self, outgoing: Shares<'a>, incoming: Shares<'a>) -> Self {
        (self.shares, self.incoming) = (outgoing, incoming);
        if let (Shares::Counts(_), _) | (_, Shares::Counts(_)) = (outgoing, incoming) {
            self.collective = Collective::AllToAllV;
        }
        self
    }

    /// With shares of these lengths: the collective becomes the one with counts if they are given.
    pub(super) const fn shares(mut self, shares: Shares<'a>) -> Self {
        self.shares = shares;
        if let Shares::Counts(_) = shares {
            self.collective = match self.collective {
                Collective::AllGather => Collective::AllGatherV,
                Collective::ReduceScatter => Collective::ReduceScatterV,
                Collective::Gather => Collective::GatherV,
                Collective::Scatter => Collective::ScatterV,
                other => other,
            };
        }
        self
    }

    /// With the element type of these buffers.
    #[inline]
    pub(super) fn of(mut self, buffers: &Exchange<'_>) -> Self {
        self.dtype = Some(buffers.dtype());
        self
    }

    #[inline]
    pub(super) const fn op(mut self, op: ReduceOp) -> Self {
        self.op = Some(op);
        self
    }

    /// Combined in the type that the options ask for.
    #[inline]
    pub(super) fn accumulate(mut self, options: &CallOptions) -> Self {
        let combined = self.op.zip(self.dtype).map(|(op, dtype)| options.accumulate.dtype(op, dtype));
        if combined != self.dtype {
            self.accumulate = options.accumulate;
        }
        self
    }

    #[inline]
    pub(super) const fn root(mut self, root: usize) -> Self {
        self.root = Some(root);
        self
    }

    /// With something else that must be equal on every rank.
    pub(super) const fn detail(mut self, detail: u64) -> Self {
        self.detail = detail;
        self
    }

    /// How contributions are combined, for collectives that reduce. A barrier reduces nothing, by an operator.
    #[inline]
    pub(super) fn reduction(&self) -> Result<Option<Reduction>> {
        match (self.op, self.moved_dtype()) {
            (Some(op), Some(dtype)) => Reduction::new(op, dtype).map(Some),
            _ if self.collective.base() == Collective::Barrier => {
                Reduction::new(ReduceOp::Sum, DType::U8).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The type in which elements move between ranks, and are combined.
    #[inline]
    fn moved_dtype(&self) -> Option<DType> {
        match self.op {
            Some(op) => self.dtype.map(|dtype| self.accumulate.dtype(op, dtype)),
            None => self.dtype,
        }
    }

    /// How 16-bit floats become what moves between ranks, where that is something else.
    #[inline]
    pub(super) fn widening(&self) -> Option<Widening> {
        if self.accumulate == Accumulate::Native { None } else { self.dtype.and_then(Widening::of) }
    }

    fn element_bytes(&self) -> usize {
        self.moved_dtype().map_or(1, DType::size)
    }

    /// The elements of all ranks together, where each has a chunk of its own; else those of the buffer.
    fn elements(&self, group: Group) -> usize {
        match (self.collective.base(), self.shares) {
            (
                Collective::AllGather
                | Collective::ReduceScatter
                | Collective::Gather
                | Collective::Scatter
                | Collective::AllToAll,
                Shares::Equal,
            ) => self.count * group.size(),
            _ => self.count,
        }
    }

    /// The count that every rank knows: in a gather or scatter with counts, only the root does.
    fn known_count(&self) -> usize {
        if self.is_known_everywhere() { self.count } else { 0 }
    }

    /// Whether all that is to be known of the shares is the count.
    #[inline]
    pub(super) const fn has_equal_shares(&self) -> bool {
        matches!((self.shares, self.incoming), (Shares::Equal, Shares::Equal))
    }

    const fn is_known_everywhere(&self) -> bool {
        !matches!(self.collective, Collective::GatherV | Collective::ScatterV | Collective::AllToAllV)
    }

    /// How the elements of all ranks are cut.
    fn partition(&self, group: Group, chunks: usize) -> Partition {
        let alone = self.root.is_some_and(|root| root != group.rank());
        match self.shares {
            Shares::Equal => Partition::even(self.elements(group), chunks),
            // A rank that is not the root knows of its own share alone.
            Shares::Counts(_) if alone => {
                let mut counts = vec![0; group.size()];
                counts[group.rank()] = self.count;
                Partition::given(&counts)
            }
            Shares::Counts(counts) => Partition::given(counts),
        }
    }

    /// In which order contributions are combined. An average of 16-bit floats rounds at every step: in a tree, equal
    /// contributions of a power of two ranks keep their value, in a chain of eight they do not.
    pub(super) fn order(&self, options: &CallOptions) -> ReduceOrder {
        let rounds = self.op == Some(ReduceOp::Avg) && self.moved_dtype().is_some_and(DType::is_float16);
        if rounds && options.algorithm.is_none() { ReduceOrder::Deterministic } else { options.order }
    }

    /// What the choice of an algorithm depends on.
    pub(super) fn question(&self, group: Group, order: ReduceOrder) -> Question {
        // Where only some ranks know the length, none may choose by it.
        let elements = if self.is_known_everywhere() { self.elements(group) } else { 0 };
        let bytes = elements * self.element_bytes();
        Question { collective: self.collective, ranks: group.size(), bytes, order }
    }

    /// Where the blocks of an all-to-all lie: the input is a row of the matrix of all pairs, the output a column.
    fn matrix(&self, group: Group, gapless: bool) -> Layout {
        let (rank, ranks) = (group.rank(), group.size());
        let list = |shares| match shares {
            Shares::Equal => Partition::given(&vec![self.count; ranks]),
            Shares::Counts(counts) => Partition::given(counts),
        };
        let bytes = self.element_bytes();
        let input = list(self.shares).every(1, rank * ranks).element_bytes(bytes);
        let output = list(self.incoming).every(ranks, rank).element_bytes(bytes);
        // Any block may pass through scratch.
        let blocks = ranks * ranks;
        let scratch = Partition::even(self.count.saturating_mul(blocks), blocks).element_bytes(bytes);
        Layout { input, output, scratch, gapless }
    }

    pub(super) fn call(&self, group: Group, algorithm: &'static Algorithm, detail: u64) -> Call {
        let mut call = Call::new(group.id(), self.collective, algorithm.name);
        match self.op {
            Some(ReduceOp::User(operator)) => call.user_op = Some(operator.name().into()),
            op => call.op = op,
        }
        call.dtype = self.dtype;
        call.accumulate = self.accumulate;
        call.count = self.known_count() as u64;
        call.root = self.root;
        call.detail = if self.detail == 0 { detail } else { self.detail };
        call
    }

    /// Where the blocks of the call lie.
    pub(super) fn layout(&self, group: Group, algorithm: &Algorithm, params: &Params) -> Layout {
        let chunks = match algorithm.chunks {
            Chunks::PerPair => return self.matrix(group, algorithm.traits.equal),
            chunks => chunks.count(group.size()),
        };
        let all = self.partition(group, chunks).segments(params.segments).element_bytes(self.element_bytes());
        let mut layout = Layout { gapless: algorithm.traits.equal, ..Layout::uniform(&all) };
        // The side that concerns one rank only holds just that rank's chunk.
        let is_root = self.root == Some(group.rank());
        let own = all.starting_at(group.rank());
        match self.collective.base() {
            Collective::AllGather if !params.in_place => layout.input = own,
            Collective::ReduceScatter if !params.in_place => layout.output = own,
            Collective::Gather if !(is_root && params.in_place) => layout.input = own,
            Collective::Scatter if !(is_root && params.in_place) => layout.output = own,
            _ => {}
        }
        layout
    }
}

/// The length of the contribution.
pub(super) fn len(buffers: &Exchange<'_>) -> usize {
    match buffers {
        Exchange::InPlace(buffer) => buffer.len(),
        Exchange::Separate { send, .. } | Exchange::SendOnly(send) => send.len(),
    }
}

/// The bytes of an exchange: what is only read, and what is written.
pub(super) struct Bytes<'a> {
    pub(super) input: &'a [u8],
    pub(super) output: &'a mut [u8],
    /// Whether the contribution lies in the output.
    pub(super) in_place: bool,
}

impl<'a> Bytes<'a> {
    #[inline]
    pub(super) fn of(buffers: Exchange<'a, Host>) -> Self {
        match buffers {
            Exchange::InPlace(buffer) => Self { input: &[], output: buffer.into_bytes(), in_place: true },
            Exchange::Separate { send, recv } => {
                Self { input: send.bytes(), output: recv.into_bytes(), in_place: false }
            }
            Exchange::SendOnly(send) => Self { input: send.bytes(), output: &mut [], in_place: false },
        }
    }

    /// Moves the contribution into the output.
    #[inline]
    pub(super) fn copy_in(self) -> Self {
        if !self.in_place {
            self.output.copy_from_slice(self.input);
        }
        Self { input: &[], output: self.output, in_place: true }
    }

    /// Everything only read.
    pub(super) fn read_only(buffers: Exchange<'a, Host>) -> Self {
        let input = match buffers {
            Exchange::InPlace(buffer) => &*HostViewMut::into_bytes(buffer),
            Exchange::Separate { send, .. } | Exchange::SendOnly(send) => HostView::bytes(&send),
        };
        Self { input, output: &mut [], in_place: false }
    }
}
