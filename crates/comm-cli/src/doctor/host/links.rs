//! Measures the links between ranks, and the clocks of their hosts.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use comm::{Comm, Source};
use serde::{Deserialize, Serialize};

use super::gather_links;
use super::problems::Problem;
use crate::error::Result;

const TAG: u64 = 0;
/// The number of round trips, of which the fastest counts.
const ROUND_TRIPS: usize = 30;
/// The length of the message whose bandwidth is measured, and the number of them.
const BYTES: usize = 1 << 20;
const MESSAGES: usize = 4;
/// A link with less than this share of the median of its kind is slow.
const SLOW: f64 = 1.0 / 3.0;
/// The difference between clocks from which logs of two hosts cannot be compared.
const SKEW_MAX: Duration = Duration::from_millis(500);

/// The link between two ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) ranks: [usize; 2],
    /// Half of the shortest round trip, in seconds.
    pub(super) latency: f64,
    /// In bytes per second.
    pub(super) bandwidth: f64,
    /// The seconds by which the clock of the second rank's host is ahead.
    pub(super) skew: f64,
}

/// Measures the links between all pairs of ranks, one after the other.
pub(super) fn measure(comm: &Comm, hosts: &[String]) -> Result<Vec<Link>> {
    let mut own = Vec::new();
    for first in 0..hosts.len() {
        for second in first + 1..hosts.len() {
            match comm.rank() {
                rank if rank == first => own.push(initiate(comm, second)?),
                rank if rank == second => answer(comm, first)?,
                _ => {}
            }
            // The next pair must not share a link with this one.
            comm.barrier()?;
        }
    }
    gather_links(comm, &own)
}

fn initiate(comm: &Comm, peer: usize) -> Result<Link> {
    let (mut shortest, mut skew) = (Duration::MAX, 0.0);
    for _ in 0..ROUND_TRIPS {
        let (began, sent) = (Instant::now(), unix_seconds());
        let mut theirs = [0.0_f64];
        comm.send(peer, TAG, &[sent])?;
        comm.recv(Source::Rank(peer), TAG, &mut theirs)?.exactly(1)?;
        let took = began.elapsed();
        if took < shortest {
            (shortest, skew) = (took, theirs[0] - (sent + took.as_secs_f64() / 2.0));
        }
    }
    let data = vec![0_u8; BYTES];
    let began = Instant::now();
    for _ in 0..MESSAGES {
        comm.send(peer, TAG, &data)?;
    }
    comm.recv(Source::Rank(peer), TAG, &mut [0.0_f64])?.exactly(1)?;
    let bandwidth = (MESSAGES * BYTES) as f64 / began.elapsed().as_secs_f64();
    Ok(Link { ranks: [comm.rank(), peer], latency: shortest.as_secs_f64() / 2.0, bandwidth, skew })
}

fn answer(comm: &Comm, peer: usize) -> Result<()> {
    for _ in 0..ROUND_TRIPS {
        comm.recv(Source::Rank(peer), TAG, &mut [0.0_f64])?.exactly(1)?;
        comm.send(peer, TAG, &[unix_seconds()])?;
    }
    let mut data = vec![0_u8; BYTES];
    for _ in 0..MESSAGES {
        comm.recv(Source::Rank(peer), TAG, &mut data)?.exactly(BYTES)?;
    }
    comm.send(peer, TAG, &[0.0_f64])?;
    Ok(())
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns the problems of links and clocks.
pub(super) fn problems(links: &[Link], hosts: &[String]) -> Vec<Problem> {
    let mut found = skewed(links, hosts);
    for is_local in [true, false] {
        let of_kind = |link: &&Link| (hosts[link.ranks[0]] == hosts[link.ranks[1]]) == is_local;
        let kind: Vec<&Link> = links.iter().filter(of_kind).collect();
        found.extend(slow(&kind, hosts));
    }
    found
}

/// Names each host whose clock differs from that of rank 0.
fn skewed(links: &[Link], hosts: &[String]) -> Vec<Problem> {
    let mut named: Vec<&String> = Vec::new();
    let mut found = Vec::new();
    for link in links.iter().filter(|link| link.ranks[0] == 0 && link.skew.abs() > SKEW_MAX.as_secs_f64()) {
        let host = &hosts[link.ranks[1]];
        if named.contains(&host) {
            continue;
        }
        named.push(host);
        let direction = if link.skew > 0.0 { "ahead of" } else { "behind" };
        let text = format!("{host}: its clock is {:.1} s {direction} that of {}", link.skew.abs(), hosts[0]);
        found.push(Problem::warning(
            text,
            "synchronize the clocks, as with chrony; otherwise logs do not match",
        ));
    }
    found
}

/// Names the links that are much slower than others of the same kind.
fn slow(links: &[&Link], hosts: &[String]) -> Vec<Problem> {
    let median = |value: fn(&Link) -> f64| {
        let mut values: Vec<f64> = links.iter().map(|link| value(link)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    let bandwidth = median(|link| link.bandwidth);
    let mut slow: Vec<&&Link> = links.iter().filter(|link| link.bandwidth < SLOW * bandwidth).collect();
    slow.sort_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth));
    let text = |link: &&Link| {
        let [a, b] = link.ranks;
        let gigabits = |bytes: f64| 8e-9 * bytes;
        format!(
            "the link between rank {a} ({}) and rank {b} ({}) reaches {:.2} Gbit/s, others {:.2}",
            hosts[a],
            hosts[b],
            gigabits(link.bandwidth),
            gigabits(bandwidth)
        )
    };
    let remedy = "check the cable, the speed of the interface (ethtool) and other traffic on it";
    slow.iter().map(|link| Problem::warning(text(link), remedy)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(ranks: [usize; 2], bandwidth: f64, skew: f64) -> Link {
        Link { ranks, latency: 1e-5, bandwidth, skew }
    }

    fn hosts() -> Vec<String> {
        ["a", "a", "b", "c"].map(str::to_owned).to_vec()
    }

    fn links(slow: Option<[usize; 2]>, skew_of_b: f64) -> Vec<Link> {
        let pairs = (0..4).flat_map(|first| (first + 1..4).map(move |second| [first, second]));
        let bandwidth = |ranks: [usize; 2]| match ranks {
            _ if slow == Some(ranks) => 1e8,
            [0, 1] => 1e10,
            _ => 1e9,
        };
        pairs
            .map(|ranks| link(ranks, bandwidth(ranks), if ranks[1] == 2 { skew_of_b } else { 0.0 }))
            .collect()
    }

    #[test]
    fn equal_links_have_no_problem_although_those_within_a_host_are_faster() {
        assert_eq!(problems(&links(None, 0.1), &hosts()), []);
    }

    #[test]
    fn a_link_at_a_tenth_is_named_with_both_ranks_and_hosts() {
        let found = problems(&links(Some([1, 3]), 0.0), &hosts());
        assert_eq!(found.len(), 1);
        let text = "the link between rank 1 (a) and rank 3 (c) reaches 0.80 Gbit/s, others 8.00";
        assert_eq!(found[0].text, text);
    }

    #[test]
    fn a_clock_that_is_off_is_named_once() {
        let found = problems(&links(None, 10.0), &hosts());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].text, "b: its clock is 10.0 s ahead of that of a");
        let found = problems(&links(None, -10.0), &hosts());
        assert_eq!(found[0].text, "b: its clock is 10.0 s behind that of a");
    }
}
