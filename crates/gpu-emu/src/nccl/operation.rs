//! The messages of an operation. One table determines both sends and receives.

use super::element::Element;
use super::reduction::Reduction;
use super::wire::Shape;

/// The kind of an operation. The numbers are sent on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    AllReduce = 0,
    Reduce = 1,
    Broadcast = 2,
    AllGather = 3,
    ReduceScatter = 4,
    AlltoAll = 5,
    Gather = 6,
    Scatter = 7,
    Send = 8,
    Recv = 9,
}

impl Kind {
    pub(super) fn is_collective(self) -> bool {
        !matches!(self, Self::Send | Self::Recv)
    }

    pub(super) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Returns the index of the input block that rank `from` sends to rank `to` in a collective. A
    /// rank also sends to itself.
    pub(super) fn block(self, from: usize, to: usize, root: usize) -> Option<usize> {
        match self {
            Self::AllReduce | Self::AllGather => Some(0),
            Self::ReduceScatter | Self::AlltoAll => Some(to),
            Self::Reduce | Self::Gather => (to == root).then_some(0),
            Self::Broadcast => (from == root).then_some(0),
            Self::Scatter => (from == root).then_some(to),
            Self::Send | Self::Recv => None,
        }
    }
}

/// An operation with checked arguments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    /// The address of the input, if this rank has one.
    pub(super) input: u64,
    /// The address of the output, if this rank has one.
    pub(super) output: u64,
    /// The number of elements of a block.
    pub(super) count: usize,
    pub(super) element: Element,
    pub(super) reduction: Reduction,
    pub(super) factor: Factor,
    /// The root, or the other rank.
    pub(super) root: usize,
    /// The number of the operation among the collectives of its communicator, or among the messages
    /// between two ranks in one direction.
    pub(super) sequence: u64,
}

/// The location of the factor of a premultiplied sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Factor {
    Value([u8; 8]),
    /// On the device, to be read when the operation runs.
    At(u64),
}

impl Operation {
    /// Returns the number of bytes of a block.
    pub(super) fn bytes(&self) -> usize {
        self.count.saturating_mul(self.element.size())
    }

    /// Returns the properties on which all ranks must agree.
    pub(super) fn shape(&self) -> Shape {
        let kind = if self.kind.is_collective() { self.kind } else { Kind::Send };
        let root = if self.kind.is_collective() { u32::try_from(self.root).unwrap_or(u32::MAX) } else { 0 };
        let reduction = if self.kind.reduces() { self.reduction } else { Reduction::Sum };
        Shape {
            kind: kind as u8,
            element: self.element.number(),
            reduction: reduction as u8,
            root,
            count: self.count as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_received_is_what_is_sent() {
        let (world, root) = (5, 3);
        let senders =
            |kind: Kind, to: usize| (0..world).filter(|from| kind.block(*from, to, root).is_some()).count();
        for to in 0..world {
            assert_eq!(senders(Kind::AllReduce, to), world);
            assert_eq!(senders(Kind::Broadcast, to), 1);
            assert_eq!(senders(Kind::Gather, to), if to == root { world } else { 0 });
            assert_eq!(Kind::Scatter.block(root, to, root), Some(to));
        }
    }
}
