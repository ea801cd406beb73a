//! The cost of moving bytes between ranks.

mod text;

use std::num::NonZero;

/// The cost of messages between two ranks, after Hockney's and the LogGP model.
///
/// A message of `b` bytes that starts at time 0 occupies the sender for `overhead`, its outgoing
/// port for `b * per_byte`, and arrives at `overhead + latency + b * per_byte`; then it occupies
/// the receiver for another `overhead`. A rank has one outgoing and one incoming port, each of
/// which serves one message at a time. All times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// The time in flight, during which the ports are free for other messages. The model's alpha.
    pub latency: f64,
    /// The time that a rank spends on each message, whatever its length.
    pub overhead: f64,
    /// The time that a port spends on each byte. The model's beta, the inverse of the bandwidth.
    pub per_byte: f64,
}

/// The cost of communication in a group: its links, and the distribution of its ranks over hosts.
///
/// Hosts hold consecutive ranks, `ranks_per_host` each; the last may hold fewer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkModel {
    /// Between ranks of one host.
    pub within: Link,
    /// Between ranks of different hosts.
    pub between: Link,
    /// The time that a rank spends on combining two bytes of contributions, in seconds per byte of
    /// the result. The model's gamma.
    pub reduce: f64,
    /// The number of ranks per host, at least 1.
    pub ranks_per_host: usize,
    /// The number of processors that the ranks of a host share; 0 if there is one for each.
    pub processors: usize,
    /// The smallest size in bytes of a message that the ranks of a host read from shared memory in
    /// place, which takes [`LinkModel::READ_IN_PLACE`] of the time per byte; `None` if they cannot.
    /// See [`Fabric::shared_buffer`](crate::Fabric::shared_buffer).
    pub staged_from: Option<usize>,
}

impl LinkModel {
    /// The time to read a byte in place, divided by that to copy it through a channel. It is more
    /// than half although there is one copy instead of two: most of the time passes while the byte
    /// moves from the cache of one processor to that of another, which it does once in both. With
    /// this value, the selected algorithms of 3 to 8 ranks on two processors come as close to the
    /// fastest ones (`commctl perf --algorithm`) as with a half, and closer than with 0.75.
    pub const READ_IN_PLACE: f64 = 0.65;

    /// Creates a model with one kind of link between all ranks, each on its own host.
    #[must_use]
    pub const fn uniform(link: Link, reduce: f64) -> Self {
        Self { within: link, between: link, reduce, ranks_per_host: 1, processors: 0, staged_from: None }
    }

    /// Creates a model with one kind of link between all ranks, which share the processors of their
    /// hosts. `hosts` has the host of every rank; unless [`LinkModel::regular_hosts`] finds a
    /// number of ranks per host, every rank counts as its own host. `processors` is the number that
    /// the standard library reports, if it reports one.
    #[must_use]
    pub fn on_hosts<H: PartialEq>(
        hosts: &[H],
        link: Link,
        reduce: f64,
        processors: Option<NonZero<usize>>,
    ) -> Self {
        let ranks_per_host = Self::regular_hosts(hosts).unwrap_or(1);
        let processors = processors.map_or(0, NonZero::get);
        Self { ranks_per_host, processors, ..Self::uniform(link, reduce) }
    }

    /// Returns the host of a rank.
    #[must_use]
    pub const fn host(&self, rank: usize) -> usize {
        match rank.checked_div(self.ranks_per_host) {
            Some(host) => host,
            None => rank,
        }
    }

    /// Returns the link between two ranks.
    #[must_use]
    pub const fn link(&self, a: usize, b: usize) -> &Link {
        if self.host(a) == self.host(b) { &self.within } else { &self.between }
    }

    /// Returns the slowest link in a group of `ranks` ranks.
    #[must_use]
    pub const fn slowest(&self, ranks: usize) -> &Link {
        if ranks <= self.ranks_per_host { &self.within } else { &self.between }
    }

    /// Returns the oversubscription of processors in a group of `ranks` ranks: the number of ranks
    /// that share one, 1 if each rank has its own.
    #[must_use]
    pub fn oversubscription(&self, ranks: usize) -> f64 {
        let together = ranks.min(self.ranks_per_host);
        if self.processors == 0 { 1.0 } else { (together as f64 / self.processors as f64).max(1.0) }
    }

    /// Returns whether all ranks in a group of `ranks` ranks read messages of this size in place.
    #[must_use]
    pub fn reads_in_place(&self, ranks: usize, bytes: f64) -> bool {
        ranks <= self.ranks_per_host && self.staged_from.is_some_and(|from| bytes >= from as f64)
    }

    /// Returns the model of the group of some of these ranks, in the order of the list.
    #[must_use]
    pub fn among(&self, members: &[usize]) -> Self {
        let hosts: Vec<usize> = members.iter().map(|&rank| self.host(rank)).collect();
        Self { ranks_per_host: Self::regular_hosts(&hosts).unwrap_or(1), ..*self }
    }

