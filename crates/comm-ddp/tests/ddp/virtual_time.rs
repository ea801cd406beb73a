//! Training in virtual time: a rank that dies at any operation is named by all others, within the
//! deadline, and no call returns wrong averages. The communication threads of the ranks take part.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm_core::{Comm, Fabric};
use comm_ddp::{
    BucketLimits, DataParallel, Error, Options, Parameter, ParameterSet, Result, Sgd, ZeroOptimizer,
};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, NetworkFabric};

const TIMEOUT: Duration = Duration::from_secs(2);

/// The lengths of the parameters, each in its own bucket.
const LENGTHS: [usize; 3] = [5, 0, 2];

fn parameters() -> ParameterSet {
    let named = |(index, len): (usize, &usize)| Parameter::new::<f64>(format!("p{index}"), [*len]);
    ParameterSet::new(LENGTHS.iter().enumerate().map(named)).unwrap()
}

fn options() -> Options {
    Options::default().limits(BucketLimits::DEFAULT.first_bytes(1).bytes(1)).clock(network::now)
}

/// The number of batches of a rank.
const fn batches(rank: usize) -> usize {
    rank % 2 + 1
}

/// The gradient of a rank: its average over any ranks of a small world is exact.
fn gradient(rank: usize, index: usize) -> Vec<f64> {
    (0..LENGTHS[index]).map(|at| (12 * (rank + 1) * (index + at + 1)) as f64).collect()
}

/// The average over the ranks that have this batch.
fn average(size: usize, batch: usize, index: usize) -> Vec<f64> {
    let ranks: Vec<usize> = (0..size).filter(|rank| batch < batches(*rank)).collect();
    let sum = |at: usize| ranks.iter().map(|rank| gradient(*rank, index)[at]).sum::<f64>();
    (0..LENGTHS[index]).map(|at| sum(at) / ranks.len() as f64).collect()
}

/// Constructs, broadcasts, and trains until all ranks have run out of batches.
fn train(comm: &Comm) -> Result<()> {
    let mut replicas = DataParallel::new(comm, parameters(), options())?;
    let outcome = train_with(comm, &mut replicas);
    if outcome.is_err() {
        assert!(matches!(replicas.step(), Err(Error::Poisoned(_))));
        assert!(matches!(replicas.join(), Err(Error::Poisoned(_))));
        let mut values = LENGTHS.map(|len| vec![7.0_f64; len]);
        let refused = replicas.broadcast_parameters(values.iter_mut());
        assert!(matches!(refused, Err(Error::Poisoned(_))));
        assert!(values.iter().flatten().all(|value| *value == 7.0));
    }
    outcome
}

fn train_with(comm: &Comm, replicas: &mut DataParallel) -> Result<()> {
    let mut values = [0, 1, 2].map(|index| gradient(comm.rank(), index));
    replicas.broadcast_parameters(values.iter_mut())?;
    assert_eq!(values, [0, 1, 2].map(|index| gradient(0, index)));
    for batch in 0.. {
        let averaged = if batch < batches(comm.rank()) {
            let mut step = replicas.step()?;
            for index in if comm.rank() == 0 { [2, 1, 0] } else { [0, 2, 1] } {
                step.ready(index, &gradient(comm.rank(), index))?;
            }
            step.finish()?
        } else if let Some(averaged) = replicas.join()? {
            averaged
        } else {
            assert_eq!(batch, if comm.size() > 1 { 2 } else { 1 });
            return Ok(());
        };
        for (index, got) in averaged.iter::<f64>()?.enumerate() {
            assert_eq!(got, average(comm.size(), batch, index), "batch {batch}, parameter {index}");
        }
    }
    Ok(())
}

/// Does the same with a sharded optimizer.
fn train_sharded(comm: &Comm) -> Result<()> {
    let mut zero = ZeroOptimizer::new(comm, parameters(), options(), |_| Sgd::new(1.0))?;
    let outcome = train_sharded_with(comm, &mut zero);
    if outcome.is_err() {
        assert!(matches!(zero.step().map(drop), Err(Error::Poisoned(_))));
        assert!(matches!(zero.join().map(drop), Err(Error::Poisoned(_))));
    }
    outcome
}

fn train_sharded_with(comm: &Comm, zero: &mut ZeroOptimizer<f64, Sgd>) -> Result<()> {
    let mut values = LENGTHS.map(|len| vec![0.0_f64; len]);
    let mut expected = values.clone();
    for batch in 0.. {
        let mut averages = if batch < batches(comm.rank()) {
            let mut step = zero.step()?;
            for index in 0..LENGTHS.len() {
                step.ready(index, &gradient(comm.rank(), index))?;
            }
            step.finish()?
        } else if let Some(averages) = zero.join()? {
            averages
        } else {
            return Ok(());
        };
        averages.clip_norm(1e9)?;
        averages.update(values.iter_mut().map(|value| &mut value[..]))?;
        for (index, expected) in expected.iter_mut().enumerate() {
            let average = average(comm.size(), batch, index);
            expected.iter_mut().zip(average).for_each(|(value, slope)| *value -= slope);
        }
        assert_eq!(values, expected);
    }
    Ok(())
}

