//! Disagreements between ranks are errors that name a variable, before any data is sent.

use candle_core::{DType, Device, Tensor};
use candle_nn::VarMap;
use comm_candle::{DataParallel, Difference, Error, sync_gradients, sync_model};
use comm_core::DType as Ours;

use crate::ranks::{WORLDS, elements, gradient, map, numbers, on_ranks, store, var};

type Model = Vec<(&'static str, Tensor)>;

fn model(rank: usize) -> Model {
    let value = |first, shape: &[usize]| numbers(first + 100 * rank, shape, DType::F32);
    vec![
        ("body.bias", value(0, &[4])),
        ("body.weight", value(4, &[4, 8])),
        ("head.weight", value(36, &[2, 4])),
    ]
}

/// Checks the errors of both calls on three ranks if rank 2 changes its model. No data may have
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
        let variables = map(comm.rank(), &model);
        let mut gradients = store(&variables, &model);
        check(sync_model(&variables, &comm).unwrap_err());
        check(sync_gradients(&variables, &mut gradients, &comm).unwrap_err());
        check(DataParallel::new(&variables, &comm).unwrap_err());
        // candle 0.11 recurses infinitely when it widens its 8-bit floats.
        for (name, value) in model.iter().filter(|(_, value)| value.dtype() != DType::F8E4M3) {
            assert_eq!(elements(&var(&variables, name)), elements(value));
            assert_eq!(elements(gradient(&variables, name, &gradients).unwrap()), elements(value));
        }
    });
}

#[test]
fn a_missing_variable_is_named() {
    outcome(|model| drop(model.remove(1)), "body.weight", &Difference::Missing);
}

#[test]
fn an_extra_variable_is_named() {
    let extra = ("adapter", numbers(0, &[1], DType::F32));
    outcome(|model| model.push(extra.clone()), "adapter", &Difference::Extra);
}

#[test]
fn a_renamed_variable_is_reported_as_extra() {
    outcome(|model| model[2].0 = "head.w", "head.w", &Difference::Extra);
}

#[test]
fn a_variable_of_another_shape_is_named() {
    let difference = Difference::Shape { expected: vec![4, 8], found: vec![8, 4] };
    outcome(|model| model[1].1 = model[1].1.t().unwrap(), "body.weight", &difference);
}

#[test]
fn a_variable_of_another_type_is_named() {
    let difference = Difference::DType { expected: Ours::F32, found: Ours::BF16 };
    let change = |model: &mut Model| model[2].1 = model[2].1.to_dtype(DType::BF16).unwrap();
    outcome(change, "head.weight", &difference);
}

#[test]
fn a_rank_without_variables_lacks_the_first_one() {
    outcome(Model::clear, "body.bias", &Difference::Missing);
}

#[test]
fn an_unsupported_type_is_refused_on_every_rank() {
    on_ranks(3, |comm| {
        let mut model = model(0);
        model[1].1 = Tensor::ones(3, DType::F8E4M3, &Device::Cpu).unwrap();
        let variables = map(comm.rank(), &model);
        let refused = sync_model(&variables, &comm).unwrap_err();
        assert!(matches!(refused, Error::Type { name, dtype: DType::F8E4M3 } if name == "body.weight"));
    });
}

#[test]
fn an_unsupported_type_on_one_rank_does_not_block_the_others() {
    let change = |model: &mut Model| model[1].1 = Tensor::ones(3, DType::F8E4M3, &Device::Cpu).unwrap();
    outcome(change, "body.weight", &Difference::Missing);
}

#[test]
fn a_model_without_variables_can_be_trained() {
    for size in WORLDS {
        on_ranks(size, |comm| {
            let variables = VarMap::new();
            sync_model(&variables, &comm).unwrap();
            let report = sync_gradients(&variables, &mut store(&variables, &[]), &comm).unwrap();
            assert!(report.without_gradient().is_empty() && report.counted_as_zero().is_empty());
        });
    }
}

#[test]
fn a_variable_added_on_one_rank_is_reported_on_all_which_continue_without_it() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &model(comm.rank()));
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        let late = var(&map(0, &[("late", numbers(0, &[2], DType::F32))]), "late");
        if comm.rank() == 2 {
            drop(variables.data().lock().unwrap().insert("late".into(), late));
        }
        let of_gradients = replicas.sync_gradients(&mut store(&variables, &[])).unwrap_err();
        for error in [of_gradients, replicas.sync_model().unwrap_err()] {
            match error {
                Error::Changed { name } => assert_eq!((comm.rank(), name.as_str()), (2, "late")),
                Error::Refused { rank, name, .. } => assert_eq!((rank, name.as_str()), (2, "late")),
                other => panic!("{other}"),
            }
        }
        for (name, value) in model(comm.rank()) {
            assert_eq!(elements(&var(&variables, name)), elements(&value), "a variable was sent");
        }
        drop(variables.data().lock().unwrap().remove("late"));
        replicas.sync_model().unwrap();
        assert_eq!(elements(&var(&variables, "head.weight")), elements(&model(0)[2].1));
    });
}

#[test]
fn added_and_removed_variables_are_detected_before_anything_is_sent() {
    on_ranks(2, |comm| {
        let variables = map(comm.rank(), &model(0));
        let mut replicas = DataParallel::new(&variables, &comm).unwrap();
        let changed = |replicas: &mut DataParallel| {
            let of_gradients = replicas.sync_gradients(&mut store(&variables, &[])).unwrap_err();
            let of_model = replicas.sync_model().unwrap_err();
            let (Error::Changed { name }, Error::Changed { name: again }) = (of_gradients, of_model) else {
                panic!("the change was not detected")
            };
            assert_eq!(name, again);
            name
        };
        let lock = || variables.data().lock().unwrap();
        let late = var(&map(0, &[("late", numbers(0, &[2], DType::F32))]), "late");
        drop(lock().insert("late".into(), late.clone()));
        assert_eq!(changed(&mut replicas), "late");
        let ours = lock().remove("head.weight").unwrap();
        assert_eq!(changed(&mut replicas), "head.weight");
        drop(lock().remove("late"));
        drop(lock().insert("head.weight".into(), late));
        assert_eq!(changed(&mut replicas), "head.weight");
        drop(lock().insert("head.weight".into(), ours));
        replicas.sync_gradients(&mut store(&variables, &model(comm.rank()))).unwrap();
    });
}