    /// Returns the number of consecutive ranks per host, if all hosts but the last hold the same
    /// number, and the last holds at most that many. `hosts` has the host of every rank; one whose
    /// ranks are not consecutive counts as several hosts.
    #[must_use]
    pub fn regular_hosts<H: PartialEq>(hosts: &[H]) -> Option<usize> {
        let mut runs = hosts.chunk_by(PartialEq::eq).map(<[H]>::len);
        let first = runs.next()?;
        let last = runs.next_back().unwrap_or(first);
        (runs.all(|run| run == first) && last <= first).then_some(first)
    }

    /// Returns whether every cost is finite and not negative, so that times can be compared.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let costs = |link: &Link| [link.latency, link.overhead, link.per_byte];
        let all = [costs(&self.within), costs(&self.between)].concat();
        all.iter().chain([&self.reduce]).all(|cost| cost.is_finite() && *cost >= 0.0)
            && self.ranks_per_host > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_regular_if_all_but_the_last_hold_as_many() {
        for (hosts, expected) in [
            ("a", Some(1)),
            ("aaa", Some(3)),
            ("aab", Some(2)),
            ("aabb", Some(2)),
            ("aabbc", Some(2)),
            ("abc", Some(1)),
            ("abb", None),
            ("aabcc", None),
            ("aabba", Some(2)),
            ("aababb", None),
        ] {
            assert_eq!(LinkModel::regular_hosts(hosts.as_bytes()), expected, "{hosts}");
        }
        assert_eq!(LinkModel::regular_hosts::<u8>(&[]), None);
    }

    #[test]
    fn ranks_share_the_processors_of_regular_hosts() {
        let link = Link { latency: 1e-5, overhead: 0.0, per_byte: 1e-9 };
        let uniform = LinkModel::uniform(link, 0.5);
        for (hosts, processors, ranks_per_host) in [("aabb", 7, 2), ("abb", 7, 1), ("aaa", 0, 3)] {
            let model = LinkModel::on_hosts(hosts.as_bytes(), link, 0.5, NonZero::new(processors));
            assert_eq!(model, LinkModel { ranks_per_host, processors, ..uniform }, "{hosts}");
        }
    }

    #[test]
    fn a_group_of_some_ranks_keeps_what_it_can_of_the_hosts() {
        let link = Link { latency: 1e-5, overhead: 0.0, per_byte: 1e-9 };
        let model = LinkModel { ranks_per_host: 4, ..LinkModel::uniform(link, 0.0) };
        for (members, expected) in [
            (&[0, 1, 2, 3][..], 4),
            (&[0, 2, 4, 6, 8], 2),
            (&[0, 4, 8], 1),
            (&[0, 4, 5], 1),
            (&[7, 5, 0, 3], 2),
            (&[0, 4, 1, 5], 1),
        ] {
            assert_eq!(model.among(members), LinkModel { ranks_per_host: expected, ..model }, "{members:?}");
        }
    }

    #[test]
    fn ranks_of_one_host_have_the_link_within() {
        let slow = Link { latency: 1e-5, overhead: 0.0, per_byte: 1e-9 };
        let fast = Link { latency: 1e-6, ..slow };
        let model = LinkModel { within: fast, ranks_per_host: 4, ..LinkModel::uniform(slow, 0.0) };
        assert_eq!((model.link(0, 3), model.link(3, 4)), (&fast, &slow));
        assert_eq!((model.slowest(4), model.slowest(5)), (&fast, &slow));
        assert!(model.is_sound());
        assert!(!LinkModel { reduce: f64::NAN, ..model }.is_sound());
        assert!(!LinkModel { ranks_per_host: 0, ..model }.is_sound());
    }

    #[test]
    fn messages_are_read_in_place_within_a_host_from_staged_from_bytes_on() {
        let link = Link { latency: 1e-5, overhead: 0.0, per_byte: 1e-9 };
        let model = LinkModel { ranks_per_host: 4, ..LinkModel::uniform(link, 0.0) };
        assert!(!model.reads_in_place(2, 1e9));
        let model = LinkModel { staged_from: Some(100), ..model };
        assert!(model.reads_in_place(4, 100.0));
        assert!(!model.reads_in_place(4, 99.9) && !model.reads_in_place(5, 100.0));
    }

    #[test]
    fn ranks_oversubscribe_a_host_with_fewer_processors() {
        let link = Link { latency: 1e-5, overhead: 0.0, per_byte: 1e-9 };
        let model = LinkModel { ranks_per_host: 8, processors: 2, ..LinkModel::uniform(link, 0.0) };
        assert_eq!([1, 2, 3, 8, 20].map(|ranks| model.oversubscription(ranks)), [1.0, 1.0, 1.5, 4.0, 4.0]);
        assert_eq!(LinkModel { processors: 0, ..model }.oversubscription(20), 1.0);
    }
}
