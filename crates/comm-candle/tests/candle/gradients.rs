//! Gradients are averaged, kept, added or refused.

use candle_core::{DType, Device, Tensor};
use comm_candle::{BucketLimits, DataParallel, Error, Options, sync_gradients};

use crate::ranks::{WORLDS, address, elements, gradient, map, numbers, on_ranks, store, var};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Three buckets or more.
const SMALL: BucketLimits = BucketLimits::DEFAULT.first_bytes(8).bytes(16);

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

/// A tensor whose elements are all the same.
fn filled(value: f64, shape: &[usize], dtype: DType) -> Tensor {
    Tensor::full(value, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// Twice the rank, whose average is the same as a sum of integers and no rounding.
fn of_rank(rank: usize) -> f64 {
    2.0 * rank as f64
}

fn average(size: usize) -> f64 {
    size as f64 - 1.0
}

#[test]
fn gradients_of_all_types_are_averaged_in_one_step() {
    let names = ["half.w", "brain.w", "single.w", "double.w"];
    let biases = ["half.b", "brain.b", "single.b", "double.b"];
    for size in WORLDS {
        on_ranks(size, |comm| {
            let shapes: [(&str, &[usize]); 2] = [("w", &[3, 5]), ("b", &[])];
            let tensors = |first: f64, factor: f64| -> Vec<(&str, Tensor)> {
                let of = |(at, dtype): (usize, &DType), shape: usize| {
                    let name = if shape == 0 { names[at] } else { biases[at] };
                    (name, filled(first + factor * (at + shape) as f64, shapes[shape].1, *dtype))
                };
                (0..2)
                    .flat_map(|shape| FLOATS.iter().enumerate().map(move |dtype| of(dtype, shape)))
                    .collect()
            };
            let variables = map(comm.rank(), &tensors(0.0, 0.0));
            let mut replicas =
                DataParallel::with_options(&variables, &comm, Options::DEFAULT.limits(SMALL)).unwrap();
            for round in 0..3 {
                let mut gradients = store(&variables, &tensors(of_rank(comm.rank()) + f64::from(round), 1.0));
                let report = replicas.sync_gradients(&mut gradients).unwrap();
                assert!(report.without_gradient().is_empty() && report.counted_as_zero().is_empty());
                for (name, expected) in tensors(average(size) + f64::from(round), 1.0) {
                    let found = gradient(&variables, name, &gradients).unwrap();
                    assert_eq!((found.dtype(), found.dims()), (expected.dtype(), expected.dims()));
                    assert_eq!(elements(found), elements(&expected), "{name} of {size}");
                }
            }
        });
    }
}

/// Numbers whose average is rounded: a different order of additions would show.
#[test]
fn every_rank_has_the_same_bits() {
    for size in WORLDS {
        let all = on_ranks(size, |comm| {
            let variables = map(comm.rank(), &[("w", zeros(&[1000])), ("b", zeros(&[13]))]);
            let noise = |len: usize| -> Vec<f32> {
                (0..len).map(|at| ((at * 31 + comm.rank() * 7919) as f32 * 0.618).sin() / 3.0).collect()
            };
            let tensor = |len: usize| Tensor::from_vec(noise(len), len, &Device::Cpu).unwrap();
            let mut gradients = store(&variables, &[("w", tensor(1000)), ("b", tensor(13))]);
            sync_gradients(&variables, &mut gradients, &comm).unwrap();
            ["w", "b"].map(|name| gradient(&variables, name, &gradients).unwrap().to_vec1::<f32>().unwrap())
        });
        assert!(all.iter().all(|ours| *ours == all[0]), "{size} ranks differ");
    }
}

#[test]
fn a_gradient_that_no_rank_has_stays_absent_and_one_that_some_lack_counts_as_zero() {
    for size in WORLDS {
        on_ranks(size, |comm| {
            let names = ["all", "first", "last", "none"];
            let variables = map(comm.rank(), &names.map(|name| (name, zeros(&[2, 2]))));
            let mut replicas = DataParallel::new(&variables, &comm).unwrap();
            for _ in 0..2 {
                let ours = |name: &str| match name {
                    "all" => true,
                    "first" => comm.rank() == 0,
                    "last" => comm.rank() + 1 == size,
                    _ => false,
                };
                let value = filled(size as f64, &[2, 2], DType::F32);
                let present: Vec<_> = names
                    .into_iter()
                    .filter(|name| ours(name))
                    .map(|name| (name, value.copy().unwrap()))
                    .collect();
                let mut gradients = store(&variables, &present);
                let report = replicas.sync_gradients(&mut gradients).unwrap();
                for (name, expected) in [("all", size as f64), ("first", 1.0), ("last", 1.0)] {
                    assert_eq!(
                        elements(gradient(&variables, name, &gradients).unwrap()),
                        [expected; 4],
                        "{name}"
                    );
                }
                assert!(gradient(&variables, "none", &gradients).is_none());
                assert_eq!(report.without_gradient(), ["none"]);
                let zeros: Vec<_> = ["first", "last"].into_iter().filter(|name| !ours(name)).collect();
                assert_eq!(report.counted_as_zero(), zeros);
            }
        });
    }
}

#[test]
fn strided_gradients_are_averaged_by_index_and_not_by_address() {
    on_ranks(3, |comm| {
        let shapes: [(&str, &[usize]); 3] =
            [("transposed", &[4, 3]), ("narrow", &[3, 2]), ("spread", &[3, 4])];
        let variables = map(comm.rank(), &shapes.map(|(name, shape)| (name, zeros(shape))));
        let base = numbers(6 * comm.rank(), &[3, 4], DType::F32);
        // On rank 1 all are contiguous; the averages are the same.
        let strided =
            |tensor: Tensor| if comm.rank() == 1 { tensor.force_contiguous().unwrap() } else { tensor };
        let given = [
            ("transposed", strided(base.t().unwrap())),
            ("narrow", strided(base.narrow(1, 1, 2).unwrap())),
            ("spread", strided(base.narrow(1, 0, 1).unwrap().broadcast_as((3, 4)).unwrap())),
        ];
        let mut gradients = store(&variables, &given);
        sync_gradients(&variables, &mut gradients, &comm).unwrap();
        let mean = numbers(6, &[3, 4], DType::F32);
        let expected = [
            ("transposed", mean.t().unwrap()),
            ("narrow", mean.narrow(1, 1, 2).unwrap()),
            ("spread", mean.narrow(1, 0, 1).unwrap().broadcast_as((3, 4)).unwrap()),
        ];
        for (name, expected) in expected {
            let found = gradient(&variables, name, &gradients).unwrap();
            assert!(found.is_contiguous());
            assert_eq!(elements(found), elements(&expected), "{name}");
        }
        assert_eq!(elements(&base), elements(&numbers(6 * comm.rank(), &[3, 4], DType::F32)), "overwritten");
    });
}

#[test]
fn gradients_are_averaged_in_place() {
    on_ranks(2, |comm| {
        let variables = map(comm.rank(), &[("w", zeros(&[5])), ("part", zeros(&[2]))]);
        let whole = numbers(10 * comm.rank(), &[6], DType::F32);
        let given =
            [("w", filled(of_rank(comm.rank()), &[5], DType::F32)), ("part", whole.narrow(0, 3, 2).unwrap())];
        let before = [address(&given[0].1), address(&given[1].1)];
        let mut gradients = store(&variables, &given);
        sync_gradients(&variables, &mut gradients, &comm).unwrap();
        let found = ["w", "part"].map(|name| gradient(&variables, name, &gradients).unwrap());
        assert_eq!([address(found[0]), address(found[1])], before);
        assert_eq!(elements(found[0]), [1.0; 5]);
        assert_eq!(elements(found[1]), [8.0, 9.0]);
        let rest = elements(&whole);
        let untouched = [0, 1, 2, 5].map(|at| rest[at] - 10.0 * comm.rank() as f64);
        assert_eq!(untouched, [0.0, 1.0, 2.0, 5.0], "more than the gradient was written");
    });
}

/// One tensor for two variables, two parts of one, and a variable as its own gradient: weight decay
/// by hand.
#[test]
fn gradients_that_share_memory_do_not_overwrite_each_other_or_a_variable() {
    on_ranks(2, |comm| {
        let names = ["a", "b", "c", "d", "w"];
        let rank = comm.rank();
        let variables = map(rank, &names.map(|name| (name, numbers(4 * rank, &[2], DType::F32))));
        let (one, whole) = (numbers(2 * rank, &[2], DType::F32), numbers(8 * rank, &[3], DType::F32));
        let weight = var(&variables, "w").as_tensor().clone();
        let given = [
            ("a", one.clone()),
            ("b", one),
            ("c", whole.narrow(0, 0, 2).unwrap()),
            ("d", whole.narrow(0, 1, 2).unwrap()),
            ("w", weight),
        ];
        let mut gradients = store(&variables, &given);
        sync_gradients(&variables, &mut gradients, &comm).unwrap();
        let expected =
            [("a", [1.0, 2.0]), ("b", [1.0, 2.0]), ("c", [4.0, 5.0]), ("d", [5.0, 6.0]), ("w", [2.0, 3.0])];
        for (name, expected) in expected {
            assert_eq!(elements(gradient(&variables, name, &gradients).unwrap()), expected, "{name}");
        }
        assert_eq!(elements(&var(&variables, "w")), elements(&numbers(4 * rank, &[2], DType::F32)));
    });
}

#[test]
fn empty_tensors_and_scalars_are_averaged() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &[("empty", zeros(&[0, 3])), ("scalar", zeros(&[]))]);
        let mut gradients = store(
            &variables,
            &[("empty", zeros(&[0, 3])), ("scalar", filled(of_rank(comm.rank()), &[], DType::F32))],
        );
        let report = sync_gradients(&variables, &mut gradients, &comm).unwrap();
        assert!(report.without_gradient().is_empty());
        assert_eq!(gradient(&variables, "empty", &gradients).unwrap().dims(), [0, 3]);
        assert_eq!(elements(gradient(&variables, "scalar", &gradients).unwrap()), [2.0]);
    });
}

