//! The kinds of collective calls.

/// The kinds of collective calls. The discriminants are the codes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Collective {
    /// Every rank gets the reduction of all contributions.
    AllReduce = 1,
    /// The root gets the reduction of all contributions.
    Reduce = 2,
    /// Every rank gets the root's data.
    Broadcast = 3,
    /// Every rank gets the contributions of all ranks, in rank order.
    AllGather = 4,
    /// Every rank gets its chunk of the reduction of all contributions.
    ReduceScatter = 5,
    /// No rank leaves before every rank has entered.
    Barrier = 6,
    /// The root gets the contributions of all ranks, in rank order.
    Gather = 7,
    /// Every rank gets its chunk of the root's data.
    Scatter = 8,
    /// An all-gather of contributions of different lengths.
    AllGatherV = 9,
    /// A reduce-scatter into chunks of different lengths.
    ReduceScatterV = 10,
    /// A gather of contributions of different lengths.
    GatherV = 11,
    /// A scatter of chunks of different lengths.
    ScatterV = 12,
    /// Every rank sends a different chunk to every rank.
    AllToAll = 13,
    /// An all-to-all of chunks of different lengths.
    AllToAllV = 14,
    /// Every rank gets the reduction of the contributions of the ranks up to it.
    Scan = 15,
    /// Every rank but the first gets the reduction of the contributions of the ranks before it.
    Exscan = 16,
    /// The ranks that pass the same color form a new group.
    Split = 17,
    /// The listed ranks form a new group.
    NewGroup = 18,
    /// All ranks form a new group.
    Duplicate = 19,
    /// A barrier that names the ranks that did not arrive.
    MonitoredBarrier = 20,
}

impl Collective {
    /// Every collective, in the order of the codes.
    pub const ALL: [Self; 20] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Barrier,
        Self::Gather,
        Self::Scatter,
        Self::AllGatherV,
        Self::ReduceScatterV,
        Self::GatherV,
        Self::ScatterV,
        Self::AllToAll,
        Self::AllToAllV,
        Self::Scan,
        Self::Exscan,
        Self::Split,
        Self::NewGroup,
        Self::Duplicate,
        Self::MonitoredBarrier,
    ];

    /// Returns the collective that sends the same messages between the same ranks: for a V
    /// collective the one with equal lengths, and for the creation of a group or a monitored
    /// barrier the collective that implements it.
    #[must_use]
    pub const fn base(self) -> Self {
        match self {
            Self::AllGatherV | Self::Split => Self::AllGather,
            Self::NewGroup | Self::Duplicate | Self::MonitoredBarrier => Self::Barrier,
            Self::ReduceScatterV => Self::ReduceScatter,
            Self::GatherV => Self::Gather,
            Self::ScatterV => Self::Scatter,
            Self::AllToAllV => Self::AllToAll,
            other => other,
        }
    }

    /// Returns whether every rank knows the lengths on all ranks. In a gather or scatter with
    /// counts only the root does, and in an all-to-all with counts no rank does.
    #[must_use]
    #[inline]
    pub const fn is_known_everywhere(self) -> bool {
        !matches!(self, Self::GatherV | Self::ScatterV | Self::AllToAllV)
    }

    /// Returns whether the data has one block per rank, such as the contributions of a gather.
    #[must_use]
    pub const fn has_blocks(self) -> bool {
        matches!(
            self.base(),
            Self::AllGather | Self::AllToAll | Self::Gather | Self::ReduceScatter | Self::Scatter
        )
    }

    /// Returns the ratio of bus bandwidth to algorithm bandwidth in a group of this many ranks, as
    /// nccl-tests defines it.
    #[must_use]
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let others = ranks.saturating_sub(1) as f64 / ranks.max(1) as f64;
        match self.base() {
            Self::AllReduce => 2.0 * others,
            base if base.has_blocks() => others,
            _ => 1.0,
        }
    }

    /// Returns the code on the wire, never zero.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the collective with this code on the wire.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| collective.code() == code)
    }

    /// Returns the name of the method that makes the call.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Barrier => "barrier",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllGatherV => "all_gather_v",
            Self::ReduceScatterV => "reduce_scatter_v",
            Self::GatherV => "gather_v",
            Self::ScatterV => "scatter_v",
            Self::AllToAll => "all_to_all",
            Self::AllToAllV => "all_to_all_v",
            Self::Scan => "scan",
            Self::Exscan => "exscan",
            Self::Split => "split",
            Self::NewGroup => "new_group",
            Self::Duplicate => "duplicate",
            Self::MonitoredBarrier => "monitored_barrier",
        }
    }
}

impl std::fmt::Display for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_factors_match_nccl_tests() {
        assert_eq!(Collective::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Collective::AllGather.bus_factor(4), 0.75);
        assert_eq!(Collective::AllGatherV.bus_factor(4), 0.75);
        assert_eq!(Collective::ReduceScatter.bus_factor(2), 0.5);
        assert_eq!(Collective::AllToAll.bus_factor(8), 0.875);
        assert_eq!(Collective::Broadcast.bus_factor(4), 1.0);
        assert_eq!(Collective::Reduce.bus_factor(4), 1.0);
        assert_eq!(Collective::AllReduce.bus_factor(1), 0.0);
    }

    #[test]
    fn codes_name_their_collectives_and_no_other_does() {
        for collective in Collective::ALL {
            assert_eq!(Collective::from_code(collective.code()), Some(collective));
        }
        let known = (0..=u8::MAX).filter(|&code| Collective::from_code(code).is_some());
        assert!(known.eq(Collective::ALL.map(Collective::code)), "in the order of their codes");
    }
}
