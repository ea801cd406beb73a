//! What can be measured: one row of facts per operation.

use clap::ValueEnum;
use comm::Collective;

use super::error::{PerfError, Result};

/// An operation that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Operation {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Gather,
    Scatter,
    AllToAll,
    Scan,
    Exscan,
    Barrier,
}

/// What the rest needs to know of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) collective: Collective,
    /// Whether contributions are combined.
    pub(crate) reduces: bool,
    /// Whether one rank plays another part than the others.
    pub(crate) rooted: bool,
    /// Whether the size is that of one block per rank together.
    pub(crate) divided: bool,
    /// How it may lie in memory, the usual way first.
    pub(crate) places: &'static [Place],
    /// The share of the size that passes the busiest port.
    bus: Bus,
}

/// Where contribution and result of a rank lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In one buffer.
    In,
    /// In two.
    Out,
}

/// By what bandwidth is multiplied so that it can be compared with that of the hardware, as
/// nccl-tests do it.
#[derive(Debug, Clone, Copy)]
enum Bus {
    /// Every byte passes each port twice, but for a rank's own share.
    Twice,
    /// Every byte passes the busiest port once, but for a rank's own share.
    Once,
    /// Every byte passes the busiest port.
    Whole,
}

const BOTH: &[Place] = &[Place::Out, Place::In];
const IN_PLACE_FIRST: &[Place] = &[Place::In, Place::Out];
const ONLY_IN: &[Place] = &[Place::In];
const ONLY_OUT: &[Place] = &[Place::Out];

impl Operation {
    pub(crate) const ALL: [Self; 11] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Scan,
        Self::Exscan,
        Self::Barrier,
    ];

    pub(crate) const fn facts(self) -> Facts {
        use Bus::{Once, Twice, Whole};
        use Collective as C;
        let (collective, reduces, rooted, divided, places, bus) = match self {
            Self::AllReduce => (C::AllReduce, true, false, false, IN_PLACE_FIRST, Twice),
            Self::Reduce => (C::Reduce, true, true, false, IN_PLACE_FIRST, Whole),
            Self::Broadcast => (C::Broadcast, false, true, false, ONLY_IN, Whole),
            Self::AllGather => (C::AllGather, false, false, true, BOTH, Once),
            Self::ReduceScatter => (C::ReduceScatter, true, false, true, BOTH, Once),
            Self::Gather => (C::Gather, false, true, true, ONLY_OUT, Once),
            Self::Scatter => (C::Scatter, false, true, true, ONLY_OUT, Once),
            Self::AllToAll => (C::AllToAll, false, false, true, BOTH, Once),
            Self::Scan => (C::Scan, true, false, false, IN_PLACE_FIRST, Whole),
            Self::Exscan => (C::Exscan, true, false, false, IN_PLACE_FIRST, Whole),
            Self::Barrier => (C::Barrier, false, false, false, ONLY_IN, Whole),
        };
        Facts { collective, reduces, rooted, divided, places, bus }
    }

    pub(crate) const fn name(self) -> &'static str {
        self.facts().collective.name()
    }

    /// Whether it moves data of the caller's.
    pub(crate) fn has_data(self) -> bool {
        self != Self::Barrier
    }

    /// Whether the reduction is over the ranks before this one, and not over all.
    pub(crate) fn is_prefix(self) -> bool {
        matches!(self, Self::Scan | Self::Exscan)
    }

    /// By what the bandwidth that a caller sees is multiplied.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        match self.facts().bus {
            Bus::Twice => 2.0 * others,
            Bus::Once => others,
            Bus::Whole => 1.0,
        }
    }

    /// The place that was asked for, or the usual one.
    pub(crate) fn place(self, wanted: Option<Place>) -> Result<Place> {
        let places = self.facts().places;
        match wanted {
            Some(place) if !places.contains(&place) => {
                let flag = if place == Place::In { "--in-place" } else { "--out-of-place" };
                Err(PerfError::usage(format!("{flag}: there is no such {}", self.name())))
            }
            Some(place) => Ok(place),
            None => Ok(places.first().copied().unwrap_or(Place::Out)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_command_line_are_those_of_the_calls() {
        for operation in Operation::value_variants() {
            let value = operation.to_possible_value().unwrap();
            assert_eq!(value.get_name(), operation.name());
        }
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(Operation::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Operation::AllGather.bus_factor(4), 0.75);
        assert_eq!(Operation::ReduceScatter.bus_factor(2), 0.5);
        assert_eq!(Operation::AllToAll.bus_factor(8), 0.875);
        assert_eq!(Operation::Broadcast.bus_factor(4), 1.0);
        assert_eq!(Operation::Reduce.bus_factor(4), 1.0);
        assert_eq!(Operation::AllReduce.bus_factor(1), 0.0);
    }

    #[test]
    fn a_place_that_does_not_exist_is_refused() {
        assert!(Operation::Broadcast.place(Some(Place::Out)).is_err());
        assert_eq!(Operation::AllGather.place(None).unwrap(), Place::Out);
        assert_eq!(Operation::AllReduce.place(Some(Place::Out)).unwrap(), Place::Out);
    }
}
