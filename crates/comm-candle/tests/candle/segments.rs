//! Backward in segments: the gradients of the whole backward, averaged while it runs.

use std::cell::Cell;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Shape, Tensor, Var};
use candle_nn::VarMap;
use comm_candle::collectives::all_reduce;
use comm_candle::{
    BucketLimits, DataParallel, Error, LostGradients, Options, Result, Segments, ZeroOptimizer,
    sync_gradients,
};
use comm_core::{Comm, ReduceOp, ReduceOrder};
use comm_ddp::AdamW;

use crate::ranks::{elements, map, numbers, on_ranks, var};
use crate::transformer::{Operations, Transformer};

/// One bucket per variable.
const EACH: BucketLimits = BucketLimits::DEFAULT.first_bytes(1).bytes(1);

fn bits(variables: &VarMap, gradients: &GradStore) -> Vec<(String, Option<Vec<u64>>)> {
    let map = variables.data().lock().unwrap();
    let bits = |var: &Var| {
        let gradient = gradients.get(var)?;
        assert_eq!((gradient.dims(), gradient.dtype()), (var.dims(), var.dtype()));
        Some(elements(gradient).into_iter().map(f64::to_bits).collect())
    };
    let mut all: Vec<_> = map.iter().map(|(name, var)| (name.clone(), bits(var))).collect();
    all.sort();
    all
}

fn segmented(comm: &Comm, model: &Transformer, options: Options) -> Vec<Vec<(String, Option<Vec<u64>>)>> {
    let comm = comm.with_reduce_order(ReduceOrder::Deterministic);
    let mut replicas = DataParallel::with_options(&model.variables, &comm, options).unwrap();
    let step = |step| {
        let (loss, segments) = model.cut_loss(step, comm.rank()).unwrap();
        let (gradients, report) = replicas.backward(&loss, segments).unwrap();
        assert!(report.without_gradient().is_empty() && report.counted_as_zero().is_empty());
        bits(&model.variables, &gradients)
    };
    (0..3).map(step).collect()
}

#[test]
fn gradients_are_bit_identical_to_those_of_an_unsegmented_backward() {
    for dtype in [DType::F32, DType::F64] {
        on_ranks(1, |comm| {
            let model = Transformer::new(Operations::Slow, dtype).unwrap();
            for (step, found) in segmented(&comm, &model, Options::DEFAULT).iter().enumerate() {
                let whole = model.loss(step, 0).unwrap().backward().unwrap();
                assert!(*found == bits(&model.variables, &whole), "{dtype:?}");
            }
        });
    }
}

#[test]
fn averages_are_bit_identical_to_those_of_an_unsegmented_backward() {
    for size in [2, 3, 5] {
        on_ranks(size, |comm| {
            let model = Transformer::new(Operations::Slow, DType::F32).unwrap();
            let deterministic = comm.with_reduce_order(ReduceOrder::Deterministic);
            for limits in [BucketLimits::DEFAULT, EACH, EACH.bytes(700)] {
                let found = segmented(&comm, &model, Options::DEFAULT.limits(limits));
                for (step, found) in found.iter().enumerate() {
                    let loss = model.loss(step, comm.rank()).unwrap();
                    let mut whole = loss.backward().unwrap();
                    sync_gradients(&model.variables, &mut whole, &deterministic).unwrap();
                    assert!(*found == bits(&model.variables, &whole), "{size} ranks");
                }
            }
        });
    }
}

