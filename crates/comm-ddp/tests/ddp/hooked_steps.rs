//! Steps with hooks: weights, ranks without a batch, infinities, clipping and element types.

use comm_core::{Comm, Element, ReduceOp, wire};
use comm_ddp::{
    BucketLimits, CastHook, CommHook, DataParallel, GradBucket, HookError, Options, Parameter, ParameterSet,
    PowerSgdHook, QuantizationHook, Step,
};
use half::bf16;

use crate::on_ranks;

const SHAPES: [&[usize]; 3] = [&[12, 20], &[30], &[70]];

fn len(index: usize) -> usize {
    SHAPES[index].iter().product()
}

/// Several buckets, which are rebuilt after the first step.
fn replicas<T: Element>(comm: &Comm, options: Options) -> DataParallel {
    let named = |(index, shape): (usize, &&[usize])| Parameter::new::<T>(format!("p{index}"), *shape);
    let set = ParameterSet::new(SHAPES.iter().enumerate().map(named)).unwrap();
    DataParallel::new(comm, set, options.limits(BucketLimits::DEFAULT.first_bytes(64).bytes(512))).unwrap()
}

fn noise(rank: usize, step: usize, index: usize) -> Vec<f32> {
    let number = |at| (wire::digest([rank as u64, step as u64, index as u64, at]) >> 40) as f32 / 8_388_608.0;
    (0..len(index) as u64).map(|at| number(at) - 1.0).collect()
}

fn fill(step: &mut Step<'_>, gradient: impl Fn(usize) -> Vec<f32>) {
    for index in [2, 0, 1] {
        step.ready(index, &gradient(index)).unwrap();
    }
}

/// A hook whose averages are all zero.
struct Zeros;

impl CommHook for Zeros {
    fn description(&self) -> String {
        "zeros".into()
    }

    fn average(&mut self, _: &Comm, bucket: &mut GradBucket<'_>) -> Result<(), HookError> {
        bucket.elements_mut::<f32>().unwrap().fill(0.0);
        Ok(())
    }
}

#[test]
fn infinities_that_a_hook_hides_are_detected_if_gradients_are_checked() {
    for checks in [false, true] {
        on_ranks(3, |comm| {
            let mut replicas = replicas::<f32>(&comm, Options::default().check_finite(checks));
            replicas.register_comm_hook(Zeros).unwrap();
            for number in 0..4 {
                let is_bad = number == 2;
                let mut step = replicas.step().unwrap();
                fill(&mut step, |index| {
                    let mut gradient = noise(comm.rank(), number, index);
                    if is_bad && comm.rank() == 1 && index == 0 {
                        gradient[7] = f32::NAN;
                    }
                    gradient
                });
                assert_eq!(step.finish().unwrap().is_finite().unwrap(), !(is_bad && checks));
            }
        });
    }
}

/// The sums over steps of exact and of averaged gradients, weighted and divided by weights.
struct Sums {
    exact: Vec<f64>,
    averaged: Vec<f64>,
}

/// Trains with weights of very different sizes and ranks that run out of batches: rank 0 has the
/// fewest.
fn weighted_sums(comm: &Comm, hook: impl CommHook, weights: &[f64]) -> Sums {
    let mut replicas = replicas::<f32>(comm, Options::default());
    replicas.register_comm_hook(hook).unwrap();
    let total: usize = (0..SHAPES.len()).map(len).sum();
    let mut sums = Sums { exact: vec![0.0; total], averaged: vec![0.0; total] };
    let has_batch = |rank: usize, number: usize| number + comm.size() < weights.len() + rank + 1;
    for (number, weight) in weights.iter().enumerate() {
        let active: Vec<usize> = (0..comm.size()).filter(|rank| has_batch(*rank, number)).collect();
        let weight_of = |rank: usize| weight * (rank + 1) as f64;
        let averaged = if active.contains(&comm.rank()) {
            let mut step = replicas.step_with_weight(weight_of(comm.rank())).unwrap();
            fill(&mut step, |index| noise(comm.rank(), number, index));
            step.finish().unwrap()
        } else {
            replicas.join().unwrap().unwrap()
        };
        assert_eq!(averaged.active_ranks(), active.len());
        // Residuals are carried as parts of weighted sums.
        let all: f64 = active.iter().map(|rank| weight_of(*rank)).sum();
        assert!((averaged.total_weight() / all - 1.0).abs() < 1e-6);
        let elements = averaged.iter::<f32>().unwrap().flatten();
        sums.averaged.iter_mut().zip(elements).for_each(|(sum, element)| *sum += all * f64::from(*element));
        for rank in active {
            let exact = (0..SHAPES.len()).flat_map(|index| noise(rank, number, index));
            sums.exact
                .iter_mut()
                .zip(exact)
                .for_each(|(sum, element)| *sum += weight_of(rank) * f64::from(element));
        }
    }
    sums
}

