//! The whole communicator in virtual time: a rank that dies, stops, aborts or leaves anywhere is
//! named by all others, within the deadline, and no call returns a wrong result.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use comm_core::{
    AbortHandle, ChannelId, ChannelKind, Collective, Comm, Error, Fabric, ReduceOp, Result, Transport, Until,
};
use comm_ring::schedule::Algorithm;
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::AlteredFabric;
use comm_sim::network::{self, FaultPlan, NetworkFabric, VirtualClock};
use comm_sim::swarm::workload::COLLECTIVES;
use fastrand::Rng;

const TIMEOUT: Duration = Duration::from_secs(2);
/// The time that a call may take after its deadline.
const SLACK: Duration = Duration::from_millis(250);

/// The element that `from` contributes for `to` at position `at`.
fn element(from: usize, to: usize, at: usize) -> u64 {
    (from * 1009 + to * 101 + at + 1) as u64
}

fn block(from: usize, to: usize) -> Vec<u64> {
    (0..LENGTH).map(|at| element(from, to, at)).collect()
}

fn sum(of: impl Iterator<Item = usize> + Clone, to: usize) -> Vec<u64> {
    (0..LENGTH).map(|at| of.clone().map(|from| element(from, to, at)).sum()).collect()
}

const LENGTH: usize = 20;

/// Makes one call and compares its result exactly.
fn call(comm: &Comm, collective: Collective) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.size());
    let root = n - 1;
    let mut one = block(rank, 0);
    let mut all: Vec<u64> = (0..n).flat_map(|to| block(rank, to)).collect();
    let expected = match collective {
        Collective::AllReduce => {
            comm.all_reduce(&mut one, ReduceOp::Sum)?;
            sum(0..n, 0)
        }
        Collective::Reduce => {
            comm.reduce(root, &mut one, ReduceOp::Sum)?;
            if rank == root { sum(0..n, 0) } else { one.clone() }
        }
        Collective::Broadcast => {
            comm.broadcast(root, &mut one)?;
            block(root, 0)
        }
        Collective::AllGather => {
            comm.all_gather(&block(rank, 0), &mut all)?;
            one = all;
            (0..n).flat_map(|from| block(from, 0)).collect()
        }
        Collective::ReduceScatter => {
            comm.reduce_scatter(&all, &mut one, ReduceOp::Sum)?;
            sum(0..n, rank)
        }
        Collective::Gather => {
            let mut gathered = vec![0; if rank == root { n * LENGTH } else { 0 }];
            comm.gather(root, &one, &mut gathered)?;
            one = gathered;
            (0..n).filter(|_| rank == root).flat_map(|from| block(from, 0)).collect()
        }
        Collective::Scatter => {
            comm.scatter(root, if rank == root { &all[..] } else { &[] }, &mut one)?;
            block(root, rank)
        }
        Collective::AllToAll => {
            comm.all_to_all(&all.clone(), &mut all)?;
            one = all;
            (0..n).flat_map(|from| block(from, rank)).collect()
        }
        Collective::Scan => {
            comm.scan(&mut one, ReduceOp::Sum)?;
            sum(0..=rank, 0)
        }
        Collective::Exscan => {
            comm.exscan(&mut one, ReduceOp::Sum)?;
            if rank == 0 { one.clone() } else { sum(0..rank, 0) }
        }
        _ => {
            comm.barrier()?;
            one.clone()
        }
    };
    assert_eq!(one, expected, "{collective:?} on rank {rank}");
    Ok(())
}

/// An event before one of the operations of a rank on its transports.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Death,
    Stop(Duration),
    Abort,
}

impl Fault {
    /// Returns whether an error of another rank names the rank at fault.
    fn is_named(self, error: &Error, rank: usize) -> bool {
        match error.root_cause() {
            Error::PeerLost { peer, .. } => self == Self::Death && *peer == rank,
            Error::Timeout { waiting_for, .. } => matches!(self, Self::Stop(_)) && *waiting_for == [rank],
            Error::Aborted { by, .. } => self == Self::Abort && *by == rank,
            _ => false,
        }
    }
}

