//! The network in virtual time keeps the contract of a transport, and is reproducible.

use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use comm_core::{Armed, Error, Fabric, Interest, Loss, Transport};
use comm_sim::Release;
use comm_sim::network::{self, FaultPlan, Incident, Network, NetworkTransport, Outcome, Turn, VirtualClock};

const MS: Duration = Duration::from_millis(1);

fn pattern(from: usize, to: usize, at: usize) -> u8 {
    (from * 41 + to * 17 + at * 7 + at / 251) as u8
}

/// A rank that sends `total` bytes to every other rank and receives as many from it, unless that
/// rank dies.
struct Talker {
    transport: NetworkTransport,
    total: usize,
    sent: Vec<usize>,
    received: Vec<usize>,
    lost: Vec<usize>,
    /// A hash of everything that moved.
    trace: u64,
}

impl Talker {
    fn new(transport: NetworkTransport, total: usize) -> Self {
        let size = transport.group().size();
        Self { transport, total, sent: vec![0; size], received: vec![0; size], lost: vec![], trace: 0 }
    }

    fn turn(&mut self) -> Turn {
        let (rank, peers) = (self.transport.group().rank(), self.transport.group().peers());
        let mut moved = 0;
        for peer in peers {
            if self.lost.contains(&peer) {
                continue;
            }
            match self.exchange(rank, peer) {
                Ok(bytes) => moved += bytes,
                Err(error) => {
                    assert!(matches!(error, Error::PeerLost { peer: lost, .. } if lost == peer), "{error}");
                    self.lost.push(peer);
                    moved += 1;
                }
            }
            self.trace = self.trace.wrapping_mul(31) + (self.sent[peer] + 3 * self.received[peer]) as u64;
        }
        let unfinished = |peer: usize| {
            let through = self.sent[peer] == self.total && self.received[peer] == self.total;
            !through || self.transport.released(peer) < self.total as u64
        };
        let open = self.transport.group().peers().filter(|peer| !self.lost.contains(peer)).any(unfinished);
        if open { Turn::of(moved > 0) } else { Turn::Done }
    }

    fn exchange(&mut self, rank: usize, peer: usize) -> Result<usize, Error> {
        let received = self.received[peer];
        let into = &mut [0; 100][..(self.total - received).min(100)];
        let got = if received.is_multiple_of(2) {
            self.transport.try_recv(peer, into)?
        } else {
            let filled = self.transport.fill_buf(peer, into.len())?.copy_to(into);
            self.transport.consume(peer, filled)?;
            filled
        };
        for (at, &byte) in into[..got].iter().enumerate() {
            assert_eq!(byte, pattern(peer, rank, received + at));
        }
        self.received[peer] += got;
        let sent = self.sent[peer];
        let out: Vec<u8> = (sent..self.total.min(sent + 300)).map(|at| pattern(rank, peer, at)).collect();
        let (first, second) = out.split_at(out.len() / 3);
        let sent = self.transport.try_send(peer, &[IoSlice::new(first), IoSlice::new(second)])?;
        self.sent[peer] += sent;
        Ok(got + sent)
    }
}

fn talk(
    n: usize,
    seed: u64,
    plan: &FaultPlan,
    total: usize,
) -> Result<(Network, Vec<Talker>, Outcome), Error> {
    let (mut network, transports) = Network::new(n, seed, plan)?;
    let mut talkers: Vec<Talker> =
        transports.into_iter().map(|transport| Talker::new(transport, total)).collect();
    let outcome = network.drive(n, |rank| talkers[rank].turn());
    Ok((network, talkers, outcome))
}

#[test]
fn bytes_arrive_in_order_on_calm_and_rough_networks() {
    for seed in 0..10 {
        for plan in [FaultPlan::calm(), FaultPlan::rough()] {
            for n in [1, 2, 3, 5] {
                let (_, talkers, outcome) = talk(n, seed, &plan, 1003).unwrap();
                assert_eq!(outcome, Outcome::Done, "seed {seed}, {n} ranks");
                assert!(talkers.iter().all(|talker| talker.lost.is_empty()));
            }
        }
    }
}

