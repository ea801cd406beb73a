//! Ranks that cannot train together get an error with the cause and the ranks that differ.

use comm_core::DType;
use comm_ddp::{BlockCodec, Difference, Error, LocalOptions, LocalTraining, Parameter, ParameterSet, Sgd};

use crate::{Replica, initial, on_ranks, parameter_set, slices};

const OPTIONS: LocalOptions = LocalOptions::new(6).fragments(2).delay(1).alpha(0.5);

/// Checks that every rank gets the same error if rank 2 of four has other options.
#[track_caller]
fn check(other: LocalOptions, what: &str, expected: &str, found: &str) {
    let errors = on_ranks(4, |comm| {
        let options = if comm.rank() == 2 { other } else { OPTIONS };
        Replica::<f32>::new(&comm, options).map(drop).unwrap_err()
    });
    for error in errors {
        let Error::Disagreement(error) = error else { panic!("not a disagreement: {error}") };
        assert_eq!((error.what, error.expected.as_str(), error.found.as_str()), (what, expected, found));
        assert_eq!((&error.ranks[..], error.reference), (&[2][..], 0));
    }
}

#[test]
fn every_option_that_differs_is_named() {
    check(LocalOptions::new(7).fragments(2).delay(1).alpha(0.5), "sync_every", "6", "7");
    check(OPTIONS.fragments(3), "fragments", "2", "3");
    check(OPTIONS.delay(0), "delay", "1", "0");
    check(OPTIONS.alpha(0.25), "alpha", "0.5", "0.25");
    check(OPTIONS.outer(LocalOptions::OUTER.momentum(0.5)), "outer.momentum", "0.9", "0.5");
    check(OPTIONS.outer(LocalOptions::OUTER.learning_rate(1.0)), "outer.learning_rate", "0.7", "1");
    check(OPTIONS.outer(LocalOptions::OUTER.nesterov(false)), "outer.nesterov", "1", "0");
    check(OPTIONS.codec(Some(BlockCodec::Int4)), "codec", "none", "int4");
    // Even if it is out of range there.
    check(OPTIONS.fragments(0), "fragments", "2", "0");
}

#[test]
fn a_disagreement_reads_as_a_sentence() {
    let errors = on_ranks(3, |comm| {
        let options = OPTIONS.delay(if comm.rank() == 0 { 1 } else { 2 });
        Replica::<f32>::new(&comm, options).map(drop).unwrap_err().to_string()
    });
    let expected = "ranks cannot train together: delay is 1 on rank 0, but 2 on rank 1";
    assert_eq!(errors, [expected; 3]);
}

#[test]
fn an_option_out_of_range_is_refused_on_every_rank() {
    for (options, setting) in [(OPTIONS.delay(6), "delay"), (OPTIONS.fragments(7), "fragments")] {
        for error in on_ranks(3, |comm| Replica::<f32>::new(&comm, options).map(drop).unwrap_err()) {
            assert!(matches!(error, Error::Setting { name, .. } if name == setting), "{error}");
        }
    }
}

#[test]
fn a_model_that_differs_is_named() {
    let errors = on_ranks(3, |comm| {
        let len = if comm.rank() == 1 { 5 } else { 4 };
        let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [len])]).unwrap();
        LocalTraining::new(&comm, parameters, LocalOptions::new(2), [&mut vec![0.0_f32; len][..]])
            .unwrap_err()
    });
    for error in errors {
        let Error::Mismatch(error) = error else { panic!("not a mismatch: {error}") };
        let expected = Difference::Shape { expected: vec![4], found: vec![5] };
        assert_eq!((error.name.as_str(), error.difference, &error.ranks[..]), ("weight", expected, &[1][..]));
    }
}

#[test]
fn invalid_arguments_are_reported_in_detail_on_their_rank_and_as_refused_on_the_others() {
    let errors = on_ranks(3, |comm| {
        let mut values = initial::<f32>(0);
        if comm.rank() == 1 {
            values[3].pop();
        }
        LocalTraining::new(&comm, parameter_set::<f32>(), OPTIONS, slices(&mut values)).unwrap_err()
    });
    for (rank, error) in errors.into_iter().enumerate() {
        match error {
            Error::Length { name, expected: 4, got: 3 } => assert_eq!((rank, name.as_str()), (1, "p3")),
            Error::Refused { ranks } => assert!(rank != 1 && ranks == [1]),
            other => panic!("{other}"),
        }
    }
    let errors = on_ranks(2, |comm| {
        let values = [&mut [0.0_f64; 4][..], &mut [0.0; 4]];
        let named = |name: &str| Parameter::new::<f32>(name, [4]);
        let parameters = ParameterSet::new([named("a"), named("b")]).unwrap();
        LocalTraining::new(&comm, parameters, LocalOptions::new(2), values).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, Error::WrongType { expected: DType::F32, got: DType::F64, .. }), "{error}");
    }
}

#[test]
fn wrong_values_are_refused_before_the_step_is_counted() {
    on_ranks(2, |comm| {
        let mut replica = Replica::<f32>::new(&comm, LocalOptions::new(2).outer(Sgd::new(1.0))).unwrap();
        for _ in 0..5 {
            let mut wrong = replica.values.clone();
            wrong[1].push(0.0);
            let refused = replica.training.step(slices(&mut wrong)).unwrap_err();
            assert!(matches!(refused, Error::Length { expected: 4, got: 5, .. }), "{refused}");
            let refused = replica.training.step(slices(&mut wrong[..1])).unwrap_err();
            assert!(matches!(refused, Error::Count { expected: 6, got: 1 }), "{refused}");
            replica.step().unwrap();
        }
        assert_eq!(replica.training.progress().inner_steps, 5);
        replica.training.check_replicas().unwrap();
    });
}

#[test]
fn the_order_of_registration_may_differ() {
    let globals = on_ranks(3, |comm| {
        let order: Vec<usize> = (0..6).map(|index| (index + 2 * comm.rank()) % 6).collect();
        let named = |index: &usize| Parameter::new::<f64>(format!("p{index}"), [1]);
        let parameters = ParameterSet::new(order.iter().map(named)).unwrap();
        let mut values: Vec<Vec<f64>> = order.iter().map(|&index| vec![index as f64]).collect();
        let options = LocalOptions::new(3).fragments(3).outer(Sgd::new(1.0));
        let mut training = LocalTraining::new(&comm, parameters, options, slices(&mut values)).unwrap();
        for _ in 0..3 {
            for (value, index) in values.iter_mut().zip(&order) {
                value[0] -= (10 * index) as f64;
            }
            training.step(slices(&mut values)).unwrap();
        }
        let mut global: Vec<(usize, f64)> =
            order.iter().copied().zip(training.global_parameters().map(|global| global[0])).collect();
        global.sort_by_key(|(index, _)| *index);
        global
    });
    // A parameter of fragment f was sent after f + 1 steps.
    let expected: Vec<(usize, f64)> =
        (0..6).map(|index| (index, index as f64 - (10 * index * (index % 3 + 1)) as f64)).collect();
    assert_eq!(globals, [expected.clone(), expected.clone(), expected]);
}