/// A run that the seed reproduces.
#[derive(Debug, Clone)]
struct Scenario {
    row: &'static Algorithm,
    n: usize,
    seed: u64,
    plan: FaultPlan,
    /// The fault, its rank, and the number of the operation before which it happens.
    fault: Option<(Fault, usize, u64)>,
    happened: Arc<AtomicBool>,
    /// The number of calls that each rank makes.
    calls: Vec<usize>,
}

/// The course of a rank's run.
#[derive(Debug, Default)]
struct Life {
    rank: usize,
    dead: bool,
    /// Whether it had called finalize.
    finalized: bool,
    error: Option<Error>,
    /// The longest time that a step took.
    longest: Duration,
    end: Duration,
}

impl Scenario {
    fn new(row: &'static Algorithm, n: usize, seed: u64) -> Self {
        Self {
            row,
            n,
            seed,
            plan: FaultPlan::calm(),
            fault: None,
            happened: Arc::default(),
            calls: vec![2; n],
        }
    }

    fn run(&self) -> Vec<Life> {
        network::run(self.n, self.seed, &self.plan, |fabric, clock| {
            let mut life = Life { rank: fabric.group().rank(), ..Life::default() };
            life.error = self.live(fabric, &clock, &mut life).err();
            (life.dead, life.end) = (clock.is_dead(), clock.elapsed());
            life
        })
    }

    /// Connects, makes calls, and leaves.
    fn live(&self, fabric: NetworkFabric, clock: &VirtualClock, life: &mut Life) -> Result<()> {
        let mut config = RingConfig::default();
        config.announce_after = Duration::from_millis(20);
        let mut began = clock.elapsed();
        let mut step = |result: Result<()>| {
            let now = clock.elapsed();
            life.longest = life.longest.max(now - began);
            began = now;
            result
        };
        let ring = RingCommunicator::new(self.with_fault(fabric, clock), config, TIMEOUT);
        step(ring.as_ref().map(drop).map_err(Clone::clone))?;
        let plain = Comm::new(ring?).with_timeout(TIMEOUT);
        let comm = plain.with_algorithm(self.row.name);
        for _ in 0..self.calls[life.rank] {
            let result = call(&comm, self.row.collective);
            if result.is_err() {
                assert_unusable(&plain);
            }
            step(result).inspect_err(|_| {
                // Stays, so that the others detect the failure by its report, not by its exit.
                clock.sleep(2 * TIMEOUT);
            })?;
        }
        if self.calls[life.rank] < 2 {
            return Ok(());
        }
        life.finalized = true;
        drop(comm);
        step(plain.finalize())
    }

    /// Schedules the fault, if it concerns this rank.
    fn with_fault(&self, fabric: NetworkFabric, clock: &VirtualClock) -> impl Fabric + use<> {
        let abort = Arc::new(OnceLock::<Arc<dyn AbortHandle>>::new());
        if let Some((fault, rank, operation)) = self.fault
            && rank == fabric.group().rank()
        {
            let (own_clock, abort, happened) =
                (clock.clone(), Arc::clone(&abort), Arc::clone(&self.happened));
            clock.before_operation(operation, move || {
                happened.store(true, Ordering::SeqCst);
                match (fault, abort.get()) {
                    (Fault::Death, _) => own_clock.die(),
                    (Fault::Stop(time), _) => own_clock.sleep(time),
                    (Fault::Abort, Some(abort)) => {
                        abort.abort(Error::Aborted { by: rank, reason: "a key was pressed".into() });
                    }
                    (Fault::Abort, None) => {}
                }
            });
        }
        let open = move |fabric: &NetworkFabric, channel: ChannelId, members: &[usize], until: Until<'_>| {
            let transport = fabric.open_among(channel, members, until)?;
            if channel.kind == ChannelKind::Collective {
                let _ = abort.set(transport.abort_handle());
            }
            Ok(transport)
        };
        AlteredFabric { fabric, open }
    }
}

