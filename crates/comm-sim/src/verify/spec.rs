//! The meaning of collectives: the contents of every rank's memory at the start and at the end.

use comm_core::{Collective, Place};

use super::Fault;

/// One collective call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of blocks of the data. In a gather or scatter, it is a multiple of the number of
    /// ranks. In an all-to-all, there is one for every pair of ranks: block `from * ranks + to` is
    /// sent from `from` to `to`.
    pub blocks: usize,
    /// The root of rooted collectives; ignored for others.
    pub root: usize,
    /// The location of the ranks' data.
    pub buffers: Buffers,
    /// Whether all blocks have the same size, so that a range in scratch is stored slot by slot.
    pub equal: bool,
}

/// The location of a rank's contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffers {
    /// In the output, like the result.
    InPlace,
    /// In the input, which is separate from the output.
    Separate,
}

/// The contents of a block of a rank's array at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialContent {
    /// The array does not hold the block, and no step may use it.
    Absent,
    /// No value yet.
    Empty,
    /// The rank's own contribution.
    Contribution,
}

/// The required contents of a block of a rank's output at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Required {
    /// Anything.
    Nothing,
    /// The contribution of one rank, unchanged.
    Of(usize),
    /// The contributions of all ranks, each once, and finished.
    Reduced,
    /// The contributions of this many ranks from rank 0 on, each once, and not finished.
    First(usize),
}

impl Spec {
    /// Returns every call of a collective that differs in its root or its buffers, on blocks of any
    /// sizes.
    pub fn all(collective: Collective, ranks: usize, blocks: usize) -> impl Iterator<Item = Self> {
        let roots = if is_rooted(collective) { ranks } else { 1 };
        let buffers: &[Buffers] = match collective {
            Collective::Broadcast | Collective::Barrier => &[Buffers::InPlace],
            // These schedules expect the data in one of the arrays, so other calls copy it there
            // first.
            Collective::Scan => &[Buffers::InPlace],
            Collective::AllToAll | Collective::Exscan => &[Buffers::Separate],
            _ => &[Buffers::InPlace, Buffers::Separate],
        };
        let spec = move |root, &buffers| Self { collective, ranks, blocks, root, buffers, equal: false };
        (0..roots).flat_map(move |root| buffers.iter().map(move |buffers| spec(root, buffers)))
    }

    /// Returns the contents of a block on `rank` at the start. Scratch is always empty.
    #[must_use]
    pub fn initial(&self, rank: usize, place: Place, block: usize) -> InitialContent {
        match place {
            Place::Input => self.initial_input(rank, block),
            Place::Output => self.initial_output(rank, block),
            Place::Scratch { .. } => InitialContent::Empty,
        }
    }

    /// Returns the required contents of a block of `rank`'s output at the end.
    #[must_use]
    pub fn required(&self, rank: usize, block: usize) -> Required {
        match self.collective {
            Collective::AllReduce => Required::Reduced,
            Collective::Reduce if rank == self.root => Required::Reduced,
            Collective::ReduceScatter if rank == self.owner(block) => Required::Reduced,
            Collective::Scan => Required::First(rank + 1),
            Collective::Exscan if rank > 0 => Required::First(rank),
            Collective::Broadcast => Required::Of(self.root),
            Collective::AllGather => Required::Of(self.owner(block)),
            Collective::AllToAll if block % self.ranks == rank => Required::Of(block / self.ranks),
            Collective::Gather if rank == self.root => Required::Of(self.owner(block)),
            Collective::Scatter if self.receives(rank, block) => Required::Of(self.root),
            _ => Required::Nothing,
        }
    }

