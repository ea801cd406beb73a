//! Sums that are rounded, transports that move a few bytes at a time, and calls by the program
//! during a step.

use std::time::Duration;

use comm_core::{Comm, ReduceOp};
use comm_ddp::{BucketLimits, DataParallel, Options, Parameter, ParameterSet, Result};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig};

const LENGTHS: [usize; 4] = [1000, 1, 333, 77];

fn on_ranks<R: Send>(size: usize, config: &InProcessConfig, rank_main: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    in_process::run(size, config, |fabric| {
        let communicator = RingCommunicator::new(fabric, RingConfig::default(), Duration::from_secs(20));
        rank_main(Comm::new(communicator.unwrap()).with_timeout(Duration::from_secs(20)))
    })
}

fn replicas(comm: &Comm) -> Result<DataParallel> {
    let named = |(index, len): (usize, &usize)| Parameter::new::<f32>(format!("p{index}"), [*len]);
    let parameters = ParameterSet::new(LENGTHS.iter().enumerate().map(named))?;
    let limits = BucketLimits::DEFAULT.first_bytes(256).bytes(1024);
    DataParallel::new(comm, parameters, Options::default().limits(limits))
}

/// Numbers whose sum is rounded, so that a different order of additions shows.
fn gradient(rank: usize, step: usize, index: usize) -> Vec<f32> {
    let number = |at: usize| (((rank + 1) * 7919 + step * 104_729 + index * 31 + at) as f32 * 0.618).sin();
    (0..LENGTHS[index]).map(|at| number(at) / 3.0).collect()
}

/// Three steps; gradients become ready in a different order on every rank.
fn averages(comm: &Comm) -> Result<Vec<Vec<f32>>> {
    let mut replicas = replicas(comm)?;
    let mut averages = Vec::new();
    for number in 0..3 {
        let mut step = replicas.step()?;
        for index in (0..LENGTHS.len()).map(|index| (index * 3 + comm.rank()) % LENGTHS.len()) {
            step.ready(index, &gradient(comm.rank(), number, index))?;
        }
        averages.extend(step.finish()?.iter::<f32>()?.map(<[f32]>::to_vec));
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
fn results_are_bit_identical_on_all_ranks_and_near_the_average() {
    let dribbling = InProcessConfig::default().capacity(97).dribble(11);
    for size in [1, 2, 3, 5, 8] {
        check(size, &InProcessConfig::default());
        check(size, &dribbling);
    }
}

/// The result of a step: the average of the loss and of every gradient.
type LossAndGradients = (Vec<f32>, Vec<Vec<f32>>);

/// The average of a loss, as long as a bucket, that every rank requests in the middle of a step,
/// each at a different moment.
fn losses_in_the_middle_of_a_step(comm: &Comm, length: usize) -> Result<Vec<LossAndGradients>> {
    let parameters = (0..4).map(|index| Parameter::new::<f32>(format!("p{index}"), [length]));
    let limits = BucketLimits::DEFAULT.first_bytes(1).bytes(1);
    let options = Options::default().limits(limits).follow_first_step(false);
    let mut replicas = DataParallel::new(comm, ParameterSet::new(parameters)?, options)?;
    let mut seen = Vec::new();
    for number in 0..20 {
        let mut step = replicas.step()?;
        let mut loss = vec![100.0 * comm.rank() as f32; length + 1];
        for index in (0..4).rev() {
            if index == (comm.rank() + number) % 4 {
                comm.all_reduce(&mut loss, ReduceOp::Avg)?;
            }
            step.ready(index, &vec![comm.rank() as f32; length])?;
        }
        let averaged = step.finish()?;
        seen.push((loss, averaged.iter::<f32>()?.map(<[f32]>::to_vec).collect()));
    }
    Ok(seen)
}

#[test]
fn calls_of_the_program_during_a_step_do_not_mix_with_its_buckets() {
    for (size, length) in [(2, 1), (3, 1), (3, 100), (4, 3000)] {
        let all = on_ranks(size, &InProcessConfig::default(), |comm| {
            losses_in_the_middle_of_a_step(&comm, length).unwrap()
        });
        let average = (size - 1) as f32 / 2.0;
        for (loss, gradients) in all.into_iter().flatten() {
            assert_eq!(loss, vec![100.0 * average; length + 1]);
            assert_eq!(gradients, vec![vec![average; length]; 4]);
        }
    }
}
