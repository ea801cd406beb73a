//! The result of a step is the exact average of its gradients.

use crate::on_ranks;
use comm_core::{Comm, DType, Element};
use comm_ddp::{BucketLimits, DataParallel, Error, Options, Parameter, ParameterSet};

const WORLDS: [usize; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
const LENGTHS: [usize; 6] = [3, 0, 17, 1, 64, 5];

/// Three buckets or more.
const SMALL: Options = Options::DEFAULT
    .limits(BucketLimits::DEFAULT.first_bytes(64).bytes(128))
    .follow_first_step(true)
    .clock(std::time::Instant::now);

fn parameters<T: Element>() -> ParameterSet {
    let named = |(index, len): (usize, &usize)| Parameter::new::<T>(format!("p{index}"), [*len]);
    ParameterSet::new(LENGTHS.iter().enumerate().map(named)).expect("names differ")
}

fn replicas<T: Element>(comm: &Comm) -> DataParallel {
    DataParallel::new(comm, parameters::<T>(), SMALL).expect("the models agree")
}

/// An integer that differs by rank, step, parameter and element, and is divisible by every world
/// size up to 9, so that the average is an integer too: nothing is ever rounded.
fn integer(rank: usize, step: usize, index: usize, at: usize) -> i32 {
    (2520 * ((rank + 1) * (index + 2) + 3 * at + step) % (1 << 18)) as i32 / 2520 * 2520
}

fn gradient(rank: usize, step: usize, index: usize) -> Vec<f64> {
    (0..LENGTHS[index]).map(|at| f64::from(integer(rank, step, index, at))).collect()
}

fn average(size: usize, step: usize, index: usize) -> Vec<f64> {
    let sum = |at| (0..size).map(|rank| f64::from(integer(rank, step, index, at))).sum::<f64>();
    (0..LENGTHS[index]).map(|at| sum(at) / size as f64).collect()
}

/// The order in which a rank's backward finds gradients: different on every rank and in every step.
fn order(rank: usize, step: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..LENGTHS.len()).collect();
    order.rotate_left((rank + step) % LENGTHS.len());
    if rank % 2 == 1 {
        order.reverse();
    }
    order
}

#[test]
fn averages_are_exact_in_every_order_of_gradients() {
    for size in WORLDS {
        on_ranks(size, |comm| {
            let mut replicas = replicas::<f64>(&comm);
            for number in 0..4 {
                let mut step = replicas.step().unwrap();
                for index in order(comm.rank(), number) {
                    step.ready(index, &gradient(comm.rank(), number, index)).unwrap();
                }
                let averaged = step.finish().unwrap();
                for (index, got) in averaged.iter::<f64>().unwrap().enumerate() {
                    assert_eq!(got, average(size, number, index), "{size} ranks, step {number}, {index}");
                    assert!(!averaged.is_unused(index));
                }
            }
        });
    }
}

#[test]
fn every_floating_point_type_is_averaged() {
    fn check<T: Element + From<i8>>(comm: &Comm) {
        let mut replicas = replicas::<T>(comm);
        let mut step = replicas.step().unwrap();
        for (index, &len) in LENGTHS.iter().enumerate() {
            step.ready(index, &vec![T::from(comm.rank() as i8 * 2); len]).unwrap();
        }
        let averaged = step.finish().unwrap();
        let expected = T::from(comm.size() as i8 - 1);
        assert!(averaged.iter::<T>().unwrap().flatten().all(|value| *value == expected), "{}", T::DTYPE);
    }
    on_ranks(3, |comm| {
        check::<half::f16>(&comm);
        check::<half::bf16>(&comm);
        check::<f32>(&comm);
        check::<f64>(&comm);
    });
}

#[test]
fn integers_are_refused_before_anything_is_sent() {
    on_ranks(2, |comm| {
        let refused = DataParallel::new(&comm, parameters::<i32>(), SMALL).unwrap_err();
        let expected = comm_core::Invalid::Op { op: comm_core::ReduceOp::Avg, dtype: DType::I32 };
        assert!(matches!(refused, Error::Comm(comm_core::Error::Invalid(found)) if found == expected));
    });
}

#[test]
fn gradients_can_be_written_in_place() {
    on_ranks(3, |comm| {
        let mut replicas = replicas::<f64>(&comm);
        for number in 0..3 {
            let mut step = replicas.step().unwrap();
            for index in (0..LENGTHS.len()).rev() {
                let memory = step.gradient_mut::<f64>(index).unwrap();
                assert!(
                    memory.iter().all(|value| *value == 0.0),
                    "the memory contains values of the last step"
                );
                memory.copy_from_slice(&gradient(comm.rank(), number, index));
                step.mark_ready(index).unwrap();
            }
            let averaged = step.finish().unwrap();
            assert!(
                (0..LENGTHS.len())
                    .all(|index| averaged.get::<f64>(index).unwrap() == average(3, number, index))
            );
        }
    });
}

#[test]
fn gradients_can_be_overwritten_without_zeroing() {
    on_ranks(3, |comm| {
        let mut replicas = replicas::<f64>(&comm);
        for number in 0..3 {
            let mut step = replicas.step().unwrap();
            for index in (0..LENGTHS.len()).rev() {
                // The accumulated gradient is overwritten.
                step.accumulate(index, &vec![1.0; LENGTHS[index]]).unwrap();
                let memory = step.overwrite::<f64>(index).unwrap();
                memory.copy_from_slice(&gradient(comm.rank(), number, index));
                step.mark_ready(index).unwrap();
            }
            let averaged = step.finish().unwrap();
            for index in 0..LENGTHS.len() {
                assert_eq!(averaged.get::<f64>(index).unwrap(), average(3, number, index));
            }
        }
    });
}