/// The error of one rank, and the error that the others get at the same time.
#[test]
fn a_mismatched_gradient_is_refused_on_every_rank_before_any_is_sent() {
    on_ranks(3, |comm| {
        let integers = Tensor::zeros(2, DType::I64, &Device::Cpu).unwrap();
        let variables =
            map(comm.rank(), &[("w", zeros(&[2, 3])), ("b", zeros(&[3])), ("steps", integers.clone())]);
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        let fitting = || filled(of_rank(comm.rank()), &[2, 3], DType::F32);
        for wrong in [zeros(&[3, 2]), zeros(&[6]), fitting().to_dtype(DType::F64).unwrap()] {
            let given = if comm.rank() == 1 { wrong } else { fitting() };
            let mut gradients = store(&variables, &[("w", given.copy().unwrap()), ("b", zeros(&[3]))]);
            match replicas.sync_gradients(&mut gradients).unwrap_err() {
                Error::Gradient { name, .. } => assert_eq!((comm.rank(), name.as_str()), (1, "w")),
                Error::Refused { rank, name, why } => {
                    assert!(comm.rank() != 1 && why.starts_with("the gradient of \"w\" is ["), "{why}");
                    assert_eq!((rank, name.as_str()), (1, "w"));
                }
                other => panic!("{other}"),
            }
            assert_eq!(elements(gradient(&variables, "w", &gradients).unwrap()), elements(&given));
        }
        let steps = if comm.rank() > 0 { vec![("steps", integers)] } else { Vec::new() };
        match replicas.sync_gradients(&mut store(&variables, &steps)).unwrap_err() {
            Error::Integers { name } => assert!(comm.rank() > 0 && name == "steps"),
            // The first of those that refuse.
            Error::Refused { rank, name, .. } => assert_eq!((rank, name.as_str()), (1, "steps")),
            other => panic!("{other}"),
        }
        // All can continue.
        let mut gradients = store(&variables, &[("w", fitting())]);
        let report = replicas.sync_gradients(&mut gradients).unwrap();
        assert_eq!(elements(gradient(&variables, "w", &gradients).unwrap()), [2.0; 6]);
        assert_eq!(report.without_gradient(), ["b"]);
    });
}

