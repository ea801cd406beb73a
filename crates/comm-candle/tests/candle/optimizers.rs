//! Optimizers with state: the whole on every rank, or divided among the ranks.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Optimizer as _, ParamsAdamW, VarMap};
use comm_candle::{BucketLimits, DataParallel, Error, Options, ReplicatedOptimizer, Report, ZeroOptimizer};
use comm_core::{Comm, ReduceOrder};
use comm_ddp::{AdamW, Optimizer, Parameter, Sgd};

use crate::ranks::{address, elements, map, numbers, on_ranks, store, var};

const WORLDS: [usize; 5] = [1, 2, 3, 5, 8];
const STEPS: usize = 4;

/// Names and shapes. The third has no elements, and the last is longer than a bucket.
const SHAPES: [(&str, &[usize]); 5] =
    [("a.weight", &[7, 3]), ("a.bias", &[7]), ("empty", &[0, 2]), ("scale", &[]), ("table", &[61, 5])];

/// Numbers whose sums are rounded: a different order of additions would show.
fn noise(seed: usize, shape: &[usize], dtype: DType) -> Tensor {
    let value = |at| ((seed * 7919 + at * 31) as f64 * 0.618).sin() / 3.0;
    let values: Vec<f64> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn model(rank: usize, dtype: DType) -> VarMap {
    let tensors: Vec<_> =
        SHAPES.iter().enumerate().map(|(at, (name, shape))| (*name, noise(at, shape, dtype))).collect();
    map(rank, &tensors)
}

/// The gradients of a rank in a step. Rank 0 has none of the bias, and no rank has one of the scale
/// in the second step.
fn gradients(variables: &VarMap, dtype: DType, rank: usize, step: usize) -> GradStore {
    let exists = |name: &str| variables.data().lock().unwrap().contains_key(name);
    let has = |name: &str| exists(name) && !(name == "a.bias" && rank == 0 || name == "scale" && step == 1);
    let given = SHAPES.iter().enumerate().filter(|(_, (name, _))| has(name));
    let seed = |at| 100 + 50 * step + 7 * rank + at;
    let given: Vec<_> = given.map(|(at, (name, shape))| (*name, noise(seed(at), shape, dtype))).collect();
    store(variables, &given)
}

fn values(variables: &VarMap) -> Vec<Vec<f64>> {
    let map = variables.data().lock().unwrap();
    SHAPES.iter().filter_map(|(name, _)| map.get(*name)).map(|var| elements(var)).collect()
}

/// Buckets of a few elements, so that variables span several blocks and buckets.
fn options() -> Options {
    Options::DEFAULT.limits(BucketLimits::DEFAULT.first_bytes(64).bytes(256))
}

fn deterministic(comm: &Comm) -> Comm {
    comm.with_reduce_order(ReduceOrder::Deterministic)
}

fn replicated<O: Optimizer<f32> + Optimizer<f64>>(
    comm: &Comm,
    dtype: DType,
    optimizer: impl Fn(&Parameter) -> O,
) -> (Vec<Vec<f64>>, Vec<Report>) {
    let variables = model(comm.rank(), dtype);
    let mut replicas = DataParallel::with_options(&variables, &deterministic(comm), options()).unwrap();
    let mut optimizer = ReplicatedOptimizer::new(&variables, optimizer).unwrap();
    let step = |step| {
        let mut gradients = gradients(&variables, dtype, comm.rank(), step);
        let report = replicas.sync_gradients(&mut gradients).unwrap();
        optimizer.step(&gradients).unwrap();
        report
    };
    let reports = (0..STEPS).map(step).collect();
    (values(&variables), reports)
}

fn sharded<O: Optimizer<f32> + Optimizer<f64>>(
    comm: &Comm,
    dtype: DType,
    optimizer: impl Fn(&Parameter) -> O,
) -> (Vec<Vec<f64>>, Vec<Report>) {
    let variables = model(comm.rank(), dtype);
    let comm = deterministic(comm);
    let mut optimizer = ZeroOptimizer::with_options(&variables, &comm, options(), optimizer).unwrap();
    let step = |step| optimizer.step(&gradients(&variables, dtype, comm.rank(), step)).unwrap();
    let reports = (0..STEPS).map(step).collect();
    (values(&variables), reports)
}

#[test]
fn a_sharded_optimizer_is_bit_identical_to_an_unsharded_one() {
    fn check<O: Optimizer<f32> + Optimizer<f64>>(optimizer: impl Fn(&Parameter) -> O + Sync) {
        for (size, dtype) in WORLDS.into_iter().flat_map(|size| [(size, DType::F32), (size, DType::F64)]) {
            let results = on_ranks(size, |comm| {
                (replicated(&comm, dtype, &optimizer), sharded(&comm, dtype, &optimizer))
            });
            for (rank, ((whole, whole_reports), (sharded, reports))) in results.iter().enumerate() {
                assert!(whole == sharded && *whole == results[0].0.0, "{dtype:?} on {size} ranks");
                let both = reports.iter().zip(whole_reports).enumerate();
                for (step, (report, whole)) in both {
                    let lost: &[&str] = if step == 1 { &["scale"] } else { &[] };
                    let lost = if size == 1 { [&["a.bias"], lost].concat() } else { lost.to_vec() };
                    let zero: &[&str] = if rank == 0 && size > 1 { &["a.bias"] } else { &[] };
                    assert!(report.without_gradient() == lost && whole.without_gradient() == lost);
                    assert!(report.counted_as_zero() == zero && whole.counted_as_zero() == zero);
                }
            }
        }
    }
    let decay = |parameter: &Parameter| if parameter.shape().len() > 1 { 0.3 } else { 0.0 };
    check(|parameter| AdamW::new(1e-2).weight_decay(decay(parameter)));
    check(|_| Sgd::new(0.1).momentum(0.9).nesterov(true));
    check(|_| Sgd::new(0.1));
}

#[test]
fn adam_w_matches_candle() {
    for dtype in [DType::F32, DType::F64] {
        let (ours, theirs) = (model(0, dtype), model(0, dtype));
        // candle's cannot update a tensor without elements.
        for variables in [&ours, &theirs] {
            drop(variables.data().lock().unwrap().remove("empty"));
        }
        let settings = AdamW::new(0.02).beta1(0.8).beta2(0.95).epsilon(1e-6).weight_decay(0.1);
        let params = ParamsAdamW { lr: 0.02, beta1: 0.8, beta2: 0.95, eps: 1e-6, weight_decay: 0.1 };
        let mut optimizer = ReplicatedOptimizer::new(&ours, |_| settings).unwrap();
        let mut candle = candle_nn::AdamW::new(theirs.all_vars(), params).unwrap();
        for step in 0..20 {
            optimizer.step(&gradients(&ours, dtype, 1, step)).unwrap();
            candle.step(&gradients(&theirs, dtype, 1, step)).unwrap();
        }
        assert_eq!(optimizer.steps(), 20);
        let tolerance = if dtype == DType::F32 { 2e-6 } else { 1e-14 };
        for (ours, theirs) in values(&ours).iter().flatten().zip(values(&theirs).iter().flatten()) {
            assert!((ours - theirs).abs() < tolerance, "{ours} {theirs} in {dtype:?}");
        }
    }
}

#[test]
fn variables_are_updated_in_place() {
    on_ranks(2, |comm| {
        let variables = model(comm.rank(), DType::F32);
        let table = var(&variables, "table");
        let before = address(&table);
        let mut whole = ReplicatedOptimizer::new(&variables, |_| Sgd::new(1.0)).unwrap();
        let mut zero = ZeroOptimizer::new(&variables, &comm, |_| Sgd::new(1.0)).unwrap();
        whole.step(&store(&variables, &[("table", noise(1, &[61, 5], DType::F32))])).unwrap();
        zero.step(&store(&variables, &[("table", noise(2, &[61, 5], DType::F32))])).unwrap();
        assert_eq!(address(&var(&variables, "table")), before);
        let expected = (noise(4, &[61, 5], DType::F32) - noise(1, &[61, 5], DType::F32)).unwrap();
        let expected = (expected - noise(2, &[61, 5], DType::F32)).unwrap();
        assert_eq!(elements(&table), elements(&expected));
    });
}

/// candle locks memory that is written, so reading it at the same time would not return.
#[test]
fn a_variable_or_a_strided_tensor_can_be_the_gradient() {
    on_ranks(2, |comm| {
        let variables = map(comm.rank(), &[("w", numbers(1, &[2, 2], DType::F32))]);
        let own = var(&variables, "w").as_tensor().clone();
        let mut whole = ReplicatedOptimizer::new(&variables, |_| Sgd::new(0.5)).unwrap();
        whole.step(&store(&variables, &[("w", own.clone())])).unwrap();
        assert_eq!(elements(&own), [0.5, 1.0, 1.5, 2.0]);
        let mut zero = ZeroOptimizer::new(&variables, &comm, |_| Sgd::new(0.5)).unwrap();
        zero.step(&store(&variables, &[("w", own.t().unwrap())])).unwrap();
        assert_eq!(elements(&own), [0.25, 0.25, 1.0, 1.0]);
    });
}

#[test]
fn averages_are_clipped_by_their_global_norm() {
    for size in [1, 2, 3, 5] {
        on_ranks(size, |comm| {
            let options = options().max_norm(Some(if comm.rank() == 0 { 10.0 } else { 1.0 }));
            let tensors = |value: f64| {
                [("a", (numbers(3, &[1], DType::F64) * value).unwrap()), ("b", numbers(0, &[1], DType::F64))]
            };
            let variables = map(comm.rank(), &tensors(0.0));
            let mut zero =
                ZeroOptimizer::with_options(&variables, &comm, options, |_| Sgd::new(1.0)).unwrap();
            let mut replicas = DataParallel::with_options(&variables, &comm, options).unwrap();
            // The norm of 30 and 0 is 30, and that of 3 and 0 is not clipped. Rank 0 decides.
            for (factor, clipped) in [(10.0, 10.0), (1.0, 3.0)] {
                let before = elements(&var(&variables, "a"))[0];
                let mut gradients = store(&variables, &tensors(factor));
                assert_eq!(zero.step(&gradients).unwrap().norm(), Some(3.0 * factor));
                assert!((before - elements(&var(&variables, "a"))[0] - clipped).abs() < 1e-12);
                assert_eq!(replicas.sync_gradients(&mut gradients).unwrap().norm(), Some(3.0 * factor));
                let average = elements(gradients.get(&var(&variables, "a")).unwrap())[0];
                assert!((average - clipped).abs() < 1e-12);
            }
        });
    }
}

#[test]
fn a_step_whose_norm_is_not_finite_changes_nothing() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &[("w", numbers(1, &[4], DType::F32))]);
        let options = options().max_norm(Some(1.0));
        let mut zero = ZeroOptimizer::with_options(&variables, &comm, options, |_| AdamW::new(0.1)).unwrap();
        let first = if comm.rank() == 1 { f32::INFINITY } else { 1.0 };
        let gradient = Tensor::new(&[first, 1.0, 1.0, 1.0], &Device::Cpu).unwrap();
        let report = zero.step(&store(&variables, &[("w", gradient)])).unwrap();
        assert!(report.norm().is_some_and(|norm| !norm.is_finite()) && zero.steps() == 0);
        assert_eq!(elements(&var(&variables, "w")), [1.0, 2.0, 3.0, 4.0]);
        zero.step(&store(&variables, &[("w", numbers(1, &[4], DType::F32))])).unwrap();
        assert!(zero.steps() == 1 && elements(&var(&variables, "w"))[0] < 1.0);
    });
}