/// Checks that no call of a communicator that failed returns data.
fn assert_unusable(comm: &Comm) {
    let mut buffer = [7_u64; 3];
    let error = comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap_err();
    assert!(matches!(error, Error::Poisoned(_)), "{error}");
    assert_eq!(buffer, [7; 3]);
}

/// Checks that all others name the rank at fault, in time, unless it had made all its calls.
/// Returns whether the rank reached the operation.
fn check(scenario: &Scenario, lives: &[Life]) -> bool {
    let (fault, rank, _) = scenario.fault.unwrap();
    let Life { error, finalized, dead, .. } = &lives[rank];
    for life in lives {
        let most = match fault {
            Fault::Stop(time) if life.rank == rank => time + TIMEOUT + SLACK,
            Fault::Stop(_) => TIMEOUT + SLACK,
            Fault::Death | Fault::Abort => TIMEOUT / 2,
        };
        assert!(life.longest <= most, "{scenario:?}: {life:?}");
        match &life.error {
            _ if life.rank == rank => {}
            None => assert!(error.is_none() || *finalized, "not detected: {scenario:?}: {lives:?}"),
            Some(error) => assert!(fault.is_named(error, rank), "{scenario:?}: {life:?}"),
        }
    }
    let is_noticed = lives.iter().any(|life| life.rank != rank && life.error.is_some());
    assert!(
        !is_noticed || error.is_some() || *dead || *finalized,
        "the rank continues: {scenario:?}: {lives:?}"
    );
    scenario.happened.load(Ordering::SeqCst)
}

/// Injects the fault into every rank before its operations, one after the other, in steps of
/// `stride` starting at `first`. Returns how often it happened.
fn everywhere(fault: Fault, row: &'static Algorithm, n: usize, (first, stride): (u64, usize)) -> usize {
    let at_operation = |rank, operation| {
        let scenario = Scenario { fault: Some((fault, rank, operation)), ..Scenario::new(row, n, operation) };
        check(&scenario, &scenario.run())
    };
    let mut count = 0;
    for rank in 0..n {
        count += (first..).step_by(stride).take_while(|&operation| at_operation(rank, operation)).count();
    }
    count
}

fn rows() -> impl Iterator<Item = &'static Algorithm> {
    COLLECTIVES.into_iter().flat_map(Algorithm::for_collective)
}

/// Injects the fault at every operation of two and three ranks in every collective, and at some
/// operations of five ranks in every algorithm.
fn check_everywhere(fault: Fault) {
    for collective in COLLECTIVES {
        let row = Algorithm::for_collective(collective).next().unwrap();
        for n in [2, 3] {
            let count = everywhere(fault, row, n, (1, 1));
            assert!(count > 20 * n, "{fault:?} in {collective:?} {count} times");
        }
    }
    for (at, row) in rows().enumerate() {
        everywhere(fault, row, 5, (1 + at as u64 % 17, 17));
    }
}

#[test]
fn a_rank_that_dies_at_any_operation_is_named_by_all_others() {
    check_everywhere(Fault::Death);
}

#[test]
fn a_rank_that_stops_at_any_operation_and_no_other_is_named_at_the_deadline() {
    check_everywhere(Fault::Stop(20 * TIMEOUT));
}

#[test]
fn a_rank_that_aborts_at_any_operation_is_named_by_all_others() {
    check_everywhere(Fault::Abort);
}