#[test]
fn a_sharded_step_is_bit_identical_to_one_with_an_unsegmented_backward() {
    for size in [1, 2, 3] {
        on_ranks(size, |comm| {
            let comm = comm.with_reduce_order(ReduceOrder::Deterministic);
            let options = Options::DEFAULT.limits(EACH.bytes(700)).max_norm(Some(0.5));
            let train = |is_cut: bool| {
                let model = Transformer::new(Operations::Slow, DType::F32).unwrap();
                let mut zero =
                    ZeroOptimizer::with_options(&model.variables, &comm, options, |_| AdamW::new(0.01))
                        .unwrap();
                for step in 0..4 {
                    let report = if is_cut {
                        let (loss, segments) = model.cut_loss(step, comm.rank()).unwrap();
                        zero.backward_step(&loss, segments)
                    } else {
                        let loss = model.loss(step, comm.rank()).unwrap();
                        zero.step(&loss.backward().unwrap())
                    };
                    assert!(report.unwrap().without_gradient().is_empty());
                }
                let map = model.variables.data().lock().unwrap();
                let mut values: Vec<_> =
                    map.iter().map(|(name, var)| (name.clone(), elements(var))).collect();
                values.sort_by(|(one, _), (other, _)| one.cmp(other));
                values
            };
            assert!(train(true) == train(false), "{size} ranks");
        });
    }
}

/// The number of times that this test's communication threads read the clock: once when a
/// collective starts and once when it ends.
static TIMES: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

std::thread_local! {
    /// Whether this thread runs backward.
    static IS_BACKWARD: Cell<bool> = const { Cell::new(false) };
}

fn observed_clock() -> Instant {
    if !IS_BACKWARD.get() {
        *TIMES.0.lock().unwrap() += 1;
        TIMES.1.notify_all();
    }
    Instant::now()
}

/// An identity whose backward waits until two buckets of each of two ranks have been averaged.
struct WaitInBackward;

impl CustomOp1 for WaitInBackward {
    fn name(&self) -> &'static str {
        "wait in backward"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let times = TIMES.0.lock().unwrap();
        let (_times, waited) =
            TIMES.1.wait_timeout_while(times, Duration::from_secs(30), |times| *times < 2 * 2 * 2).unwrap();
        assert!(!waited.timed_out(), "no bucket was averaged while backward ran");
        Ok(Some(gradient.clone()))
    }
}

/// The first segment does not end before two buckets have been averaged on both ranks. If
/// buckets were sent after backward, it would fail.
#[test]
fn the_first_bucket_is_averaged_before_backward_ends() {
    on_ranks(2, |comm| {
        IS_BACKWARD.set(true);
        let names = ["layer.0", "layer.1", "layer.2"];
        let variables = map(comm.rank(), &names.map(|name| (name, numbers(1, &[3], DType::F32))));
        let options = Options::DEFAULT.limits(EACH).clock(observed_clock);
        let mut replicas = DataParallel::with_options(&variables, &comm, options).unwrap();
        let mut segments = Segments::new();
        let layers = names.map(|name| var(&variables, name));
        let first = (layers[0].as_tensor() * 2.0).unwrap().apply_op1(WaitInBackward).unwrap();
        let second = (segments.cut(&first).unwrap() * layers[1].as_tensor()).unwrap();
        let third = (segments.cut(&second).unwrap() * layers[2].as_tensor()).unwrap();
        let (gradients, report) = replicas.backward(&third.sum_all().unwrap(), segments).unwrap();
        let timeline = report.timeline().unwrap();
        assert!(timeline.overlapped() >= 1, "{timeline:?}");
        let [first, _, last] = &timeline.buckets[..] else { panic!("{timeline:?}") };
        assert!(first.completed <= last.filled && first.completed <= timeline.backward_ended);
        // 2 x 2 y z with x = y = z = 1, 2, 3.
        assert_eq!(elements(gradients.get(&layers[0]).unwrap()), [2.0, 8.0, 18.0]);
        assert_eq!(elements(gradients.get(&layers[2]).unwrap()), [2.0, 8.0, 18.0]);
    });
}

