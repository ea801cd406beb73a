//! Communication hooks: their averages, the state that they keep, and the calls that they refuse.

use std::sync::{Arc, Mutex};

use comm_core::{Comm, ReduceOp, wire};
use comm_ddp::{
    BucketLimits, BucketPlan, CastHook, CommHook, DataParallel, Error, GradBucket, HookError, Options,
    Parameter, ParameterSet, PowerSgdHook, QuantizationHook, Sgd, ZeroOptimizer,
};

use crate::on_ranks;

const SHAPES: [&[usize]; 4] = [&[24, 40], &[40], &[7, 3], &[16, 24]];

fn set() -> ParameterSet {
    let named = |(index, shape): (usize, &&[usize])| Parameter::new::<f32>(format!("p{index}"), *shape);
    ParameterSet::new(SHAPES.iter().enumerate().map(named)).unwrap()
}

/// Several buckets, in the order of the first step from the second one on.
fn options() -> Options {
    Options::default().limits(BucketLimits::DEFAULT.first_bytes(256).bytes(2048))
}

fn replicas(comm: &Comm) -> DataParallel {
    DataParallel::new(comm, set(), options()).unwrap()
}

/// Numbers between -1 and 1 that depend on all arguments.
fn noise(key: [u64; 3], len: usize) -> Vec<f32> {
    let [rank, step, index] = key;
    let number = |at: usize| (wire::digest([rank, step, index, at as u64]) >> 40) as f32 / 8_388_608.0 - 1.0;
    (0..len).map(number).collect()
}

fn len(index: usize) -> usize {
    SHAPES[index].iter().product()
}

/// Averages the gradients that a function returns for a rank, step and parameter.
fn step(
    replicas: &mut DataParallel,
    rank: usize,
    number: u64,
    gradient: &impl Fn([u64; 3], usize) -> Vec<f32>,
) -> Result<Vec<Vec<f32>>, Error> {
    let mut step = replicas.step()?;
    // Not the reverse order of registration, so buckets are rebuilt after the first step.
    for index in [1, 3, 0, 2] {
        step.ready(index, &gradient([rank as u64, number, index as u64], len(index)))?;
    }
    let averaged = step.finish()?;
    let averages = averaged.iter::<f32>()?.map(<[f32]>::to_vec).collect();
    Ok(averages)
}

fn bits(tensors: &[Vec<f32>]) -> Vec<u32> {
    tensors.iter().flatten().map(|element| element.to_bits()).collect()
}

/// A hook of one function of the rank and the elements.
struct Custom<F>(&'static str, F);

impl<F> CommHook for Custom<F>
where
    F: FnMut(&Comm, &mut [f32]) -> Result<(), HookError> + Send + 'static,
{
    fn description(&self) -> String {
        self.0.into()
    }

    fn average(&mut self, comm: &Comm, bucket: &mut GradBucket<'_>) -> Result<(), HookError> {
        (self.1)(comm, bucket.elements_mut::<f32>().unwrap())
    }
}

#[test]
fn the_result_of_a_hook_is_the_average_and_the_status_stays_exact() {
    on_ranks(3, |comm| {
        let mut replicas = replicas(&comm);
        let constant = |_: &Comm, elements: &mut [f32]| {
            elements.fill(0.375);
            Ok(())
        };
        replicas.register_comm_hook(Custom("constant", constant)).unwrap();
        for _ in 0..3 {
            let mut step = replicas.step_with_weight(1.0).unwrap();
            step.ready(0, &vec![comm.rank() as f32; len(0)]).unwrap();
            if comm.rank() == 2 {
                step.ready(1, &vec![9.0_f32; len(1)]).unwrap();
            }
            let averaged = step.finish().unwrap();
            assert!(averaged.iter::<f32>().unwrap().flatten().all(|element| *element == 0.375));
            let unused: Vec<bool> = (0..SHAPES.len()).map(|index| averaged.is_unused(index)).collect();
            assert_eq!(unused, [false, false, true, true]);
            assert_eq!((averaged.total_weight(), averaged.active_ranks()), (3.0, 3));
        }
    });
}

#[test]
fn a_second_hook_is_refused_and_the_first_stays() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm);
        replicas.register_comm_hook(CastHook::bf16()).unwrap();
        let refused = replicas.register_comm_hook(PowerSgdHook::new(2)).unwrap_err();
        assert!(matches!(&refused, Error::HookRegistered { registered, .. } if registered == "bf16"));
        assert_eq!(
            refused.to_string(),
            "the communication hook \"bf16\" is registered; \"power_sgd rank=2 start_step=10 seed=0\" was refused"
        );
        // 1 + 2^-9 is rounded to 1 in bf16.
        let averages = step(&mut replicas, comm.rank(), 0, &|_, len| vec![1.001_953_1; len]).unwrap();
        assert!(averages.iter().flatten().all(|element| *element == 1.0));
    });
}

