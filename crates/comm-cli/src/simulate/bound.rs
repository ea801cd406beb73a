//! What no algorithm can do without.

use comm::{Collective, Link, LinkModel};

use super::options::Setup;

/// The share of the data that must pass some port in a group of so many ranks: what nccl-tests
/// multiplies the bandwidth of the algorithm with to get that of the bus.
pub(super) fn share(collective: Collective, ranks: usize) -> f64 {
    let others = (ranks - 1) as f64 / ranks as f64;
    match collective.base() {
        Collective::AllReduce => 2.0 * others,
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Gather
        | Collective::Scatter => others,
        _ if ranks > 1 => 1.0,
        _ => 0.0,
    }
}

/// The time in seconds that any algorithm takes.
///
/// The last rank to end has got at least one message, before whose first byte no byte of its own
/// need have come. So the bytes that must pass a port come on top of the latency.
pub(super) fn bound(setup: &Setup) -> f64 {
    let (links, question) = (&setup.tuning.links, &setup.question);
    let (ranks, bytes) = (question.ranks, question.bytes as f64);
    if ranks == 1 {
        return 0.0;
    }
    let hosts = ranks.div_ceil(links.ranks_per_host);
    let any = any_link(links, hosts);
    let of_a_port = message(&any) + share(question.collective, ranks) * bytes * any.per_byte;
    // Only whole hosts can be compared with each other.
    let even = hosts > 1 && ranks.is_multiple_of(links.ranks_per_host);
    let ports = ports_of_host(question.collective, links.ranks_per_host);
    let of_a_host =
        message(&links.between) + share(question.collective, hosts) * bytes * links.between.per_byte / ports;
    if even { of_a_port.max(of_a_host) } else { of_a_port }
}

fn message(link: &Link) -> f64 {
    2.0 * link.overhead + link.latency
}

/// The better of the links that there are, in every respect.
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

/// Over how many ports what leaves or enters a host can be spread.
fn ports_of_host(collective: Collective, ranks_per_host: usize) -> f64 {
    match collective.base() {
        // All that comes to or from the root passes its own port, and every rank has data of its
        // own for every other.
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
                        let question = CallShape::new(row.collective).ranks(ranks).bytes(bytes);
                        let tuning = RingConfig::default().tuning(links);
                        let setup = Setup { question, tuning, root: ranks - 1 };
                        let Ok(found) = Simulator::new(&setup, usize::MAX).predict(row) else { continue };
                        let bound = bound(&setup);
                        assert!(found.time >= 0.999_999 * bound, "{question:?} {found:?}: {bound:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_ring_comes_close_to_the_bound() {
        let links = LinkModel::uniform(Link { latency: 1e-6, overhead: 0.0, per_byte: 1e-9 }, 0.0);
        let tuning = RingConfig::default().tuning(links);
        let question = CallShape::new(Collective::AllReduce).ranks(8).bytes(1 << 24);
        let setup = Setup { question, tuning, root: 0 };
        assert_eq!(bound(&setup), 1e-6 + 2.0 * 7.0 / 8.0 * f64::from(1 << 24) * 1e-9);
    }
}