/// Integers, so that sums are exact in any order.
#[test]
fn paths_around_cuts_and_variables_of_several_segments_are_complete() {
    for size in [1, 2, 3] {
        on_ranks(size, |comm| {
            let names = ["a", "b", "tied", "unused"];
            let variables = map(comm.rank(), &names.map(|name| (name, numbers(2, &[2], DType::F64))));
            let [a, b, tied, _] = names.map(|name| var(&variables, name));
            let loss = |cut: &mut dyn FnMut(&Tensor) -> candle_core::Result<Tensor>| {
                let input = Tensor::full(1.0 + comm.rank() as f64, 2, &Device::Cpu)?;
                // No variable before it: it is not cut.
                let input = cut(&input)?;
                let first = (((&input * a.as_tensor())? * tied.as_tensor())? + tied.as_tensor())?;
                let start = cut(&first)?;
                let second = ((&start * b.as_tensor())? + tied.as_tensor())?;
                let _not_used = cut(&(&second * 3.0)?)?;
                let second = cut(&second)?;
                // The start of an earlier segment, and the end of one.
                ((second * &start)? + (&first * tied.as_tensor())?)?.sum_all()
            };
            let options = Options::DEFAULT.limits(EACH);
            let mut replicas = DataParallel::with_options(&variables, &comm, options).unwrap();
            let mut segments = Segments::new();
            let (gradients, report) =
                replicas.backward(&loss(&mut |tensor| segments.cut(tensor)).unwrap(), segments).unwrap();
            assert_eq!(report.without_gradient(), ["unused"]);
            let mut whole = loss(&mut |tensor| Ok(tensor.clone())).unwrap().backward().unwrap();
            sync_gradients(&variables, &mut whole, &comm).unwrap();
            assert_eq!(bits(&variables, &gradients), bits(&variables, &whole));
        });
    }
}

#[test]
fn a_gradient_of_some_ranks_counts_as_zero_on_the_others() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &["a", "b"].map(|name| (name, numbers(3, &[], DType::F32))));
        let [a, b] = ["a", "b"].map(|name| var(&variables, name));
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        for _ in 0..2 {
            let used = if comm.rank() == 1 { &b } else { &a };
            let (gradients, report) =
                replicas.backward(&(used.as_tensor() * 3.0).unwrap(), Segments::new()).unwrap();
            assert_eq!(elements(gradients.get(&a).unwrap()), [2.0]);
            assert_eq!(elements(gradients.get(&b).unwrap()), [1.0]);
            assert_eq!(report.counted_as_zero(), [if comm.rank() == 1 { "a" } else { "b" }]);
        }
    });
}

#[test]
fn lost_gradients_are_refused_on_every_rank_and_the_step_can_be_repeated() {
    on_ranks(2, |comm| {
        let model = Transformer::new(Operations::Fast, DType::F32).unwrap();
        let options = Options::DEFAULT.lost_gradients(LostGradients::Refuse);
        let mut replicas = DataParallel::with_options(&model.variables, &comm, options).unwrap();
        for _ in 0..2 {
            let (loss, segments) = model.cut_loss(0, comm.rank()).unwrap();
            let refused = replicas.backward(&loss, segments).unwrap_err();
            assert!(matches!(refused, Error::LostGradients { names, .. } if names.len() == 28));
        }
    });
}

/// An operation without backward that says so.
struct NoBackward;

impl CustomOp1 for NoBackward {
    fn name(&self) -> &'static str {
        "no backward"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }
}

#[test]
fn a_failed_backward_is_reported_to_the_other_ranks() {
    for (late, is_sharded) in [(false, false), (true, false), (false, true), (true, true)] {
        on_ranks(3, |comm| {
            let variables = map(comm.rank(), &["a", "b"].map(|name| (name, numbers(3, &[2], DType::F32))));
            let [a, b] = ["a", "b"].map(|name| var(&variables, name));
            let options = Options::DEFAULT.limits(EACH);
            let mut replicas = DataParallel::with_options(&variables, &comm, options).unwrap();
            let mut zero =
                ZeroOptimizer::with_options(&variables, &comm, options, |_| AdamW::new(0.1)).unwrap();
            let mut step = || -> Result<()> {
                let mut segments = Segments::new();
                let fails = |tensor: Tensor, here: bool| {
                    if comm.rank() == 1 && here { tensor.apply_op1(NoBackward) } else { Ok(tensor) }
                };
                let first = segments.cut(&fails((a.as_tensor() * 2.0)?, late)?)?;
                let loss = fails((first * b.as_tensor())?, !late)?.sum_all()?;
                if is_sharded {
                    zero.backward_step(&loss, segments).map(drop)
                } else {
                    replicas.backward(&loss, segments).map(drop)
                }
            };
            match step().unwrap_err() {
                Error::Candle(_) => assert_eq!(comm.rank(), 1),
                Error::Ranks(comm_ddp::Error::Comm(comm_core::Error::Aborted { by: 1, .. })) => {
                    assert_ne!(comm.rank(), 1);
                }
                other => panic!("{other}"),
            }
            assert!(matches!(step().unwrap_err(), Error::Ranks(_) | Error::Candle(_)));
            // The communicator of the caller is not affected.
            assert_eq!(comm.all_reduce_scalar(1, ReduceOp::Sum).unwrap(), 3);
        });
    }
}

