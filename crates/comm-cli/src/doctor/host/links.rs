//! Measures the links between ranks, and the clocks of their hosts.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use comm::{Comm, Source};
use serde::{Deserialize, Serialize};

use super::problems::Problem;
use super::{Host, gather_links};
use crate::error::Result;

const TAG: u64 = 0;
/// The number of round trips; the fastest one counts.
const ROUND_TRIPS: usize = 30;
/// The length of the message whose bandwidth is measured, and the number of them.
const BYTES: usize = 1 << 20;
const MESSAGES: usize = 4;
/// A link between hosts with less than this share of the fastest one is slow.
const SLOW: f64 = 0.4;
/// The same for links within a host, whose bandwidth depends more on the load.
const SLOW_WITHIN: f64 = 0.1;
/// The difference between clocks from which logs of two hosts cannot be compared.
const SKEW_MAX: Duration = Duration::from_millis(500);

/// The link between two ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) ranks: [usize; 2],
    /// Half of the shortest round trip, in seconds.
    pub(super) latency: f64,
    /// The bytes per second of the slower direction.
    pub(super) bandwidth: f64,
    /// The seconds by which the clock of the second rank's host is ahead.
    pub(super) skew: f64,
}

/// Measures the links between all pairs of ranks, one after the other.
pub(super) fn measure(comm: &Comm, hosts: &[Host]) -> Result<Vec<Link>> {
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
    let began = Instant::now();
    send_data(comm, peer)?;
    comm.recv(Source::Rank(peer), TAG, &mut [0.0_f64])?.exactly(1)?;
    let there = began.elapsed();
    comm.send(peer, TAG, &[0.0_f64])?;
    recv_data(comm, peer)?;
    let slower = there.max(began.elapsed().saturating_sub(there));
    let bandwidth = (MESSAGES * BYTES) as f64 / slower.as_secs_f64();
    Ok(Link { ranks: [comm.rank(), peer], latency: shortest.as_secs_f64() / 2.0, bandwidth, skew })
}

fn answer(comm: &Comm, peer: usize) -> Result<()> {
    for _ in 0..ROUND_TRIPS {
        comm.recv(Source::Rank(peer), TAG, &mut [0.0_f64])?.exactly(1)?;
        comm.send(peer, TAG, &[unix_seconds()])?;
    }
    recv_data(comm, peer)?;
    comm.send(peer, TAG, &[0.0_f64])?;
    comm.recv(Source::Rank(peer), TAG, &mut [0.0_f64])?.exactly(1)?;
    send_data(comm, peer)
}

fn send_data(comm: &Comm, peer: usize) -> Result<()> {
    let data = vec![0_u8; BYTES];
    for _ in 0..MESSAGES {
        comm.send(peer, TAG, &data)?;
    }
    Ok(())
}

