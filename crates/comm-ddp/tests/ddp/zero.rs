//! A sharded optimizer equals the whole one.

use std::collections::BTreeMap;

use comm_core::{Comm, ReduceOp, ReduceOrder};
use comm_ddp::{
    AdamW, BucketLimits, DataParallel, Error, Optimizer, Options, Parameter, ParameterSet, Scalar, Sgd,
    ZeroOptimizer,
};

use crate::on_ranks;

const SHAPES: [&[usize]; 5] = [&[33, 7], &[1], &[0], &[5, 5, 5], &[1001]];

fn parameters() -> ParameterSet {
    // The names do not sort in the order of registration.
    let named = |(index, shape): (usize, &&[usize])| Parameter::new::<f32>(format!("p{}", 9 - index), *shape);
    ParameterSet::new(SHAPES.iter().enumerate().map(named)).unwrap()
}

fn values(seed: usize) -> Vec<Vec<f32>> {
    let tensor = |(index, shape): (usize, &&[usize])| {
        let number = |at| ((seed * 7919 + index * 131 + at) as f32 * 0.618).sin();
        (0..shape.iter().product()).map(number).collect()
    };
    SHAPES.iter().enumerate().map(tensor).collect()
}

fn gradients(comm: &Comm, step: u64) -> Vec<Vec<f32>> {
    values(100 + 10 * step as usize + comm.rank())
}

fn slices(tensors: &mut [Vec<f32>]) -> impl Iterator<Item = &mut [f32]> {
    tensors.iter_mut().map(|tensor| &mut tensor[..])
}

fn deterministic(comm: &Comm) -> Comm {
    comm.with_reduce_order(ReduceOrder::Deterministic)
}

/// Trains with an all-reduce and the whole optimizer on every rank.
fn whole<O: Optimizer<f32>>(comm: &Comm, optimizer: &impl Fn(&Parameter) -> O, steps: u64) -> Vec<Vec<f32>> {
    let (comm, set) = (deterministic(comm), parameters());
    let mut tensors = values(0);
    let optimizers: Vec<O> = set.sorted().iter().map(optimizer).collect();
    let mut states: Vec<Vec<Vec<f32>>> = (0..SHAPES.len())
        .map(|index| vec![vec![0.0; tensors[index].len()]; optimizers[0].state_names().len()])
        .collect();
    for step in 1..=steps {
        for (index, mut gradient) in gradients(&comm, step).into_iter().enumerate() {
            comm.all_reduce(&mut gradient, ReduceOp::Avg).unwrap();
            let mut states: Vec<&mut [f32]> = states[index].iter_mut().map(|state| &mut state[..]).collect();
            optimizers[set.slots()[index]].update(step, &mut tensors[index], &gradient, &mut states);
        }
    }
    tensors
}

/// Buckets of a few hundred elements, so that parameters span several blocks and buckets.
fn options() -> Options {
    Options::default().limits(BucketLimits::DEFAULT.first_bytes(512).bytes(2048))
}

fn update<T: Scalar, O: Optimizer<T>>(
    zero: &mut ZeroOptimizer<T, O>,
    gradients: &[Vec<T>],
    tensors: &mut [Vec<T>],
) {
    let mut step = zero.step().unwrap();
    for (index, gradient) in gradients.iter().enumerate().rev() {
        step.ready(index, gradient).unwrap();
    }
    step.finish().unwrap().update(tensors.iter_mut().map(|tensor| &mut tensor[..])).unwrap();
}

fn sharded<O: Optimizer<f32>>(
    comm: &Comm,
    optimizer: &impl Fn(&Parameter) -> O,
    steps: u64,
) -> Vec<Vec<f32>> {
    let mut zero =
        ZeroOptimizer::<f32, _>::new(&deterministic(comm), parameters(), options(), optimizer).unwrap();
    let mut tensors = values(0);
    for step in 1..=steps {
        update(&mut zero, &gradients(comm, step), &mut tensors);
    }
    tensors
}

