//! The selected algorithm for each size.

use comm_cli::__private::units::about;
use comm_core::{Collective, Link, LinkModel};
use comm_ring::RingConfig;
use comm_ring::choose::{CallShape, choose};

use crate::error::Result;

/// The listed numbers of ranks.
pub(super) const RANKS: [usize; 6] = [2, 4, 8, 16, 64, 1024];
const BYTES_MIN: usize = 4;
const BYTES_MAX: usize = 1 << 30;

/// The costs of the reference: 100 Gbit/s between hosts, 400 Gbit/s within a host, and 80 Gbit/s
/// for reductions.
const BETWEEN: Link = Link { latency: 5e-6, overhead: 1e-6, per_byte: 8.0 / 100e9 };
const WITHIN: Link = Link { latency: 1e-6, overhead: 0.3e-6, per_byte: 8.0 / 400e9 };
const REDUCE: f64 = 8.0 / 80e9;

/// The description of the reference on the page.
pub(super) const REFERENCE: &str = "\
Between hosts, a message has an overhead of 1 us on each side and a latency of 5 us, at 100 Gbit/s; within a host, an
overhead of 0.3 us on each side and a latency of 1 us, at 400 Gbit/s. A rank reduces 80 Gbit/s. Sizes are powers of two from
4 B to 1 GiB.";

/// Describes the selected algorithms for all sizes.
pub(super) fn describe(collective: Collective, ranks: usize, ranks_per_host: usize) -> Result<String> {
    let links = LinkModel { within: WITHIN, ranks_per_host, ..LinkModel::uniform(BETWEEN, REDUCE) };
    let tuning = RingConfig::default().tuning(links);
    let mut ranges: Vec<(&str, usize)> = Vec::new();
    for bytes in sizes(collective) {
        let shape = CallShape::new(collective).ranks(ranks).bytes(bytes);
        let name = choose(&shape, None, &tuning)?.algorithm.name;
        match ranges.last_mut() {
            Some((last, to)) if *last == name => *to = bytes,
            _ => ranges.push((name, bytes)),
        }
    }
    let last = ranges.len().saturating_sub(1);
    let range = |(index, (name, to)): (usize, &(&str, usize))| match index {
        _ if index == last => format!("`{name}`"),
        _ => format!("`{name}` to {}", about(*to as f64)),
    };
    Ok(ranges.iter().enumerate().map(range).collect::<Vec<_>>().join(", "))
}

fn sizes(collective: Collective) -> impl Iterator<Item = usize> {
    let least = if collective == Collective::Barrier { BYTES_MAX } else { BYTES_MIN };
    std::iter::successors(Some(least), |bytes| Some(2 * bytes)).take_while(|bytes| *bytes <= BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_the_choice_changes() {
        let text = describe(Collective::AllReduce, 1024, 1).unwrap();
        assert!(text.contains(" to ") && text.contains(", `"), "{text}");
        assert!(!describe(Collective::Barrier, 64, 1).unwrap().contains(" to "));
    }
}
