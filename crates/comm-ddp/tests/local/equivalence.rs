//! Local training equals the algorithm of the papers, computed by one process for all ranks, and
//! with one inner step it equals data parallel training.

use comm_core::{Comm, ReduceOrder};
use comm_ddp::{DataParallel, LocalOptions, LocalTraining, Options, Parameter, ParameterSet, Sgd};

use crate::{LEN, PARAMETERS, Replica, initial, inner_step, on_ranks, slices};

const STEPS: usize = 20;

/// One parameter of a run, on all ranks.
struct Reference {
    local: Vec<Vec<f64>>,
    global: Vec<f64>,
    momentum: Vec<f64>,
    pending: Option<(usize, Vec<f64>)>,
}

/// Returns the parameters of all ranks after every step, by step and rank.
fn reference(ranks: usize, options: &LocalOptions) -> Vec<Vec<Vec<Vec<f64>>>> {
    let (h, f) = (options.sync_every, options.fragments);
    let (rate, mu, alpha) = (options.outer.learning_rate, options.outer.momentum, options.alpha);
    let mut parameters: Vec<Reference> = initial::<f64>(0)
        .into_iter()
        .map(|start| Reference {
            local: vec![start.clone(); ranks],
            momentum: vec![0.0; LEN],
            pending: None,
            global: start,
        })
        .collect();
    let mut history = Vec::new();
    for step in 1..=STEPS {
        for rank in 0..ranks {
            let mut own: Vec<Vec<f64>> = parameters.iter().map(|p| p.local[rank].clone()).collect();
            inner_step(&mut own, rank, step);
            parameters.iter_mut().zip(own).for_each(|(p, own)| p.local[rank] = own);
        }
        for (index, p) in parameters.iter_mut().enumerate() {
            // Parameters of one size are strided over the fragments.
            let turn = (index % f + 1) * h / f;
            if step % h == turn % h {
                let mean =
                    |at| p.local.iter().map(|local| p.global[at] - local[at]).sum::<f64>() / ranks as f64;
                p.pending = Some((step + options.delay, (0..LEN).map(mean).collect()));
            }
            let Some((_, gradient)) = p.pending.take_if(|(due, _)| *due == step) else { continue };
            for at in 0..LEN {
                p.momentum[at] = mu * p.momentum[at] + gradient[at];
                let direction =
                    if options.outer.nesterov { gradient[at] + mu * p.momentum[at] } else { p.momentum[at] };
                p.global[at] -= rate * direction;
                for local in &mut p.local {
                    local[at] = alpha * local[at] + (1.0 - alpha) * p.global[at];
                }
            }
        }
        history.push(
            (0..ranks).map(|rank| parameters.iter().map(|p| p.local[rank].clone()).collect()).collect(),
        );
    }
    history
}

/// Compares every step of every rank, bitwise if the mean over the ranks is exact.
fn check(ranks: usize, options: LocalOptions) {
    let expected = reference(ranks, &options);
    let runs = on_ranks(ranks, |comm| {
        let mut replica = Replica::<f64>::new(&comm, options).unwrap();
        let step = |_| {
            replica.step().unwrap();
            (replica.values.clone(), replica.global())
        };
        (0..STEPS).map(step).collect::<Vec<_>>()
    });
    for (step, expected) in expected.iter().enumerate() {
        for (rank, expected) in expected.iter().enumerate() {
            let (local, global) = &runs[rank][step];
            assert_eq!(*global, runs[0][step].1, "replicas differ: {options:?}, step {step}");
            if ranks.is_power_of_two() {
                assert_eq!(local, expected, "{options:?}, rank {rank} of {ranks}, step {step}");
            } else {
                assert_near(&local.concat(), &expected.concat());
            }
        }
    }
}

fn assert_near(got: &[f64], expected: &[f64]) {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut got.iter().zip(expected).map(|(got, expected)| got - expected));
    assert!(difference <= 1e-12 * norm(&mut expected.iter().copied()), "{difference} in {expected:?}");
}

/// Halves, so that all numbers are exact.
const OUTER: Sgd = Sgd::new(0.5).momentum(0.5).nesterov(true);

#[test]
fn outer_steps_match_diloco() {
    for ranks in [1, 2, 3, 4, 5, 8] {
        check(ranks, LocalOptions::new(5).outer(OUTER));
        check(ranks, LocalOptions::new(5).outer(OUTER.nesterov(false)));
        check(ranks, LocalOptions::new(1).outer(Sgd::new(0.5)));
    }
}

#[test]
fn fragments_and_delays_match_streaming_diloco() {
    for ranks in [1, 2, 3, 4, 5, 8] {
        for (fragments, delay, alpha) in
            [(1, 2, 0.5), (3, 0, 0.0), (3, 1, 0.0), (3, 4, 0.5), (6, 6, 0.75), (2, 1, 1.0)]
        {
            let options = LocalOptions::new(7).fragments(fragments).delay(delay).alpha(alpha);
            check(ranks, options.outer(OUTER));
        }
    }
}

