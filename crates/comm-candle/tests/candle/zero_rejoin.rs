//! Optimizers with a divided state that continue with another group of ranks.

use candle_nn::VarMap;
use comm_candle::{Error, LostGradients, Options, ZeroOptimizer};
use comm_core::{Comm, ShrinkOptions};
use comm_ddp::{AdamW, Sgd};

use crate::ranks::{elements, on_ranks, store, var};
use crate::rejoin::{STEPS, model, noise, undisturbed, values};

fn adam(variables: &VarMap, comm: &Comm, options: Options) -> ZeroOptimizer<AdamW> {
    ZeroOptimizer::with_options(variables, comm, options, |_| AdamW::new(1e-2)).unwrap()
}

/// Makes a step with gradients that are equal on all ranks, whose average over one, two or four
/// ranks is exact.
fn step(variables: &VarMap, optimizer: &mut ZeroOptimizer<AdamW>) -> Result<(), Error> {
    let gradients = store(variables, &[("weight", noise(100 + optimizer.steps()))]);
    optimizer.step(&gradients).map(drop)
}

#[test]
fn ranks_that_join_later_end_with_the_bits_of_an_undisturbed_run() {
    for first in [0, 2] {
        let results = on_ranks(4, |comm| {
            let is_first = (first..first + 2).contains(&comm.rank());
            let variables = model(if is_first { 0 } else { 9 });
            let former = comm.split(Some(u64::from(is_first)), 0).unwrap().unwrap();
            let mut optimizer = if is_first {
                let mut optimizer = adam(&variables, &former, Options::DEFAULT);
                (0..2).for_each(|_| step(&variables, &mut optimizer).unwrap());
                optimizer
            } else {
                let options = Options::DEFAULT.max_norm(Some(1e-9));
                ZeroOptimizer::newcomer(&variables, &comm, options, |_| AdamW::new(1e-2)).unwrap()
            };
            assert_eq!(optimizer.rejoin(&comm).unwrap(), 2);
            (2..STEPS).for_each(|_| step(&variables, &mut optimizer).unwrap());
            values(&variables)
        });
        assert!(results.iter().all(|result| *result == undisturbed()), "first {first}");
    }
}

#[test]
fn the_state_of_a_lost_rank_comes_from_the_next_one() {
    for lost in [0, 1] {
        let results = on_ranks(2, |comm| {
            let variables = model(0);
            let mut optimizer = adam(&variables, &comm, Options::DEFAULT.replicate_state(true));
            (0..3).for_each(|_| step(&variables, &mut optimizer).unwrap());
            if comm.rank() == lost {
                return values(&variables); // Leaves the other.
            }
            assert!(step(&variables, &mut optimizer).unwrap_err().is_fatal());
            let rest = comm.shrink(&ShrinkOptions::default()).unwrap().comm;
            assert_eq!(optimizer.rejoin(&rest).unwrap(), 3);
            (3..STEPS).for_each(|_| step(&variables, &mut optimizer).unwrap());
            values(&variables)
        });
        assert_eq!(results[1 - lost], undisturbed(), "lost {lost}");
    }
}

#[test]
fn without_copies_the_state_of_a_lost_rank_is_gone() {
    on_ranks(2, |comm| {
        let variables = model(0);
        let mut optimizer = adam(&variables, &comm, Options::DEFAULT);
        (0..3).for_each(|_| step(&variables, &mut optimizer).unwrap());
        if comm.rank() == 1 {
            return;
        }
        assert!(step(&variables, &mut optimizer).unwrap_err().is_fatal());
        let before = values(&variables);
        let rest = comm.shrink(&ShrinkOptions::default()).unwrap().comm;
        let error = optimizer.rejoin(&rest).unwrap_err();
        assert!(matches!(error, Error::Ranks(comm_ddp::Error::StateLost { .. })), "{error}");
        assert_eq!(values(&variables), before);
    });
}

#[test]
fn newcomers_take_the_options_of_the_others() {
    on_ranks(2, |comm| {
        let variables = model(0);
        let sgd = |_: &_| Sgd::new(1.0);
        let mut optimizer = if comm.rank() == 1 {
            let alone = comm.split(Some(1), 0).unwrap().unwrap();
            let options = Options::DEFAULT.max_norm(Some(0.5)).lost_gradients(LostGradients::Refuse);
            ZeroOptimizer::with_options(&variables, &alone, options, sgd).unwrap()
        } else {
            comm.split(Some(0), 0).unwrap();
            ZeroOptimizer::newcomer(&variables, &comm, Options::DEFAULT, sgd).unwrap()
        };
        optimizer.rejoin(&comm).unwrap();
        let error = optimizer.step(&store(&variables, &[])).unwrap_err();
        assert!(matches!(error, Error::LostGradients { .. }), "{error}");
        let before = elements(&var(&variables, "weight"));
        let report = optimizer.step(&store(&variables, &[("weight", noise(1))])).unwrap();
        assert!(report.norm().unwrap() > 0.5);
        let after = elements(&var(&variables, "weight"));
        let change: f64 = before.iter().zip(&after).map(|(before, after)| (before - after).powi(2)).sum();
        assert!((change.sqrt() - 0.5).abs() < 1e-5, "{}", change.sqrt());
    });
}

#[test]
fn a_newcomer_makes_no_step_before_it_has_joined() {
    on_ranks(1, |comm| {
        let variables = model(0);
        let mut optimizer =
            ZeroOptimizer::newcomer(&variables, &comm, Options::DEFAULT, |_| AdamW::new(1e-2)).unwrap();
        let error = step(&variables, &mut optimizer).unwrap_err();
        assert!(matches!(error, Error::Ranks(comm_ddp::Error::NotJoined)), "{error}");
        assert_eq!(optimizer.rejoin(&comm).unwrap(), 0);
        (0..STEPS).for_each(|_| step(&variables, &mut optimizer).unwrap());
        assert_eq!(values(&variables), undisturbed());
    });
}

#[test]
fn a_rank_whose_model_differs_ends_the_call_of_all() {
    on_ranks(2, |comm| {
        let variables = model(0);
        let alone = comm.split(Some(comm.rank() as u64), 0).unwrap().unwrap();
        let mut optimizer = adam(&variables, &alone, Options::DEFAULT);
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
