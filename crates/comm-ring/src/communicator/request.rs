//! What a caller asked for, and how it is laid out.

use comm_core::{
    Call, Collective, DType, Exchange, Group, Host, HostView, HostViewMut, Layout, Partition, ReduceOp, Shape,
};

use crate::schedule::{Algorithm, Chunks, Params};

/// A checked call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) collective: Collective,
    pub(super) op: Option<ReduceOp>,
    pub(super) dtype: Option<DType>,
    /// Elements as in [`Call::count`].
    count: usize,
    pub(super) root: Option<usize>,
}

impl Request {
    pub(super) const fn new(collective: Collective, count: usize) -> Self {
        Self { collective, op: None, dtype: None, count, root: None }
    }

    /// With the element type of these buffers.
    pub(super) fn of(mut self, buffers: &Exchange<'_>) -> Self {
        self.dtype = Some(buffers.dtype());
        self
    }

    pub(super) const fn op(mut self, op: ReduceOp) -> Self {
        self.op = Some(op);
        self
    }

    pub(super) const fn root(mut self, root: usize) -> Self {
        self.root = Some(root);
        self
    }

    fn element_bytes(&self) -> usize {
        self.dtype.map_or(1, DType::size)
    }

    /// The elements of all ranks together, where each has a chunk of its own; else those of the buffer.
    fn elements(&self, group: Group) -> usize {
        match self.collective {
            Collective::AllGather | Collective::ReduceScatter => self.count * group.size(),
            _ => self.count,
        }
    }

    pub(super) fn bytes(&self, group: Group) -> usize {
        self.elements(group) * self.element_bytes()
    }

    pub(super) fn call(&self, group: Group, algorithm: &'static Algorithm) -> Call {
        Call {
            group: group.id(),
            collective: self.collective,
            op: self.op,
            dtype: self.dtype,
            count: self.count as u64,
            root: self.root,
            algorithm: algorithm.name.into(),
        }
    }

    /// Where the blocks of the call lie.
    pub(super) fn layout(&self, group: Group, algorithm: &Algorithm, params: &Params) -> Layout {
        let chunks = match algorithm.chunks {
            Chunks::PerRank => group.size(),
            Chunks::Whole => 1,
        };
        let all = Partition::even(self.elements(group), chunks)
            .segments(params.segments)
            .element_bytes(self.element_bytes());
        let mut layout = Layout::uniform(&all);
        if !params.in_place {
            // The side that concerns one rank only holds just that rank's chunk.
            match self.collective {
                Collective::AllGather => layout.input = all.starting_at(group.rank()),
                Collective::ReduceScatter => layout.output = all.starting_at(group.rank()),
                _ => {}
            }
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