#[test]
fn a_sharded_optimizer_is_bit_identical_to_an_unsharded_one() {
    fn check<O: Optimizer<f32>>(optimizer: impl Fn(&Parameter) -> O + Sync) {
        for size in [1, 2, 3, 4, 5, 8] {
            let results = on_ranks(size, |comm| (whole(&comm, &optimizer, 6), sharded(&comm, &optimizer, 6)));
            for (whole, sharded) in &results {
                assert!(whole == sharded && sharded == &results[0].1, "{size} ranks");
            }
        }
    }
    let decay = |parameter: &Parameter| if parameter.shape().len() > 1 { 0.1 } else { 0.0 };
    check(|parameter| AdamW::new(1e-2).weight_decay(decay(parameter)));
    check(|parameter| Sgd::new(0.1).momentum(0.9).weight_decay(decay(parameter)));
    check(|_| Sgd::new(0.1));
}

#[test]
fn shards_cover_the_state_exactly_once() {
    let total: usize = values(0).iter().map(Vec::len).sum();
    for size in [1, 2, 3, 4, 5, 8] {
        let held = on_ranks(size, |comm| {
            let mut zero =
                ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| AdamW::new(0.1)).unwrap();
            let shard = |shard: comm_ddp::StateShard<'_, f32>| {
                let name = (shard.parameter.name().to_owned(), shard.state);
                (name, shard.start..shard.start + shard.values.len())
            };
            zero.state().map(shard).collect::<Vec<_>>()
        });
        let mut covered = BTreeMap::new();
        for shards in held {
            let elements: usize = shards.iter().map(|(_, range)| range.len()).sum();
            assert!(elements <= 2 * (total.div_ceil(size) + SHAPES.len()), "{elements} of {total} on {size}");
            shards.into_iter().for_each(|(name, range)| covered.entry(name).or_insert(vec![]).push(range));
        }
        assert_eq!(covered.len(), 8, "four parameters have elements, and two states each");
        for ranges in covered.values_mut() {
            ranges.sort_by_key(|range| range.start);
            assert!(ranges[0].start == 0 && ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}

#[test]
fn a_run_resumed_at_another_number_of_ranks_continues_with_the_same_state() {
    // Integers and powers of two: averages over any number of ranks are exact.
    let gradients = |step: u64| -> Vec<Vec<f32>> {
        let tensor = |shape: &&[usize]| {
            (0..shape.iter().product()).map(|at| (at as f32 % 8.0) + step as f32).collect()
        };
        SHAPES.iter().map(tensor).collect()
    };
    let run = |size: usize,
               saved: Option<&BTreeMap<(String, &'static str), Vec<f32>>>,
               steps: std::ops::Range<u64>,
               start: &[Vec<f32>]| {
        let results = on_ranks(size, |comm| {
            let mut zero =
                ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| AdamW::new(0.1)).unwrap();
            if let Some(saved) = saved {
                for shard in zero.state() {
                    let whole = &saved[&(shard.parameter.name().to_owned(), shard.state)];
                    shard.values.copy_from_slice(&whole[shard.start..][..shard.values.len()]);
                }
                zero.set_steps(steps.start - 1);
            }
            let mut tensors = start.to_vec();
            for step in steps.clone() {
                update(&mut zero, &gradients(step), &mut tensors);
            }
            let shard = |shard: comm_ddp::StateShard<'_, f32>| {
                ((shard.parameter.name().to_owned(), shard.state), shard.start, shard.values.to_vec())
            };
            (tensors, zero.state().map(shard).collect::<Vec<_>>())
        });
        let mut state: BTreeMap<(String, &'static str), Vec<f32>> = BTreeMap::new();
        let tensors = results[0].0.clone();
        for (name, start, values) in results.into_iter().flat_map(|(_, shards)| shards) {
            let whole = state.entry(name).or_default();
            whole.resize(whole.len().max(start + values.len()), 0.0);
            whole[start..start + values.len()].copy_from_slice(&values);
        }
        (tensors, state)
    };
    let uninterrupted = run(4, None, 1..7, &values(0));
    let (tensors, state) = run(2, None, 1..4, &values(0));
    assert_eq!(run(8, Some(&state), 4..7, &tensors), uninterrupted);
}

#[test]
fn slices_that_do_not_match_the_parameters_are_refused_before_anything_is_sent() {
    on_ranks(2, |comm| {
        let mut zero =
            ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| Sgd::new(1.0)).unwrap();
        let mut tensors = values(0);
        let mut averages = zero.step().unwrap().finish().unwrap();
        if comm.rank() == 0 {
            let refused = averages.update(slices(&mut tensors).take(4));
            assert!(matches!(refused, Err(Error::Count { expected: 5, got: 4 })));
            let mut reversed: Vec<_> = slices(&mut tensors).collect();
            reversed.reverse();
            assert!(matches!(averages.update(reversed), Err(Error::Length { .. })));
        }
        averages.update(slices(&mut tensors)).unwrap();
        assert_eq!(zero.steps(), 1);
    });
}

