//! Groups grow, lose several ranks, and refuse to continue without all state.

use comm::Comm;
use comm_core::{HostViewMut, ShrinkOptions};
use comm_ddp::{AdamW, Error, Options, Parameter, ParameterSet, Result, Sgd, ZeroOptimizer, check_replicas};
use half::bf16;

use crate::on_ranks;
use crate::training::{
    References, Settings, Survivor, UPDATES, Value, check_survivors, continue_run, deterministic, initial,
    options, parameters, parts, update, whole,
};

/// An optimizer with its parameters.
struct Replica<V, O> {
    zero: ZeroOptimizer<f32, O>,
    tensors: Vec<Vec<V>>,
}

impl<V: Value, O: Settings> Replica<V, O> {
    fn new(comm: &Comm, options: Options) -> Self {
        let zero = ZeroOptimizer::new(comm, parameters::<V>(), options, |_| O::new()).unwrap();
        Self { zero, tensors: initial(0) }
    }

    /// Creates a replica without state, whose options and parameters no rank has.
    fn newcomer(comm: &Comm) -> Self {
        let options = Options::default();
        let zero = ZeroOptimizer::newcomer(comm, parameters::<V>(), options, |_| O::new()).unwrap();
        Self { zero, tensors: initial(77) }
    }

    fn rejoin(&mut self, comm: &Comm) -> Result<()> {
        self.zero.rejoin(comm, &mut self.tensors)
    }

    /// Trains until this update.
    fn train(&mut self, comm: &Comm, until: u64) {
        while self.zero.steps() < until {
            update(comm, &mut self.zero, &mut self.tensors, None).unwrap();
        }
    }
}

/// Trains in groups of ranks of the world, each until some update. Every member of the first group
/// has state; another that enters a later one has none. Members that are not in the next group
/// leave with their state.
fn change_groups<V: Value, O: Settings>(groups: &[(u64, &[usize])], replicates: bool) {
    let world = groups.iter().flat_map(|(_, members)| *members).max().unwrap() + 1;
    let survivors = on_ranks(world, |world| {
        let mut replica: Option<Replica<V, O>> = None;
        let mut sizes = Vec::new();
        for (at, (from, members)) in groups.iter().enumerate() {
            sizes.push((*from, members.len()));
            let until = groups.get(at + 1).map_or(UPDATES, |next| next.0);
            let comm = world.new_group(members).unwrap();
            replica = comm.map(|comm| {
                let comm = deterministic(&comm);
                let mut replica = match replica.take() {
                    None if at == 0 => return Replica::new(&comm, options(replicates)),
                    None => Replica::newcomer(&comm),
                    Some(replica) => replica,
                };
                if at > 0 {
                    replica.rejoin(&comm).unwrap();
                }
                assert_eq!(replica.zero.steps(), *from);
                replica
            });
            let comm = world.new_group(members).unwrap();
            if let Some((replica, comm)) = replica.as_mut().zip(comm) {
                replica.train(&deterministic(&comm), until);
            }
        }
        replica.map(|mut replica| Survivor {
            groups: sizes,
            parts: parts(&mut replica.zero),
            tensors: replica.tensors,
        })
    });
    let survivors: Vec<Survivor<V>> = survivors.into_iter().flatten().collect();
    let mut references = References::<V>::new();
    check_survivors::<V, O>(&survivors, &mut references, &format!("{groups:?}"));
}

#[test]
fn groups_grow_with_or_without_copies() {
    for replicates in [false, true] {
        change_groups::<f32, AdamW>(&[(0, &[0, 1]), (3, &[0, 1, 2])], replicates);
        change_groups::<bf16, AdamW>(&[(0, &[0]), (2, &[0, 1]), (4, &[0, 1, 2, 3, 4])], replicates);
        // The same ranks in another order, and newcomers before them.
        change_groups::<bf16, Sgd>(&[(0, &[1, 2, 3]), (2, &[0, 3, 1, 2, 4])], replicates);
    }
}

#[test]
fn groups_lose_and_gain_ranks_at_once() {
    change_groups::<f32, Sgd>(&[(0, &[0, 1, 2]), (3, &[0, 3, 2, 4])], true);
    // Copies are complete in every new group from its first step on.
    change_groups::<bf16, AdamW>(&[(0, &[0, 1, 2, 3]), (3, &[1, 2, 3]), (3, &[2, 3]), (4, &[3, 0])], true);
    // Two of five that do not follow each other.
    change_groups::<bf16, AdamW>(&[(0, &[0, 1, 2, 3, 4]), (4, &[1, 3, 4])], true);
    change_groups::<f32, AdamW>(&[(0, &[0, 1, 2, 3, 4]), (5, &[3, 0, 1])], true);
}

