//! The least times of calls that the measured limits of a machine allow.

use std::collections::{BTreeMap, BTreeSet};

use super::collective::Collective;
use super::machine::cores;
use super::record::{Case, Limit};

/// The name of the least times over shared memory in the report.
pub(crate) const LIMIT: &str = "limit";
/// The name of the round trip of a flag.
pub(crate) const FLAG: &str = "flag";
/// The name of the least times over TCP.
pub(crate) const TCP_LIMIT: &str = "limit-tcp";

/// From this size on, data of a call does not stay in the caches of cores.
const FROM_MEMORY: usize = 4 << 20;
/// Up to this size, a call is compared with the round trip of a flag.
const EMPTY: usize = 4;
/// Up to this size, the bytes that a rank sends in a call of two ranks take as long as their copies
/// between two threads.
const COPIED: usize = 1 << 20;
/// Up to this size, the bytes that a rank sends over TCP take no longer than one.
const FEW_LINES: usize = 256;
/// From this size on, a call over TCP takes as long as its copies.
const STREAMED: usize = 1 << 20;

/// The limit that bounds a call, by its name on the command line of the program `limits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Bound {
    Triad,
    Flag,
    Exchange,
    Message,
    Duplex,
    TcpTrip,
    TcpExchange,
}

impl Bound {
    const fn name(self) -> &'static str {
        match self {
            Self::Triad => "triad",
            Self::Flag => "flag",
            Self::Exchange => "exchange",
            Self::Message => "message",
            Self::Duplex => "duplex",
            Self::TcpTrip => "tcp-trip",
            Self::TcpExchange => "tcp-exchange",
        }
    }

    /// Returns the limit of a call over shared memory. `None` for sizes and numbers of ranks for
    /// which none is known.
    fn of_shared_memory(case: Case, bytes: usize) -> Option<Self> {
        let Case { collective, ranks, .. } = case;
        let is_copied = ranks == 2 && sent_bytes(collective, bytes) <= COPIED && bytes < FROM_MEMORY;
        match collective {
            Collective::SendRecv => is_copied.then_some(Self::Message),
            // The root waits for nobody, so no call has a least time.
            Collective::Broadcast => (bytes >= FROM_MEMORY).then_some(Self::Triad),
            _ if is_copied => Some(Self::Exchange),
            Collective::Barrier => None,
            _ => (bytes >= FROM_MEMORY).then_some(Self::Triad),
        }
    }

    /// Returns the bound of a call that is compared with the round trip of a flag.
    fn of_flag(case: Case, bytes: usize) -> Option<Self> {
        let Case { collective, ranks, .. } = case;
        let is_compared = matches!(collective, Collective::AllReduce | Collective::Barrier);
        (is_compared && ranks == 2 && bytes <= EMPTY).then_some(Self::Flag)
    }

    /// Returns the limit of a call over TCP within a host: a small one takes as long as a byte, and
    /// a long all-reduce as long as the copies of a stream that carries as many bytes both ways.
    fn of_tcp(case: Case, bytes: usize) -> Option<Self> {
        let Case { collective, ranks, .. } = case;
        if ranks != 2 {
            return None;
        }
        let is_short = sent_bytes(collective, bytes) <= FEW_LINES;
        match collective {
            Collective::SendRecv => is_short.then_some(Self::TcpTrip),
            // The root waits for nobody.
            Collective::Broadcast => None,
            _ if is_short => Some(Self::TcpExchange),
            Collective::AllReduce => (bytes >= STREAMED).then_some(Self::Duplex),
            _ => None,
        }
    }
}

/// Returns the arguments with which the program `limits` measures the bounds of a case, as far as
/// `is_wanted` accepts the name of the bound. Empty if there is nothing to measure.
pub(crate) fn arguments(case: Case, sizes: &[usize], is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let bounds = sizes.iter().flat_map(|bytes| {
        let shared_memory = Bound::of_shared_memory(case, *bytes).filter(|_| is_wanted(LIMIT));
        let flag = Bound::of_flag(case, *bytes).filter(|_| is_wanted(FLAG));
        [shared_memory, flag, Bound::of_tcp(case, *bytes).filter(|_| is_wanted(TCP_LIMIT))]
    });
    let bounds: BTreeSet<Bound> = bounds.flatten().collect();
    let mut arguments: Vec<String> = bounds.iter().map(|bound| bound.name().to_owned()).collect();
    if bounds.contains(&Bound::Triad) {
        // Ranks that outnumber cores use the bandwidth of all cores.
        arguments.push(format!("--threads={}", case.ranks.min(cores())));
    }
    arguments
}

/// The limits of a machine that bound times, measured at one time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Bounds {
    /// The bandwidth of memory in 10^9 bytes per second, by the number of threads that use it.
    memory: BTreeMap<usize, f64>,
    /// The round trip of a flag in microseconds.
    flag: Option<f64>,
    /// The times in microseconds of two threads that send each other this number of bytes.
    exchanges: BTreeMap<usize, f64>,
    /// The times in microseconds of a message of this number of bytes.
    messages: BTreeMap<usize, f64>,
    /// The speed of each direction of a TCP connection over loopback that carries both at once, in
    /// 10^9 bytes per second, by its congestion control.
    duplex: BTreeMap<String, f64>,
    /// The times in microseconds of a byte over TCP, there and back, and from each side at once.
    tcp_trip: Option<f64>,
    tcp_exchange: Option<f64>,
}

