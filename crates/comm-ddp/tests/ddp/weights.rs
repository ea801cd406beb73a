//! Parameters of several types in one model, and averages with weights and other divisors.

use comm_core::{Comm, DType, Element};
use comm_ddp::{BucketLimits, DataParallel, Divisor, Error, Options, Parameter, ParameterSet};
use half::{bf16, f16};

use crate::on_ranks;

const TYPES: [DType; 5] = [DType::F32, DType::BF16, DType::F64, DType::F16, DType::BF16];

fn replicas(comm: &Comm, types: &[DType], options: Options) -> DataParallel {
    let named = |(index, dtype): (usize, &DType)| Parameter::with_dtype(format!("p{index}"), [3], *dtype);
    let parameters = ParameterSet::new(types.iter().enumerate().map(named)).unwrap();
    let limits = BucketLimits::DEFAULT.first_bytes(8).bytes(8);
    DataParallel::new(comm, parameters, options.limits(limits)).unwrap()
}

#[test]
fn parameters_of_several_types_are_averaged_in_one_step() {
    fn averages<T: Element + From<i8>>(averaged: &comm_ddp::Averaged<'_>, index: usize) -> bool {
        averaged.get::<T>(index).unwrap() == [T::from(2 + index as i8); 3]
    }
    // The last bucket, which carries the status, has each type once.
    for turn in 0..TYPES.len() {
        let mut types = TYPES;
        types.rotate_left(turn);
        on_ranks(5, |comm| {
            let mut replicas = replicas(&comm, &types, Options::default().follow_first_step(false));
            for _ in 0..2 {
                let mut step = replicas.step().unwrap();
                for (index, dtype) in types.iter().enumerate() {
                    let number = (comm.rank() + index) as i8;
                    match dtype {
                        DType::F32 => step.ready(index, &[f32::from(number); 3]),
                        DType::F64 => step.ready(index, &[f64::from(number); 3]),
                        DType::F16 => step.ready(index, &[f16::from(number); 3]),
                        _ => step.ready(index, &[bf16::from(number); 3]),
                    }
                    .unwrap();
                }
                let averaged = step.finish().unwrap();
                for (index, dtype) in types.iter().enumerate() {
                    assert!(!averaged.is_unused(index));
                    assert!(match dtype {
                        DType::F32 => averages::<f32>(&averaged, index),
                        DType::F64 => averages::<f64>(&averaged, index),
                        DType::F16 => averages::<f16>(&averaged, index),
                        _ => averages::<bf16>(&averaged, index),
                    });
                }
                let mut single = [0.0_f32; 3];
                averaged.copy_to(1, comm_core::HostViewMut::new(&mut single)).unwrap();
                assert_eq!(single, [3.0; 3]);
                assert!(averaged.iter::<f32>().is_err());
            }
        });
    }
}

/// Returns the average of gradients `8 * (rank + 1)` with weights `weight(rank)`.
fn average(size: usize, dtype: DType, options: Options, weight: impl Fn(usize) -> f64 + Sync) -> Vec<f64> {
    let averages = on_ranks(size, |comm| {
        let mut replicas = replicas(&comm, &[dtype], options);
        let mut last = 0.0;
        for _ in 0..3 {
            let mut step = replicas.step_with_weight(weight(comm.rank())).unwrap();
            let gradient = 8.0 * (comm.rank() + 1) as f32;
            match dtype {
                DType::F16 => step.ready(0, &[f16::from_f32(gradient); 3]).unwrap(),
                _ => step.ready(0, &[gradient; 3]).unwrap(),
            }
            let averaged = step.finish().unwrap();
            let total: f64 = (0..size).map(&weight).sum();
            assert_eq!(averaged.total_weight(), total);
            let mut wide = [0.0_f64; 3];
            averaged.copy_to(0, comm_core::HostViewMut::new(&mut wide)).unwrap();
            assert_eq!(wide, [wide[0]; 3]);
            last = wide[0];
        }
        last
    });
    assert!(averages.iter().all(|average| *average == averages[0]));
    averages
}

#[test]
fn a_weighted_average_divides_by_the_total_weight() {
    for size in [1, 2, 3, 4, 5, 8] {
        let weight = |rank: usize| (2 * rank + 1) as f64;
        let (mut sum, mut total) = (0.0, 0.0);
        for rank in 0..size {
            sum += weight(rank) * 8.0 * (rank + 1) as f64;
            total += weight(rank);
        }
        let near = |got: f64, expected: f64| assert!((got / expected - 1.0).abs() < 1e-6, "{got} {expected}");
        near(average(size, DType::F32, Options::DEFAULT, weight)[0], sum / total);
        near(
            average(size, DType::F32, Options::DEFAULT.divisor(Divisor::Ranks), weight)[0],
            sum / size as f64,
        );
        near(average(size, DType::F32, Options::DEFAULT.divisor(Divisor::Number(3.0)), weight)[0], sum / 3.0);
    }
}

