//! Replicas follow one process that sees all samples: with SGD, which shows whether gradients are
//! divided, and with AdamW, which shows whether it is gradients that are averaged and not weights.

use comm_core::{Comm, ReduceOp};
use comm_ddp::{DataParallel, Options, Parameter, ParameterSet};

use crate::on_ranks;

const STEPS: usize = 50;
const WEIGHTS: usize = 12;
const RANKS: usize = 4;

/// An update rule: weights, gradient and what it remembers.
type Rule = fn(&mut [f64], &[f64], &mut Memory);

#[derive(Default)]
struct Memory {
    first: Vec<f64>,
    second: Vec<f64>,
    steps: i32,
}

fn sgd(weights: &mut [f64], gradient: &[f64], memory: &mut Memory) {
    memory.first.resize(WEIGHTS, 0.0);
    for at in 0..WEIGHTS {
        memory.first[at] = 0.9 * memory.first[at] + gradient[at];
        weights[at] -= 0.02 * memory.first[at];
    }
}

fn adam_w(weights: &mut [f64], gradient: &[f64], memory: &mut Memory) {
    memory.first.resize(WEIGHTS, 0.0);
    memory.second.resize(WEIGHTS, 0.0);
    memory.steps += 1;
    for at in 0..WEIGHTS {
        memory.first[at] = 0.9 * memory.first[at] + 0.1 * gradient[at];
        memory.second[at] = 0.999 * memory.second[at] + 0.001 * gradient[at] * gradient[at];
        let mean = memory.first[at] / (1.0 - 0.9_f64.powi(memory.steps));
        let square = memory.second[at] / (1.0 - 0.999_f64.powi(memory.steps));
        weights[at] = weights[at] * (1.0 - 0.02 * 0.01) - 0.02 * mean / (square.sqrt() + 1e-8);
    }
}

/// Gradient of a least-squares loss in the sample of one rank at one step, which differs a lot from
/// rank to rank.
fn gradient(weights: &[f64], rank: usize, step: usize) -> Vec<f64> {
    let input = |at: usize| ((rank * 31 + step * 17 + at * 7) as f64 * 0.37).sin() * (1.0 + rank as f64);
    let predicted: f64 = weights.iter().enumerate().map(|(at, weight)| weight * input(at)).sum();
    let error = predicted - (step as f64 * 0.1).cos();
    (0..WEIGHTS).map(|at| error * input(at) / WEIGHTS as f64).collect()
}

fn initial() -> Vec<f64> {
    (0..WEIGHTS).map(|at| (at as f64 * 1.3).sin()).collect()
}

/// One process that sees the samples of all ranks in every step.
fn alone(rule: Rule) -> Vec<f64> {
    let (mut weights, mut memory) = (initial(), Memory::default());
    for step in 0..STEPS {
        let all: Vec<Vec<f64>> = (0..RANKS).map(|rank| gradient(&weights, rank, step)).collect();
        let mean = |at| all.iter().map(|gradient| gradient[at]).sum::<f64>() / RANKS as f64;
        rule(&mut weights, &(0..WEIGHTS).map(mean).collect::<Vec<_>>(), &mut memory);
    }
    weights
}

/// Ranks that see one sample each; `update` is what they do with their gradient.
fn together(update: impl Fn(&Comm, &mut Vec<f64>, Vec<f64>, &mut Memory) + Sync) -> Vec<f64> {
    let mut all = on_ranks(RANKS, |comm| {
        let (mut weights, mut memory) = (initial(), Memory::default());
        for step in 0..STEPS {
            let gradient = gradient(&weights, comm.rank(), step);
            update(&comm, &mut weights, gradient, &mut memory);
        }
        weights
    });
    assert!(all.iter().all(|weights| *weights == all[0]), "replicas differ");
    all.swap_remove(0)
}

fn data_parallel(rule: Rule) -> Vec<f64> {
    let replicas = on_ranks(RANKS, |comm| {
        let parameters = ParameterSet::new([Parameter::new::<f64>("w", [WEIGHTS])]).unwrap();
        let mut replicas = DataParallel::new(&comm, parameters, Options::default()).unwrap();
        let mut weights = if comm.rank() == 0 { initial() } else { vec![9.0; WEIGHTS] };
        replicas.broadcast_parameters([&mut weights[..]]).unwrap();
        let mut memory = Memory::default();
        for number in 0..STEPS {
            let mut step = replicas.step().unwrap();
            step.ready(0, &gradient(&weights, comm.rank(), number)).unwrap();
            let averaged = step.finish().unwrap();
            rule(&mut weights, averaged.get(0).unwrap(), &mut memory);
        }
        weights
    });
    assert!(replicas.iter().all(|weights| *weights == replicas[0]), "replicas differ");
    replicas[0].clone()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

#[test]
fn sgd_follows_one_process_and_would_not_if_gradients_were_summed() {
    let expected = alone(sgd);
    assert!(distance(&data_parallel(sgd), &expected) < 1e-12);
    let summed = together(|comm, weights, mut gradient, memory| {
        comm.all_reduce(&mut gradient, ReduceOp::Sum).unwrap();
        sgd(weights, &gradient, memory);
    });
    // Steps that are too long may well end in NaN.
    let distance = distance(&summed, &expected);
    assert!(distance.is_nan() || distance > 1e-2, "{distance}");
}

#[test]
fn adam_w_follows_one_process_and_would_not_if_weights_were_averaged() {
    let expected = alone(adam_w);
    assert!(distance(&data_parallel(adam_w), &expected) < 1e-10);
    let averaged = together(|comm, weights, gradient, memory| {
        adam_w(weights, &gradient, memory);
        comm.all_reduce(weights, ReduceOp::Avg).unwrap();
    });
    let distance = distance(&averaged, &expected);
    assert!(distance > 1e-2, "{distance}");
}
