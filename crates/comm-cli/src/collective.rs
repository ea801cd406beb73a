//! Properties of collectives that several commands use.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use comm::Collective;

/// Returns the collectives that move data with equal counts, and the barrier.
pub(crate) fn measurable() -> impl Iterator<Item = Collective> + Clone {
    Collective::ALL.into_iter().filter(|collective| collective.base() == *collective)
}

/// Returns a parser for the names of `known`.
pub(crate) fn parser(known: Vec<Collective>) -> impl TypedValueParser<Value = Collective> {
    PossibleValuesParser::new(known.iter().map(|collective| collective.name())).try_map(move |name| {
        let found = known.iter().find(|collective| collective.name() == name);
        found.copied().ok_or_else(|| format!("{name} is not a collective"))
    })
}

pub(crate) const fn reduces(collective: Collective) -> bool {
    use Collective::{AllReduce, Reduce, ReduceScatter};
    matches!(collective, AllReduce | Reduce | ReduceScatter) || is_prefix(collective)
}

/// Returns whether each rank gets the reduction of the ranks up to it, instead of all ranks.
pub(crate) const fn is_prefix(collective: Collective) -> bool {
    matches!(collective, Collective::Scan | Collective::Exscan)
}

pub(crate) const fn has_root(collective: Collective) -> bool {
    use Collective::{Broadcast, Gather, Reduce, Scatter};
    matches!(collective, Reduce | Broadcast | Gather | Scatter)
}

pub(crate) fn has_data(collective: Collective) -> bool {
    collective != Collective::Barrier
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measurable_collective_has_an_algorithm() {
        let has_algorithm = |c| comm::ring::schedule::Algorithm::for_collective(c).next().is_some();
        assert!(measurable().all(has_algorithm));
        assert_eq!(measurable().count(), 11);
    }
}