#[test]
fn the_learning_rate_can_change_between_steps() {
    on_ranks(2, |comm| {
        let variables = map(comm.rank(), &[("w", numbers(8, &[3], DType::F32))]);
        let gradient = || store(&variables, &[("w", numbers(1, &[3], DType::F32))]);
        let mut whole = ReplicatedOptimizer::new(&variables, |_| Sgd::new(1.0)).unwrap();
        whole.settings_mut().for_each(|(name, sgd)| sgd.learning_rate = if name == "w" { 2.0 } else { 0.0 });
        whole.step(&gradient()).unwrap();
        assert_eq!(elements(&var(&variables, "w")), [6.0, 5.0, 4.0]);
        let mut zero = ZeroOptimizer::new(&variables, &comm, |_| Sgd::new(1.0)).unwrap();
        zero.settings_mut().for_each(|(name, sgd)| sgd.learning_rate = if name == "w" { 3.0 } else { 0.0 });
        zero.step(&gradient()).unwrap();
        assert_eq!(elements(&var(&variables, "w")), [3.0, -1.0, -5.0]);
    });
}

#[test]
fn momentum_can_begin_between_steps() {
    on_ranks(2, |comm| {
        let variables = [0, 1].map(|_| map(comm.rank(), &[("w", numbers(8, &[3], DType::F32))]));
        let gradient = |at: usize| store(&variables[at], &[("w", numbers(1, &[3], DType::F32))]);
        let mut whole = ReplicatedOptimizer::new(&variables[0], |_| Sgd::new(1.0)).unwrap();
        let mut zero = ZeroOptimizer::new(&variables[1], &comm, |_| Sgd::new(1.0)).unwrap();
        for step in 0..4 {
            if step == 1 {
                whole.settings_mut().for_each(|(_, sgd)| sgd.momentum = 0.5);
                zero.settings_mut().for_each(|(_, sgd)| sgd.momentum = 0.5);
                let mut state = comm_checkpoint::State::new();
                whole.save_to(&mut state).unwrap();
                assert!(state.tensor("optimizer.momentum.w", &[3], &[0.0_f32; 3]).is_err(), "it is there");
            }
            whole.step(&gradient(0)).unwrap();
            zero.step(&gradient(1)).unwrap();
        }
        // The sum of 1, 1, 1.5 and 1.75 times the gradient.
        assert_eq!(elements(&var(&variables[0], "w")), [2.75, -1.5, -5.75]);
        assert_eq!(elements(&var(&variables[1], "w")), [2.75, -1.5, -5.75]);
    });
}

