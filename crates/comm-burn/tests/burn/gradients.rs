//! Gradients are averaged, reported and refused.

use burn::module::{Module, Param, ParamId};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use comm_burn::{DataParallel, Error, Options};

use crate::ranks::{WORLDS, elements, flex, numbers, on_ranks, tensor};

#[derive(Module, Debug)]
struct Model {
    body: Param<Tensor<2>>,
    head: Param<Tensor<1>>,
    frozen: Param<Tensor<1>>,
}

impl Model {
    fn new() -> Self {
        let device = flex();
        Self {
            body: numbers(0, [2, 3], &device),
            head: numbers(0, [2], &device),
            frozen: numbers(0, [2], &device).set_require_grad(false),
        }
    }
}

/// A gradient with the numbers from 3 times `rank` on.
fn of_rank<const D: usize>(rank: usize, shape: [usize; D]) -> Tensor<D> {
    tensor(3 * rank, shape, &Device::flex())
}

fn found<const D: usize>(gradients: &GradientsParams, id: ParamId) -> Option<Vec<f32>> {
    gradients.get::<D>(id).map(|gradient| gradient.into_data().try_to_vec().unwrap())
}

#[test]
fn every_rank_gets_the_mean_of_all_gradients() {
    for size in WORLDS {
        on_ranks(size, |comm| {
            let model = Model::new();
            let mut replicas = DataParallel::new(&model, &comm).unwrap();
            for _ in 0..3 {
                let mut gradients = GradientsParams::new();
                gradients.register(model.body.id, of_rank(comm.rank(), [2, 3]));
                gradients.register(model.head.id, of_rank(2 * comm.rank(), [2]));
                let report = replicas.sync_gradients(&model, &mut gradients).unwrap();
                let mean = 3.0 * (size - 1) as f32 / 2.0;
                let expected: Vec<f32> = (0..6_u8).map(|at| mean + f32::from(at)).collect();
                assert_eq!(found::<2>(&gradients, model.body.id).unwrap(), expected);
                assert_eq!(found::<1>(&gradients, model.head.id).unwrap(), [2.0 * mean, 2.0 * mean + 1.0]);
                assert!(report.without_gradient().is_empty() && report.counted_as_zero().is_empty());
                assert_eq!(gradients.len(), 2);
            }
        });
    }
}

#[test]
fn a_gradient_that_one_rank_lacks_counts_as_zero_and_is_reported_there() {
    on_ranks(3, |comm| {
        let model = Model::new();
        let mut replicas = DataParallel::new(&model, &comm).unwrap();
        let mut gradients = GradientsParams::new();
        gradients.register(model.body.id, of_rank(1, [2, 3]));
        if comm.rank() != 1 {
            gradients.register(model.head.id, of_rank(1, [2]));
        }
        let report = replicas.sync_gradients(&model, &mut gradients).unwrap();
        let expected: &[&str] = if comm.rank() == 1 { &["head"] } else { &[] };
        assert_eq!(report.counted_as_zero(), expected);
        assert!(report.without_gradient().is_empty());
        let thirds = [2.0 / 3.0 * 3.0, 2.0 / 3.0 * 4.0].map(|mean: f32| mean);
        let head = found::<1>(&gradients, model.head.id).unwrap();
        assert!(head.iter().zip(thirds).all(|(found, mean)| (found - mean).abs() < 1e-6), "{head:?}");
        // An optimizer accepts the gradient that came from the others.
        let stepped = SgdConfig::new().init().step(1.0, model.clone(), gradients);
        assert_ne!(elements(&stepped.head), elements(&model.head));
    });
}

#[test]
fn a_parameter_without_gradient_on_any_rank_is_an_error_in_the_first_step_only() {
    on_ranks(2, |comm| {
        let model = Model::new();
        let mut replicas = DataParallel::new(&model, &comm).unwrap();
        let only_head = || {
            let mut gradients = GradientsParams::new();
            gradients.register(model.head.id, of_rank(comm.rank(), [2]));
            gradients
        };
        for _ in 0..2 {
            let mut gradients = only_head();
            let lost = replicas.sync_gradients(&model, &mut gradients).unwrap_err();
            assert!(matches!(lost, Error::LostGradients { names } if names == ["body"]));
            let own = found::<1>(&of(&mut gradients), model.head.id).unwrap();
            assert_eq!(own, [3.0 * comm.rank() as f32, 3.0 * comm.rank() as f32 + 1.0], "it was averaged");
        }
        let mut all = only_head();
        all.register(model.body.id, of_rank(0, [2, 3]));
        drop(replicas.sync_gradients(&model, &mut all).unwrap());
        let mut gradients = only_head();
        let report = replicas.sync_gradients(&model, &mut gradients).unwrap();
        assert_eq!(report.without_gradient(), ["body"]);
        assert_eq!((found::<2>(&gradients, model.body.id), gradients.len()), (None, 1));

        let options = Options::default().allow_unused(true);
        let mut replicas = DataParallel::with_options(&model, &comm, options).unwrap();
        let report = replicas.sync_gradients(&model, &mut only_head()).unwrap();
        assert_eq!(report.without_gradient(), ["body"]);
    });
}

fn of(gradients: &mut GradientsParams) -> GradientsParams {
    std::mem::take(gradients)
}

