//! On a device, gradients and variables get the same bits, reports and errors as in host memory.

use std::time::Duration;

use candle_core::backprop::GradStore;
use candle_core::cuda::cudarc::driver::DevicePtr;
use candle_core::{DType, Device, Storage, Tensor};
use candle_nn::VarMap;
use comm_candle::{DataParallel, Error, LostGradients, Place, Report, sync_gradients, sync_model};
use comm_core::Comm;

use crate::ranks::{RankContext, on_cpu, on_ranks, on_worlds};
use crate::tensors::{elements, gradient, map, numbers, store, var};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// A tensor of numbers near 1, so that no sum of two is subnormal, which the rank and `seed`
/// determine.
fn drawn(rank: usize, seed: usize, shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    let number = |at: usize| {
        let angle = (rank * 31 + seed * 7 + at * 3) as f64;
        (angle.sin().abs() + 0.125).copysign(angle.cos())
    };
    let numbers: Vec<f64> = (0..shape.iter().product()).map(number).collect();
    let tensor = Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
    tensor.to_device(device).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    elements(&on_cpu(tensor)).into_iter().map(f64::to_bits).collect()
}

/// Variables that are zero, with the shapes and types of the gradients.
fn zeros_like(rank: usize, gradients: &[(&str, Tensor)]) -> VarMap {
    let zeros = gradients.iter().map(|(name, like)| (*name, like.zeros_like().unwrap()));
    map(rank, &zeros.collect::<Vec<_>>())
}

/// The averages by name, and the names in the report.
type Averages = (Vec<Option<Vec<u64>>>, Vec<String>, Vec<String>);

/// Averages gradients, except for the variables that this rank lacks.
fn averages<M: Place>(comm: &Comm<M>, all: &[(&str, Tensor)], is_here: impl Fn(&str) -> bool) -> Averages {
    let variables = zeros_like(comm.rank(), all);
    let here: Vec<_> = all.iter().filter(|(name, _)| is_here(name)).cloned().collect();
    let mut gradients = store(&variables, &here);
    let report = sync_gradients(&variables, &mut gradients, comm).unwrap();
    let found = |(name, like): &(&str, Tensor)| {
        let average = gradient(&variables, name, &gradients)?;
        assert_eq!((average.dims(), average.dtype()), (like.dims(), like.dtype()), "{name}");
        assert!(average.is_contiguous() && average.device().same_device(like.device()), "{name}");
        Some(bits(average))
    };
    let owned = |names: &[String]| names.to_vec();
    let (without, counted) = (owned(report.without_gradient()), owned(report.counted_as_zero()));
    (all.iter().map(found).collect(), without, counted)
}

/// Fails if the averages on the device differ from those in host memory.
fn compare<'n>(
    ctx: &RankContext,
    build: impl Fn(&Device) -> Vec<(&'n str, Tensor)>,
    is_here: impl Fn(&str) -> bool,
) {
    let host = averages(ctx.host(), &build(&Device::Cpu), &is_here);
    let device = averages(ctx.cuda(), &build(&ctx.device), &is_here);
    assert_eq!((&host.1, &host.2), (&device.1, &device.2));
    for (at, (host, device)) in host.0.iter().zip(&device.0).enumerate() {
        assert!(host == device, "gradient {at}: {host:?} in host memory, {device:?} on the device");
    }
}

#[test]
fn averages_of_every_type_have_the_bits_of_the_host() {
    on_ranks("gradients::averages_of_every_type_have_the_bits_of_the_host", |ctx| {
        for dtype in FLOATS {
            let lengths = [("one", 1), ("few", 77), ("many", 100_003), ("empty", 0)];
            let build = |device: &Device| {
                let mut given: Vec<_> = lengths
                    .iter()
                    .map(|&(name, len)| (name, drawn(ctx.rank(), len, &[len], dtype, device)))
                    .collect();
                given.push(("scalar", drawn(ctx.rank(), 3, &[], dtype, device)));
                given
            };
            compare(ctx, build, |_| true);
        }
    });
}

/// More than fit into one group of calls of NCCL.
#[test]
fn hundreds_of_gradients_of_mixed_types_are_averaged() {
    on_ranks("gradients::hundreds_of_gradients_of_mixed_types_are_averaged", |ctx| {
        let names: Vec<String> = (0..600).map(|at| format!("v{at}")).collect();
        let build = |device: &Device| {
            let given = names.iter().enumerate().map(|(at, name)| {
                (name.as_str(), drawn(ctx.rank(), at, &[at % 7 + 1, 3], FLOATS[at % 4], device))
            });
            given.collect()
        };
        compare(ctx, build, |_| true);
    });
}

