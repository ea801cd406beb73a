//! One collective of MPI as a value, with its memory.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use comm_core::{Allocation, Collective, Error, Result};

use super::request::PinnedMemory;
use super::types::{Datatype, OpHandle, count_of};

/// The lengths of the blocks of one buffer, in elements.
#[derive(Debug, Clone)]
pub(crate) enum BlockCounts {
    /// One block, or blocks of equal length.
    Equal(c_int),
    /// A block per rank, each at its start.
    Each {
        /// The lengths.
        counts: Vec<c_int>,
        /// The offsets.
        starts: Vec<c_int>,
    },
}

/// A collective of MPI.
#[derive(Debug)]
pub(crate) struct Routine {
    /// The collective, which has counts per rank if it is not its own base.
    pub(crate) collective: Collective,
    pub(crate) datatype: Datatype,
    /// The size of an element in bytes.
    pub(crate) size: usize,
    /// The operator of a reduction.
    pub(crate) op: Option<OpHandle>,
    pub(crate) root: c_int,
    pub(crate) send: BlockCounts,
    pub(crate) recv: BlockCounts,
}

/// A buffer of a collective.
#[derive(Debug)]
pub(crate) enum Area {
    /// Memory of this library.
    Staged(Allocation),
    /// Memory of the caller.
    Borrowed {
        /// Its address.
        start: NonNull<u8>,
        /// Its length in bytes.
        len: usize,
    },
}

// SAFETY: the memory of a caller is used by MPI alone until the call returns.
unsafe impl Send for Area {}

/// A collective with its buffers.
#[derive(Debug)]
pub(crate) struct CallMemory {
    pub(crate) routine: Routine,
    pub(crate) send: Area,
    pub(crate) recv: Area,
}

impl PinnedMemory for CallMemory {
    fn is_borrowed(&self) -> bool {
        [&self.send, &self.recv].into_iter().any(|area| matches!(area, Area::Borrowed { .. }))
    }
}

impl BlockCounts {
    /// The lengths of no elements.
    pub(crate) const NONE: Self = Self::Equal(0);

    /// Converts ranges of elements.
    ///
    /// # Errors
    /// [`Invalid::TooLong`](comm_core::Invalid::TooLong) if the end of a block is beyond the counts
    /// of MPI.
    pub(crate) fn each(blocks: &[std::ops::Range<usize>]) -> Result<Self> {
        let convert = |count| count_of("the buffer", count);
        blocks.iter().try_for_each(|block| convert(block.end).map(drop))?;
        let counts = blocks.iter().map(|block| convert(block.len())).collect::<Result<_>>()?;
        let starts = blocks.iter().map(|block| convert(block.start)).collect::<Result<_>>()?;
        Ok(Self::Each { counts, starts })
    }

    pub(super) fn equal(&self) -> Result<c_int> {
        match self {
            Self::Equal(count) => Ok(*count),
            Self::Each { .. } => Err(Error::Internal("a collective of MPI has too many counts".into())),
        }
    }

    pub(super) fn lists(&self) -> Result<(*const c_int, *const c_int)> {
        match self {
            Self::Each { counts, starts } => Ok((counts.as_ptr(), starts.as_ptr())),
            // MPI ignores the lists of ranks other than the root.
            Self::Equal(_) => Ok((std::ptr::null(), std::ptr::null())),
        }
    }

    /// Returns the number of elements of a buffer with these blocks, or with `blocks` equal ones.
    fn elements(&self, blocks: usize) -> usize {
        let convert = |count: &c_int| usize::try_from(*count).unwrap_or(usize::MAX);
        match self {
            Self::Equal(count) => convert(count).saturating_mul(blocks),
            Self::Each { counts, starts } => {
                let ends = counts
                    .iter()
                    .zip(starts)
                    .map(|(count, start)| convert(count).saturating_add(convert(start)));
                ends.max().unwrap_or(0)
            }
        }
    }

    fn has_lists_of(&self, ranks: usize) -> bool {
        match self {
            Self::Equal(_) => true,
            Self::Each { counts, starts } => counts.len() == ranks && starts.len() == ranks,
        }
    }
}

