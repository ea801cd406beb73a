//! Modules get the values of rank 0, and keep everything else.

use std::collections::BTreeMap;

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use comm_burn::{DataParallel, Error, check_replicas, sync_module};

use crate::ranks::{WORLDS, elements, flex, ids, ndarray, numbers, on_ranks, parameters, tensor};

/// A parameter of every kind and of many types.
#[derive(Module, Debug)]
struct AllTypes {
    floats: Vec<Param<Tensor<2>>>,
    frozen: Param<Tensor<1>>,
    integers: Vec<Param<Tensor<1, Int>>>,
    mask: Param<Tensor<2, Bool>>,
    empty: Param<Tensor<2>>,
}

impl AllTypes {
    /// Other values for each rank.
    fn new(rank: usize, device: &Device) -> Self {
        let float = |dtype| {
            let value = tensor::<2>(10 * rank, [2, 3], device).cast(burn::tensor::FloatDType::from(dtype));
            Param::from_tensor(value.detach())
        };
        let integer = |dtype| {
            let value = TensorData::new(vec![rank as i64, 7, 100 + rank as i64], [3]);
            Param::initialized(ParamId::new(), Tensor::from_data(value, (device, dtype)))
        };
        let mask = TensorData::new((0..4).map(|at| at % (rank + 2) == 0).collect::<Vec<_>>(), [2, 2]);
        Self {
            floats: [DType::F16, DType::BF16, DType::F32, DType::F64].map(float).into(),
            frozen: numbers(100 * rank, [5], device).set_require_grad(false),
            integers: [DType::I64, DType::I32, DType::U8].map(integer).into(),
            mask: Param::initialized(ParamId::new(), Tensor::from_data(mask, device)),
            empty: numbers(0, [0, 3], device),
        }
    }
}

#[test]
fn every_rank_gets_the_values_of_rank_0_and_keeps_ids_and_gradient_requirements() {
    for size in WORLDS {
        on_ranks(size, |comm| {
            let device = flex();
            let module = AllTypes::new(comm.rank(), &device);
            let of_rank_0 = parameters(&AllTypes::new(0, &device));
            assert_eq!(of_rank_0.len(), 10);
            let ids_before = ids(&module);
            let module = sync_module(module, &comm).unwrap();
            assert_eq!(parameters(&module), of_rank_0);
            assert_eq!(ids(&module), ids_before);
        });
    }
}

#[test]
fn ranks_may_use_different_backends() {
    on_ranks(2, |comm| {
        let device = if comm.rank() == 0 { flex() } else { ndarray() };
        let linear = LinearConfig::new(3, 2).init(&device);
        let linear = sync_module(linear, &comm).unwrap();
        assert_eq!(linear.weight.device(), device);
        let mask = Tensor::<1, Bool>::from_data(TensorData::from([comm.rank() == 0, true]), &device);
        let mask = sync_module(Param::initialized(ParamId::new(), mask), &comm).unwrap();
        assert_eq!(mask.val().into_data().iter::<bool>().collect::<Vec<_>>(), [true, true]);
        let bits = linear.weight.val().into_data().iter::<f32>().map(|x| u64::from(x.to_bits())).sum::<u64>();
        let bits = comm.all_gather_scalar(bits).unwrap();
        assert_eq!(bits[0], bits[1]);
    });
}

