//! A lower bound on the time of any algorithm.

use comm::{Collective, Link, LinkModel};

use super::options::Setup;

/// Returns a lower bound on the time in seconds.
///
/// The last rank to complete received at least one message, and some port carries the share
/// [`Collective::bus_factor`](comm::Collective::bus_factor) of the data, so the latency and the
/// time of these bytes add up.
pub(super) fn bound(setup: &Setup) -> f64 {
    let (links, shape) = (&setup.tuning.links, &setup.shape);
    let (ranks, bytes) = (shape.ranks, shape.bytes as f64);
    if ranks == 1 {
        return 0.0;
    }
    let hosts = ranks.div_ceil(links.ranks_per_host);
    let any = any_link(links, hosts);
    let of_a_port = message(&any) + shape.collective.bus_factor(ranks) * bytes * any.per_byte;
    // The bound per host holds only if all hosts have the same number of ranks.
    let even = hosts > 1 && ranks.is_multiple_of(links.ranks_per_host);
    let ports = ports_of_host(shape.collective, links.ranks_per_host);
    let of_a_host =
        message(&links.between) + shape.collective.bus_factor(hosts) * bytes * links.between.per_byte / ports;
    if even { of_a_port.max(of_a_host) } else { of_a_port }
}

fn message(link: &Link) -> f64 {
    2.0 * link.overhead + link.latency
}

/// Returns a link with the smallest of each cost among all links.
fn any_link(links: &LinkModel, hosts: usize) -> Link {
    let (a, b) = (&links.within, &links.between);
    match (links.ranks_per_host, hosts) {
        (1, _) => *b,
        (_, 1) => *a,
        _ => Link {
            latency: a.latency.min(b.latency),
            overhead: a.overhead.min(b.overhead),
            per_byte: a.per_byte.min(b.per_byte),
        },
    }
}

/// Returns the number of ports over which the traffic of a host can be spread.
fn ports_of_host(collective: Collective, ranks_per_host: usize) -> f64 {
    match collective.base() {
        // All data passes through the port of the root, or is different for each pair of ranks.
        Collective::Gather | Collective::Scatter | Collective::AllToAll => 1.0,
        _ => ranks_per_host as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::ring::RingConfig;
    use comm::ring::choose::CallShape;
    use comm::ring::schedule::TABLE;

    use super::super::predict::Simulator;

    #[test]
    fn no_algorithm_is_faster_than_the_bound() {
        let between = Link { latency: 4e-6, overhead: 5e-7, per_byte: 1e-9 };
        let within = Link { latency: 1e-6, overhead: 1e-7, per_byte: 1e-10 };
        for row in TABLE {
            for ranks_per_host in [1, 4] {
                let links = LinkModel { within, ranks_per_host, ..LinkModel::uniform(between, 0.0) };
                for ranks in [1, 2, 3, 5, 8, 13, 16] {
                    for bytes in [0, 4, 1 << 12, 1 << 20] {
                        let shape = CallShape::new(row.collective).ranks(ranks).bytes(bytes);
                        let tuning = RingConfig::default().tuning(links);
                        let setup = Setup { shape, tuning, root: ranks - 1 };
                        let Ok(found) = Simulator::new(&setup, usize::MAX).predict(row) else { continue };
                        let bound = bound(&setup);
                        assert!(found.time >= 0.999_999 * bound, "{shape:?} {found:?}: {bound:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_bound_of_a_ring_all_reduce_is_exact() {
        let links = LinkModel::uniform(Link { latency: 1e-6, overhead: 0.0, per_byte: 1e-9 }, 0.0);
        let tuning = RingConfig::default().tuning(links);
        let shape = CallShape::new(Collective::AllReduce).ranks(8).bytes(1 << 24);
        let setup = Setup { shape, tuning, root: 0 };
        assert_eq!(bound(&setup), 1e-6 + 2.0 * 7.0 / 8.0 * f64::from(1 << 24) * 1e-9);
    }
}