/// Loses these ranks after some updates, and returns the errors of the others.
fn lose(size: usize, lost: &[usize], updates: u64, replicates: bool) -> Vec<Error> {
    let errors = on_ranks(size, |world| {
        let mut replica = Replica::<bf16, AdamW>::new(&world, options(replicates));
        replica.train(&world, updates);
        let remaining: Vec<usize> = (0..size).filter(|rank| !lost.contains(rank)).collect();
        let comm = world.new_group(&remaining).unwrap()?;
        let before = replica.tensors.clone();
        let error = replica.rejoin(&comm).unwrap_err();
        assert!(before == replica.tensors && replica.zero.steps() == updates);
        Some(error)
    });
    errors.into_iter().flatten().collect()
}

#[test]
fn ranks_whose_state_is_lost_are_named_on_every_rank() {
    let check = |size, lost: &[usize], (updates, replicates), named: &[usize]| {
        let errors = lose(size, lost, updates, replicates);
        assert_eq!(errors.len(), size - lost.len());
        for error in errors {
            assert!(matches!(&error, Error::StateLost { ranks } if ranks == named), "{error}");
        }
    };
    check(4, &[1, 2], (4, true), &[1]);
    check(4, &[3, 0], (4, true), &[3]);
    check(5, &[1, 2, 4, 0], (4, true), &[0, 1, 4]);
    check(3, &[1], (4, false), &[1]);
    // The first copy is made in the second step.
    check(3, &[1], (1, true), &[1]);
    check(2, &[1], (0, true), &[1]);
}

#[test]
fn a_copy_is_made_again_after_state_was_set() {
    let run = |loses: bool, steps: Option<u64>| {
        let ranks = on_ranks(3, |world| {
            let mut replica = Replica::<bf16, AdamW>::new(&world, options(true));
            replica.train(&deterministic(&world), 2);
            // As if loaded from elsewhere.
            for shard in replica.zero.state() {
                shard.values.iter_mut().for_each(|value| *value *= 2.0);
            }
            steps.into_iter().for_each(|steps| replica.zero.set_steps(steps));
            replica.train(&deterministic(&world), 5);
            if loses {
                let comm = world.new_group(&[0, 2]).unwrap()?;
                replica.rejoin(&comm).unwrap();
            }
            Some(parts(&mut replica.zero))
        });
        whole(ranks.into_iter().flatten())
    };
    assert!(run(true, None) == run(false, None));
    assert!(run(true, Some(3)) == run(false, Some(3)));
}

#[test]
fn ranks_with_other_arguments_are_refused_on_every_rank() {
    on_ranks(3, |world| {
        let mut replica = Replica::<f32, AdamW>::new(&world, options(true));
        replica.train(&world, 3);
        let mut tensors = replica.tensors.clone();
        if world.rank() == 1 {
            tensors.pop();
        }
        let refused = replica.zero.rejoin(&world, &mut tensors).unwrap_err();
        if world.rank() == 1 {
            assert!(matches!(refused, Error::Count { expected: 4, got: 3 }), "{refused}");
        } else {
            assert!(matches!(&refused, Error::Refused { ranks } if *ranks == [1]), "{refused}");
        }
        // Nothing has changed, so all can train on.
        replica.train(&world, 4);
    });
}

#[test]
fn a_newcomer_with_another_kind_of_optimizer_is_named_and_cannot_train() {
    on_ranks(3, |world| {
        let mut others = (world.rank() < 2).then_some(());
        let pair = world.new_group(&[0, 1]).unwrap();
        if let (Some(()), Some(pair)) = (others.take(), pair) {
            let mut replica = Replica::<f32, AdamW>::new(&pair, options(true));
            replica.train(&pair, 3);
            let error = replica.rejoin(&world).unwrap_err();
            assert!(matches!(&error, Error::Diverged { ranks, .. } if *ranks == [2]), "{error}");
        } else {
            let mut replica = Replica::<f32, Sgd>::newcomer(&world);
            assert!(matches!(replica.rejoin(&world), Err(Error::Diverged { .. })));
            let error = replica.zero.step().map(drop).unwrap_err();
            assert!(matches!(error.root_cause(), Error::NotJoined), "{error}");
        }
    });
}

#[test]
fn a_run_may_begin_with_newcomers_alone() {
    let ranks = on_ranks(3, |world| {
        let world = deterministic(&world);
        let mut replica = Replica::<f32, AdamW>::newcomer(&world);
        replica.tensors = initial(if world.rank() == 0 { 0 } else { 5 });
        replica.rejoin(&world).unwrap();
        assert_eq!((replica.zero.steps(), &replica.tensors), (0, &initial(0)));
        replica.train(&world, UPDATES);
        replica.tensors
    });
    let mut references = References::<f32>::new();
    let expected = &references.end::<AdamW>(&[(0, 3)]).tensors;
    assert!(ranks.iter().all(|tensors| tensors == expected));
}