impl Bounds {
    /// Takes a limit from its record, instead of an earlier one of the same name and detail.
    pub(crate) fn add(&mut self, limit: &Limit) {
        let Limit { limit, detail, value, .. } = limit;
        match (&**limit, &**detail) {
            ("triad (f32)", detail) => drop(self.memory.insert(threads(detail), *value)),
            ("flag in memory, round trip", "spinning") => self.flag = Some(*value),
            ("exchange in memory", detail) => drop(self.exchanges.insert(leading_number(detail), *value)),
            ("message in memory", detail) => drop(self.messages.insert(leading_number(detail), *value)),
            ("TCP over loopback, both ways", detail) => drop(self.duplex.insert(detail.to_owned(), *value)),
            ("TCP over loopback, round trip", "spinning") => self.tcp_trip = Some(*value),
            ("TCP over loopback, exchange", "spinning") => self.tcp_exchange = Some(*value),
            _ => {}
        }
    }

    /// Returns the least time of a call over shared memory in microseconds.
    pub(crate) fn shared_memory(&self, case: Case, bytes: usize) -> Option<f64> {
        let Case { collective, ranks, .. } = case;
        let sent = sent_bytes(collective, bytes);
        match Bound::of_shared_memory(case, bytes)? {
            Bound::Exchange => least_time(&self.exchanges, sent),
            Bound::Message => least_time(&self.messages, sent),
            _ => {
                let (_, bandwidth) = self.memory.range(..=ranks).next_back()?;
                Some(bytes_through_memory(collective, ranks) as f64 * bytes as f64 / bandwidth * 1e-3)
            }
        }
    }

    /// Returns the round trip of a flag in microseconds, if a call is compared with it.
    pub(crate) fn flag(&self, case: Case, bytes: usize) -> Option<f64> {
        Bound::of_flag(case, bytes)?;
        self.flag
    }

    /// Returns the least time of a call over TCP within a host in microseconds.
    pub(crate) fn tcp(&self, case: Case, bytes: usize) -> Option<f64> {
        match Bound::of_tcp(case, bytes)? {
            Bound::TcpTrip => self.tcp_trip.map(|trip| trip / 2.0),
            Bound::TcpExchange => self.tcp_exchange,
            _ => {
                let fastest = self.duplex.values().copied().reduce(f64::max)?;
                Some(bytes as f64 / fastest * 1e-3)
            }
        }
    }
}

/// Returns the least time for a number of bytes, if a size of at least half of it was measured: a
/// larger call takes no less, and no call has to take longer than two of half its size.
fn least_time(times: &BTreeMap<usize, f64>, bytes: usize) -> Option<f64> {
    let (measured, time) =
        times.range(..=bytes).next_back().filter(|(measured, _)| 2 * **measured >= bytes)?;
    let half = times.contains_key(&(measured / 2)).then_some(measured / 2).filter(|half| *half > 0);
    let of_halves = half.and_then(|half| least_time(times, half)).map_or(f64::INFINITY, |time| 2.0 * time);
    Some(time.min(of_halves))
}

/// Returns the number of threads in the detail of a limit, such as `64 MiB, 2 threads`.
fn threads(detail: &str) -> usize {
    leading_number(detail.rsplit_once(", ").map_or(detail, |(_, words)| words)).max(1)
}