#[test]
fn ranks_with_different_hooks_are_named_and_training_continues_without_them() {
    on_ranks(3, |comm| {
        let mut replicas = replicas(&comm);
        let hook = if comm.rank() == 1 { QuantizationHook::int4() } else { QuantizationHook::int8() };
        let error = replicas.register_comm_hook(hook).unwrap_err();
        let Error::HookMismatch { expected, found, ranks, reference } = &error else { panic!("{error:?}") };
        assert_eq!((&ranks[..], *reference), (&[1][..], 0));
        assert_eq!([expected, found], ["int8 error_feedback=true", "int4 error_feedback=true"]);
        let averages = step(&mut replicas, comm.rank(), 0, &|_, len| vec![0.25; len]).unwrap();
        assert!(averages.iter().flatten().all(|element| *element == 0.25));
        replicas.register_comm_hook(CastHook::f16()).unwrap();
    });
}

#[test]
fn a_hook_that_fails_on_one_rank_ends_the_step_on_all() {
    on_ranks(3, |comm| {
        let mut replicas = replicas(&comm);
        let fail = |comm: &Comm, elements: &mut [f32]| {
            if comm.rank() == 1 {
                return Err("no space left".into());
            }
            Ok(comm.all_reduce(elements, ReduceOp::Avg)?)
        };
        replicas.register_comm_hook(Custom("fails", fail)).unwrap();
        let error = step(&mut replicas, comm.rank(), 0, &noise).unwrap_err();
        if comm.rank() == 1 {
            let Error::Hook { hook, bucket: 0, source } = &error else { panic!("{error:?}") };
            assert_eq!((hook.as_str(), source.to_string().as_str()), ("fails", "no space left"));
        } else {
            assert!(matches!(error, Error::Comm(comm_core::Error::Aborted { by: 1, .. })), "{error:?}");
        }
        assert!(matches!(step(&mut replicas, comm.rank(), 1, &noise), Err(Error::Poisoned(_))));
    });
}

#[test]
fn every_chunk_of_a_large_bucket_is_averaged_in_its_place() {
    const LEN: usize = 600_001;
    for size in [2, 3] {
        on_ranks(size, |comm| {
            let set = ParameterSet::new([Parameter::new::<f32>("p", [LEN])]).unwrap();
            let mut replicas = DataParallel::new(&comm, set, Options::default()).unwrap();
            replicas.register_comm_hook(CastHook::bf16()).unwrap();
            for _ in 0..2 {
                let mut step = replicas.step().unwrap();
                // Integers of 8 bits, whose sums also fit in 8 bits.
                let at_place = |at: usize| ((at / 1009 + at) % 32) as f32 * (comm.rank() + 1) as f32;
                step.ready(0, &(0..LEN).map(at_place).collect::<Vec<_>>()).unwrap();
                let averaged = step.finish().unwrap();
                let mean = (size + 1) as f32 / 2.0;
                let found = averaged.iter::<f32>().unwrap().next().unwrap().to_vec();
                let wrong = (0..LEN).find(|&at| {
                    let expected = ((at / 1009 + at) % 32) as f32 * mean;
                    (found[at] - expected).abs() > expected * 1e-6
                });
                assert_eq!(wrong, None);
            }
        });
    }
}

