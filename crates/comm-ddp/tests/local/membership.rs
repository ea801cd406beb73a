//! Ranks leave and join between outer steps.

use comm_core::Comm;
use comm_ddp::{BlockCodec, Error, LocalOptions, LocalStep, LocalTraining, Sgd};

use crate::{Replica, initial, on_ranks, parameter_set, slices};

/// The global parameters after every outer step of one rank.
type Globals = Vec<Vec<Vec<f32>>>;

fn train(replica: &mut Replica<f32>, steps: usize) -> Globals {
    let mut globals = Vec::new();
    for _ in 0..steps {
        let LocalStep { applied, .. } = replica.step().unwrap();
        globals.extend(applied.map(|_| replica.global()));
    }
    globals
}

fn rejoin(replica: &mut Replica<f32>, comm: &Comm) -> comm_ddp::Result<()> {
    replica.training.rejoin(comm, slices(&mut replica.values))
}

/// Four ranks train, one leaves, three continue, and two join.
fn run(options: LocalOptions) {
    let runs = on_ranks(6, |world| {
        let [first, second, third] = [&[0, 1, 2, 3][..], &[0, 1, 2], &[0, 1, 2, 4, 5]];
        let mut globals = Globals::new();
        let mut replica = world.new_group(first).unwrap().map(|comm| {
            let mut replica = Replica::<f32>::new(&comm, options).unwrap();
            globals.extend(train(&mut replica, 8));
            replica
        });
        let (comm, own) = (world.new_group(second).unwrap(), replica.take());
        replica = comm.zip(own).map(|(comm, mut replica)| {
            let before = (replica.values.clone(), replica.training.progress());
            rejoin(&mut replica, &comm).unwrap();
            assert_eq!(before, (replica.values.clone(), replica.training.progress()));
            globals.extend(train(&mut replica, 7));
            replica
        });
        if let Some(comm) = world.new_group(third).unwrap() {
            let mut replica = if let Some(mut replica) = replica {
                let own = replica.values.clone();
                rejoin(&mut replica, &comm).unwrap();
                assert_eq!(replica.values, own, "ranks that have the state keep their own parameters");
                replica
            } else {
                let replica = Replica::<f32>::new(&comm, options).unwrap();
                assert_eq!(replica.values, replica.global());
                assert_eq!(replica.training.progress().inner_steps, 15);
                replica
            };
            replica.training.check_replicas().unwrap();
            globals.extend(train(&mut replica, 9));
        }
        globals
    });
    let all = &runs[0];
    assert!(all.len() >= 5 && all.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(runs[1..3].iter().all(|globals| globals == all), "ranks that stay differ");
    let joined = &runs[4];
    assert!(joined.len() >= 2 && all.ends_with(joined) && runs[5] == *joined, "ranks that joined differ");
    assert!(!runs[3].is_empty() && all.starts_with(&runs[3]), "the rank that left differs");
}

#[test]
fn ranks_join_and_leave_between_outer_steps() {
    run(LocalOptions::new(4));
    run(LocalOptions::new(4).outer(Sgd::new(0.5)));
    // With fragments in flight while the group changes.
    run(LocalOptions::new(4).fragments(2).delay(1).alpha(0.5));
    run(LocalOptions::new(5).fragments(3).delay(4).alpha(0.5));
    run(LocalOptions::new(4).codec(Some(BlockCodec::Int4)));
}

/// Two pairs of ranks train for these numbers of steps and then form one group. Returns the errors
/// of all ranks.
fn join_pairs(options: LocalOptions, steps: [usize; 2]) -> Vec<Error> {
    on_ranks(4, |world| {
        let pair = world.rank() / 2;
        let comm = world.split(Some(pair as u64), 0).unwrap().unwrap();
        let mut replica = Replica::<f32>::new(&comm, options).unwrap();
        // The pairs have different values.
        replica.rank = world.rank();
        train(&mut replica, steps[pair]);
        let before = (replica.values.clone(), replica.global(), replica.training.progress());
        let error = rejoin(&mut replica, &world).unwrap_err();
        assert_eq!(before, (replica.values.clone(), replica.global(), replica.training.progress()));
        // Each pair can continue on its own.
        train(&mut replica, 8);
        replica.training.check_replicas().unwrap();
        error
    })
}

#[test]
fn ranks_at_different_steps_are_named() {
    let options = LocalOptions::new(2);
    for error in join_pairs(options, [2, 4]) {
        let Error::Disagreement(error) = error else { panic!("not a disagreement: {error}") };
        assert_eq!(
            (error.what, &error.ranks[..], error.reference),
            ("the number of outer steps", &[2, 3][..], 0)
        );
        assert_eq!((error.expected.as_str(), error.found.as_str()), ("1", "2"));
    }
    for error in join_pairs(options, [3, 2]) {
        let Error::Disagreement(error) = error else { panic!("not a disagreement: {error}") };
        assert_eq!((error.what, &error.ranks[..]), ("the number of inner steps", &[2, 3][..]));
        assert_eq!((error.expected.as_str(), error.found.as_str()), ("3", "2"));
    }
}

#[test]
fn ranks_with_other_global_parameters_are_named() {
    for error in join_pairs(LocalOptions::new(2), [4, 4]) {
        assert!(
            matches!(&error, Error::Diverged { name, ranks } if name == "global parameters" && *ranks == [2, 3]),
            "{error}"
        );
    }
}

#[test]
fn a_different_bit_of_a_global_parameter_or_of_the_momentum_is_detected() {
    for part in ["global", "momentum"] {
        let errors = on_ranks(3, |comm| {
            let mut replica = Replica::<f32>::new(&comm, LocalOptions::new(2)).unwrap();
            train(&mut replica, 4);
            if comm.rank() == 1 {
                let state = replica.training.state().unwrap();
                let mut parts: Vec<_> = state.filter(|state| state.state == part).collect();
                let value = &mut parts[5].values[3];
                *value = f32::from_bits(value.to_bits() ^ 1);
            }
            rejoin(&mut replica, &comm).unwrap_err()
        });
        for error in errors {
            assert!(matches!(&error, Error::Diverged { ranks, .. } if *ranks == [1]), "{error}");
        }
    }
}

#[test]
fn all_ranks_may_be_new_in_a_group_whose_rank_0_is_not() {
    // The state comes from the rank that has it, even if that is not rank 0.
    let globals = on_ranks(4, |world| {
        let alone = world.split((world.rank() == 2).then_some(0), 0).unwrap();
        let options = LocalOptions::new(3).fragments(3).delay(2);
        let veteran = alone.map(|comm| {
            let mut replica = Replica::<f32>::new(&comm, options).unwrap();
            train(&mut replica, 10);
            replica
        });
        let mut replica = if let Some(mut replica) = veteran {
            rejoin(&mut replica, &world).unwrap();
            replica
        } else {
            let mut values = initial::<f32>(world.rank());
            let training =
                LocalTraining::new(&world, parameter_set::<f32>(), options, slices(&mut values)).unwrap();
            Replica { rank: world.rank(), steps: 10, values, training }
        };
        assert_eq!(replica.training.progress().inner_steps, 10);
        train(&mut replica, 6);
        replica.global()
    });
    assert!(globals.iter().all(|global| *global == globals[0]));
}