#[test]
fn clipping_weights_and_uneven_batches_match_unsharded_gradients() {
    for size in [1, 2, 3, 5] {
        let results = on_ranks(size, |comm| {
            let comm = deterministic(&comm);
            let mut zero =
                ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| Sgd::new(0.5)).unwrap();
            let mut replicas = DataParallel::new(&comm, parameters(), options()).unwrap();
            let (mut sharded, mut whole) = (values(0), values(0));
            let mut norms = Vec::new();
            // Rank 0 has one batch, rank 1 two, and so on.
            for number in 0..=comm.rank().max(size - 1) {
                let (gradients, weight) =
                    (gradients(&comm, number as u64), (comm.rank() + 2 * number + 1) as f64);
                if number <= comm.rank() {
                    let mut step = zero.step_with_weight(weight).unwrap();
                    let mut other = replicas.step_with_weight(weight).unwrap();
                    for (index, gradient) in gradients.iter().enumerate() {
                        step.ready(index, gradient).unwrap();
                        other.ready(index, gradient).unwrap();
                    }
                    let mut averages = step.finish().unwrap();
                    norms.push(averages.clip_norm(0.5).unwrap());
                    averages.update(slices(&mut sharded)).unwrap();
                    apply(other.finish().unwrap(), &mut whole, norms[number]);
                } else {
                    let mut averages = zero.join().unwrap().unwrap();
                    norms.push(averages.clip_norm(0.5).unwrap());
                    averages.update(slices(&mut sharded)).unwrap();
                    apply(replicas.join().unwrap().unwrap(), &mut whole, norms[number]);
                }
            }
            assert!(zero.join().unwrap().is_none());
            for (sharded, whole) in sharded.iter().flatten().zip(whole.iter().flatten()) {
                assert!((sharded - whole).abs() < 1e-5, "{sharded} {whole}");
            }
            (sharded, norms)
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }
}

/// Updates all parameters with averages that are clipped to a norm of 0.5.
fn apply(mut averaged: comm_ddp::Averaged<'_>, tensors: &mut [Vec<f32>], norm: f64) {
    assert!((averaged.clip_norm(0.5).unwrap() / norm - 1.0).abs() < 1e-6);
    for (tensor, gradient) in tensors.iter_mut().zip(averaged.iter::<f32>().unwrap()) {
        tensor.iter_mut().zip(gradient).for_each(|(value, slope)| *value -= 0.5 * slope);
    }
}

#[test]
fn a_nonfinite_gradient_makes_the_norm_nonfinite_on_every_rank() {
    on_ranks(3, |comm| {
        let mut zero =
            ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| AdamW::new(0.1)).unwrap();
        let mut tensors = values(0);
        let mut step = zero.step().unwrap();
        let mut gradients = gradients(&comm, 1);
        if comm.rank() == 2 {
            gradients[4][700] = f32::NAN;
        }
        for (index, gradient) in gradients.iter().enumerate() {
            step.ready(index, gradient).unwrap();
        }
        // Every rank skips the update, and the next step is as usual.
        assert!(step.finish().unwrap().norm().unwrap().is_nan());
        assert_eq!(zero.steps(), 0);
        update(&mut zero, &values(3), &mut tensors);
        assert!(tensors.iter().flatten().all(|value| value.is_finite()));
    });
}