#[test]
fn casts_are_exact_where_16_bits_suffice_and_do_not_overflow() {
    for size in [1, 2, 4, 8] {
        on_ranks(size, |comm| {
            let mut replicas = replicas(&comm);
            replicas.register_comm_hook(CastHook::f16()).unwrap();
            // A sum of two is out of range.
            let averages = step(&mut replicas, comm.rank(), 0, &|_, len| vec![-60_000.0; len]).unwrap();
            assert!(averages.iter().flatten().all(|element| *element == -60_000.0));
            let mean = (size - 1) as f32 / 2.0;
            let by_rank = |[rank, ..]: [u64; 3], len: usize| vec![rank as f32; len];
            let averages = step(&mut replicas, comm.rank(), 1, &by_rank).unwrap();
            assert!(averages.iter().flatten().all(|element| *element == mean));
            // A gradient that is out of range is not hidden.
            let averages = step(&mut replicas, comm.rank(), 2, &|_, len| vec![1e30; len]).unwrap();
            assert!(averages.iter().flatten().all(|element| !element.is_finite()));
        });
    }
}

#[test]
fn averages_of_a_hook_are_divided_by_the_weights() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm);
        replicas.register_comm_hook(CastHook::bf16()).unwrap();
        for weights in [[1.0, 3.0], [300.0, 900.0]] {
            let mut step = replicas.step_with_weight(weights[comm.rank()]).unwrap();
            for index in 0..SHAPES.len() {
                step.ready(index, &vec![8.0 * comm.rank() as f32; len(index)]).unwrap();
            }
            let averaged = step.finish().unwrap();
            assert_eq!(averaged.total_weight(), weights[0] + weights[1]);
            assert!(averaged.iter::<f32>().unwrap().flatten().all(|element| *element == 6.0));
        }
    });
}

type Register = fn(&mut DataParallel) -> Result<(), Error>;

const LOSSY: [(&str, Register); 5] = [
    ("bf16", |replicas| replicas.register_comm_hook(CastHook::bf16())),
    ("f16", |replicas| replicas.register_comm_hook(CastHook::f16())),
    ("int8", |replicas| replicas.register_comm_hook(QuantizationHook::int8())),
    ("int4", |replicas| replicas.register_comm_hook(QuantizationHook::int4())),
    ("power_sgd", |replicas| replicas.register_comm_hook(PowerSgdHook::new(2).start_step(2))),
];

/// Minimizes the mean over ranks of `|weights - target of the rank|^2 / 2`, and returns the
/// distance from the minimum before and after, and all weights.
fn minimize(comm: &Comm, register: Option<Register>) -> ([f64; 2], Vec<Vec<f32>>) {
    let mut replicas = replicas(comm);
    register.map_or(Ok(()), |register| register(&mut replicas)).unwrap();
    let target = |rank: usize, index: usize| noise([rank as u64, 7, index as u64], len(index));
    let mut weights: Vec<Vec<f32>> = (0..SHAPES.len()).map(|index| vec![2.0; len(index)]).collect();
    let distance = |weights: &[Vec<f32>]| {
        let mut squares = 0.0;
        for (index, weights) in weights.iter().enumerate() {
            let targets: Vec<Vec<f32>> = (0..comm.size()).map(|rank| target(rank, index)).collect();
            for (at, weight) in weights.iter().enumerate() {
                let mean =
                    targets.iter().map(|target| f64::from(target[at])).sum::<f64>() / comm.size() as f64;
                squares += (f64::from(*weight) - mean).powi(2);
            }
        }
        squares.sqrt()
    };
    let before = distance(&weights);
    for number in 0..50 {
        let current = weights.clone();
        let gradient = |[rank, _, index]: [u64; 3], _: usize| {
            let pairs = current[index as usize].iter().zip(target(rank as usize, index as usize));
            pairs.map(|(weight, target)| weight - target).collect()
        };
        let averages = step(&mut replicas, comm.rank(), number, &gradient).unwrap();
        for (weights, averages) in weights.iter_mut().zip(averages) {
            weights.iter_mut().zip(averages).for_each(|(weight, average)| *weight -= 0.2 * average);
        }
        let own = bits(&weights);
        let mut first = own.clone();
        comm.broadcast(0, &mut first).unwrap();
        assert_eq!(own, first, "replicas differ after step {number}");
    }
    ([before, distance(&weights)], weights)
}