#[test]
fn the_default_outer_optimizer_matches_the_paper() {
    let outer = LocalOptions::new(500).outer;
    assert_eq!((outer.learning_rate, outer.momentum, outer.nesterov), (0.7, 0.9, true));
    assert_eq!((outer.dampening, outer.weight_decay), (0.0, 0.0));
}

const WEIGHTS: usize = 12;

/// The gradient of a least-squares loss in the sample of one rank at one step.
fn gradient(weights: &[f64], rank: usize, step: usize) -> Vec<f64> {
    let input = |at: usize| ((rank * 31 + step * 17 + at * 7) as f64 * 0.37).sin() * (1.0 + rank as f64);
    let predicted: f64 = weights.iter().enumerate().map(|(at, weight)| weight * input(at)).sum();
    let error = predicted - (step as f64 * 0.1).cos();
    (0..WEIGHTS).map(|at| error * input(at) / WEIGHTS as f64).collect()
}

fn weights(comm: &Comm) -> (ParameterSet, Vec<f64>) {
    let parameters = ParameterSet::new([Parameter::new::<f64>("weight", [WEIGHTS])]).unwrap();
    (parameters, (0..WEIGHTS).map(|at| (at as f64 * 1.3).sin() + comm.rank() as f64).collect())
}

/// Trains with averaged gradients and SGD.
fn data_parallel(comm: &Comm) -> Vec<f64> {
    let (parameters, mut weights) = weights(comm);
    let mut replicas = DataParallel::new(comm, parameters, Options::default()).unwrap();
    replicas.broadcast_parameters([&mut weights[..]]).unwrap();
    for step in 0..50 {
        let mut running = replicas.step().unwrap();
        running.ready(0, &gradient(&weights, comm.rank(), step)[..]).unwrap();
        let averaged = running.finish().unwrap();
        weights
            .iter_mut()
            .zip(averaged.get::<f64>(0).unwrap())
            .for_each(|(weight, slope)| *weight -= 0.02 * slope);
    }
    weights
}

/// Trains with SGD on each rank, and an outer step after every inner step.
fn local(comm: &Comm, sync_every: usize) -> Vec<f64> {
    let (parameters, mut weights) = weights(comm);
    let options = LocalOptions::new(sync_every).outer(Sgd::new(1.0));
    let mut training = LocalTraining::new(comm, parameters, options, [&mut weights[..]]).unwrap();
    for step in 0..50 {
        let gradient = gradient(&weights, comm.rank(), step);
        weights.iter_mut().zip(&gradient).for_each(|(weight, slope)| *weight -= 0.02 * slope);
        training.step([&mut weights[..]]).unwrap();
    }
    weights
}

#[test]
fn with_one_inner_step_of_sgd_it_equals_data_parallel_training() {
    for ranks in [1, 2, 3, 4, 5, 8] {
        let run = |train: fn(&Comm) -> Vec<f64>| {
            on_ranks(ranks, |comm| train(&comm.with_reduce_order(ReduceOrder::Deterministic)))
        };
        let (parallel, own) = (run(data_parallel), run(|comm| local(comm, 1)));
        assert!(own.iter().all(|weights| *weights == own[0]), "replicas differ");
        assert_near(&own[0], &parallel[0]);
        if ranks > 1 {
            let rare = run(|comm| local(comm, 5));
            let distance: f64 = rare[0].iter().zip(&parallel[0]).map(|(a, b)| (a - b).abs()).sum();
            assert!(distance > 1e-6, "five inner steps have no effect");
        }
    }
}

#[test]
fn synchronize_makes_the_parameters_of_all_ranks_the_global_ones() {
    for (fragments, delay) in [(1, 0), (3, 0), (3, 2)] {
        let options = LocalOptions::new(4).fragments(fragments).delay(delay).alpha(0.5);
        let runs = on_ranks(3, |comm| {
            let mut replica = Replica::<f32>::new(&comm, options).unwrap();
            for _ in 0..7 {
                replica.step().unwrap();
            }
            assert!(replica.values != replica.global());
            let bytes = replica.training.synchronize(slices(&mut replica.values)).unwrap();
            assert_eq!(replica.values, replica.global());
            assert!(bytes > 0 && replica.training.progress().inner_steps == 7);
            let mut copy = initial::<f32>(9);
            replica.training.copy_global(slices(&mut copy)).unwrap();
            assert_eq!(copy, replica.values);
            for _ in 0..PARAMETERS {
                replica.step().unwrap();
            }
            replica.training.check_replicas().unwrap();
            replica.global()
        });
        assert!(runs.iter().all(|global| *global == runs[0]));
    }
}
