//! Variables are broadcast, compared and refused.

use std::sync::atomic::Ordering;

use candle_core::{DType, Device, Tensor};
use comm_candle::{DataParallel, Error, check_replicas, sync_gradients, sync_model};

use crate::ranks::{WORLDS, counting, elements, map, numbers, on_ranks, store, var};

const DTYPES: [DType; 9] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
];

/// A variable of each type and of several shapes, whose values differ by rank.
fn model(rank: usize) -> Vec<(&'static str, Tensor)> {
    let names = ["u8", "u32", "i16", "i32", "i64", "bf16", "f16", "f32", "f64"];
    let shapes: [&[usize]; 9] = [&[3], &[2, 2], &[1], &[], &[0, 4], &[5], &[2, 1, 3], &[7], &[]];
    let tensor = |at: usize| (names[at], numbers(10 * rank + at, shapes[at], DTYPES[at]));
    (0..9).map(tensor).collect()
}

#[test]
fn every_rank_gets_the_variables_of_rank_0_with_any_values() {
    for size in WORLDS {
        on_ranks(size, |comm| {
            let variables = map(comm.rank(), &model(comm.rank()));
            let before = var(&variables, "f32");
            sync_model(&variables, &comm).unwrap();
            for (name, expected) in model(0) {
                let found = var(&variables, name);
                assert_eq!((found.dtype(), found.dims()), (expected.dtype(), expected.dims()), "{name}");
                assert_eq!(elements(&found), elements(&expected), "{name}");
            }
            assert_eq!(elements(&before), elements(&model(0)[7].1), "the variable was replaced");
        });
    }
}

#[test]
fn many_small_variables_are_sent_in_few_messages() {
    let names: Vec<String> = (0..300).map(|at| format!("layer{at}.w")).collect();
    counting(2, |comm, sent| {
        let tensors: Vec<(&str, Tensor)> = names
            .iter()
            .enumerate()
            .map(|(at, name)| (name.as_str(), numbers(at + 1000 * comm.rank(), &[at % 5], DTYPES[at % 9])))
            .collect();
        let variables = map(comm.rank(), &tensors);
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        let before = sent.load(Ordering::Relaxed);
        replicas.sync_model().unwrap();
        let cost = sent.load(Ordering::Relaxed) - before;
        assert!(cost < 30, "{cost} messages for 300 variables");
        for (at, name) in names.iter().enumerate() {
            assert_eq!(elements(&var(&variables, name)), elements(&numbers(at, &[at % 5], DTYPES[at % 9])));
        }
    });
}

/// 34 MB in all; some are larger than a bucket.
#[test]
fn variables_of_all_sizes_are_sent_in_several_buckets() {
    let shapes = [("a", 1_000_000), ("b", 7_000_000), ("c", 3), ("d", 500_000), ("e", 0)];
    on_ranks(2, |comm| {
        let first = |at: usize| 100 * comm.rank() + at;
        let filled = |value: usize, len: usize| Tensor::full(value as f32, len, &Device::Cpu).unwrap();
        let tensors: Vec<_> =
            shapes.iter().enumerate().map(|(at, (name, len))| (*name, filled(first(at), *len))).collect();
        let variables = map(comm.rank(), &tensors);
        sync_model(&variables, &comm).unwrap();
        for (at, (name, len)) in shapes.into_iter().enumerate() {
            assert_eq!(var(&variables, name).to_vec1::<f32>().unwrap(), vec![at as f32; len], "{name}");
        }
    });
}

#[test]
fn sync_model_can_be_repeated() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &model(comm.rank()));
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        for round in 0..3 {
            let value = numbers(round + 100 * comm.rank(), &[7], DType::F32);
            var(&variables, "f32").set(&value).unwrap();
            replicas.sync_model().unwrap();
            assert_eq!(elements(&var(&variables, "f32")), elements(&numbers(round, &[7], DType::F32)));
        }
    });
}

#[test]
fn averaging_gradients_does_not_change_variables() {
    on_ranks(3, |comm| {
        let model = model(comm.rank());
        let variables = map(comm.rank(), &model);
        let gradients: Vec<(&str, Tensor)> =
            model[5..].iter().map(|(name, value)| (*name, value.copy().unwrap())).collect();
        sync_gradients(&variables, &mut store(&variables, &gradients), &comm).unwrap();
        for (name, value) in &model {
            assert_eq!(elements(&var(&variables, name)), elements(value), "{name}");
        }
    });
}

#[test]
fn a_variable_of_any_type_that_differs_is_named_with_its_rank() {
    for (name, _) in model(0) {
        on_ranks(3, |comm| {
            let mut tensors = model(0);
            check_replicas(&map(comm.rank(), &tensors), &comm).unwrap();
            let at = tensors.iter().position(|(other, _)| *other == name).unwrap();
            if comm.rank() == 1 {
                tensors[at].1 = tensors[at].1.ones_like().unwrap();
            }
            let outcome = check_replicas(&map(comm.rank(), &tensors), &comm);
            if tensors[at].1.elem_count() == 0 {
                return outcome.unwrap();
            }
            let Err(Error::Ranks(comm_ddp::Error::Diverged { name: found, ranks })) = outcome else {
                panic!("{name}: {outcome:?}")
            };
            assert_eq!((found.as_str(), ranks), (name, vec![1]));
        });
    }
}

#[test]
fn replicas_are_compared_over_the_communicator_that_averages() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &model(0));
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        replicas.check_replicas().unwrap();
        if comm.rank() == 1 {
            let value = var(&variables, "f64");
            value.set(&value.ones_like().unwrap()).unwrap();
        }
        let outcome = replicas.check_replicas();
        let Err(Error::Ranks(comm_ddp::Error::Diverged { name, ranks })) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!((name.as_str(), ranks), ("f64", vec![1]));
    });
}

#[test]
fn another_number_of_steps_is_found_when_the_replicas_are_compared() {
    let weight = [("w", numbers(1, &[3], DType::F32))];
    let errors = on_ranks(3, |comm| {
        let variables = map(comm.rank(), &weight);
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        let steps = if comm.rank() == 2 { 2 } else { 1 };
        for _ in 0..steps {
            if let Err(error) = replicas.sync_gradients(&mut store(&variables, &weight)) {
                return error.to_string();
            }
        }
        replicas.check_replicas().unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.starts_with("ranks made different calls"), "{error}");
        assert!(error.contains("rank 2 in all_reduce(max, 2 x u8"), "{error}");
    }
}