/// On the same communicator, the call of rank 0 would be matched with a bucket of rank 1.
#[test]
fn the_communicator_of_the_caller_is_free_during_backward() {
    on_ranks(2, |comm| {
        let variables = map(comm.rank(), &["a", "b"].map(|name| (name, numbers(1, &[64], DType::F32))));
        let [a, b] = ["a", "b"].map(|name| var(&variables, name));
        let options = Options::DEFAULT.limits(EACH);
        let mut replicas = DataParallel::with_options(&variables, &comm, options).unwrap();
        let submit = || comm.all_reduce_async(vec![1_u32; 64], ReduceOp::Sum).unwrap();
        for _ in 0..20 {
            let early = (comm.rank() == 0).then(submit);
            let mut segments = Segments::new();
            let first = segments.cut(&(a.as_tensor() * 2.0).unwrap()).unwrap();
            let loss = (first * b.as_tensor()).unwrap().sum_all().unwrap();
            replicas.backward(&loss, segments).unwrap();
            assert_eq!(early.unwrap_or_else(submit).wait().unwrap(), [2; 64]);
        }
    });
}

#[test]
fn the_model_may_have_collectives_in_all_segments() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &["a", "b", "c"].map(|name| (name, numbers(1, &[64], DType::F64))));
        let [a, b, c] = ["a", "b", "c"].map(|name| var(&variables, name));
        let loss = |cut: &mut dyn FnMut(&Tensor) -> candle_core::Result<Tensor>| {
            let input = Tensor::full(comm.rank() as f64, 64, &Device::Cpu)?;
            let first = all_reduce(&(input * a.as_tensor())?, &comm, ReduceOp::Sum)?;
            let second = all_reduce(&(cut(&first)? * b.as_tensor())?, &comm, ReduceOp::Sum)?;
            (cut(&second)? * c.as_tensor())?.sum_all()
        };
        let options = Options::DEFAULT.limits(EACH);
        let mut replicas = DataParallel::with_options(&variables, &comm, options).unwrap();
        for _ in 0..20 {
            let mut segments = Segments::new();
            let cut = loss(&mut |tensor| segments.cut(tensor)).unwrap();
            let (gradients, _) = replicas.backward(&cut, segments).unwrap();
            let mut whole = loss(&mut |tensor| Ok(tensor.clone())).unwrap().backward().unwrap();
            sync_gradients(&variables, &mut whole, &comm).unwrap();
            assert_eq!(bits(&variables, &gradients), bits(&variables, &whole));
        }
    });
}

#[test]
fn an_added_variable_is_reported_to_the_other_ranks() {
    on_ranks(2, |comm| {
        let variables = map(comm.rank(), &[("a", numbers(3, &[2], DType::F32))]);
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        if comm.rank() == 1 {
            let late = var(&variables, "a");
            drop(variables.data().lock().unwrap().insert("late".into(), late));
        }
        let loss = var(&variables, "a").sum_all().unwrap();
        match replicas.backward(&loss, Segments::new()).unwrap_err() {
            Error::Changed { name } => assert_eq!((comm.rank(), name.as_str()), (1, "late")),
            Error::Ranks(error) => assert!(comm.rank() == 0 && error.to_string().contains("late"), "{error}"),
            other => panic!("{other}"),
        }
    });
}
