use comm_core::{Element, ShrinkOptions};
use half::bf16;

use super::*;
use crate::shard_state::{Part, before};
use crate::{AdamW, BucketLimits, Sgd};

const LENGTHS: [usize; 3] = [37, 5, 130];

fn set<V: Element>() -> ParameterSet {
    let named = |(index, len): (usize, &usize)| Parameter::new::<V>(format!("p{index}"), [*len]);
    ParameterSet::new(LENGTHS.iter().enumerate().map(named)).unwrap()
}

fn options() -> Options {
    let limits = BucketLimits::DEFAULT.first_bytes(32).bytes(100);
    Options::default().limits(limits).replicate_state(true)
}

fn values<V: Element>(seed: u64, of: fn(f32) -> V) -> Vec<Vec<V>> {
    let number = |index: usize, at: usize| ((seed * 31 + (index * 7 + at) as u64) as f32 * 0.618).sin();
    (0..3).map(|index| (0..LENGTHS[index]).map(|at| of(number(index, at))).collect()).collect()
}

fn update<V: Element, O: Optimizer<f32>>(
    comm: &Comm,
    zero: &mut ZeroOptimizer<f32, O>,
    tensors: &mut [Vec<V>],
    of: fn(f32) -> V,
) -> Result<()> {
    let mut step = zero.step()?;
    let gradients = values(100 * (step.shards.state.steps + 1) + comm.rank() as u64, of);
    for (index, gradient) in gradients.iter().enumerate() {
        step.ready(index, gradient)?;
    }
    let mut averages = step.finish()?;
    averages.clip_norm(0.5)?;
    averages.update(tensors.iter_mut())
}

/// Returns the bits of a block: the states of its parts, and the values of 16-bit parameters.
fn bits(block: &mut [Vec<Part<f32>>]) -> Vec<u32> {
    block.iter_mut().flatten().flat_map(Part::arrays_mut).flatten().map(|value| value.to_bits()).collect()
}

#[test]
fn after_every_step_a_rank_has_the_exact_state_of_the_rank_before_it() {
    fn check<V: Element, O: Optimizer<f32>>(of: fn(f32) -> V, optimizer: fn() -> O) {
        for (size, has_hook) in [(2, false), (3, false), (4, false), (5, false), (3, true)] {
            let ranks = comm::threads::run(size, |comm| {
                let mut zero = ZeroOptimizer::new(&comm, set::<V>(), options(), |_| optimizer()).unwrap();
                if has_hook {
                    zero.register_comm_hook(crate::CastHook::bf16()).unwrap();
                }
                // Ranks may begin with different parameters: each updates its own block of them.
                let mut tensors = values(comm.rank() as u64, of);
                let mut after_steps = Vec::new();
                for number in 0..6 {
                    if number == 3 {
                        // As a checkpoint does on every rank, or the log of one.
                        zero.state().for_each(drop);
                    }
                    update(&comm, &mut zero, &mut tensors, of).unwrap();
                    let state = &mut zero.shards.state;
                    after_steps.push((bits(&mut state.own), bits(&mut state.neighbor), state.has_replica));
                }
                after_steps
            });
            let ranks = ranks.unwrap();
            for (rank, after_steps) in ranks.iter().enumerate() {
                let owner = &ranks[before(Membership { rank, size })];
                for (number, (_, copy, is_valid)) in after_steps.iter().enumerate() {
                    assert_eq!(*is_valid, number > 0);
                    assert!(!is_valid || *copy == owner[number].0, "step {number}, rank {rank} of {size}");
                }
            }
        }
    }
    let momentum = || Sgd::new(0.1).momentum(0.9).weight_decay(0.1);
    check(|value| value, momentum);
    check(|value| value, || AdamW::new(0.01));
    check(bf16::from_f32, momentum);
    check(bf16::from_f32, || AdamW::new(0.01));
}

/// Some ranks have all blocks of the last update; to others the last of them did not come.
#[test]
fn ranks_that_are_one_update_apart_complete_it_if_any_rank_that_remains_has() {
    for (behind, last) in [(vec![0, 3], 4), (vec![2], 4), (vec![0, 2, 3], 3)] {
        let ends = comm::threads::run(4, |comm| {
            let mut zero = ZeroOptimizer::new(&comm, set::<bf16>(), options(), |_| AdamW::new(0.01)).unwrap();
            let mut tensors = values(0, bf16::from_f32);
            let mut snapshots = Vec::new();
            for _ in 0..4 {
                snapshots.push(tensors.clone());
                update(&comm, &mut zero, &mut tensors, bf16::from_f32).unwrap();
            }
            snapshots.push(tensors.clone());
            // Returns to the moment before the end of the update.
            if behind.contains(&comm.rank()) {
                let Shards { state, next, .. } = &mut zero.shards;
                std::mem::swap(state, next);
                (state.content, next.content) = (Content::Complete, Content::Complete);
                tensors.clone_from(&snapshots[3]);
            }
            if comm.rank() == 1 {
                return None;
            }
            let comm = comm.shrink(&ShrinkOptions::default()).unwrap().comm;
            zero.rejoin(&comm, &mut tensors).unwrap();
            assert_eq!(zero.steps(), last);
            assert!(tensors == snapshots[last as usize]);
            update(&comm, &mut zero, &mut tensors, bf16::from_f32).unwrap();
            let masters: Vec<f32> = zero
                .state()
                .filter(|shard| shard.state == "master")
                .flat_map(|shard| shard.values.to_vec())
                .collect();
            Some((tensors, masters))
        });
        let ends: Vec<_> = ends.unwrap().into_iter().flatten().collect();
        assert!(ends.len() == 3 && ends.iter().all(|end| end.0 == ends[0].0));
        assert_eq!(ends.iter().map(|end| end.1.len()).sum::<usize>(), LENGTHS.iter().sum::<usize>());
    }
}

/// One rank has left the barrier after the state of the new group was received, and the others have
/// not.
#[test]
fn a_state_that_one_rank_knows_all_to_have_is_used_by_all() {
    comm::threads::run(3, |comm| {
        let mut zero = ZeroOptimizer::new(&comm, set::<f32>(), options(), |_| AdamW::new(0.01)).unwrap();
        let mut tensors = values(0, |value| value);
        for _ in 0..3 {
            update(&comm, &mut zero, &mut tensors, |value| value).unwrap();
        }
        let expected = tensors.clone();
        let other = comm.duplicate().unwrap();
        let claims = zero.claim(false).all_gather(&other).unwrap();
        let takeover = claim::choose(&claims).unwrap();
        zero.incoming = Some(Box::new(zero.receive(other, &takeover, &mut tensors).unwrap()));
        if comm.rank() == 1 {
            zero.enter(&mut tensors).unwrap();
        } else {
            // The parameters have come, but this rank could not copy them.
            tensors = values(9, |value| value);
            zero.shards.has_parameters = false;
        }
        zero.rejoin(&comm, &mut tensors).unwrap();
        assert_eq!((zero.steps(), zero.shards.state.rejoins, &tensors), (3, 2, &expected));
        update(&comm, &mut zero, &mut tensors, |value| value).unwrap();
    })
    .unwrap();
}