#[test]
fn training_with_every_hook_converges_with_equal_replicas() {
    for size in [2, 3, 4, 8] {
        on_ranks(size, |comm| {
            let ([before, exact], _) = minimize(&comm, None);
            assert!(exact < 1e-4 * before, "{exact} {before}");
            for (name, register) in LOSSY {
                let ([before, after], _) = minimize(&comm, Some(register));
                // The errors of a rank-2 approximation are larger and fade more slowly.
                let limit = if name == "power_sgd" { 0.15 } else { 0.03 };
                assert!(after < limit * before, "{name}, {size} ranks: {after} of {before}");
            }
        });
    }
}

/// Returns the largest difference between the sums of averages and of exact averages, over all
/// elements, after many steps with the same gradients.
fn drift(comm: &Comm, hook: impl CommHook) -> f32 {
    const STEPS: u64 = 60;
    let mut replicas = replicas(comm);
    replicas.register_comm_hook(hook).unwrap();
    let constant = |[rank, _, index]: [u64; 3], len: usize| noise([rank, 0, index], len);
    let mut sums: Vec<Vec<f32>> = (0..SHAPES.len()).map(|index| vec![0.0; len(index)]).collect();
    for number in 0..STEPS {
        let averages = step(&mut replicas, comm.rank(), number, &constant).unwrap();
        let pairs = sums.iter_mut().flatten().zip(averages.iter().flatten());
        pairs.for_each(|(sum, average)| *sum += average);
    }
    let mut largest = 0.0_f32;
    for (index, sums) in sums.iter().enumerate() {
        for (at, sum) in sums.iter().enumerate() {
            let of_rank = |rank| noise([rank as u64, 0, index as u64], len(index))[at];
            let mean = (0..comm.size()).map(of_rank).sum::<f32>() / comm.size() as f32;
            largest = largest.max((sum - STEPS as f32 * mean).abs());
        }
    }
    largest
}

#[test]
fn errors_are_carried_to_later_steps() {
    on_ranks(3, |comm| {
        // Without feedback an error of up to 1/14 of the largest gradient is made in every step.
        let carried = drift(&comm, QuantizationHook::int4());
        let lost = drift(&comm, QuantizationHook::int4().error_feedback(false));
        assert!(carried < 0.5 && lost > 2.0, "{carried} {lost}");
        // The gradients have a higher rank than 2; the sum of averages is still close.
        let carried = drift(&comm, PowerSgdHook::new(2).start_step(0));
        assert!(carried < 20.0, "{carried}");
    });
}

#[test]
fn matrices_of_low_rank_are_exact_and_training_recovers_from_zero_gradients() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm);
        replicas.register_comm_hook(PowerSgdHook::new(1).start_step(0).seed(3)).unwrap();
        for number in 0..6 {
            let is_zero = number == 2;
            // Outer products of vectors that depend on the step.
            let gradient = |[_, step, index]: [u64; 3], len: usize| {
                let columns = SHAPES[index as usize].last().copied().unwrap();
                let element =
                    |at: usize| ((at / columns + 1) * (at % columns + 1)) as f32 * (step + 1) as f32;
                (0..len).map(|at| if is_zero { 0.0 } else { element(at) }).collect()
            };
            let averages = step(&mut replicas, comm.rank(), number, &gradient).unwrap();
            for (index, average) in averages.iter().enumerate() {
                let exact = gradient([0, number, index as u64], len(index));
                for (average, exact) in average.iter().zip(exact) {
                    assert!(
                        (average - exact).abs() <= 1e-4 * exact.abs() + 0.05,
                        "{number}: {average} {exact}"
                    );
                }
            }
        }
    });
}