#[test]
fn a_run_is_reproducible_from_its_seed_to_the_nanosecond() {
    let run = |seed| {
        let (network, talkers, _) = talk(4, seed, &FaultPlan::rough(), 5000).unwrap();
        (network.elapsed(), talkers.iter().map(|talker| talker.trace).collect::<Vec<_>>())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_transfer_takes_the_latency_and_the_time_of_its_bytes() {
    let plan = FaultPlan::calm().capacity(1 << 20).latency(3 * MS).bytes_per_second(1_000_000);
    let (mut network, mut transports) = Network::new(2, 0, &plan).unwrap();
    let start = transports[1].now();
    assert_eq!(transports[0].try_send(1, &[IoSlice::new(&[1; 5000])]).unwrap(), 5000);
    assert_eq!(transports[1].try_recv(0, &mut [0; 9999]).unwrap(), 0);
    assert!(network.advance());
    assert_eq!(transports[1].now() - start, 8 * MS);
    assert_eq!(transports[1].try_recv(0, &mut [0; 9999]).unwrap(), 5000);
}

#[test]
fn a_wait_that_never_ends_is_immediately_a_deadlock() {
    let (mut network, mut transports) = Network::new(3, 0, &FaultPlan::rough()).unwrap();
    let outcome = network.drive(3, |rank| match rank {
        0 => Turn::Done,
        _ => Turn::of(transports[rank].try_recv((rank + 1) % 3, &mut [0]).unwrap() > 0),
    });
    assert_eq!(outcome, Outcome::Deadlock(vec![1, 2]));
    assert!(!network.advance());
    network.advance_by(MS);
    assert_eq!(network.elapsed(), MS);
}

#[test]
fn survivors_detect_a_death_and_continue() {
    for seed in 0..10 {
        let plan = FaultPlan::rough().and(20 * MS, Incident::Death { rank: 1 });
        let (network, talkers, outcome) = talk(4, seed, &plan, 3000).unwrap();
        assert_eq!(outcome, Outcome::Done);
        assert!(network.is_dead(1) && !network.is_dead(0));
        for rank in [0, 2, 3] {
            assert_eq!(talkers[rank].lost, [1], "seed {seed}");
            assert!(talkers[rank].received[1] < 3000);
        }
    }
}

#[test]
fn bytes_sent_before_a_death_arrive() {
    // A byte takes a millisecond to leave, and one to arrive.
    let plan = FaultPlan::calm().latency(MS).bytes_per_second(1000);
    let plan = plan.and(MS * 7 / 2, Incident::Death { rank: 0 });
    let (mut network, mut transports) = Network::new(2, 0, &plan).unwrap();
    for _ in 0..9 {
        assert_eq!(transports[0].try_send(1, &[IoSlice::new(&[1])]).unwrap(), 1);
    }
    while network.advance() {}
    let receiver = &mut transports[1];
    assert_eq!(receiver.try_recv(0, &mut [0; 99]).unwrap(), 3);
    let end = receiver.try_recv(0, &mut [0; 99]);
    assert!(matches!(end, Err(Error::PeerLost { peer: 0, loss: Loss::Closed, .. })), "{end:?}");
    assert!(receiver.try_send(0, &[IoSlice::new(&[1])]).is_err());
    assert!(transports[0].try_send(1, &[]).is_err());
}

#[test]
fn a_broken_link_is_seen_from_both_ends_only() {
    for seed in 0..10 {
        let plan = FaultPlan::rough().and(10 * MS, Incident::Break { between: (2, 0) });
        let (_, talkers, outcome) = talk(3, seed, &plan, 3000).unwrap();
        assert_eq!(outcome, Outcome::Done);
        let lost: Vec<_> = talkers.iter().map(|talker| talker.lost.clone()).collect();
        assert_eq!(lost, [vec![2], vec![], vec![0]], "seed {seed}");
    }
}

#[test]
fn closing_in_order_loses_nothing() {
    let (mut network, mut transports) = Network::new(2, 0, &FaultPlan::calm()).unwrap();
    let mut receiver = transports.remove(1);
    transports[0].try_send(1, &[IoSlice::new(b"last words")]).unwrap();
    drop(transports);
    while network.advance() {}
    assert_eq!(receiver.try_recv(0, &mut [0; 99]).unwrap(), 10);
    assert!(matches!(receiver.fill_buf(0, 1), Err(Error::PeerLost { peer: 0, loss: Loss::Closed, .. })));
}

#[test]
fn arm_reports_the_peers_that_are_ready() {
    let plan =
        FaultPlan::calm().capacity(10).release(Release::OnConsume).and(MS, Incident::Death { rank: 2 });
    let (mut network, mut transports) = Network::new(3, 0, &plan).unwrap();
    let (mut recv, mut send) = (Interest::default(), Interest::default());
    recv.add_recv(1);
    send.add_send(1);
    assert_eq!(transports[0].arm(&recv).unwrap(), Armed::Sleep);
    assert_eq!(transports[0].arm(&send).unwrap(), Armed::Ready);
    assert_eq!(transports[0].try_send(1, &[IoSlice::new(&[1; 10])]).unwrap(), 10);
    assert_eq!(transports[0].released(1), 0);
    assert_eq!(transports[0].arm(&send).unwrap(), Armed::Sleep);
    network.advance();
    assert_eq!(transports[1].try_recv(0, &mut [0; 4]).unwrap(), 4);
    assert_eq!(transports[0].arm(&send).unwrap(), Armed::Sleep);
    network.advance();
    assert_eq!((transports[0].arm(&send).unwrap(), transports[0].released(1)), (Armed::Ready, 4));
    // The death of a rank that no rank waits for is reported once.
    while network.advance() {}
    assert_eq!(transports[0].arm(&recv).unwrap(), Armed::Ready);
    assert_eq!(transports[0].arm(&recv).unwrap(), Armed::Sleep);
}

#[test]
fn revoked_bytes_never_count_as_received() {
    let plan = FaultPlan::calm().release(Release::OnConsume);
    let (mut network, mut transports) = Network::new(2, 0, &plan).unwrap();
    transports[0].try_send(1, &[IoSlice::new(b"abc")]).unwrap();
    network.advance();
    assert_eq!(transports[1].fill_buf(0, 3).unwrap().len(), 3);
    transports[0].revoke();
    assert!(matches!(transports[1].consume(0, 3), Err(Error::PeerLost { peer: 0, .. })));
    assert_eq!(transports[0].released(1), 3);
}

#[test]
fn an_abort_ends_everything_immediately() {
    let (_network, mut transports) = Network::new(2, 0, &FaultPlan::calm()).unwrap();
    transports[0].abort_handle().abort(Error::Aborted { by: 0, reason: "stop".into() });
    assert!(matches!(transports[0].try_recv(1, &mut [0]), Err(Error::Aborted { by: 0, .. })));
    assert!(transports[0].arm(&Interest::default()).is_err());
    assert!(transports[1].arm(&Interest::default()).is_ok());
}

/// Sleeps when it is dropped.
struct Sleeper(VirtualClock);

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.sleep(10 * MS);
    }
}

/// All ranks run on one thread, which counts as panicking meanwhile: locks would be poisoned, and
/// communicators would abort.
#[test]
fn no_other_rank_runs_while_one_unwinds() {
    let lock = Mutex::new(());
    network::run(2, 1, &FaultPlan::calm(), |fabric, clock| {
        if fabric.group().rank() == 0 {
            clock.sleep(MS);
            let unwind = || {
                let _sleeper = Sleeper(clock.clone());
                panic!("expected");
            };
            assert!(catch_unwind(AssertUnwindSafe(unwind)).is_err());
            assert_eq!(clock.elapsed(), 11 * MS);
        } else {
            let held = lock.lock().unwrap();
            clock.sleep(5 * MS);
            assert!(!thread::panicking());
            assert!(clock.elapsed() >= 11 * MS);
            drop(held);
        }
    });
    assert!(!lock.is_poisoned());
}