#[test]
fn newcomers_may_register_parameters_in_another_order() {
    let ranks = on_ranks(3, |world| {
        let pair = world.new_group(&[0, 1]).unwrap();
        let reversed = || {
            let set = parameters::<f32>();
            let registered = set.slots().iter().rev().map(|slot| set.sorted()[*slot].clone());
            ParameterSet::new(registered.collect::<Vec<_>>()).unwrap()
        };
        if let Some(pair) = pair {
            let mut replica = Replica::<f32, AdamW>::new(&pair, options(true));
            replica.train(&pair, 3);
            replica.rejoin(&world).unwrap();
            return (replica.tensors, parts(&mut replica.zero));
        }
        let mut zero =
            ZeroOptimizer::<f32, _>::newcomer(&world, reversed(), options(true), |_| AdamW::new(0.1))
                .unwrap();
        let mut tensors: Vec<Vec<f32>> = initial::<f32>(9).into_iter().rev().collect();
        zero.rejoin(&world, &mut tensors).unwrap();
        tensors.reverse();
        (tensors, parts(&mut zero))
    });
    let expected = continue_run::<f32, AdamW>(2, None, 1..=3).pop().unwrap();
    assert!(ranks.iter().all(|(tensors, _)| *tensors == expected.tensors));
    assert!(whole(ranks.into_iter().map(|(_, parts)| parts)) == expected.state);
}

#[test]
fn newcomers_get_frozen_parameters_and_those_of_other_types() {
    on_ranks(3, |world| {
        let set = || {
            let frozen = Parameter::new::<f64>("frozen", [3]).frozen();
            let half = Parameter::new::<bf16>("half", [7]);
            ParameterSet::new([frozen, half, Parameter::new::<f32>("single", [5])]).unwrap()
        };
        let (mut frozen, mut half, mut single) = ([world.rank() as f64; 3], [bf16::ONE; 7], [1.0_f32; 5]);
        let mut zero = match world.new_group(&[0, 1]).unwrap() {
            Some(pair) => {
                let options = Options::default().replicate_state(true);
                let mut zero =
                    ZeroOptimizer::<f32, _>::new(&pair, set(), options, |_| AdamW::new(0.1)).unwrap();
                for _ in 0..3 {
                    let mut step = zero.step().unwrap();
                    step.ready(1, &[bf16::ONE; 7]).unwrap();
                    step.ready(2, &[1.0_f32; 5]).unwrap();
                    let values = [HostViewMut::new(&mut half), HostViewMut::new(&mut single)];
                    step.finish().unwrap().update(values).unwrap();
                }
                zero
            }
            None => {
                (half, single) = ([bf16::ZERO; 7], [0.0; 5]);
                ZeroOptimizer::newcomer(&world, set(), Options::default(), |_| AdamW::new(0.1)).unwrap()
            }
        };
        let values =
            [HostViewMut::new(&mut frozen), HostViewMut::new(&mut half), HostViewMut::new(&mut single)];
        zero.rejoin(&world, values).unwrap();
        assert!(frozen == [0.0; 3] && half[0] != bf16::ZERO && single[0] != 0.0);
        let digest = format!("{half:?} {single:?}");
        check_replicas(&world, [("values", digest.as_bytes())]).unwrap();
        assert!(zero.state().any(|shard| shard.state == "square" && shard.values.iter().all(|v| *v > 0.0)));
    });
}

/// A rank is lost while the others rejoin; they do so again without it.
#[test]
fn a_rank_may_be_lost_while_others_rejoin() {
    let shrink = ShrinkOptions::default();
    let survivors = on_ranks(4, |world| {
        let mut run = crate::training::Run::<bf16, AdamW>::new(&world).unwrap();
        while run.zero.steps() < 3 {
            update(&run.comm, &mut run.zero, &mut run.tensors, None).unwrap();
        }
        if world.rank() == 1 {
            return None;
        }
        update(&run.comm, &mut run.zero, &mut run.tensors, None).unwrap_err();
        let comm = run.comm.shrink(&shrink).unwrap().comm;
        if world.rank() == 3 {
            return None;
        }
        let mut own = run.tensors.clone();
        run.zero.rejoin(&comm, &mut own).unwrap_err();
        assert!(own == run.tensors, "parameters changed before all ranks had them");
        run.comm = comm;
        run.go_on(&shrink).unwrap();
        run.train(None, &shrink).unwrap();
        Some(run.into_survivor())
    });
    let survivors: Vec<Survivor<bf16>> = survivors.into_iter().flatten().collect();
    assert_eq!(survivors[0].groups, [(0, 4), (3, 2)]);
    check_survivors::<bf16, AdamW>(&survivors, &mut References::new(), "two ranks are lost");
}
