//! A sharded optimizer equals the whole one.

use std::collections::BTreeMap;

use comm_core::{Comm, ReduceOp, ReduceOrder};
use comm_ddp::{AdamW, Error, Optimizer, Parameter, ParameterSet, Sgd, ZeroOptimizer};

use crate::on_ranks;

const SHAPES: [&[usize]; 5] = [&[33, 7], &[1], &[0], &[5, 5, 5], &[1001]];

fn parameters() -> ParameterSet {
    // The names sort in another order than they are registered.
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

fn sharded<O: Optimizer<f32>>(
    comm: &Comm,
    optimizer: &impl Fn(&Parameter) -> O,
    steps: u64,
) -> Vec<Vec<f32>> {
    let mut zero = ZeroOptimizer::new(&deterministic(comm), parameters(), optimizer).unwrap();
    let mut tensors = values(0);
    for step in 1..=steps {
        let gradients = gradients(comm, step);
        zero.step(gradients.iter().map(|gradient| &gradient[..]), slices(&mut tensors)).unwrap();
    }
    tensors
}

#[test]
fn a_sharded_optimizer_has_the_bits_of_the_whole_one() {
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
fn each_rank_keeps_its_share_of_the_state_and_all_shares_cover_it_once() {
    let total: usize = values(0).iter().map(Vec::len).sum();
    for size in [1, 2, 3, 4, 5, 8] {
        let held = on_ranks(size, |comm| {
            let mut zero = ZeroOptimizer::new(&comm, parameters(), |_| AdamW::new(0.1)).unwrap();
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
            let mut zero = ZeroOptimizer::new(&comm, parameters(), |_| AdamW::new(0.1)).unwrap();
            if let Some(saved) = saved {
                for shard in zero.state() {
                    let whole = &saved[&(shard.parameter.name().to_owned(), shard.state)];
                    shard.values.copy_from_slice(&whole[shard.start..][..shard.values.len()]);
                }
                zero.set_steps(steps.start - 1);
            }
            let mut tensors = start.to_vec();
            for step in steps.clone() {
                let gradients = gradients(step);
                zero.step(gradients.iter().map(|gradient| &gradient[..]), slices(&mut tensors)).unwrap();
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
        let mut zero = ZeroOptimizer::new(&comm, parameters(), |_| Sgd::new(1.0)).unwrap();
        let (gradients, mut tensors) = (values(1), values(0));
        let all = || gradients.iter().map(|gradient| &gradient[..]);
        if comm.rank() == 0 {
            assert!(matches!(
                zero.step(all().take(4), slices(&mut tensors)),
                Err(Error::Count { expected: 5, got: 4 })
            ));
            assert!(matches!(zero.step(all().rev(), slices(&mut tensors)), Err(Error::Length { .. })));
            assert_eq!(zero.steps(), 0);
        }
        zero.step(all(), slices(&mut tensors)).unwrap();
        assert_eq!(zero.steps(), 1);
    });
}
