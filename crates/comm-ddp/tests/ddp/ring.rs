//! The same over the real collectives: rounding that differs by rank, awkward queues, an abandoned step.

use std::time::{Duration, Instant};

use comm_core::Comm;
use comm_ddp::{BucketLimits, DataParallel, Error, Options, Parameter, ParameterSet, Result};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig};

const LENGTHS: [usize; 4] = [1000, 1, 333, 77];

fn on_ranks<R: Send>(size: usize, config: &InProcessConfig, rank_main: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    in_process::run(size, config, |lanes| {
        let communicator = RingCommunicator::new(lanes, RingConfig::default(), Duration::from_secs(20));
        rank_main(Comm::new(communicator.unwrap()).with_timeout(Duration::from_secs(20)))
    })
}

fn replicas(comm: &Comm) -> Result<DataParallel<f32>> {
    let named = |(index, len): (usize, &usize)| Parameter::new::<f32>(format!("p{index}"), [*len]);
    let parameters = ParameterSet::new(LENGTHS.iter().enumerate().map(named))?;
    let limits = BucketLimits { first_bytes: 256, bytes: 1024 };
    DataParallel::new(comm, parameters, Options { limits, ..Options::default() })
}

/// Numbers whose sum is rounded, so that another order of additions shows.
fn gradient(rank: usize, step: usize, index: usize) -> Vec<f32> {
    let number = |at: usize| (((rank + 1) * 7919 + step * 104_729 + index * 31 + at) as f32 * 0.618).sin();
    (0..LENGTHS[index]).map(|at| number(at) / 3.0).collect()
}

/// Three steps; gradients come in another order on every rank.
fn averages(comm: &Comm) -> Result<Vec<Vec<f32>>> {
    let mut replicas = replicas(comm)?;
    let mut averages = Vec::new();
    for number in 0..3 {
        let mut step = replicas.step()?;
        for index in (0..LENGTHS.len()).map(|index| (index * 3 + comm.rank()) % LENGTHS.len()) {
            step.ready(index, &gradient(comm.rank(), number, index))?;
        }
        averages.extend(step.finish()?.iter().map(<[f32]>::to_vec));
    }
    Ok(averages)
}

fn check(size: usize, config: &InProcessConfig) {
    let all = on_ranks(size, config, |comm| averages(&comm).unwrap());
    assert!(all.iter().all(|averages| *averages == all[0]), "{size} ranks differ");
    for (at, average) in all[0].iter().enumerate() {
        let (number, index) = (at / LENGTHS.len(), at % LENGTHS.len());
        let gradients: Vec<Vec<f32>> = (0..size).map(|rank| gradient(rank, number, index)).collect();
        for (element, got) in average.iter().enumerate() {
            let sum: f64 = gradients.iter().map(|gradient| f64::from(gradient[element])).sum();
            assert!((f64::from(*got) - sum / size as f64).abs() < 1e-6);
        }
    }
}

#[test]
fn every_rank_has_the_same_bits_and_they_are_near_the_average() {
    let dribbling = InProcessConfig { capacity: 97, dribble: Some(11), ..InProcessConfig::default() };
    for size in [1, 2, 3, 5, 8] {
        check(size, &InProcessConfig::default());
        check(size, &dribbling);
    }
}

/// Takes part in a step unless it is rank 1, which stops after the first gradient.
fn abandoned(comm: &Comm) -> Result<()> {
    let mut replicas = replicas(comm)?;
    let mut step = replicas.step()?;
    step.ready(3, &gradient(comm.rank(), 0, 3))?;
    if comm.rank() == 1 {
        drop(step);
        return replicas.step().map(drop);
    }
    step.finish().map(drop)
}

#[test]
fn a_rank_that_abandons_a_step_is_named_at_once() {
    let began = Instant::now();
    let failures = on_ranks(3, &InProcessConfig::default(), |comm| abandoned(&comm).unwrap_err());
    assert!(began.elapsed() < Duration::from_secs(10), "the others waited for their deadline");
    assert!(matches!(failures[1].root_cause(), Error::Abandoned));
    for rank in [0, 2] {
        let Error::Comm(failure) = &failures[rank] else { panic!("{}", failures[rank]) };
        let named = matches!(failure.root_cause(), comm_core::Error::Aborted { by: 1, .. });
        assert!(named, "rank {rank}: {failure}");
    }
}