#[test]
fn the_order_of_fields_does_not_matter() {
    #[derive(Module, Debug)]
    struct Forwards {
        a: Param<Tensor<1>>,
        b: Param<Tensor<2>>,
    }
    #[derive(Module, Debug)]
    struct Backwards {
        b: Param<Tensor<2>>,
        a: Param<Tensor<1>>,
    }
    fn train<M: Module>(module: M, ids: [ParamId; 2], comm: &comm_core::Comm) -> BTreeMap<String, Vec<f64>> {
        let mut replicas = DataParallel::new(&module, comm).unwrap();
        let module = replicas.sync_module(module).unwrap();
        let mut gradients = GradientsParams::new();
        let device = Device::flex();
        gradients.register(ids[0], tensor::<1>(comm.rank(), [3], &device));
        gradients.register(ids[1], tensor::<2>(10 * comm.rank(), [2, 2], &device));
        drop(replicas.sync_gradients(&module, &mut gradients).unwrap());
        let averages = [
            ("a.gradient", gradients.get::<1>(ids[0]).unwrap().into_data()),
            ("b.gradient", gradients.get::<2>(ids[1]).unwrap().into_data()),
        ];
        let values = parameters(&module).into_iter().map(|(name, found)| (name, found.data));
        let all = values.chain(averages.map(|(name, data)| (name.to_owned(), data)));
        all.map(|(name, data)| (name, data.iter().collect())).collect()
    }
    let found = on_ranks(3, |comm| {
        let (device, rank) = (flex(), comm.rank());
        let (a, b) = (numbers(rank, [3], &device), numbers(50 * rank, [2, 2], &device));
        let ids = [a.id, b.id];
        if rank == 1 { train(Backwards { b, a }, ids, &comm) } else { train(Forwards { a, b }, ids, &comm) }
    });
    for found in found {
        assert_eq!(found["a"], [0.0, 1.0, 2.0]);
        assert_eq!(found["b"], [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(found["a.gradient"], [1.0, 2.0, 3.0]);
        assert_eq!(found["b.gradient"], [10.0, 11.0, 12.0, 13.0]);
    }
}

/// After gradients of 1 and -1, AdamW's moments nearly cancel, and an optimizer without the first
/// would make a step 19 times as long.
#[test]
fn an_optimizer_keeps_its_state() {
    const RATE: f64 = 0.5;
    on_ranks(3, |comm| {
        let device = flex();
        let mut module = numbers::<1>(100 * comm.rank(), [4], &device);
        let mut optimizer = AdamWConfig::new().with_weight_decay(0.0).init();
        let mut step = |module: Param<Tensor<1>>, gradient: f32| {
            let mut gradients = GradientsParams::new();
            gradients.register(module.id, Tensor::<1>::full([4], gradient, &Device::flex()));
            optimizer.step(RATE, module, gradients)
        };
        module = step(module, 1.0);
        module = sync_module(module, &comm).unwrap();
        let before = elements(&module);
        assert!((before[0] + RATE).abs() < 1e-3, "not the values of rank 0");
        module = step(module, -1.0);
        let moved: Vec<f64> = elements(&module).iter().zip(&before).map(|(now, then)| now - then).collect();
        assert!(moved.iter().all(|moved| (moved - RATE / 19.0).abs() < 1e-3), "{moved:?}");
        assert!(module.is_require_grad());
    });
}

/// 34 MB in all; some are larger than a bucket.
#[test]
fn values_of_all_sizes_are_sent_in_several_buckets() {
    let lengths = [1_000_000, 7_000_000, 3, 500_000, 0];
    on_ranks(2, |comm| {
        let device = flex();
        let filled = |value: usize, len| Param::from_tensor(Tensor::<1>::full([len], value as f32, &device));
        let values = lengths.into_iter().enumerate();
        let module: Vec<_> = values.map(|(at, len)| filled(100 * comm.rank() + at, len)).collect();
        let module = sync_module(module, &comm).unwrap();
        for (at, (value, len)) in module.iter().zip(lengths).enumerate() {
            let data = value.val().into_data();
            assert_eq!(data.as_slice::<f32>().unwrap(), vec![at as f32; len]);
        }
    });
}

#[test]
fn adapters_are_trained_and_the_frozen_base_is_copied() {
    on_ranks(2, |comm| {
        let device = flex();
        let linear: Linear = LinearConfig::new(4, 4).with_bias(false).init(&device);
        let linear = linear.apply_lora(burn::module::Lora::new(2, 4.0));
        let mut replicas = DataParallel::new(&linear, &comm).unwrap();
        let linear = replicas.sync_module(linear).unwrap();
        let found = parameters(&linear);
        let trained: Vec<&String> =
            found.iter().filter(|(_, found)| found.requires_grad).map(|(name, _)| name).collect();
        assert_eq!((found.len(), trained.len()), (3, 2), "{found:?}");
        let input = tensor::<2>(comm.rank(), [2, 4], &device);
        let gradients = linear.forward(input).sum().backward();
        let mut gradients = GradientsParams::from_grads(gradients, &linear);
        let report = replicas.sync_gradients(&linear, &mut gradients).unwrap();
        assert!(report.without_gradient().is_empty());
        let all = comm.all_gather_scalar(elements(&linear).iter().sum::<f64>().to_bits()).unwrap();
        assert_eq!(all[0], all[1]);
    });
}

#[test]
fn the_first_parameter_that_differs_is_named_with_its_rank() {
    type Change = fn(&mut AllTypes, AllTypes);
    let changes: [(&str, Change); 4] = [
        ("floats.0", |module, other| module.floats = other.floats),
        ("frozen", |module, other| module.frozen = other.frozen),
        ("integers.0", |module, other| module.integers = other.integers),
        ("mask", |module, other| module.mask = other.mask),
    ];
    for (name, change) in changes {
        on_ranks(3, |comm| {
            let mut module = AllTypes::new(0, &flex());
            check_replicas(&module, &comm).unwrap();
            if comm.rank() == 2 {
                change(&mut module, AllTypes::new(1, &flex()));
            }
            let outcome = check_replicas(&module, &comm);
            let Err(Error::Ranks(comm_ddp::Error::Diverged { name: found, ranks })) = outcome else {
                panic!("{name}: {outcome:?}")
            };
            assert_eq!((found.as_str(), ranks), (name, vec![2]));
        });
    }
}