impl Area {
    /// Lends memory that MPI reads.
    ///
    /// # Safety
    /// The memory must not be written before the operation that gets it has ended, and the caller
    /// must keep that operation until then or drop it, which ends the job.
    pub(crate) const unsafe fn lend(bytes: &[u8]) -> Self {
        Self::Borrowed { start: NonNull::from_ref(bytes).cast(), len: bytes.len() }
    }

    /// Lends memory that MPI writes.
    ///
    /// # Safety
    /// As for [`Area::lend`], and the memory must not be read either.
    pub(crate) const unsafe fn lend_mut(bytes: &mut [u8]) -> Self {
        let len = bytes.len();
        Self::Borrowed { start: NonNull::from_mut(bytes).cast(), len }
    }

    pub(super) fn as_ptr(&mut self) -> *mut c_void {
        match self {
            Self::Staged(memory) => memory.bytes_mut().as_mut_ptr().cast(),
            Self::Borrowed { start, .. } => start.as_ptr().cast(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Staged(memory) => memory.bytes().len(),
            Self::Borrowed { len, .. } => *len,
        }
    }
}

impl CallMemory {
    /// Checks that the buffers hold all blocks, and that there is a count for every rank that MPI
    /// looks at.
    pub(super) fn check(&self, rank: usize, ranks: usize) -> Result<()> {
        let Routine { collective, size, root, send, recv, .. } = &self.routine;
        let is_root = usize::try_from(*root) == Ok(rank);
        let base = collective.base();
        // The numbers of blocks of the send and the receive buffer.
        let (sent, received) = match base {
            Collective::AllToAll => (ranks, ranks),
            Collective::ReduceScatter => (ranks, 1),
            Collective::AllGather => (1, ranks),
            Collective::Gather => (1, if is_root { ranks } else { 0 }),
            Collective::Scatter => (if is_root { ranks } else { 0 }, 1),
            Collective::Reduce => (1, usize::from(is_root)),
            Collective::Broadcast => (usize::from(is_root), usize::from(!is_root)),
            _ => (1, 1),
        };
        let needs_lists = |one: &BlockCounts, needs: bool| !needs || matches!(one, BlockCounts::Each { .. });
        let has_counts = base != *collective;
        let has_lists = send.has_lists_of(ranks)
            && recv.has_lists_of(ranks)
            && needs_lists(send, has_counts && sent == ranks && ranks > 1)
            && needs_lists(recv, has_counts && received == ranks && ranks > 1);
        let fits = |counts: &BlockCounts, blocks, area: &Area| {
            counts.elements(blocks).checked_mul(*size).is_some_and(|bytes| bytes <= area.len())
        };
        if has_lists && fits(send, sent, &self.send) && fits(recv, received, &self.recv) {
            Ok(())
        } else {
            Err(Error::Internal(format!("the buffers of {collective} do not fit its counts")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(collective: Collective, send: BlockCounts, recv: BlockCounts, bytes: usize) -> CallMemory {
        let area = || Area::Staged(Allocation::on_heap(bytes).unwrap());
        let routine =
            Routine { collective, datatype: Datatype::byte(), size: 4, op: None, root: 0, send, recv };
        CallMemory { routine, send: area(), recv: area() }
    }

    #[test]
    fn buffers_must_hold_all_blocks() {
        let equal = |collective, bytes| {
            memory(collective, BlockCounts::Equal(2), BlockCounts::Equal(2), bytes).check(0, 3).is_ok()
        };
        assert!(equal(Collective::AllReduce, 8) && !equal(Collective::AllReduce, 7));
        assert!(equal(Collective::AllGather, 24) && !equal(Collective::AllGather, 23));
        let each = BlockCounts::each(&[0..2, 2..5, 5..5]).unwrap();
        let gather =
            |bytes| memory(Collective::AllToAllV, each.clone(), each.clone(), bytes).check(1, 3).is_ok();
        assert!(gather(20) && !gather(19));
        let one = memory(Collective::AllToAllV, BlockCounts::Equal(1), each, 64);
        assert!(one.check(1, 3).is_err(), "a list is missing");
    }

    #[test]
    fn counts_beyond_those_of_mpi_are_refused() {
        let error = BlockCounts::each(&[0..1, 1..1 << 31]).unwrap_err().to_string();
        assert!(error.contains("2147483647"), "{error}");
    }
}
