//! What becomes of variables.

use candle_core::{DType, Tensor};
use comm_candle::{DataParallel, sync_gradients, sync_model};

use crate::ranks::{WORLDS, elements, map, numbers, on_ranks, store, var};

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
fn every_rank_gets_the_variables_of_rank_0_whatever_they_hold() {
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
fn a_prepared_model_is_given_out_again_and_again() {
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
fn averaging_gradients_leaves_variables_alone() {
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