#[test]
fn types_that_no_optimizer_updates_are_refused_by_name() {
    on_ranks(2, |comm| {
        let refused = |dtypes: [DType; 2], name: &str| {
            let variables =
                map(comm.rank(), &[("a", numbers(0, &[2], dtypes[0])), ("b", numbers(0, &[2], dtypes[1]))]);
            match ZeroOptimizer::new(&variables, &comm, |_| AdamW::new(0.1)) {
                Err(Error::NotUpdated { name: found, .. }) => assert_eq!(found, name),
                other => panic!("{other:?}"),
            }
            ReplicatedOptimizer::new(&variables, |_| AdamW::new(0.1))
        };
        assert!(matches!(refused([DType::BF16; 2], "a"), Err(Error::NotUpdated { name, .. }) if name == "a"));
        assert!(matches!(refused([DType::F32, DType::F16], "b"), Err(Error::NotUpdated { .. })));
        assert!(refused([DType::F32, DType::F64], "b").is_ok());
    });
}

#[test]
fn integers_are_not_updated() {
    on_ranks(2, |comm| {
        let tensors = [("ids", numbers(3, &[2], DType::I64)), ("w", numbers(1, &[1], DType::F32))];
        let variables = map(comm.rank(), &tensors);
        let mut zero = ZeroOptimizer::new(&variables, &comm, |_| Sgd::new(1.0)).unwrap();
        let report = zero.step(&store(&variables, &[("w", numbers(1, &[1], DType::F32))])).unwrap();
        assert!(report.without_gradient().is_empty());
        assert_eq!(
            (elements(&var(&variables, "ids")), elements(&var(&variables, "w"))),
            (vec![3.0, 4.0], vec![0.0])
        );
    });
}