#[test]
fn gradients_that_only_some_ranks_have_count_as_zero_on_the_others() {
    on_ranks("gradients::gradients_that_only_some_ranks_have_count_as_zero_on_the_others", |ctx| {
        let names = ["all", "first", "last", "none"];
        let build = |device: &Device| {
            names
                .iter()
                .enumerate()
                .map(|(at, &name)| (name, drawn(ctx.rank(), at, &[5], DType::F32, device)))
                .collect()
        };
        let (rank, last) = (ctx.rank(), ctx.size() - 1);
        compare(ctx, build, |name| match name {
            "first" => rank == 0,
            "last" => rank == last,
            name => name == "all",
        });
    });
}

#[test]
fn strided_and_shared_gradients_are_averaged_and_nothing_else_is_written() {
    on_ranks("gradients::strided_and_shared_gradients_are_averaged_and_nothing_else_is_written", |ctx| {
        let whole = |device: &Device| drawn(ctx.rank(), 1, &[3, 4], DType::F32, device);
        let build = |device: &Device| {
            let (base, one) = (whole(device), drawn(ctx.rank(), 2, &[6], DType::F32, device));
            vec![
                ("transposed", base.t().unwrap()),
                ("narrow", base.narrow(1, 1, 2).unwrap()),
                ("spread", base.narrow(1, 0, 1).unwrap().broadcast_as((3, 4)).unwrap()),
                ("twice", one.clone()),
                ("again", one.clone()),
                ("part", one.narrow(0, 1, 3).unwrap()),
            ]
        };
        compare(ctx, build, |_| true);
        let base = whole(&ctx.device);
        let given = [("row", base.get(1).unwrap())];
        let variables = zeros_like(ctx.rank(), &given);
        let mut gradients = store(&variables, &given);
        sync_gradients(&variables, &mut gradients, ctx.cuda()).unwrap();
        let expected = bits(&whole(&Device::Cpu));
        let found = bits(&base);
        assert_eq!((&found[..4], &found[8..]), (&expected[..4], &expected[8..]), "more was written");
    });
}

/// The address of the elements of an `f32` tensor on a device.
fn address(tensor: &Tensor) -> u64 {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { panic!("not on a device") };
    let elements = storage.as_cuda_slice::<f32>().unwrap().slice(layout.start_offset()..);
    elements.device_ptr(&storage.device.cuda_stream()).0
}

#[test]
fn gradients_are_averaged_in_place() {
    on_ranks("gradients::gradients_are_averaged_in_place", |ctx| {
        let own = drawn(ctx.rank(), 1, &[5], DType::F32, &ctx.device);
        let part = drawn(ctx.rank(), 2, &[6], DType::F32, &ctx.device).narrow(0, 3, 2).unwrap();
        let given = [("own", own), ("part", part)];
        let variables = zeros_like(ctx.rank(), &given);
        let mut gradients = store(&variables, &given);
        sync_gradients(&variables, &mut gradients, ctx.cuda()).unwrap();
        for (name, given) in given {
            assert_eq!(address(gradient(&variables, name, &gradients).unwrap()), address(&given), "{name}");
        }
    });
}

#[test]
fn every_rank_gets_the_variables_of_rank_0() {
    on_ranks("gradients::every_rank_gets_the_variables_of_rank_0", |ctx| {
        let integers = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];
        let dtypes = [&FLOATS[..], &integers].concat();
        let names: Vec<String> = dtypes.iter().map(|dtype| format!("{dtype:?}")).collect();
        let of_rank = |rank: usize| -> Vec<(&str, Tensor)> {
            let one = |(name, &dtype)| (name, numbers(100 * rank, &[7, 3], dtype));
            names.iter().map(String::as_str).zip(&dtypes).map(one).collect()
        };
        let own: Vec<_> = of_rank(ctx.rank())
            .into_iter()
            .map(|(name, tensor)| (name, tensor.to_device(&ctx.device).unwrap()))
            .collect();
        let variables = map(ctx.rank(), &own);
        sync_model(&variables, ctx.cuda()).unwrap();
        for (name, expected) in of_rank(0) {
            assert_eq!(bits(&var(&variables, name)), bits(&expected), "{name}");
        }
    });
}