    /// Returns an error for an invalid call.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        // A collective with counts is the one without counts, on blocks of different sizes.
        let known = self.collective.base() == self.collective;
        let pairs = self.collective != Collective::AllToAll
            || Some(self.blocks) == self.ranks.checked_mul(self.ranks);
        let root = !is_rooted(self.collective) || self.root < self.ranks;
        let chunks = !is_chunked(self.collective) || self.blocks.is_multiple_of(self.ranks.max(1));
        if known && root && chunks && pairs && self.ranks > 0 { Ok(()) } else { Err(Fault::Spec(*self)) }
    }

    /// Returns whether values may be combined only if they share no contribution. That is not so in
    /// a barrier, which carries no data.
    pub(crate) const fn counts(&self) -> bool {
        !matches!(self.collective, Collective::Barrier)
    }

    /// Returns whether all ranks must get the same bits, and so must combine in the same order.
    pub(crate) const fn same_everywhere(&self) -> bool {
        matches!(self.collective, Collective::AllReduce)
    }

    fn initial_input(&self, rank: usize, block: usize) -> InitialContent {
        let separate = self.buffers == Buffers::Separate;
        let holds = match self.collective {
            Collective::Reduce => separate || rank != self.root,
            Collective::AllGather => separate && self.owner(block) == rank,
            Collective::Gather => (separate || rank != self.root) && self.owner(block) == rank,
            Collective::Scatter => rank == self.root,
            Collective::AllToAll => block / self.ranks == rank,
            Collective::Exscan => true,
            Collective::Broadcast | Collective::Barrier => false,
            _ => separate,
        };
        if holds { InitialContent::Contribution } else { InitialContent::Absent }
    }

    fn initial_output(&self, rank: usize, block: usize) -> InitialContent {
        let in_place = self.buffers == Buffers::InPlace;
        match self.collective {
            Collective::Reduce | Collective::Gather if rank != self.root => InitialContent::Absent,
            Collective::Scatter if self.receives(rank, block) => InitialContent::Empty,
            Collective::Scatter => InitialContent::Absent,
            Collective::AllToAll if block % self.ranks == rank => InitialContent::Empty,
            Collective::AllToAll => InitialContent::Absent,
            // Rank 0 gets no result, and its buffer must stay unchanged.
            Collective::Exscan if rank == 0 => InitialContent::Absent,
            Collective::Exscan => InitialContent::Empty,
            Collective::ReduceScatter if !in_place && self.owner(block) != rank => InitialContent::Absent,
            Collective::Broadcast if rank == self.root => InitialContent::Contribution,
            Collective::Broadcast => InitialContent::Empty,
            Collective::AllGather | Collective::Gather if self.owner(block) != rank => InitialContent::Empty,
            _ if in_place => InitialContent::Contribution,
            _ => InitialContent::Empty,
        }
    }

    /// Returns whether a rank gets a block in a scatter. In place, the root keeps its own block.
    fn receives(&self, rank: usize, block: usize) -> bool {
        self.owner(block) == rank && !(rank == self.root && self.buffers == Buffers::InPlace)
    }

    /// Returns the rank to whose chunk a block belongs, in a gather or scatter.
    fn owner(&self, block: usize) -> usize {
        block / (self.blocks / self.ranks).max(1)
    }
}

const fn is_rooted(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::Reduce | Collective::Broadcast | Collective::Gather | Collective::Scatter
    )
}

const fn is_chunked(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllGather | Collective::ReduceScatter | Collective::Gather | Collective::Scatter
    )
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} blocks among {} ranks", self.collective, self.blocks, self.ranks)?;
        if is_rooted(self.collective) {
            write!(f, ", root {}", self.root)?;
        }
        f.write_str(match self.buffers {
            Buffers::InPlace => ", in place",
            Buffers::Separate => ", separate buffers",
        })?;
        f.write_str(if self.equal { ", blocks of one size" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rooted_collective_has_a_call_per_root() {
        assert_eq!(Spec::all(Collective::Broadcast, 5, 5).count(), 5);
        assert_eq!(Spec::all(Collective::Reduce, 5, 5).count(), 10);
        assert_eq!(Spec::all(Collective::AllGather, 5, 5).count(), 2);
        assert!(Spec::all(Collective::Barrier, 5, 5).all(|spec| spec.check().is_ok()));
    }

    #[test]
    fn chunks_belong_to_ranks_in_order() {
        let spec = |buffers| Spec {
            collective: Collective::ReduceScatter,
            ranks: 3,
            blocks: 6,
            root: 0,
            buffers,
            equal: false,
        };
        let separate = spec(Buffers::Separate);
        assert_eq!(separate.initial(1, Place::Output, 3), InitialContent::Empty);
        assert_eq!(separate.initial(1, Place::Output, 4), InitialContent::Absent);
        assert_eq!(separate.initial(1, Place::Input, 4), InitialContent::Contribution);
        assert_eq!(separate.required(1, 2), Required::Reduced);
        assert_eq!(separate.required(1, 4), Required::Nothing);
        assert_eq!(spec(Buffers::InPlace).initial(1, Place::Output, 4), InitialContent::Contribution);
    }

    #[test]
    fn invalid_calls_are_refused() {
        let spec = Spec {
            collective: Collective::AllGather,
            ranks: 3,
            blocks: 4,
            root: 0,
            buffers: Buffers::InPlace,
            equal: false,
        };
        assert!(spec.check().is_err());
        assert!(Spec { collective: Collective::Reduce, root: 3, ..spec }.check().is_err());
        assert!(Spec { collective: Collective::AllReduce, root: 3, ..spec }.check().is_ok());
    }
}
