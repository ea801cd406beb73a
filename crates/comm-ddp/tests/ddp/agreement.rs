//! Disagreements between ranks are errors that name a parameter, before any gradient is sent.

use std::time::Instant;

use crate::on_ranks;
use comm_core::DType;
use comm_ddp::{BucketLimits, DataParallel, Difference, Error, Options, Parameter, ParameterSet};

fn model() -> Vec<Parameter> {
    vec![
        Parameter::new::<f32>("body.weight", [8, 4]),
        Parameter::new::<f32>("body.bias", [4]),
        Parameter::new::<f32>("head.weight", [4, 2]),
    ]
}

/// Returns the errors of three ranks; rank 2 trains `other`.
fn outcome(other: impl Fn() -> Vec<Parameter> + Sync) -> Vec<Error> {
    on_ranks(3, |comm| {
        let parameters = if comm.rank() == 2 { other() } else { model() };
        let parameters = ParameterSet::new(parameters).unwrap();
        DataParallel::new(&comm, parameters, Options::default()).unwrap_err()
    })
}

/// Checks that every rank gets the same error.
fn check(other: impl Fn() -> Vec<Parameter> + Sync, name: &str, difference: &Difference) {
    for error in outcome(other) {
        let Error::Mismatch(mismatch) = error else { panic!("not a mismatch: {error}") };
        assert_eq!((mismatch.name.as_str(), &mismatch.difference), (name, difference));
        assert_eq!((mismatch.ranks, mismatch.reference), (vec![2], 0));
    }
}

#[test]
fn a_different_shape_is_named() {
    let other = || {
        let mut model = model();
        model[2] = Parameter::new::<f32>("head.weight", [2, 4]);
        model
    };
    check(other, "head.weight", &Difference::Shape { expected: vec![4, 2], found: vec![2, 4] });
}

#[test]
fn a_different_type_is_named() {
    let other = || {
        let mut model = model();
        model[1] = Parameter::new::<half::bf16>("body.bias", [4]);
        model
    };
    check(other, "body.bias", &Difference::DType { expected: DType::F32, found: DType::BF16 });
}

#[test]
fn a_missing_parameter_is_named() {
    check(|| model().split_off(1), "body.weight", &Difference::Missing);
}

#[test]
fn an_extra_parameter_is_named() {
    let other = || {
        let mut model = model();
        model.push(Parameter::new::<f32>("adapter", [1]));
        model
    };
    check(other, "adapter", &Difference::Extra);
}

#[test]
fn the_order_of_registration_may_differ() {
    let sums = on_ranks(3, |comm| {
        let mut parameters = model();
        parameters.rotate_left(comm.rank());
        let index_of: Vec<usize> = (0..3).map(|index| (index + 3 - comm.rank()) % 3).collect();
        let limits = BucketLimits::DEFAULT.first_bytes(1).bytes(1);
        let options = Options::default().limits(limits);
        let mut replicas = DataParallel::new(&comm, ParameterSet::new(parameters).unwrap(), options).unwrap();
        let mut step = replicas.step().unwrap();
        for (number, len) in [32, 4, 8].into_iter().enumerate() {
            step.ready(index_of[number], &vec![10.0_f32.powi(number as i32); len]).unwrap();
        }
        let averaged = step.finish().unwrap();
        index_of.iter().map(|&index| averaged.get::<f32>(index).unwrap()[0]).collect::<Vec<_>>()
    });
    assert!(sums.iter().all(|sums| *sums == [1.0, 10.0, 100.0]), "{sums:?}");
}

#[test]
fn buckets_follow_the_options_of_rank_0() {
    let plans = on_ranks(3, |comm| {
        let bytes = 1 << (4 * comm.rank());
        let limits = BucketLimits::DEFAULT.first_bytes(bytes).bytes(bytes);
        let options = Options::DEFAULT.limits(limits).follow_first_step(comm.rank() == 0).clock(Instant::now);
        let replicas = DataParallel::new(&comm, ParameterSet::new(model()).unwrap(), options).unwrap();
        replicas.plan().clone()
    });
    assert_eq!(plans[0].buckets().len(), 3);
    assert!(plans.iter().all(|plan| *plan == plans[0]));
}

#[test]
fn a_buffer_of_another_type_than_the_parameter_is_refused() {
    on_ranks(2, |comm| {
        let parameters = ParameterSet::new(model()).unwrap();
        let mut replicas = DataParallel::new(&comm, parameters, Options::default()).unwrap();
        let values = [&mut [0.0_f64; 32][..], &mut [0.0; 4], &mut [0.0; 8]];
        let refused = replicas.broadcast_parameters(values).unwrap_err();
        assert!(matches!(refused, Error::WrongType { expected: DType::F32, got: DType::F64, .. }));
        let mut step = replicas.step().unwrap();
        let refused = [
            step.ready(2, &[0.0_f64; 8]),
            step.gradient_mut::<f64>(2).map(drop),
            step.overwrite::<f64>(2).map(drop),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(Error::WrongType { name, .. }) if name == "head.weight"));
        }
        step.ready(2, &[comm.rank() as f32; 8]).unwrap();
        assert_eq!(step.finish().unwrap().get::<f32>(2).unwrap(), [0.5; 8]);
    });
}

#[test]
fn values_of_wrong_lengths_are_refused_before_they_are_sent() {
    on_ranks(2, |comm| {
        let parameters = ParameterSet::new(model()).unwrap();
        let mut replicas = DataParallel::new(&comm, parameters, Options::default()).unwrap();
        let (mut weight, mut bias, mut short) = ([0.0_f32; 32], [0.0; 4], [0.0; 7]);
        let refused = replicas.broadcast_parameters([&mut weight[..], &mut bias, &mut short]).unwrap_err();
        assert!(matches!(refused, Error::Length { name, expected: 8, got: 7 } if name == "head.weight"));
        let refused = replicas.broadcast_parameters([&mut weight[..], &mut bias]).unwrap_err();
        assert!(matches!(refused, Error::Count { expected: 3, got: 2 }));
        let mut head = [comm.rank() as f32; 8];
        replicas.broadcast_parameters([&mut weight[..], &mut bias, &mut head]).unwrap();
        assert_eq!(head, [0.0; 8]);
    });
}