/// The error of one step, on each rank.
fn refusal<M: Place>(comm: &Comm<M>, device: &Device) -> (String, Result<Report, Error>) {
    let given = [("b", [3]), ("w", [6])]
        .map(|(name, shape)| (name, drawn(comm.rank(), 1, &shape, DType::F32, device)));
    let variables = zeros_like(comm.rank(), &given);
    let mut replicas = DataParallel::new(&variables, comm).unwrap();
    replicas.set_lost_gradients(LostGradients::Allow);
    let mut gradients = store(&variables, &given);
    if comm.rank() + 1 == comm.size() {
        gradients.insert(&var(&variables, "w"), Tensor::zeros((2, 3), DType::F32, device).unwrap());
    }
    let error = replicas.sync_gradients(&mut gradients).unwrap_err().to_string();
    assert_eq!(bits(gradient(&variables, "b", &gradients).unwrap()), bits(&given[0].1), "it was changed");
    // All can continue.
    (error, replicas.sync_gradients(&mut store(&variables, &given)))
}

#[test]
fn a_mismatched_gradient_is_refused_on_every_rank_before_any_is_sent() {
    on_ranks("gradients::a_mismatched_gradient_is_refused_on_every_rank_before_any_is_sent", |ctx| {
        let (host, device) = (refusal(ctx.host(), &Device::Cpu), refusal(ctx.cuda(), &ctx.device));
        assert!(device.0.contains("the gradient of \"w\" is [2, 3] of f32 on Cuda"), "{}", device.0);
        // The error of the last rank names its device.
        let on_cpu =
            |text: String, device: usize| text.replace(&format!("Cuda {{ gpu_id: {device} }}"), "Cpu");
        assert_eq!(host.0, (0..ctx.size()).fold(device.0, on_cpu));
        assert!(host.1.is_ok() && device.1.is_ok(), "{:?} {:?}", host.1, device.1);
    });
}

#[test]
fn models_that_differ_are_refused_on_every_rank() {
    on_worlds("gradients::models_that_differ_are_refused_on_every_rank", &[2], |ctx| {
        let len = ctx.rank() + 1;
        let refused = |device: &Device| map(ctx.rank(), &[("w", drawn(0, 1, &[len], DType::F32, device))]);
        let host = sync_model(&refused(&Device::Cpu), ctx.host()).unwrap_err();
        let device = sync_model(&refused(&ctx.device), ctx.cuda()).unwrap_err();
        assert!(matches!(device, Error::Ranks(_)), "{device}");
        assert_eq!(host.to_string(), device.to_string());
    });
}

/// candle's fast layer norm gives no gradients to the variables before it.
#[test]
fn variables_cut_off_by_an_operation_without_backward_are_named() {
    on_ranks("gradients::variables_cut_off_by_an_operation_without_backward_are_named", |ctx| {
        let names = ["before", "scale", "shift"];
        let given = names.map(|name| (name, drawn(0, 1, &[3], DType::F32, &ctx.device)));
        let variables = map(ctx.rank(), &given);
        let mut replicas = DataParallel::new(&variables, ctx.cuda()).unwrap();
        replicas.set_lost_gradients(LostGradients::Refuse);
        let backward = || -> candle_core::Result<GradStore> {
            let [before, scale, shift] = names.map(|name| var(&variables, name));
            let input = (before.as_tensor() * 2.0)?.unsqueeze(0)?;
            let normal = candle_nn::ops::layer_norm(&input, &scale, &shift, 1e-5)?;
            (normal + shift.as_tensor().unsqueeze(0)?)?.sum_all()?.backward()
        };
        let error = replicas.sync_gradients(&mut backward().unwrap()).unwrap_err();
        let Error::LostGradients { names, .. } = error else { panic!("{error}") };
        assert_eq!(names, ["before", "scale"]);
    });
}

#[test]
fn averaging_fails_after_a_rank_has_left() {
    on_worlds("gradients::averaging_fails_after_a_rank_has_left", &[2], |ctx| {
        let given = [("w", drawn(ctx.rank(), 1, &[4], DType::F32, &ctx.device))];
        let variables = zeros_like(ctx.rank(), &given);
        let comm = ctx.cuda().clone().with_timeout(Duration::from_secs(5));
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        if ctx.rank() == 1 {
            return;
        }
        for _ in 0..2 {
            let error = replicas.sync_gradients(&mut store(&variables, &given)).unwrap_err();
            assert!(matches!(error, Error::Ranks(_)) && error.to_string().contains("rank 1"), "{error}");
        }
    });
}
