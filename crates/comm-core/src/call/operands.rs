//! The memory that a call reads and writes.

use super::{Buffers, Call, Signature};
use crate::{Collective, Host, Memory};

/// The memory that a call reads and writes on this rank.
#[derive(Debug)]
pub enum Operands<'a, M: Memory = Host> {
    /// None.
    Nothing,
    /// One buffer.
    Single {
        /// The buffer.
        buffer: M::ViewMut<'a>,
        /// The access that the call makes to it.
        access: Access,
    },
    /// One buffer that is read and another that is written.
    Pair {
        /// The buffer that is read.
        send: M::View<'a>,
        /// The buffer that is written.
        recv: M::ViewMut<'a>,
    },
    /// One buffer that is read.
    ReadOnly(M::View<'a>),
}

/// The access that a call makes to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// It is read, and then written.
    ReadWrite,
}

/// The copy of the contribution that a backend makes first, if it combines contributions in the
/// receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputCopy {
    /// None: the contribution is used in place.
    None,
    /// A copy in the receive buffer; the call then continues as if in place.
    IntoOutput,
    /// A copy in temporary memory, which the result does not overwrite.
    ToScratch,
}

impl<'a, M: Memory> Operands<'a, M> {
    fn both(buffers: Buffers<'a, M>) -> Self {
        match buffers {
            Buffers::InPlace(buffer) => Self::Single { buffer, access: Access::ReadWrite },
            Buffers::Separate { send, recv } => Self::Pair { send, recv },
            Buffers::SendOnly(send) => Self::ReadOnly(send),
        }
    }

    fn read_only(buffers: Buffers<'a, M>) -> Self {
        match buffers {
            Buffers::InPlace(buffer) => Self::ReadOnly(M::into_view(buffer)),
            Buffers::Separate { send, .. } | Buffers::SendOnly(send) => Self::ReadOnly(send),
        }
    }

    fn write_only(buffers: Buffers<'a, M>) -> Self {
        match buffers {
            Buffers::InPlace(buffer) | Buffers::Separate { recv: buffer, .. } => {
                Self::Single { buffer, access: Access::Write }
            }
            Buffers::SendOnly(_) => Self::Nothing,
        }
    }

    /// Returns whether contribution and result are in one buffer.
    #[must_use]
    pub const fn is_in_place(&self) -> bool {
        matches!(self, Self::Single { .. })
    }
}

impl<'a, M: Memory> Call<'a, M> {
    /// Returns the memory that the call reads and writes on `rank`, if it has passed
    /// [`Call::check`].
    #[must_use]
    #[inline]
    pub fn into_operands(self, rank: usize) -> Operands<'a, M> {
        match self {
            Self::AllReduce { buffers, .. }
            | Self::AllGather { buffers, .. }
            | Self::ReduceScatter { buffers, .. }
            | Self::AllToAll { buffers, .. }
            | Self::Scan { buffers, .. }
            | Self::Exscan { buffers, .. } => Operands::both(buffers),
            Self::Reduce { root, buffers, .. } | Self::Gather { root, buffers, .. } => {
                if rank == root {
                    Operands::both(buffers)
                } else {
                    Operands::read_only(buffers)
                }
            }
            Self::Scatter { root, buffers: buffers @ Buffers::Separate { .. }, .. } if rank == root => {
                Operands::both(buffers)
            }
            // The root keeps its own block in place.
            Self::Scatter { root, buffers, .. } if rank == root => Operands::read_only(buffers),
            Self::Scatter { buffers, .. } => Operands::write_only(buffers),
            Self::Broadcast { root, buffer } => {
                let access = if rank == root { Access::Read } else { Access::Write };
                Operands::Single { buffer, access }
            }
            Self::Barrier | Self::MonitoredBarrier | Self::Finalize => Operands::Nothing,
        }
    }
}

impl Signature {
    /// Returns the copy of the contribution of `rank` that a backend makes first if it combines
    /// contributions in the receive buffer. `is_in_place` indicates whether the contribution
    /// already is in that buffer, and `premultiplies` whether contributions are multiplied before
    /// they are combined, as in an average of `f16`.
    #[must_use]
    #[inline]
    pub fn input_copy(&self, rank: usize, is_in_place: bool, premultiplies: bool) -> InputCopy {
        match (self.collective.base(), is_in_place) {
            (Collective::Exscan | Collective::AllToAll, true) => InputCopy::ToScratch,
            (_, true) => InputCopy::None,
            (Collective::AllReduce | Collective::Scan, false) => InputCopy::IntoOutput,
            (_, false) if !premultiplies => InputCopy::None,
            (Collective::Reduce, false) if self.root == Some(rank) => InputCopy::IntoOutput,
            (_, false) => InputCopy::ToScratch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupId;

    #[test]
    fn the_contribution_is_copied_only_if_the_result_or_a_factor_would_overwrite_it() {
        let copy = |collective, root, is_in_place, premultiplies| {
            let mut signature = Signature::new(GroupId::WORLD, collective, "");
            signature.root = root;
            signature.input_copy(1, is_in_place, premultiplies)
        };
        for collective in Collective::ALL {
            let moves = matches!(collective.base(), Collective::Exscan | Collective::AllToAll);
            let in_place = if moves { InputCopy::ToScratch } else { InputCopy::None };
            assert_eq!(copy(collective, Some(1), true, true), in_place, "{collective}");
        }
        for collective in [Collective::AllReduce, Collective::Scan] {
            assert_eq!(copy(collective, None, false, false), InputCopy::IntoOutput);
        }
        for collective in [Collective::Reduce, Collective::ReduceScatter, Collective::Exscan] {
            assert_eq!(copy(collective, Some(0), false, false), InputCopy::None);
            assert_eq!(copy(collective, Some(0), false, true), InputCopy::ToScratch);
        }
        assert_eq!(copy(Collective::Reduce, Some(1), false, true), InputCopy::IntoOutput);
    }
}
