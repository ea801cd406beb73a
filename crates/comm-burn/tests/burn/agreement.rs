//! Disagreements between ranks are errors with the path of a parameter, before any value is sent.

use burn::module::{Module, Param, Quantizer};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn::tensor::{DType, FloatDType, Tensor};
use comm_burn::{DataParallel, Difference, Error, check_parameters, sync_module};
use comm_core::DType as Ours;

use crate::ranks::{WORLDS, flex, numbers, on_ranks, parameters};

#[derive(Module, Debug)]
struct Model {
    body: Vec<Param<Tensor<2>>>,
    head: Option<Param<Tensor<1>>>,
}

fn model(rank: usize) -> Model {
    let device = flex();
    let first = 100 * rank;
    Model {
        body: vec![numbers(first, [4, 8], &device), numbers(first + 32, [2, 4], &device)],
        head: Some(numbers(first + 40, [2], &device)),
    }
}

/// Checks the errors of all calls on three ranks if rank 2 changes its module. No value may have
/// moved.
fn outcome(change: impl Fn(&mut Model) + Sync, name: &str, difference: &Difference) {
    let check = |error: Error| {
        let Error::Ranks(comm_ddp::Error::Mismatch(mismatch)) = error else {
            panic!("not a mismatch: {error}")
        };
        assert_eq!((mismatch.name.as_str(), &mismatch.difference), (name, difference));
        assert_eq!((&mismatch.ranks[..], mismatch.reference), (&[2][..], 0));
    };
    on_ranks(3, |comm| {
        let mut model = model(comm.rank());
        if comm.rank() == 2 {
            change(&mut model);
        }
        let before = parameters(&model);
        check(check_parameters(&model, &comm).unwrap_err());
        check(sync_module(model.clone(), &comm).unwrap_err());
        check(DataParallel::new(&model, &comm).unwrap_err());
        assert_eq!(parameters(&model), before);
    });
}

#[test]
fn a_missing_parameter_is_named() {
    outcome(|model| model.head = None, "head", &Difference::Missing);
}

#[test]
fn an_extra_layer_is_named() {
    outcome(|model| model.body.push(model.body[0].clone()), "body.2", &Difference::Extra);
}

#[test]
fn a_parameter_of_another_shape_is_named() {
    let difference = Difference::Shape { expected: vec![4, 8], found: vec![8, 4] };
    outcome(|model| model.body[0] = numbers(0, [8, 4], &flex()), "body.0", &difference);
}

#[test]
fn a_parameter_of_another_type_is_named() {
    let difference = Difference::DType { expected: Ours::F32, found: Ours::F64 };
    let change = |model: &mut Model| {
        let double = model.body[1].val().cast(FloatDType::F64).detach();
        assert_eq!(double.dtype(), DType::F64);
        model.body[1] = Param::from_tensor(double);
    };
    outcome(change, "body.1", &difference);
}

#[test]
fn modules_may_differ_in_ids_and_values() {
    for size in WORLDS {
        on_ranks(size, |comm| check_parameters(&model(comm.rank()), &comm).unwrap());
    }
}

#[test]
fn a_quantized_weight_is_refused_on_every_rank() {
    on_ranks(3, |comm| {
        let mut linear: Linear = LinearConfig::new(32, 32).init(&flex());
        if comm.rank() == 1 {
            let scheme = QuantScheme::default();
            linear = linear.valid().quantize_weights(&mut Quantizer::new(Calibration::MinMax, scheme));
        }
        match check_parameters(&linear, &comm).unwrap_err() {
            Error::Type { name, dtype: DType::QFloat(_) } => {
                assert_eq!(comm.rank(), 1);
                assert!(["bias", "weight"].contains(&&*name), "{name}");
            }
            Error::Refused { rank, why, .. } => {
                assert!(comm.rank() != 1 && why.contains("holds qfloat, which cannot be"), "{why}");
                assert_eq!(rank, 1);
            }
            other => panic!("{other}"),
        }
    });
}

#[test]
fn a_module_without_parameters_can_be_trained() {
    for size in WORLDS {
        on_ranks(size, |comm| {
            let module: Vec<Linear> = Vec::new();
            let mut replicas = DataParallel::new(&module, &comm).unwrap();
            let module = replicas.sync_module(module).unwrap();
            let report = replicas.sync_gradients(&module, &mut GradientsParams::new()).unwrap();
            assert!(report.without_gradient().is_empty() && report.counted_as_zero().is_empty());
        });
    }
}

#[test]
fn a_module_changed_on_one_rank_is_reported_on_all_which_continue_with_the_old_one() {
    on_ranks(3, |comm| {
        let model = model(comm.rank());
        let mut replicas = DataParallel::new(&model, &comm).unwrap();
        let mut changed = model.clone();
        if comm.rank() == 2 {
            changed.body.push(model.body[0].clone());
        }
        let errors = [
            replicas.sync_gradients(&changed, &mut GradientsParams::new()).unwrap_err(),
            replicas.sync_module(changed.clone()).unwrap_err(),
            replicas.broadcast_buffers(changed.clone()).unwrap_err(),
            replicas.average_buffers(changed).unwrap_err(),
        ];
        for error in errors {
            match error {
                Error::Changed { name } => assert_eq!((comm.rank(), name.as_str()), (2, "body.2")),
                Error::Refused { rank, name, .. } => assert_eq!((rank, name.as_str()), (2, "body.2")),
                other => panic!("{other}"),
            }
        }
        let model = replicas.sync_module(model).unwrap();
        assert_eq!(parameters(&model), parameters(&self::model(0)));
    });
}