#[test]
fn blocks_are_reduced_while_backward_runs() {
    let launched = on_ranks(2, |comm| {
        let mut zero =
            ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| Sgd::new(1.0)).unwrap();
        let mut step = zero.step().unwrap();
        let gradients = values(comm.rank());
        for (index, gradient) in gradients.iter().enumerate().rev() {
            step.ready(index, gradient).unwrap();
        }
        let averages = step.finish().unwrap();
        let timeline = averages.averaged().timeline();
        (timeline.buckets.len() > 1).then(|| timeline.buckets[0].launched < timeline.buckets[1].filled)
    });
    assert_eq!(launched, [Some(true); 2]);
}

#[test]
fn a_parameter_without_a_gradient_on_any_rank_is_not_updated() {
    for size in [1, 2, 3, 5] {
        on_ranks(size, |comm| {
            let decayed = |_: &Parameter| AdamW::new(0.1).weight_decay(0.5);
            let mut zero = ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), decayed).unwrap();
            let mut tensors = values(0);
            for number in 1..3 {
                let mut step = zero.step().unwrap();
                // Only the last rank has a gradient of the first parameter, and none has one of
                // the last.
                for (index, gradient) in gradients(&comm, number).iter().enumerate().take(4) {
                    if index > 0 || comm.rank() + 1 == size {
                        step.ready(index, gradient).unwrap();
                    }
                }
                step.finish().unwrap().update(slices(&mut tensors)).unwrap();
            }
            assert!(tensors[4] == values(0)[4]);
            for index in [0, 1, 3] {
                assert!(tensors[index].iter().zip(&values(0)[index]).all(|(now, before)| now != before));
            }
        });
    }
}

#[test]
fn parameters_that_are_written_one_at_a_time_get_the_same_update() {
    let optimizer = |_: &Parameter| AdamW::new(1e-2);
    for size in [1, 2, 3, 5] {
        on_ranks(size, |comm| {
            let mut zero =
                ZeroOptimizer::<f32, _>::new(&deterministic(&comm), parameters(), options(), optimizer)
                    .unwrap();
            let mut tensors = values(0);
            for number in 1..=3 {
                let mut step = zero.step().unwrap();
                for (index, gradient) in gradients(&comm, number).iter().enumerate() {
                    step.ready(index, gradient).unwrap();
                }
                let access = |index: usize, visit: &mut dyn FnMut(&mut [f32])| {
                    visit(&mut tensors[index]);
                    Ok(())
                };
                step.finish().unwrap().update_with(access).unwrap();
            }
            assert!(tensors == sharded(&comm, &optimizer, 3));
        });
    }
}

#[test]
fn a_parameter_that_cannot_be_accessed_ends_the_step_on_every_rank() {
    on_ranks(3, |comm| {
        let mut zero =
            ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| Sgd::new(1.0)).unwrap();
        let mut tensors = values(0);
        let updated = zero.step().unwrap().finish().unwrap().update_with(|index, visit| {
            if comm.rank() == 1 && index == 3 {
                visit(&mut []);
            } else {
                visit(&mut tensors[index]);
            }
            Ok(())
        });
        match updated.unwrap_err() {
            Error::Length { expected: 125, got: 0, .. } => assert_eq!(comm.rank(), 1),
            Error::Comm(comm_core::Error::Aborted { by: 1, .. }) => assert_ne!(comm.rank(), 1),
            other => panic!("{other}"),
        }
        assert!(matches!(zero.step(), Err(Error::Poisoned(_))));
    });
}

#[test]
fn settings_can_change_between_steps() {
    on_ranks(2, |comm| {
        let mut zero =
            ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| Sgd::new(1.0)).unwrap();
        let mut tensors = values(0);
        for (parameter, sgd) in zero.settings_mut() {
            sgd.learning_rate = if parameter.name() == "p5" { 0.5 } else { 0.0 };
        }
        update(&mut zero, &values(0), &mut tensors);
        assert_eq!(tensors[..4], values(0)[..4]);
        assert!(tensors[4].iter().zip(&values(0)[4]).all(|(now, before)| *now == before / 2.0));
    });
}