#[test]
fn a_rank_with_weight_zero_does_not_contribute() {
    let averages = average(4, DType::F32, Options::DEFAULT, |rank| if rank == 2 { 6.0 } else { 0.0 });
    assert_eq!(averages[0], 24.0);
}

#[test]
fn large_weights_do_not_overflow_16_bits() {
    // 5000 tokens times 32 are more than an f16 holds.
    let options = Options::DEFAULT.typical_weight(5000.0);
    let averages = average(4, DType::F16, options, |rank| if rank == 0 { 5000.0 } else { 3000.0 });
    let expected = (5000.0 * 8.0 + 3000.0 * (16.0 + 24.0 + 32.0)) / 14_000.0;
    assert!((averages[0] / expected - 1.0).abs() < 2e-3, "{} {expected}", averages[0]);
}

#[test]
fn invalid_weights_are_refused() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm, &[DType::F32], Options::default());
        for weight in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(replicas.step_with_weight(weight), Err(Error::Weight { .. })));
        }
        replicas.step().unwrap().finish().unwrap();
    });
}

#[test]
fn an_unweighted_step_has_weight_one_after_weighted_steps() {
    for divisor in [Divisor::Weights, Divisor::Ranks, Divisor::Number(2.0)] {
        on_ranks(2, |comm| {
            let options = Options::DEFAULT.typical_weight(512.0).divisor(divisor);
            let mut replicas = replicas(&comm, &[DType::F32], options);
            // Weights of one, then of 4096 samples, then of one again.
            for weight in [None, None, Some(4096.0), None, None] {
                let mut step = match weight {
                    None => replicas.step().unwrap(),
                    Some(weight) => replicas.step_with_weight(weight).unwrap(),
                };
                step.ready(0, &[8.0 * (comm.rank() + 1) as f32; 3]).unwrap();
                let averaged = step.finish().unwrap();
                let weight = weight.unwrap_or(1.0);
                assert_eq!(averaged.total_weight(), 2.0 * weight);
                let expected = if divisor == Divisor::Weights { 12.0 } else { 12.0 * weight };
                assert_eq!(averaged.get::<f32>(0).unwrap(), [expected as f32; 3], "{divisor:?}");
            }
            // One rank has twice the weight.
            let mut step =
                if comm.rank() == 0 { replicas.step() } else { replicas.step_with_weight(2.0) }.unwrap();
            step.ready(0, &[6.0 * comm.rank() as f32; 3]).unwrap();
            let averaged = step.finish().unwrap();
            assert_eq!(averaged.total_weight(), 3.0);
            let expected = if divisor == Divisor::Weights { 4.0 } else { 6.0 };
            assert_eq!(averaged.get::<f32>(0).unwrap(), [expected; 3]);
        });
    }
}

#[test]
fn averages_are_zero_if_all_weights_are_zero() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm, &[DType::F32], Options::DEFAULT.typical_weight(0.0));
        for weight in [0.0, 3.0, 0.0, 3.0] {
            let mut step = replicas.step_with_weight(weight).unwrap();
            step.ready(0, &[5.0_f32; 3]).unwrap();
            let averaged = step.finish().unwrap();
            assert_eq!((averaged.total_weight(), averaged.active_ranks()), (2.0 * weight, 2));
            let expected = if weight == 0.0 { 0.0 } else { 5.0 };
            assert_eq!(averaged.get::<f32>(0).unwrap(), [expected; 3]);
        }
    });
}

#[test]
fn a_nan_mean_over_no_samples_is_ignored() {
    on_ranks(3, |comm| {
        let mut replicas = replicas(&comm, &[DType::F32], Options::DEFAULT.check_finite(true));
        for _ in 0..2 {
            let samples = comm.rank() as f32;
            let mut step = replicas.step_with_weight(f64::from(samples)).unwrap();
            // The mean of rank 0 is not a number.
            step.ready(0, &[12.0 * samples / samples; 3]).unwrap();
            let averaged = step.finish().unwrap();
            assert!(averaged.is_finite().unwrap());
            assert_eq!(averaged.get::<f32>(0).unwrap(), [12.0; 3]);
        }
    });
}