#[test]
fn gradients_of_several_backward_passes_accumulate_before_they_are_averaged() {
    for passes in [1, 3, 8] {
        on_ranks(4, |comm| {
            let mut replicas = replicas::<f64>(&comm);
            for _ in 0..2 {
                let mut step = replicas.step().unwrap();
                for pass in 0..passes - 1 {
                    for index in order(comm.rank(), pass) {
                        step.accumulate(index, &gradient(comm.rank(), pass, index)).unwrap();
                    }
                }
                for index in order(comm.rank(), passes) {
                    step.ready(index, &gradient(comm.rank(), passes - 1, index)).unwrap();
                }
                let averaged = step.finish().unwrap();
                for (index, got) in averaged.iter::<f64>().unwrap().enumerate() {
                    let passes: Vec<Vec<f64>> = (0..passes).map(|pass| average(4, pass, index)).collect();
                    let sum = |at: usize| passes.iter().map(|pass| pass[at]).sum();
                    assert_eq!(got, (0..got.len()).map(sum).collect::<Vec<f64>>());
                }
            }
        });
    }
}

#[test]
fn averages_can_be_scaled_in_place() {
    on_ranks(2, |comm| {
        let mut replicas = replicas::<f64>(&comm);
        let mut step = replicas.step().unwrap();
        step.ready(0, &[2.0, 4.0, 6.0]).unwrap();
        let mut averaged = step.finish().unwrap();
        averaged.get_mut::<f64>(0).unwrap().iter_mut().for_each(|value| *value /= 2.0);
        assert_eq!(averaged.get::<f64>(0).unwrap(), [1.0, 2.0, 3.0]);
        assert!(matches!(averaged.get::<f64>(LENGTHS.len()), Err(Error::UnknownParameter { .. })));
        assert!(matches!(averaged.get::<f32>(0), Err(Error::WrongType { got: DType::F32, .. })));
    });
}

#[test]
fn a_model_without_parameters_is_valid() {
    on_ranks(2, |comm| {
        let mut replicas = DataParallel::new(&comm, ParameterSet::new([]).unwrap(), SMALL).unwrap();
        replicas.broadcast_parameters::<&mut [f32]>([]).unwrap();
        for _ in 0..2 {
            assert_eq!(replicas.step().unwrap().finish().unwrap().iter::<f32>().unwrap().count(), 0);
        }
    });
}

#[test]
fn every_rank_starts_from_the_parameters_of_rank_0() {
    for size in [1, 2, 3, 8] {
        on_ranks(size, |comm| {
            let mut values: Vec<Vec<f64>> =
                (0..LENGTHS.len()).map(|index| gradient(comm.rank(), 5, index)).collect();
            let mut replicas = replicas::<f64>(&comm);
            replicas.broadcast_parameters(values.iter_mut().map(Vec::as_mut_slice)).unwrap();
            for (index, value) in values.iter().enumerate() {
                assert_eq!(*value, gradient(0, 5, index));
            }
        });
    }
}

#[test]
fn the_plan_follows_the_first_step_of_rank_0() {
    let plans = on_ranks(3, |comm| {
        let mut replicas = replicas::<f64>(&comm);
        let first = replicas.plan().clone();
        for number in 0..2 {
            let mut step = replicas.step().unwrap();
            for index in order(comm.rank(), 2) {
                step.ready(index, &gradient(comm.rank(), number, index)).unwrap();
            }
            step.finish().unwrap();
        }
        (first, replicas.plan().clone())
    });
    let slots = |plan: &comm_ddp::BucketPlan| -> Vec<usize> {
        plan.buckets().iter().flat_map(|bucket| bucket.slots().to_vec()).collect()
    };
    // Names sort in the order of registration, so slots are indices.
    assert_eq!(slots(&plans[0].0), [5, 4, 3, 2, 1, 0]);
    assert_eq!(slots(&plans[0].1), order(0, 2));
    assert!(plans.iter().all(|plan| *plan == plans[0]));
}

#[test]
fn the_norm_is_bit_identical_on_ranks_that_register_in_different_orders() {
    on_ranks(3, |comm| {
        let named = |index: usize| Parameter::new::<f32>(format!("p{index}"), [1]);
        let registered: Vec<usize> = match comm.rank() {
            0 => (0..9).collect(),
            1 => (0..9).rev().collect(),
            _ => (4..9).chain(0..4).collect(),
        };
        let set = ParameterSet::new(registered.iter().map(|index| named(*index))).unwrap();
        let mut replicas = DataParallel::new(&comm, set, SMALL).unwrap();
        for number in 0..20 {
            let mut step = replicas.step().unwrap();
            for (at, index) in registered.iter().enumerate() {
                step.ready(at, &[1.0 / (7 * index + number + 3) as f32]).unwrap();
            }
            let norm = step.finish().unwrap().norm().unwrap().to_bits();
            assert_eq!(comm.all_gather_scalar(norm).unwrap(), [norm; 3]);
        }
    });
}