/// The error of rank 1, and the error that the others get at the same time.
#[test]
fn a_mismatched_gradient_is_refused_on_every_rank_before_any_is_sent() {
    on_ranks(3, |comm| {
        let model = Model::new();
        let mut replicas = DataParallel::new(&model, &comm).unwrap();
        let wrong_type = TensorData::new(vec![1.0_f64; 6], [2, 3]);
        let wrong = [of_rank(0, [3, 2]), Tensor::from_data(wrong_type, (&Device::flex(), DType::F64))];
        for wrong in wrong {
            let mut gradients = GradientsParams::new();
            let given = if comm.rank() == 1 { wrong } else { of_rank(comm.rank(), [2, 3]) };
            gradients.register(model.body.id, given.clone());
            gradients.register(model.head.id, of_rank(0, [2]));
            match replicas.sync_gradients(&model, &mut gradients).unwrap_err() {
                Error::Gradient { name, .. } => assert_eq!((comm.rank(), name.as_str()), (1, "body")),
                Error::Refused { rank, name, why } => {
                    assert!(comm.rank() != 1 && why.starts_with("the gradient of \"body\" is ["), "{why}");
                    assert_eq!((rank, name.as_str()), (1, "body"));
                }
                other => panic!("{other}"),
            }
            assert_eq!(gradients.get::<2>(model.body.id).unwrap().into_data(), given.into_data());
        }
        let mut gradients = GradientsParams::new();
        if comm.rank() > 0 {
            gradients.register(model.frozen.id, of_rank(0, [2]));
        }
        match replicas.sync_gradients(&model, &mut gradients).unwrap_err() {
            Error::NotTrained { name } => assert!(comm.rank() > 0 && name == "frozen"),
            // The first of those that refuse.
            Error::Refused { rank, name, .. } => assert_eq!((rank, name.as_str()), (1, "frozen")),
            other => panic!("{other}"),
        }
        // All can continue.
        let mut gradients = GradientsParams::new();
        gradients.register(model.body.id, of_rank(comm.rank(), [2, 3]));
        gradients.register(model.head.id, of_rank(comm.rank(), [2]));
        drop(replicas.sync_gradients(&model, &mut gradients).unwrap());
        assert_eq!(found::<1>(&gradients, model.head.id).unwrap(), [3.0, 4.0]);
    });
}

#[test]
fn gradients_of_all_float_types_are_averaged_in_their_type() {
    on_ranks(3, |comm| {
        let types = [DType::F16, DType::BF16, DType::F32, DType::F64];
        let value = |dtype, device: &Device| {
            let numbers = vec![3.0 * comm.rank() as f64, 1.0, -1.5 * comm.rank() as f64];
            Tensor::<1>::from_data(TensorData::new(numbers, [3]), (device, dtype))
        };
        let module: Vec<_> = types.map(|dtype| Param::from_tensor(value(dtype, &flex()))).into();
        let mut replicas = DataParallel::new(&module, &comm).unwrap();
        let mut gradients = GradientsParams::new();
        for (parameter, dtype) in module.iter().zip(types) {
            gradients.register(parameter.id, value(dtype, &Device::flex()));
        }
        drop(replicas.sync_gradients(&module, &mut gradients).unwrap());
        for (parameter, dtype) in module.iter().zip(types) {
            let average = gradients.get::<1>(parameter.id).unwrap().into_data();
            assert_eq!(average.dtype(), dtype);
            assert_eq!(average.iter::<f64>().collect::<Vec<_>>(), [3.0, 1.0, -1.5], "{dtype:?}");
        }
    });
}

/// burn's optimizers give the gradient of a shared id to the first parameter that has it.
#[test]
fn a_clone_of_a_parameter_has_no_gradient() {
    on_ranks(2, |comm| {
        let tied = numbers::<1>(0, [2], &flex());
        let module = vec![tied.clone(), tied.clone()];
        let mut replicas = DataParallel::new(&module, &comm).unwrap();
        let mut gradients = GradientsParams::new();
        gradients.register(tied.id, of_rank(comm.rank(), [2]));
        let lost = replicas.sync_gradients(&module, &mut gradients).unwrap_err();
        assert!(matches!(lost, Error::LostGradients { names } if names == ["1"]));
        let options = Options::default().allow_unused(true);
        let mut replicas = DataParallel::with_options(&module, &comm, options).unwrap();
        drop(replicas.sync_gradients(&module, &mut gradients).unwrap());
        assert_eq!(found::<1>(&gradients, tied.id).unwrap(), [1.5, 2.5]);
    });
}

#[test]
fn averaging_fails_after_a_rank_has_left() {
    on_ranks(3, |comm| {
        let model = Model::new();
        let mut replicas = DataParallel::new(&model, &comm).unwrap();
        if comm.rank() == 1 {
            return;
        }
        for _ in 0..2 {
            let mut gradients = GradientsParams::new();
            gradients.register(model.body.id, of_rank(1, [2, 3]));
            gradients.register(model.head.id, of_rank(1, [2]));
            let failed = replicas.sync_gradients(&model, &mut gradients).unwrap_err();
            let Error::Ranks(failed) = failed else { panic!("{failed}") };
            assert!(matches!(failed.root_cause(), comm_ddp::Error::Comm(_)), "{failed}");
            assert_eq!(found::<1>(&gradients, model.head.id).unwrap(), [3.0, 4.0]);
        }
    });
}
