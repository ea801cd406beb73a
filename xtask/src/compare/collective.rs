//! The measured collectives and their sizes.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The size of an element (`f32`) in bytes.
const ELEMENT: usize = 4;

/// The largest size of all collectives except all-reduce.
const BYTES_MAX: usize = 64 << 20;

/// A collective that peers support, or a message from one rank to another and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Collective {
    AllReduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Barrier,
    SendRecv,
}

impl Collective {
    pub(crate) const ALL: [Self; 7] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Barrier,
        Self::SendRecv,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::SendRecv => "send_recv",
        }
    }

    /// Returns whether it is measured with this number of ranks, and with copies of its buffers in
    /// turn if it `rotates` them.
    pub(crate) fn is_measured(self, ranks: usize, rotates: bool) -> bool {
        match self {
            // It has no buffers.
            Self::Barrier => !rotates,
            Self::SendRecv => ranks == 2 && !rotates,
            _ => true,
        }
    }

    /// Limits the requested largest size.
    pub(crate) fn at_most(self, max: usize) -> usize {
        if self == Self::AllReduce { max } else { max.min(BYTES_MAX) }
    }

    /// Rounds sizes as `commctl perf` does: down to whole elements per block, but at least one.
    /// Removes duplicates.
    pub(crate) fn sizes(self, wanted: impl Iterator<Item = usize>, ranks: usize) -> Vec<usize> {
        let unit = match self {
            Self::Barrier => return vec![0],
            Self::AllReduce | Self::Broadcast | Self::SendRecv => ELEMENT,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => ELEMENT * ranks,
        };
        let mut sizes: Vec<usize> = wanted.map(|size| (size / unit).max(1) * unit).collect();
        sizes.dedup();
        sizes
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_blocks_without_duplicates() {
        let sizes = |collective: Collective, ranks| collective.sizes([4, 16, 64, 256].into_iter(), ranks);
        assert_eq!(sizes(Collective::AllReduce, 8), [4, 16, 64, 256]);
        assert_eq!(sizes(Collective::AllGather, 8), [32, 64, 256]);
        assert_eq!(sizes(Collective::AllToAll, 3), [12, 60, 252]);
        assert_eq!(sizes(Collective::Barrier, 8), [0]);
        assert_eq!(sizes(Collective::SendRecv, 2), [4, 16, 64, 256]);
    }

    #[test]
    fn only_all_reduce_is_measured_beyond_64_mebibytes() {
        assert_eq!(Collective::AllReduce.at_most(256 << 20), 256 << 20);
        assert_eq!(Collective::Broadcast.at_most(256 << 20), 64 << 20);
        assert_eq!(Collective::Broadcast.at_most(1000), 1000);
    }

    #[test]
    fn names_in_files_and_on_the_command_line_are_the_same() {
        for collective in Collective::ALL {
            assert_eq!(serde_json::to_value(collective).unwrap(), collective.name());
            assert_eq!(collective.to_possible_value().unwrap().get_name(), collective.name());
        }
    }
}