fn recv_data(comm: &Comm, peer: usize) -> Result<()> {
    let mut data = vec![0_u8; BYTES];
    for _ in 0..MESSAGES {
        comm.recv(Source::Rank(peer), TAG, &mut data)?.exactly(BYTES)?;
    }
    Ok(())
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns the problems of links and clocks.
pub(super) fn problems(links: &[Link], hosts: &[Host]) -> Vec<Problem> {
    let mut found = skewed(links, hosts);
    for (is_local, share) in [(false, SLOW), (true, SLOW_WITHIN)] {
        let of_kind = |link: &&Link| (hosts[link.ranks[0]] == hosts[link.ranks[1]]) == is_local;
        let kind: Vec<&Link> = links.iter().filter(of_kind).collect();
        found.extend(slow(&kind, share, hosts));
    }
    found
}

/// Names each host whose clock differs from rank 0's.
fn skewed(links: &[Link], hosts: &[Host]) -> Vec<Problem> {
    let mut named: Vec<&Host> = Vec::new();
    let mut found = Vec::new();
    for link in links.iter().filter(|link| link.ranks[0] == 0 && link.skew.abs() > SKEW_MAX.as_secs_f64()) {
        let host = &hosts[link.ranks[1]];
        if named.contains(&host) {
            continue;
        }
        named.push(host);
        let direction = if link.skew > 0.0 { "ahead of" } else { "behind" };
        let text =
            format!("{}: its clock is {:.1} s {direction} {}'s", host.name, link.skew.abs(), hosts[0].name);
        found.push(Problem::warning(
            text,
            "synchronize the clocks, as with chrony; otherwise logs do not match",
        ));
    }
    found
}

/// Names the links that are much slower than the fastest of the same kind; if they are all those of
/// one rank, only that rank.
fn slow(links: &[&Link], share: f64, hosts: &[Host]) -> Vec<Problem> {
    let fastest = links.iter().map(|link| link.bandwidth).fold(0.0, f64::max);
    let (mut slow, others): (Vec<&Link>, Vec<&Link>) =
        links.iter().partition(|link| link.bandwidth < share * fastest);
    slow.sort_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth));
    let [Some(slowest), Some(_)] = [slow.first(), slow.get(1)] else {
        return slow.iter().map(|link| slow_links(&between(link, hosts), link, fastest)).collect();
    };
    let only_of = |rank: &usize| {
        slow.iter().all(|link| link.ranks.contains(rank))
            && !others.iter().any(|link| link.ranks.contains(rank))
    };
    match slowest.ranks.iter().find(|rank| only_of(rank)) {
        Some(&rank) => {
            let subject = format!("the links of rank {rank} ({})", hosts[rank].name);
            vec![slow_links(&subject, slowest, fastest)]
        }
        None => slow.iter().map(|link| slow_links(&between(link, hosts), link, fastest)).collect(),
    }
}

fn between(link: &Link, hosts: &[Host]) -> String {
    let [a, b] = link.ranks;
    format!("the link between rank {a} ({}) and rank {b} ({})", hosts[a].name, hosts[b].name)
}

fn slow_links(subject: &str, slowest: &Link, fastest: f64) -> Problem {
    let gigabits = |bytes: f64| 8e-9 * bytes;
    let text = format!(
        "{subject}: {:.2} Gbit/s, where others reach {:.2}",
        gigabits(slowest.bandwidth),
        gigabits(fastest)
    );
    Problem::warning(text, "check the cable, the speed of the interface (ethtool) and other traffic on it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(ranks: [usize; 2], bandwidth: f64, skew: f64) -> Link {
        Link { ranks, latency: 1e-5, bandwidth, skew }
    }

    fn hosts() -> Vec<Host> {
        ["a", "a", "b", "c"].map(|name| Host { name: name.into(), id: name.into() }).to_vec()
    }

    fn links(slow: impl Fn([usize; 2]) -> bool, skew_of_b: f64) -> Vec<Link> {
        let pairs = (0..4).flat_map(|first| (first + 1..4).map(move |second| [first, second]));
        let bandwidth = |ranks: [usize; 2]| match ranks {
            _ if slow(ranks) => 1e8,
            [0, 1] => 1e10,
            _ => 1e9,
        };
        pairs
            .map(|ranks| link(ranks, bandwidth(ranks), if ranks[1] == 2 { skew_of_b } else { 0.0 }))
            .collect()
    }

    #[test]
    fn equal_links_have_no_problem_although_those_within_a_host_are_faster() {
        assert_eq!(problems(&links(|_| false, 0.1), &hosts()), []);
    }

    #[test]
    fn a_link_at_a_tenth_is_named_with_both_ranks_and_hosts() {
        let found = problems(&links(|ranks| ranks == [1, 3], 0.0), &hosts());
        assert_eq!(found.len(), 1);
        let text = "the link between rank 1 (a) and rank 3 (c): 0.80 Gbit/s, where others reach 8.00";
        assert_eq!(found[0].text, text);
    }

    #[test]
    fn a_rank_all_of_whose_links_are_slow_is_named_once() {
        let found = problems(&links(|ranks| ranks[1] == 3, 0.0), &hosts());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].text, "the links of rank 3 (c): 0.80 Gbit/s, where others reach 8.00");
    }

    #[test]
    fn a_clock_that_is_off_is_named_once() {
        let found = problems(&links(|_| false, 10.0), &hosts());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].text, "b: its clock is 10.0 s ahead of a's");
        let found = problems(&links(|_| false, -10.0), &hosts());
        assert_eq!(found[0].text, "b: its clock is 10.0 s behind a's");
    }
}
