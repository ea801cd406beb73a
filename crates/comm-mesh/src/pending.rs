//! Limits on connections that have not authenticated, and the choice of the one to close when there
//! are too many.
//!
//! Any process that reaches a listener can open any number of connections. They must not use up the
//! file descriptors of the process, keep its threads in an accept loop, or lock out the peers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

/// The most connections to accept before other work continues.
pub(crate) const ACCEPTS_PER_TURN: usize = 16;
/// The time for which a listener is not watched when no pending connection can be closed in favour
/// of the next one.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// The most connections that may be pending on one listener, however many descriptors there are.
const PENDING_MAX: usize = 64;
/// The minimum time for which a connection that has begun its handshake is kept. Peers answer
/// within it unless their machine is overloaded.
const GRACE: Duration = Duration::from_millis(50);

/// Returns the most descriptors that this process may have open.
#[must_use]
pub fn descriptor_limit() -> usize {
    let soft = getrlimit(Resource::Nofile).current;
    soft.map_or(usize::MAX, |soft| usize::try_from(soft).unwrap_or(usize::MAX))
}

/// Returns the most connections that may be pending on one listener: at most 64, and one in 16 of
/// the descriptors.
#[must_use]
pub fn pending_max() -> usize {
    (descriptor_limit() / 16).clamp(4, PENDING_MAX)
}

/// A pending connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    /// Connections that were accepted later have larger ids.
    pub(crate) id: u64,
    pub(crate) source: Option<IpAddr>,
    pub(crate) since: Instant,
    /// Whether the peer has sent a valid beginning of the handshake.
    pub(crate) has_greeted: bool,
}

/// Chooses the connection to close so that another can be accepted. Returns `None` if each of them
/// may be a peer that is about to answer.
///
/// A peer begins its handshake as soon as it has connected, so silent connections are closed first;
/// then those from the address that has the most; then the oldest.
pub(crate) fn choose_victim(pending: &[Pending], now: Instant) -> Option<u64> {
    let mut per_source = HashMap::new();
    for connection in pending {
        *per_source.entry(connection.source).or_insert(0_usize) += 1;
    }
    let may_close = |connection: &&Pending| {
        !connection.has_greeted || now.saturating_duration_since(connection.since) >= GRACE
    };
    let rank = |connection: &&Pending| {
        let siblings = per_source.get(&connection.source).copied().unwrap_or(0);
        (connection.has_greeted, std::cmp::Reverse(siblings), connection.id)
    };
    pending.iter().filter(may_close).min_by_key(rank).map(|connection| connection.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(id: u64, source: u8, has_greeted: bool, since: Instant) -> Pending {
        Pending { id, source: Some(IpAddr::from([10, 0, 0, source])), since, has_greeted }
    }

    #[test]
    fn silent_connections_are_closed_before_those_that_greeted_and_the_oldest_first() {
        let start = Instant::now();
        let all = [pending(1, 1, true, start), pending(2, 1, false, start), pending(3, 1, false, start)];
        assert_eq!(choose_victim(&all, start + GRACE * 2), Some(2));
        assert_eq!(choose_victim(&all[..1], start + GRACE), Some(1));
        assert_eq!(choose_victim(&all[..1], start), None, "it may be about to answer");
        assert_eq!(choose_victim(&[], start), None);
    }

    #[test]
    fn the_address_with_the_most_connections_loses_one() {
        let start = Instant::now();
        let all = [1, 2, 3, 3, 2, 3].into_iter().enumerate();
        let all: Vec<_> = all.map(|(id, source)| pending(id as u64, source, true, start)).collect();
        assert_eq!(choose_victim(&all, start + GRACE), Some(2));
    }

    #[test]
    fn pending_connections_are_a_small_part_of_the_descriptors() {
        assert!(pending_max() <= PENDING_MAX);
        assert!(pending_max() * 8 <= descriptor_limit());
    }
}
