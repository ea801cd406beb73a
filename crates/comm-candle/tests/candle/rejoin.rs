//! Optimizers that continue with another group of ranks.

use candle_core::{Device, Tensor};
use candle_nn::VarMap;
use comm_candle::{DataParallel, Error, ReplicatedOptimizer};
use comm_core::{Comm, ShrinkOptions};
use comm_ddp::{AdamW, Sgd};

use crate::ranks::{elements, map, on_ranks, store, var};

pub(crate) const STEPS: u64 = 6;

/// Values that depend on the seed, and are rounded in each update.
pub(crate) fn noise(seed: u64) -> Tensor {
    let value = |at: u64| ((seed * 7919 + at * 31) as f64 * 0.618).sin() as f32 / 3.0;
    Tensor::from_vec((0..21).map(value).collect::<Vec<_>>(), (7, 3), &Device::Cpu).unwrap()
}

/// Returns a model with a variable that is not trained.
pub(crate) fn model(seed: u64) -> VarMap {
    let count = Tensor::new(&[seed as u32], &Device::Cpu).unwrap();
    map(seed as usize, &[("weight", noise(seed)), ("count", count)])
}

/// Makes a step with gradients that are equal on all ranks, whose average over one, two or four
/// ranks is exact.
fn step(variables: &VarMap, optimizer: &mut ReplicatedOptimizer<AdamW>, comm: &Comm) -> Result<(), Error> {
    let mut gradients = store(variables, &[("weight", noise(100 + optimizer.steps()))]);
    DataParallel::new(variables, comm)?.sync_gradients(&mut gradients)?;
    optimizer.step(&gradients)
}

pub(crate) fn values(variables: &VarMap) -> (Vec<f64>, Vec<f64>) {
    (elements(&var(variables, "weight")), elements(&var(variables, "count")))
}

/// Returns the result of one rank that makes all steps.
pub(crate) fn undisturbed() -> (Vec<f64>, Vec<f64>) {
    let results = on_ranks(1, |comm| {
        let variables = model(0);
        let mut optimizer = ReplicatedOptimizer::new(&variables, |_| AdamW::new(1e-2)).unwrap();
        (0..STEPS).for_each(|_| step(&variables, &mut optimizer, &comm).unwrap());
        values(&variables)
    });
    results.into_iter().next().unwrap()
}

#[test]
fn ranks_that_join_later_end_with_the_bits_of_an_undisturbed_run() {
    for source in 0..4 {
        let results = on_ranks(4, |comm| {
            let is_first = comm.rank() == source;
            let variables = model(if is_first { 0 } else { 9 });
            let mut optimizer = ReplicatedOptimizer::new(&variables, |_| AdamW::new(1e-2)).unwrap();
            let alone = comm.split(Some(comm.rank() as u64), 0).unwrap().unwrap();
            if is_first {
                (0..2).for_each(|_| step(&variables, &mut optimizer, &alone).unwrap());
            }
            assert_eq!(optimizer.rejoin(&comm).unwrap(), 2);
            (2..STEPS).for_each(|_| step(&variables, &mut optimizer, &comm).unwrap());
            assert_eq!(optimizer.steps(), STEPS);
            values(&variables)
        });
        assert!(results.iter().all(|result| *result == undisturbed()), "source {source}");
    }
}

#[test]
fn ranks_that_have_missed_the_last_step_get_it_from_another_one_after_a_loss() {
    let results = on_ranks(3, |comm| {
        let variables = model(0);
        let mut optimizer = ReplicatedOptimizer::new(&variables, |_| AdamW::new(1e-2)).unwrap();
        let pair = comm.split(Some(u64::from(comm.rank() == 2)), 0).unwrap().unwrap();
        (0..3).for_each(|_| step(&variables, &mut optimizer, &pair).unwrap());
        if comm.rank() == 2 {
            return values(&variables); // Leaves the others.
        }
        if comm.rank() == 1 {
            // Only this rank has received the averages of its last step.
            let gradients = store(&variables, &[("weight", noise(100 + optimizer.steps()))]);
            optimizer.step(&gradients).unwrap();
        }
        assert!(comm.barrier().unwrap_err().is_fatal());
        let rest = comm.shrink(&ShrinkOptions::default()).unwrap().comm;
        assert_eq!(optimizer.rejoin(&rest).unwrap(), 4);
        (4..STEPS).for_each(|_| step(&variables, &mut optimizer, &rest).unwrap());
        values(&variables)
    });
    assert!(results[..2].iter().all(|result| *result == undisturbed()));
}

#[test]
fn optimizers_with_other_states_are_refused_on_every_rank() {
    on_ranks(2, |comm| {
        let variables = model(0);
        let momentum = if comm.rank() == 0 { 0.0 } else { 0.9 };
        let mut optimizer =
            ReplicatedOptimizer::new(&variables, |_| Sgd::new(0.1).momentum(momentum)).unwrap();
        let error = optimizer.rejoin(&comm).unwrap_err();
        assert!(error.to_string().contains("optimizer.") && !error.is_fatal(), "{error}");
        comm.barrier().unwrap();
    });
}

#[test]
fn a_rank_whose_model_has_changed_ends_the_call_of_all() {
    on_ranks(2, |comm| {
        let variables = model(0);
        let mut optimizer = ReplicatedOptimizer::new(&variables, |_| Sgd::new(0.1)).unwrap();
        if comm.rank() == 1 {
            variables.data().lock().unwrap().remove("count");
        }
        let error = optimizer.rejoin(&comm).unwrap_err();
        assert_eq!(
            (error.is_fatal(), matches!(error, Error::Changed { .. })),
            (comm.rank() == 0, comm.rank() == 1)
        );
    });
}
