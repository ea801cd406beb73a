//! Ranks that divide every batch compute the same as one process with whole batches.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "how close the runs are is worth seeing")]

use comm::Comm;
use digits::optimizer::Rule;
use digits::real::Real;
use digits::train::{Settings, StateLayout, Trainer};

const EPOCHS: usize = 6;
const GLOBAL_BATCH: usize = 48;

/// The loss and all weights after every epoch.
#[derive(Debug, Clone, PartialEq)]
struct Course {
    losses: Vec<f64>,
    weights: Vec<Vec<f64>>,
}

fn rank_main<T: Real>(comm: &Comm, settings: Settings) -> Course {
    let mut trainer = Trainer::<T>::new(comm, settings).unwrap();
    let mut course = Course { losses: Vec::new(), weights: Vec::new() };
    for epoch in 1..=EPOCHS {
        course.losses.push(trainer.epoch(epoch, |_| ()).unwrap().loss);
        let numbers = trainer.model().parameters().flat_map(|parameter| parameter.numbers);
        course.weights.push(numbers.map(|number| number.widen()).collect());
    }
    assert!(trainer.replicas_identical().unwrap());
    course
}

fn course<T: Real>(ranks: usize, rule: Rule, learning_rate: f64) -> Course {
    let state = StateLayout::Replicated;
    let settings =
        Settings { batch_size: GLOBAL_BATCH / ranks, learning_rate, rule, seed: 1, local: None, state };
    let courses = comm::threads::run(ranks, |comm| rank_main::<T>(&comm, settings)).unwrap();
    assert!(courses.iter().all(|course| *course == courses[0]), "ranks differ");
    courses[0].clone()
}

/// Returns the norm of the difference divided by the norm of the reference.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    let length = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    length(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / length(&mut expected.iter().copied())
}

fn check<T: Real>(rule: Rule, learning_rate: f64, tolerance: f64) {
    let alone = course::<T>(1, rule, learning_rate);
    assert!(alone.losses[EPOCHS - 1] < alone.losses[0] / 3.0, "nothing was learnt: {:?}", alone.losses);
    for ranks in [2, 3, 4] {
        let together = course::<T>(ranks, rule, learning_rate);
        let weights = together.weights.iter().zip(&alone.weights).map(|(a, b)| distance(a, b));
        let losses = together.losses.iter().zip(&alone.losses).map(|(a, b)| distance(&[*a], &[*b]));
        let worst = weights.chain(losses).fold(0.0, f64::max);
        println!("{rule:?}, {ranks} ranks, {}: {worst:.1e}", T::DTYPE);
        assert!(worst <= tolerance, "{ranks} ranks are {worst:e} away from one");
    }
}

#[test]
fn sgd_in_f64_follows_one_process() {
    check::<f64>(Rule::SGD, 0.05, 1e-12);
}

#[test]
fn adam_w_in_f64_follows_one_process() {
    check::<f64>(Rule::ADAM_W, 0.002, 1e-12);
}

#[test]
fn sgd_in_f32_follows_one_process() {
    check::<f32>(Rule::SGD, 0.05, 1e-5);
}

#[test]
fn adam_w_in_f32_follows_one_process() {
    check::<f32>(Rule::ADAM_W, 0.002, 1e-5);
}