#[test]
fn nonfinite_gradients_of_one_rank_reach_all_and_do_not_persist() {
    for (name, register) in LOSSY {
        on_ranks(3, |comm| {
            let mut replicas = replicas(&comm);
            register(&mut replicas).unwrap();
            for number in 0..6 {
                let is_bad = number == 4;
                let gradient = |[rank, step, index]: [u64; 3], len: usize| {
                    let mut gradient = noise([rank, step, index], len);
                    gradient[len / 2] = if is_bad && rank == 1 { f32::INFINITY } else { 0.5 };
                    gradient
                };
                let averages = step(&mut replicas, comm.rank(), number, &gradient).unwrap();
                for average in averages {
                    assert_eq!(average.iter().all(|element| element.is_finite()), !is_bad, "{name} {number}");
                }
            }
        });
    }
}

/// Records the plans that it is given, and averages.
struct Plans(Arc<Mutex<Vec<BucketPlan>>>);

impl CommHook for Plans {
    fn description(&self) -> String {
        "plans".into()
    }

    fn average(&mut self, comm: &Comm, bucket: &mut GradBucket<'_>) -> Result<(), HookError> {
        let plans = self.0.lock().unwrap();
        let planned = &plans.last().unwrap().buckets()[bucket.index()];
        assert_eq!((bucket.len(), bucket.dtype()?), (planned.len(), planned.dtype()));
        assert_eq!(bucket.is_last(), bucket.index() + 1 == plans.last().unwrap().buckets().len());
        Ok(bucket.all_reduce(comm)?)
    }

    fn set_plan(&mut self, parameters: &[Parameter], plan: &BucketPlan) {
        assert_eq!(parameters.len(), plan.locations().len());
        self.0.lock().unwrap().push(plan.clone());
    }
}

#[test]
fn a_hook_learns_when_buckets_are_rebuilt() {
    on_ranks(2, |comm| {
        let plans: Arc<Mutex<Vec<BucketPlan>>> = Arc::default();
        let mut replicas = replicas(&comm);
        let before = replicas.plan().clone();
        replicas.register_comm_hook(Plans(Arc::clone(&plans))).unwrap();
        for number in 0..3 {
            step(&mut replicas, comm.rank(), number, &noise).unwrap();
        }
        let after = replicas.plan().clone();
        assert_ne!(before, after);
        assert_eq!(*plans.lock().unwrap(), [before, after]);
    });
}

#[test]
fn a_sharded_optimizer_with_a_hook_matches_an_unsharded_one() {
    on_ranks(3, |comm| {
        let options = options().follow_first_step(false);
        let mut whole = DataParallel::new(&comm, set(), options).unwrap();
        whole.register_comm_hook(QuantizationHook::int8()).unwrap();
        let mut sharded = ZeroOptimizer::<f32, _>::new(&comm, set(), options, |_| Sgd::new(0.5)).unwrap();
        sharded.register_comm_hook(QuantizationHook::int8()).unwrap();
        let mut weights: Vec<Vec<f32>> = (0..SHAPES.len()).map(|index| vec![1.0; len(index)]).collect();
        let mut expected = weights.clone();
        for number in 0..4 {
            let averages = step(&mut whole, comm.rank(), number, &noise).unwrap();
            let pairs = expected.iter_mut().flatten().zip(averages.iter().flatten());
            pairs.for_each(|(weight, average)| *weight -= 0.5 * average);
            let mut step = sharded.step().unwrap();
            for index in 0..SHAPES.len() {
                step.ready(index, &noise([comm.rank() as u64, number, index as u64], len(index))).unwrap();
            }
            step.finish().unwrap().update(weights.iter_mut().map(|weights| &mut weights[..])).unwrap();
            assert_eq!(bits(&weights), bits(&expected), "step {number}");
        }
    });
}