#[test]
fn a_wrong_gradient_on_one_rank_prevents_updates_on_all_ranks() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &[("w", numbers(1, &[2, 3], DType::F32))]);
        let mut zero = ZeroOptimizer::new(&variables, &comm, |_| Sgd::new(1.0)).unwrap();
        let shape: &[usize] = if comm.rank() == 2 { &[3, 2] } else { &[2, 3] };
        match zero.step(&store(&variables, &[("w", numbers(0, shape, DType::F32))])).unwrap_err() {
            Error::Gradient { name, .. } => assert_eq!((comm.rank(), name.as_str()), (2, "w")),
            Error::Refused { rank, name, .. } => assert_eq!((rank, name.as_str()), (2, "w")),
            other => panic!("{other}"),
        }
        zero.step(&store(&variables, &[("w", numbers(1, &[2, 3], DType::F32))])).unwrap();
        assert_eq!((elements(&var(&variables, "w")), zero.steps()), (vec![0.0; 6], 1));
        let late = var(&variables, "w");
        drop(variables.data().lock().unwrap().insert("late".into(), late));
        let refused = zero.step(&store(&variables, &[])).unwrap_err();
        assert!(matches!(refused, Error::Changed { name } if name == "late"));
    });
}

#[test]
fn steps_fail_after_a_rank_has_left() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &[("w", numbers(1, &[4], DType::F32))]);
        let mut zero = ZeroOptimizer::new(&variables, &comm, |_| Sgd::new(1.0)).unwrap();
        if comm.rank() == 1 {
            return;
        }
        for _ in 0..2 {
            let failed = zero.step(&store(&variables, &[("w", numbers(1, &[4], DType::F32))])).unwrap_err();
            assert!(matches!(failed, Error::Ranks(_)), "{failed}");
            assert_eq!(elements(&var(&variables, "w")), [1.0, 2.0, 3.0, 4.0]);
        }
    });
}
