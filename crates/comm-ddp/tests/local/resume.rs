//! A run that is saved and resumed is bit-identical to one that was not interrupted.

use std::collections::BTreeMap;

use comm_ddp::{BlockCodec, Error, LocalOptions, LocalProgress, Sgd};

use crate::{Replica, on_ranks, slices};

const STEPS: usize = 23;

/// The state of one rank in a checkpoint.
#[derive(Debug, Clone, PartialEq)]
struct Saved {
    tensors: BTreeMap<String, Vec<f32>>,
    progress: LocalProgress,
    residual: Vec<f32>,
    values: Vec<Vec<f32>>,
}

fn train(replica: &mut Replica<f32>, steps: usize) {
    for _ in 0..steps {
        replica.step().unwrap();
    }
}

fn save(replica: &mut Replica<f32>) -> Saved {
    let progress = replica.training.progress();
    let state = replica.training.state().unwrap();
    let named = state.map(|part| (format!("{}/{}", part.state, part.parameter.name()), part.values.to_vec()));
    let tensors = named.collect();
    let residual = replica.training.residual().unwrap();
    Saved { tensors, progress, residual, values: replica.values.clone() }
}

fn load(replica: &mut Replica<f32>, saved: &Saved) {
    for part in replica.training.state().unwrap() {
        part.values.copy_from_slice(&saved.tensors[&format!("{}/{}", part.state, part.parameter.name())]);
    }
    replica.training.set_progress(&saved.progress).unwrap();
    replica.steps = saved.progress.inner_steps as usize;
}

fn check(ranks: usize, options: LocalOptions) {
    let whole = on_ranks(ranks, |comm| {
        let mut replica = Replica::<f32>::new(&comm, options).unwrap();
        train(&mut replica, STEPS);
        save(&mut replica)
    });
    for interrupted in [0, 3, 7, 8, 12] {
        let saved = on_ranks(ranks, |comm| {
            let mut replica = Replica::<f32>::new(&comm, options).unwrap();
            train(&mut replica, interrupted);
            save(&mut replica)
        });
        let global = |rank: usize| &saved[rank].tensors;
        assert!((0..ranks).all(|rank| global(rank) == global(0)), "the state is not equal on all ranks");
        let resumed = on_ranks(ranks, |comm| {
            let mut replica = Replica::<f32>::new(&comm, options).unwrap();
            load(&mut replica, &saved[comm.rank()]);
            replica.training.set_residual(&saved[comm.rank()].residual).unwrap();
            replica.values.clone_from(&saved[comm.rank()].values);
            train(&mut replica, STEPS - interrupted);
            save(&mut replica)
        });
        assert_eq!(resumed, whole, "{options:?}, interrupted after {interrupted} steps");
    }
}

#[test]
fn a_resumed_run_is_bit_identical_to_an_uninterrupted_one() {
    for ranks in [1, 2, 3, 5] {
        check(ranks, LocalOptions::new(4));
        check(ranks, LocalOptions::new(4).outer(Sgd::new(0.8)));
        let streaming = LocalOptions::new(5).fragments(3).delay(4).alpha(0.5);
        check(ranks, streaming);
        check(ranks, streaming.codec(Some(BlockCodec::Int8)));
        check(ranks, streaming.codec(Some(BlockCodec::Int4)));
    }
}

#[test]
fn the_state_of_another_number_of_ranks_continues_from_the_global_parameters() {
    let options = LocalOptions::new(4).fragments(2).delay(1);
    let saved = on_ranks(4, |comm| {
        let mut replica = Replica::<f32>::new(&comm, options).unwrap();
        train(&mut replica, 9);
        save(&mut replica)
    });
    let saved = &saved[0];
    let runs = on_ranks(3, |comm| {
        let mut replica = Replica::<f32>::new(&comm, options).unwrap();
        load(&mut replica, saved);
        replica.training.copy_global(slices(&mut replica.values)).unwrap();
        replica.training.check_replicas().unwrap();
        assert_eq!(save(&mut replica).tensors, saved.tensors);
        train(&mut replica, 6);
        replica.global()
    });
    assert!(runs.iter().all(|global| *global == runs[0]));
}

#[test]
fn the_progress_of_another_number_of_fragments_is_refused() {
    on_ranks(2, |comm| {
        let mut replica = Replica::<f32>::new(&comm, LocalOptions::new(4).fragments(2)).unwrap();
        let before = replica.training.progress();
        let mut other = before.clone();
        other.outer_steps.push(1);
        let refused = replica.training.set_progress(&other);
        assert!(matches!(refused, Err(Error::Setting { name: "fragments", .. })), "{refused:?}");
        assert_eq!(replica.training.progress(), before);
    });
}

#[test]
fn a_residual_of_another_length_is_refused() {
    on_ranks(2, |comm| {
        let options = LocalOptions::new(1).codec(Some(BlockCodec::Int4));
        let mut replica = Replica::<f32>::new(&comm, options).unwrap();
        train(&mut replica, 3);
        let residual = replica.training.residual().unwrap();
        assert!(residual.len() == 24 && residual.iter().any(|error| *error != 0.0));
        let refused = replica.training.set_residual(&residual[1..]);
        assert!(matches!(refused, Err(Error::Length { expected: 24, got: 23, .. })), "{refused:?}");
        assert_eq!(replica.training.residual().unwrap(), residual);
    });
}