/// candle's fast layer norm gives no gradients to the variables before it.
#[test]
fn variables_cut_off_by_an_operation_without_backward_are_named() {
    on_ranks(2, |comm| {
        let names = ["before", "scale", "shift"];
        let variables = map(comm.rank(), &names.map(|name| (name, numbers(1, &[3], DType::F32))));
        let [before, scale, shift] = names.map(|name| var(&variables, name));
        let input = (before.as_tensor() * 2.0).unwrap().unsqueeze(0).unwrap();
        let normal = candle_nn::ops::layer_norm(&input, &scale, &shift, 1e-5).unwrap();
        let mut gradients =
            (normal + shift.as_tensor().unsqueeze(0).unwrap()).unwrap().sum_all().unwrap().backward();
        let report = match &mut gradients {
            Ok(gradients) => sync_gradients(&variables, gradients, &comm).unwrap(),
            Err(error) => panic!("candle now returns an error itself: {error}"),
        };
        assert_eq!(report.without_gradient(), ["before", "scale"]);
    });
}

#[test]
fn averaging_fails_after_a_rank_has_left() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &[("w", zeros(&[4]))]);
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        if comm.rank() == 1 {
            return;
        }
        for _ in 0..2 {
            let mut gradients = store(&variables, &[("w", filled(1.0, &[4], DType::F32))]);
            let failed = replicas.sync_gradients(&mut gradients).unwrap_err();
            let Error::Ranks(failed) = failed else { panic!("{failed}") };
            assert!(matches!(failed.root_cause(), comm_ddp::Error::Comm(_)), "{failed}");
            assert_eq!(elements(gradient(&variables, "w", &gradients).unwrap()), [1.0; 4]);
        }
    });
}
