//! The least times of calls that the measured limits of a machine allow.

use std::collections::BTreeMap;

use super::collective::Collective;
use super::record::{Case, Limit};

/// The name of the least times over shared memory in the report.
pub(crate) const LIMIT: &str = "limit";
/// The name of the least times over TCP.
pub(crate) const TCP_LIMIT: &str = "limit-tcp";

/// From this size on, data of a call does not stay in the caches of cores.
const FROM_MEMORY: usize = 4 << 20;
/// Up to this size, a call takes as long as its synchronization.
const EMPTY: usize = 4;
/// From this size on, a call over TCP takes as long as its copies.
const STREAMED: usize = 1 << 20;

/// The limits of one machine that bound times.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Bounds {
    /// The bandwidth of memory in 10^9 bytes per second, by the number of threads that use it.
    memory: BTreeMap<usize, f64>,
    /// The round trip of a flag in microseconds.
    flag: Option<f64>,
    /// The speed of each direction of a TCP connection over loopback that carries both at once, in
    /// 10^9 bytes per second.
    duplex: Option<f64>,
}

impl Bounds {
    /// Takes the limits of a run from its records.
    pub(crate) fn of<'a>(limits: impl Iterator<Item = &'a Limit>) -> Self {
        let mut bounds = Self::default();
        let largest = |known: Option<f64>, value: f64| Some(known.map_or(value, |known| known.max(value)));
        for Limit { limit, detail, value, .. } in limits {
            match (&**limit, &**detail) {
                ("triad (f32)", detail) => drop(bounds.memory.insert(threads(detail), *value)),
                ("flag in memory, round trip", "spinning") => bounds.flag = Some(*value),
                ("TCP over loopback, both ways", _) => bounds.duplex = largest(bounds.duplex, *value),
                _ => {}
            }
        }
        bounds
    }

    /// Returns the least time of a call over shared memory in microseconds. `None` for sizes at
    /// which caches and synchronization both matter.
    pub(crate) fn shared_memory(&self, case: Case, bytes: usize) -> Option<f64> {
        let Case { collective, ranks, .. } = case;
        match collective {
            Collective::AllReduce | Collective::Barrier if ranks == 2 && bytes <= EMPTY => self.flag,
            Collective::Barrier | Collective::SendRecv => None,
            _ if bytes < FROM_MEMORY => None,
            _ => {
                // Ranks that outnumber cores use the bandwidth of all cores.
                let (_, bandwidth) = self.memory.range(..=ranks).next_back()?;
                Some(bytes_through_memory(collective, ranks) as f64 * bytes as f64 / bandwidth * 1e-3)
            }
        }
    }

    /// Returns the least time of a call over TCP within a host in microseconds: an all-reduce of
    /// two ranks, each of which sends and receives as many bytes as the buffer has.
    pub(crate) fn tcp(&self, case: Case, bytes: usize) -> Option<f64> {
        let is_bounded = case.collective == Collective::AllReduce && case.ranks == 2 && bytes >= STREAMED;
        Some(bytes as f64 / self.duplex.filter(|_| is_bounded)? * 1e-3)
    }
}

/// Returns the number of threads in the detail of a limit, such as `64 MiB, 2 threads`.
fn threads(detail: &str) -> usize {
    let words = detail.rsplit_once(", ").map_or(detail, |(_, words)| words);
    words.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(1)
}

/// Returns the bytes that all ranks together read from memory or write to it at least, divided by
/// the size of the call: each input is read once, each result is written once.
const fn bytes_through_memory(collective: Collective, ranks: usize) -> usize {
    match collective {
        Collective::AllReduce | Collective::AllToAll => 2 * ranks,
        // The root reads its buffer, and all others write theirs.
        Collective::Broadcast => ranks,
        Collective::AllGather | Collective::ReduceScatter => ranks + 1,
        Collective::Barrier | Collective::SendRecv => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(limit: &str, detail: &str, value: f64) -> Limit {
        Limit { run: 1, limit: limit.into(), detail: detail.into(), value, unit: String::new() }
    }

    fn case(collective: Collective, ranks: usize) -> Case {
        Case { collective, ranks, rotates: false }
    }

    #[test]
    fn an_all_reduce_moves_each_buffer_through_memory_twice() {
        let limits = [
            limit("triad (f32)", "64 MiB, 1 thread", 20.0),
            limit("triad (f32)", "64 MiB, 2 threads", 40.0),
            limit("triad (f32)", "64 MiB, 8 threads", 80.0),
            limit("flag in memory, round trip", "spinning", 0.25),
            limit("flag in memory, round trip", "sched_yield", 0.5),
            limit("TCP over loopback, both ways", "cubic", 4.0),
            limit("TCP over loopback, both ways", "bbr", 2.0),
        ];
        let bounds = Bounds::of(limits.iter());
        let size = 40_000_000;
        assert_eq!(bounds.shared_memory(case(Collective::AllReduce, 4), size), Some(8000.0));
        assert_eq!(bounds.shared_memory(case(Collective::AllReduce, 8), size), Some(8000.0));
        assert_eq!(bounds.shared_memory(case(Collective::AllReduce, 2), 4), Some(0.25));
        assert_eq!(bounds.shared_memory(case(Collective::AllReduce, 2), 1 << 20), None);
        assert_eq!(bounds.shared_memory(case(Collective::Barrier, 4), 0), None);
        assert_eq!(bounds.tcp(case(Collective::AllReduce, 2), size), Some(10_000.0));
        assert_eq!(bounds.tcp(case(Collective::AllReduce, 4), size), None);
        assert_eq!(Bounds::default().shared_memory(case(Collective::Broadcast, 2), size), None);
    }
}