#[test]
fn residuals_follow_weights_rebuilt_buckets_and_ranks_without_a_batch() {
    for size in [2, 3, 5] {
        on_ranks(size, |comm| {
            // Gradients are multiplied by another power of two after the first and second steps.
            let weights: Vec<f64> = [1024.0; 1].into_iter().chain([1.0; 30]).collect();
            let error = |hook| {
                let sums = weighted_sums(&comm, hook, &weights);
                let errors = sums.exact.iter().zip(&sums.averaged).map(|(exact, sum)| (exact - sum).abs());
                errors.fold(0.0, f64::max)
            };
            // Only the first step is rounded by up to 1024 / 254 per unit of weight.
            let carried = error(QuantizationHook::int8());
            let lost = error(QuantizationHook::int8().error_feedback(false));
            assert!(carried < 0.2 * size as f64 && lost > 2.0, "{size} ranks: {carried} {lost}");
        });
    }
}

#[test]
fn clipped_averages_of_hooks_have_the_norm_on_every_rank() {
    let norms = on_ranks(3, |comm| {
        let mut replicas = replicas::<f32>(&comm, Options::default());
        replicas.register_comm_hook(QuantizationHook::int4()).unwrap();
        let norm = |replicas: &mut DataParallel, number| {
            let mut step = replicas.step().unwrap();
            fill(&mut step, |index| noise(comm.rank(), number, index));
            let mut averaged = step.finish().unwrap();
            let before = averaged.clip_norm(0.5).unwrap();
            assert!(before > 1.0 && (averaged.norm().unwrap() - 0.5).abs() < 1e-6);
            before.to_bits()
        };
        [0, 1].map(|number| norm(&mut replicas, number))
    });
    assert!(norms.iter().all(|norm| *norm == norms[0]));
}

/// Averages ones with a hook, whose results are exact for each, and mixes element types.
fn averages_of_type<T: Element + Into<f64>>(one: T) {
    let hooks: [fn(&mut DataParallel); 4] = [
        |replicas| replicas.register_comm_hook(CastHook::bf16()).unwrap(),
        |replicas| replicas.register_comm_hook(CastHook::f16()).unwrap(),
        |replicas| replicas.register_comm_hook(QuantizationHook::int8()).unwrap(),
        |replicas| replicas.register_comm_hook(PowerSgdHook::new(1).start_step(0)).unwrap(),
    ];
    for register in hooks {
        on_ranks(3, |comm| {
            let mut replicas = replicas::<T>(&comm, Options::default());
            register(&mut replicas);
            for _ in 0..3 {
                let mut step = replicas.step().unwrap();
                for index in 0..SHAPES.len() {
                    step.ready(index, &vec![one; len(index)]).unwrap();
                }
                let averaged = step.finish().unwrap();
                for average in averaged.iter::<T>().unwrap().flatten() {
                    let average: f64 = (*average).into();
                    assert!((average - 1.0).abs() < 2e-2, "{}: {average}", T::DTYPE);
                }
            }
        });
    }
}

#[test]
fn gradients_of_64_and_of_16_bits_are_averaged_by_every_hook() {
    averages_of_type(1.0_f64);
    averages_of_type(bf16::ONE);
    averages_of_type(half::f16::ONE);
}

#[test]
fn a_step_can_be_dropped_and_other_calls_made_between_buckets() {
    on_ranks(2, |comm| {
        let mut replicas = replicas::<f32>(&comm, Options::default());
        replicas.register_comm_hook(QuantizationHook::int8()).unwrap();
        drop(replicas.step().unwrap());
        let mut step = replicas.step().unwrap();
        if comm.rank() == 1 {
            step.request_stop().unwrap();
        }
        for index in [2, 1, 0] {
            step.ready(index, &vec![2.0_f32; len(index)]).unwrap();
            assert_eq!(comm.all_reduce_scalar(1_u32, ReduceOp::Sum).unwrap(), 2);
        }
        let averaged = step.finish().unwrap();
        assert!(averaged.iter::<f32>().unwrap().flatten().all(|element| (element - 2.0).abs() < 1e-6));
        assert!(averaged.stop_requested());
    });
}