/// Returns the number at the start of words such as `64 B`, zero if there is none.
fn leading_number(words: &str) -> usize {
    words.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the bytes that each of two ranks sends to the other one at least.
const fn sent_bytes(collective: Collective, bytes: usize) -> usize {
    match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::SendRecv => bytes,
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => bytes / 2,
        Collective::Barrier => 0,
    }
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

    fn bounds(limits: &[Limit]) -> Bounds {
        let mut bounds = Bounds::default();
        limits.iter().for_each(|limit| bounds.add(limit));
        bounds
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
        let bounds = bounds(&limits);
        let size = 40_000_000;
        assert_eq!(bounds.shared_memory(case(Collective::AllReduce, 4), size), Some(8000.0));
        assert_eq!(bounds.shared_memory(case(Collective::AllReduce, 8), size), Some(8000.0));
        assert_eq!(bounds.shared_memory(case(Collective::AllReduce, 2), 4), None, "not measured");
        assert_eq!(bounds.flag(case(Collective::AllReduce, 2), 4), Some(0.25));
        assert_eq!(bounds.flag(case(Collective::AllReduce, 2), 16), None);
        assert_eq!(bounds.shared_memory(case(Collective::AllReduce, 2), 1 << 20), None);
        assert_eq!(bounds.shared_memory(case(Collective::Barrier, 4), 0), None);
        assert_eq!(bounds.tcp(case(Collective::AllReduce, 2), size), Some(10_000.0));
        assert_eq!(bounds.tcp(case(Collective::AllReduce, 4), size), None);
        assert_eq!(Bounds::default().shared_memory(case(Collective::Broadcast, 2), size), None);
    }

    #[test]
    fn a_limit_that_was_measured_again_replaces_the_earlier_one() {
        let duplex = |value| limit("TCP over loopback, both ways", "cubic", value);
        let flag = |value| limit("flag in memory, round trip", "spinning", value);
        let bounds = bounds(&[duplex(4.0), flag(0.1), duplex(2.0), flag(0.2)]);
        assert_eq!(bounds.tcp(case(Collective::AllReduce, 2), 4_000_000), Some(2000.0));
        assert_eq!(bounds.flag(case(Collective::Barrier, 2), 0), Some(0.2));
    }

    #[test]
    fn calls_of_two_ranks_are_bounded_by_what_each_sends() {
        let exchange = |detail, value| limit("exchange in memory", detail, value);
        let bounds = bounds(&[
            exchange("0 B", 0.1),
            exchange("4 B", 0.2),
            exchange("256 B", 0.3),
            exchange("512 B", 0.5),
            exchange("1024 B", 1.2),
            exchange("1048576 B", 50.0),
            limit("message in memory", "4 B", 0.05),
        ]);
        let of = |collective, bytes| bounds.shared_memory(case(collective, 2), bytes);
        assert_eq!(of(Collective::Barrier, 0), Some(0.1));
        let all_reduces =
            [4, 8, 9, 256, 512, 513, 1 << 20, (1 << 20) + 4].map(|bytes| of(Collective::AllReduce, bytes));
        assert_eq!(
            all_reduces,
            [Some(0.2), Some(0.2), None, Some(0.3), Some(0.5), Some(0.5), Some(50.0), None]
        );
        assert_eq!(of(Collective::AllReduce, 1024), Some(1.0), "twice the half");
        assert_eq!((of(Collective::AllGather, 8), of(Collective::AllGather, 512)), (Some(0.2), Some(0.3)));
        assert_eq!(
            (of(Collective::AllGather, 2 << 20), of(Collective::AllGather, 4 << 20)),
            (Some(50.0), None)
        );
        assert_eq!((of(Collective::SendRecv, 4), of(Collective::SendRecv, 512)), (Some(0.05), None));
        assert_eq!(of(Collective::Broadcast, 4), None);
        assert_eq!(bounds.shared_memory(case(Collective::AllReduce, 4), 4), None);
    }

    #[test]
    fn small_calls_over_tcp_take_as_long_as_a_byte() {
        let bounds = bounds(&[
            limit("TCP over loopback, round trip", "spinning", 6.0),
            limit("TCP over loopback, round trip", "blocking", 20.0),
            limit("TCP over loopback, exchange", "spinning", 4.0),
        ]);
        let of = |collective, ranks, bytes| bounds.tcp(case(collective, ranks), bytes);
        assert_eq!((of(Collective::SendRecv, 2, 256), of(Collective::SendRecv, 2, 257)), (Some(3.0), None));
        assert_eq!(
            (of(Collective::AllReduce, 2, 4), of(Collective::AllGather, 2, 512)),
            (Some(4.0), Some(4.0))
        );
        assert_eq!((of(Collective::Barrier, 2, 0), of(Collective::Barrier, 4, 0)), (Some(4.0), None));
        assert_eq!((of(Collective::Broadcast, 2, 4), of(Collective::AllReduce, 2, 1024)), (None, None));
    }

    #[test]
    fn only_limits_that_bound_the_sizes_of_a_case_are_measured() {
        let sizes = [4, 1 << 20, 4 << 20];
        let all_reduce = case(Collective::AllReduce, 2);
        let threads = format!("--threads={}", cores().min(2));
        let both = |_: &str| true;
        assert_eq!(
            arguments(all_reduce, &sizes, both),
            ["triad", "flag", "exchange", "duplex", "tcp-exchange", &threads]
        );
        assert_eq!(arguments(all_reduce, &sizes, |limit| limit == LIMIT), ["triad", "exchange", &threads]);
        assert_eq!(arguments(all_reduce, &sizes, |limit| limit == TCP_LIMIT), ["duplex", "tcp-exchange"]);
        assert_eq!(arguments(all_reduce, &sizes[..2], both), ["flag", "exchange", "duplex", "tcp-exchange"]);
        assert_eq!(arguments(case(Collective::Barrier, 2), &[0], both), ["flag", "exchange", "tcp-exchange"]);
        assert!(arguments(case(Collective::Barrier, 4), &[0], both).is_empty());
        assert_eq!(arguments(case(Collective::SendRecv, 2), &sizes, both), ["message", "tcp-trip"]);
        assert_eq!(arguments(case(Collective::SendRecv, 2), &sizes[1..], both), ["message"]);
        assert!(arguments(case(Collective::SendRecv, 2), &sizes[2..], both).is_empty());
    }
}
