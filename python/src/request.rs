//! The calls of collectives on memory that Python keeps alive.

use comm::{Buffers, Call, Counts, DType, Error, HostView, HostViewMut, ReduceOp, Result};
use pyo3::FromPyObject;
use pyo3::pybacked::PyBackedStr;

/// Memory of a tensor, whose elements are contiguous.
///
/// Whoever creates it guarantees that the memory stays allocated until the call has ended, and that
/// nothing else writes to it, or reads what is received, in the meantime: this is what PyTorch
/// requires of the arguments of asynchronous collectives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorMemory {
    address: usize,
    bytes: usize,
    dtype: DType,
}

impl TensorMemory {
    /// Describes `elements` elements at an address. The code of the type is that of
    /// [`DType::code`].
    pub(crate) fn new(address: usize, elements: usize, code: u8) -> Result<Self> {
        let dtype = DType::from_wire(code, 0)
            .ok_or_else(|| Error::Internal(format!("{code} is not the code of an element type")))?;
        let bytes = elements
            .checked_mul(dtype.size())
            .ok_or_else(|| Error::Internal(format!("a tensor of {elements} elements")))?;
        // A tensor without elements may have no address.
        let address = if bytes == 0 { dtype.size() } else { address };
        Ok(Self { address, bytes, dtype })
    }

    pub(crate) fn view<'a>(self) -> Result<HostView<'a>> {
        // SAFETY: the creator of this value guarantees that the memory is allocated and not written
        // to until the call has ended; without elements, the address is not null.
        let bytes = unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) };
        HostView::from_bytes(bytes, self.dtype).ok_or_else(|| self.misaligned())
    }

    pub(crate) fn view_mut<'a>(self) -> Result<HostViewMut<'a>> {
        // SAFETY: as in `view`; nothing else accesses what the call writes, because a request has
        // no two buffers that overlap.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.bytes) };
        HostViewMut::from_bytes(bytes, self.dtype).ok_or_else(|| self.misaligned())
    }

    fn misaligned(self) -> Error {
        let Self { address, dtype, .. } = self;
        Error::Internal(format!("a tensor of {dtype} begins at {address:#x}, which is not aligned"))
    }

    pub(crate) const fn len(self) -> usize {
        self.bytes / self.dtype.size()
    }

    const fn overlaps(self, other: Self) -> bool {
        self.address < other.address + other.bytes && other.address < self.address + self.bytes
    }
}

/// The buffers of a call.
#[derive(Debug)]
pub(crate) enum Memories {
    InPlace(TensorMemory),
    Separate {
        send: TensorMemory,
        recv: TensorMemory,
    },
    /// The memory to send overlapped with that to receive, so it was copied.
    Copied {
        send: Box<[u64]>,
        bytes: usize,
        recv: TensorMemory,
    },
    SendOnly(TensorMemory),
}

impl Memories {
    pub(crate) fn separate(send: TensorMemory, recv: TensorMemory) -> Result<Self> {
        if !send.overlaps(recv) {
            return Ok(Self::Separate { send, recv });
        }
        let view = send.view()?;
        let bytes = view.bytes().len();
        let mut copy = vec![0_u64; bytes.div_ceil(size_of::<u64>())].into_boxed_slice();
        comm::bytemuck::cast_slice_mut(&mut copy)[..bytes].copy_from_slice(view.bytes());
        Ok(Self::Copied { send: copy, bytes, recv })
    }

    fn buffers(&self) -> Result<Buffers<'_>> {
        Ok(match self {
            Self::InPlace(memory) => Buffers::InPlace(memory.view_mut()?),
            Self::Separate { send, recv } => Buffers::Separate { send: send.view()?, recv: recv.view_mut()? },
            Self::Copied { send, bytes, recv } => {
                let bytes = &comm::bytemuck::cast_slice(send)[..*bytes];
                let send = HostView::from_bytes(bytes, recv.dtype).ok_or_else(|| recv.misaligned())?;
                Buffers::Separate { send, recv: recv.view_mut()? }
            }
            Self::SendOnly(memory) => Buffers::SendOnly(memory.view()?),
        })
    }
}

/// A collective call that may run on another thread.
#[derive(Debug)]
pub(crate) enum Request {
    AllReduce { memories: Memories, op: ReduceOp },
    Reduce { root: usize, memories: Memories, op: ReduceOp },
    Broadcast { root: usize, memory: TensorMemory },
    AllGather { memories: Memories, counts: Option<Vec<usize>> },
    ReduceScatter { memories: Memories, counts: Option<Vec<usize>>, op: ReduceOp },
    Gather { root: usize, memories: Memories },
    Scatter { root: usize, memories: Memories },
    AllToAll { memories: Memories, send: Option<Vec<usize>>, recv: Option<Vec<usize>> },
    Barrier,
    MonitoredBarrier,
}

impl Request {
    pub(crate) fn call(&self) -> Result<Call<'_>> {
        Ok(match self {
            Self::AllReduce { memories, op } => Call::AllReduce { buffers: memories.buffers()?, op: *op },
            Self::Reduce { root, memories, op } => {
                Call::Reduce { root: *root, buffers: memories.buffers()?, op: *op }
            }
            Self::Broadcast { root, memory } => Call::Broadcast { root: *root, buffer: memory.view_mut()? },
            Self::AllGather { memories, counts: lengths } => {
                Call::AllGather { buffers: memories.buffers()?, counts: counts(lengths.as_deref()) }
            }
            Self::ReduceScatter { memories, counts: lengths, op } => Call::ReduceScatter {
                buffers: memories.buffers()?,
                counts: counts(lengths.as_deref()),
                op: *op,
            },
            Self::Gather { root, memories } => {
                Call::Gather { root: *root, buffers: memories.buffers()?, counts: Counts::Equal }
            }
            Self::Scatter { root, memories } => {
                Call::Scatter { root: *root, buffers: memories.buffers()?, counts: Counts::Equal }
            }
            Self::AllToAll { memories, send, recv } => Call::AllToAll {
                buffers: memories.buffers()?,
                send: counts(send.as_deref()),
                recv: counts(recv.as_deref()),
            },
            Self::Barrier => Call::Barrier,
            Self::MonitoredBarrier => Call::MonitoredBarrier,
        })
    }
}

fn counts(lengths: Option<&[usize]>) -> Counts<'_> {
    lengths.map_or(Counts::Equal, Counts::PerRank)
}

/// An operator, as Python passes it.
#[derive(FromPyObject)]
pub(crate) enum Operator {
    /// The name that PyTorch uses.
    Named(PyBackedStr),
    /// The factor of a `PREMUL_SUM`.
    Factor(f64),
}

impl Operator {
    pub(crate) fn of_comm(&self) -> Result<ReduceOp> {
        let name = match self {
            Self::Factor(factor) => return Ok(ReduceOp::PreMulSum(*factor)),
            Self::Named(name) => &**name,
        };
        Ok(match name {
            "SUM" => ReduceOp::Sum,
            "AVG" => ReduceOp::Avg,
            "PRODUCT" => ReduceOp::Prod,
            "MIN" => ReduceOp::Min,
            "MAX" => ReduceOp::Max,
            "BAND" => ReduceOp::BitAnd,
            "BOR" => ReduceOp::BitOr,
            "BXOR" => ReduceOp::BitXor,
            _ => return Err(Error::Internal(format!("{name} is not the name of an operator"))),
        })
    }
}