#[test]
fn any_fault_in_any_algorithm_on_any_network_is_named() {
    let rows: Vec<_> = rows().collect();
    for seed in 0..1000 {
        let mut random = Rng::with_seed(seed);
        let (row, n) = (rows[random.usize(..rows.len())], random.usize(2..7));
        let fault = [Fault::Death, Fault::Stop(20 * TIMEOUT), Fault::Abort][random.usize(..3)];
        let plan = if random.bool() { FaultPlan::calm() } else { FaultPlan::rough() };
        let fault = Some((fault, random.usize(..n), random.u64(1..300)));
        let scenario = Scenario { plan, fault, ..Scenario::new(row, n, seed) };
        check(&scenario, &scenario.run());
    }
}

/// In groups of more than five ranks, some are not connected with each other.
#[test]
fn any_fault_is_named_by_ranks_that_are_connected_on_demand() {
    let rows: Vec<_> = rows().collect();
    for seed in 0..600 {
        let mut random = Rng::with_seed(seed);
        let (row, n) = (rows[random.usize(..rows.len())], random.usize(6..14));
        let fault = [Fault::Death, Fault::Stop(20 * TIMEOUT), Fault::Abort][random.usize(..3)];
        let plan =
            if random.bool() { FaultPlan::calm() } else { FaultPlan::rough().capacity(4096) }.on_demand(true);
        let fault = Some((fault, random.usize(..n), random.u64(1..300)));
        let scenario = Scenario { plan, fault, ..Scenario::new(row, n, seed) };
        check(&scenario, &scenario.run());
    }
}

#[test]
fn a_rank_that_is_late_at_any_operation_but_within_the_deadline_fails_no_call() {
    for row in rows() {
        for (rank, operation) in (0..3).flat_map(|rank| (1..120).step_by(7).map(move |at| (rank, at))) {
            let fault = Some((Fault::Stop(TIMEOUT * 9 / 10), rank, operation + rank as u64));
            let scenario = Scenario { fault, ..Scenario::new(row, 3, operation) };
            assert!(scenario.run().iter().all(|life| life.error.is_none()), "{scenario:?}");
        }
    }
}

#[test]
fn a_rank_that_leaves_after_fewer_calls_is_named_by_all_others() {
    check_early_leaving(5, &FaultPlan::calm());
}

#[test]
fn a_rank_that_leaves_early_is_named_by_ranks_that_are_connected_on_demand() {
    check_early_leaving(8, &FaultPlan::calm().on_demand(true));
}

fn check_early_leaving(n: usize, plan: &FaultPlan) {
    for row in rows() {
        for (rank, calls) in (0..n).flat_map(|rank| [(rank, 0), (rank, 1)]) {
            let mut scenario =
                Scenario { plan: plan.clone(), ..Scenario::new(row, n, (2 * rank + calls) as u64) };
            scenario.calls[rank] = calls;
            for life in scenario.run().iter().filter(|life| life.rank != rank) {
                let error = life.error.as_ref().unwrap();
                let is_named = matches!(error.root_cause(), Error::PeerLost { peer, .. } if *peer == rank)
                    && error.to_string().ends_with(&format!("closed its communicator after call {calls}"));
                assert!(is_named && life.longest <= SLACK, "{scenario:?}: {life:?}");
            }
        }
    }
}

#[test]
fn on_a_slow_and_uneven_network_every_algorithm_returns_the_right_result() {
    for (row, seed) in rows().flat_map(|row| (0..3).map(move |seed| (row, seed))) {
        let scenario = Scenario { plan: FaultPlan::rough(), ..Scenario::new(row, 3, seed) };
        assert!(scenario.run().iter().all(|life| life.error.is_none()), "{scenario:?}");
    }
}

#[test]
fn a_run_repeats_itself_to_the_nanosecond() {
    let run = |seed| {
        let row = Algorithm::for_collective(Collective::AllReduce).next().unwrap();
        let fault = Some((Fault::Death, 1, 60));
        let scenario = Scenario { plan: FaultPlan::rough(), fault, ..Scenario::new(row, 3, seed) };
        let lives = scenario.run();
        lives.iter().map(|life| (life.end, life.error.as_ref().map(Error::to_string))).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