type Program = fn(&Comm) -> Result<()>;

/// The fate of a rank.
#[derive(Debug)]
struct Outcome {
    error: Option<Error>,
    /// The time of the error, or of the end.
    at: Duration,
    /// Whether it had called finalize.
    finalized: bool,
}

/// Runs a program on `n` ranks; one dies before an operation. Returns the time of its death, unless
/// it never reached that operation.
fn run(
    program: Program,
    n: usize,
    (plan, seed): (&FaultPlan, u64),
    death: Option<(usize, u64)>,
) -> (Vec<Outcome>, Option<Duration>) {
    let died = Arc::new(Mutex::new(None));
    let outcomes = network::run(n, seed, plan, |fabric, clock| {
        if let Some((_, operation)) = death.filter(|(rank, _)| *rank == fabric.group().rank()) {
            let (own, died) = (clock.clone(), Arc::clone(&died));
            clock.before_operation(operation, move || {
                *died.lock().unwrap() = Some(own.elapsed());
                own.die();
            });
        }
        let mut finalized = false;
        let error = live(program, fabric, &mut finalized).err();
        let at = clock.elapsed();
        if error.is_some() {
            // The others learn of the death by themselves, or by reports: not by an exit.
            clock.sleep(2 * TIMEOUT);
        }
        Outcome { error, at, finalized }
    });
    let died = *died.lock().unwrap();
    (outcomes, died)
}

fn live(program: Program, fabric: NetworkFabric, finalized: &mut bool) -> Result<()> {
    let mut config = RingConfig::default();
    config.announce_after = Duration::from_millis(20);
    let comm = Comm::new(RingCommunicator::new(fabric, config, TIMEOUT)?).with_timeout(TIMEOUT);
    program(&comm)?;
    *finalized = true;
    Ok(comm.finalize()?)
}

/// Checks that all others name the rank that died, in time, unless it had made all its calls.
fn check(outcomes: &[Outcome], rank: usize, died: Duration) {
    for (other, outcome) in outcomes.iter().enumerate().filter(|(other, _)| *other != rank) {
        let Some(error) = &outcome.error else {
            assert!(outcomes[rank].finalized, "rank {other} has not detected the failure: {outcomes:?}");
            continue;
        };
        let Error::Comm(error) = error.root_cause() else { panic!("rank {other}: {error}") };
        let is_named = matches!(error.root_cause(), comm_core::Error::PeerLost { peer, .. } if *peer == rank);
        assert!(is_named, "rank {other} does not name rank {rank}: {error}");
        assert!(outcome.at <= died + TIMEOUT / 2, "rank {other}: {outcome:?}, death at {died:?}");
    }
}

/// Lets each rank die at each of its operations, or at every `stride`th of them.
fn check_deaths(program: Program, n: usize, stride: u64) {
    for rank in 0..n {
        let mut count = 0;
        let plan = FaultPlan::calm();
        while let (outcomes, Some(died)) = run(program, n, (&plan, count), Some((rank, count + 1))) {
            check(&outcomes, rank, died);
            count += stride;
        }
        assert!(count > 150, "rank {rank} has only {count} operations");
    }
}

#[test]
fn training_gives_exact_averages_on_every_network() {
    for program in [train as Program, train_sharded] {
        for n in [1, 2, 3, 4, 5, 8] {
            for plan in [FaultPlan::calm(), FaultPlan::rough()] {
                let (outcomes, _) = run(program, n, (&plan, n as u64), None);
                assert!(outcomes.iter().all(|outcome| outcome.error.is_none()), "{outcomes:?}");
            }
        }
    }
}

#[test]
fn a_simulated_run_with_communication_threads_is_reproducible_to_the_nanosecond() {
    let ends = |seed| {
        let (outcomes, died) = run(train, 3, (&FaultPlan::rough(), seed), Some((1, 400)));
        let end = |outcome: Outcome| (outcome.at, outcome.error.map(|error| error.to_string()));
        (outcomes.into_iter().map(end).collect::<Vec<_>>(), died)
    };
    assert_eq!(ends(1), ends(1));
    assert_ne!(ends(1), ends(2));
}

#[test]
fn a_death_at_any_operation_of_two_ranks_is_named() {
    check_deaths(train, 2, 1);
    check_deaths(train_sharded, 2, 1);
}

#[test]
fn a_death_at_any_operation_of_three_ranks_is_named() {
    check_deaths(train, 3, 1);
    check_deaths(train_sharded, 3, 1);
}

#[test]
fn a_death_at_every_fourth_operation_of_four_ranks_is_named() {
    // Checking all of them takes minutes.
    check_deaths(train, 4, 4);
    check_deaths(train_sharded, 4, 4);
}
