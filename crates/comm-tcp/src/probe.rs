//! Detects that ranks whose connections are expected have exited.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use comm_core::Result;
use comm_mesh::{Backoff, ConnId, LivenessProbe};
use rustix::event::PollFd;

use crate::connect::{Connected, Connector, lost};
use crate::socket::Options;

const FIRST_AFTER: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(60);
/// The time to wait for one rank's machine to answer before the next rank is probed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects to the expected ranks from time to time, one after another, and closes each connection:
/// a rank that is alive listens.
///
/// The delays between rounds double, so that ranks which are only late are not flooded. An exit is
/// detected by the time the wait has taken about twice as long as it had when the rank exited,
/// provided that the rank's machine still answers.
#[derive(Debug)]
pub(crate) struct Probe {
    /// The rank and address of each peer.
    peers: Vec<(usize, SocketAddr)>,
    options: Options,
    /// When the next round begins.
    due: Instant,
    delays: Backoff,
    /// The number of peers that were probed in this round.
    probed: usize,
    attempt: Option<Attempt>,
}

/// A rank that is being probed.
#[derive(Debug)]
struct Attempt {
    rank: usize,
    connector: Connector,
    /// The number of times that its machine has answered that nobody listens.
    refusals: u32,
    /// The time until which its machine must answer again.
    until: Instant,
}

impl Probe {
    pub(crate) fn new(peers: Vec<(usize, SocketAddr)>, options: Options, now: Instant) -> Self {
        let delays = Backoff::new(FIRST_AFTER, DELAY_MAX);
        Self { peers, options, due: now + FIRST_AFTER, delays, probed: 0, attempt: None }
    }
}

impl LivenessProbe for Probe {
    fn check(&mut self, now: Instant, expected: &[ConnId]) -> Result<()> {
        if expected.is_empty() {
            // Its descriptor stays ready, and whoever waits for other ranks would wake again and
            // again.
            self.attempt = None;
            return Ok(());
        }
        while self.attempt.as_mut().is_none_or(|attempt| attempt.has_ended(now, expected)) {
            self.attempt = None;
            if now < self.due {
                return Ok(());
            }
            let Some(&(rank, address)) = self.peers.get(self.probed) else {
                (self.probed, self.due) = (0, now + self.delays.next_delay());
                return Ok(());
            };
            self.probed += 1;
            let connector = Connector::bare(address, self.options.clone()).reached_before();
            self.attempt = Some(Attempt { rank, connector, refusals: 0, until: now + ANSWER_TIMEOUT });
        }
        let exited = self.attempt.as_ref().filter(|attempt| attempt.connector.has_given_up());
        exited.map_or(Ok(()), |attempt| Err(lost(attempt.rank, &attempt.connector)))
    }

    fn poll_fds(&self) -> Vec<PollFd<'_>> {
        self.attempt.iter().filter_map(|attempt| attempt.connector.poll_fd()).collect()
    }

    fn next_attempt(&self) -> Option<Instant> {
        let Some(attempt) = &self.attempt else { return Some(self.due) };
        Some(attempt.connector.next_attempt().unwrap_or(attempt.until))
    }
}

impl Attempt {
    /// Whether the attempt is over: the rank has connected in the meantime, is alive, or its
    /// machine does not answer.
    fn has_ended(&mut self, now: Instant, expected: &[ConnId]) -> bool {
        if expected.iter().all(|id| id.rank != self.rank) {
            return true;
        }
        let is_alive = !matches!(self.connector.advance(now), Connected::Pending);
        if self.connector.refusals > self.refusals {
            (self.refusals, self.until) = (self.connector.refusals, now + ANSWER_TIMEOUT);
        }
        is_alive || now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use comm_core::simulation;
    use comm_sim::network::{self, FaultPlan, Incident};

    use super::*;

    #[test]
    fn an_attempt_wakes_nobody_once_no_rank_is_expected() {
        network::run(1, 0, &FaultPlan::calm(), |_, clock| {
            let (address, now) = (SocketAddr::new(clock.address(), 1), simulation::now());
            let expected = ConnId { rank: 1, world_rank: 1 };
            let mut probe = Probe::new(vec![(1, address)], Options::store_client(None), now);
            probe.due = now;
            // The attempt ends only when time passes.
            probe.check(now, &[expected]).unwrap();
            assert_eq!(probe.poll_fds().len(), 1);
            probe.check(now, &[]).unwrap();
            assert!(probe.poll_fds().is_empty());
        });
    }

    #[test]
    fn a_machine_that_refuses_and_then_answers_nothing_is_given_up() {
        let lasting = Duration::from_secs(60);
        network::run(2, 0, &FaultPlan::calm().keepalive(2 * lasting), |_, clock| {
            let (address, began) = (SocketAddr::new([10, 0, 0, 2].into(), 1), simulation::now());
            if clock.address() == address.ip() {
                return;
            }
            let expected = ConnId { rank: 1, world_rank: 1 };
            let mut probe = Probe::new(vec![(1, address)], Options::store_client(None), began);
            let mut is_cut = false;
            while simulation::now() < began + 10 * ANSWER_TIMEOUT {
                let now = simulation::now();
                probe.check(now, &[expected]).unwrap();
                if !is_cut && probe.attempt.as_ref().is_some_and(|attempt| attempt.refusals == 1) {
                    clock.inject(Incident::Cut { from: 0, to: 1, lasting });
                    is_cut = true;
                }
                // Otherwise, whoever waits until then would wait for no time, again and again.
                let due = probe.next_attempt().unwrap();
                assert!(due > now, "after {:?}: {probe:?}", now - began);
                clock.sleep((due - now).min(Duration::from_millis(1)));
            }
            assert!(is_cut);
        });
    }
}
