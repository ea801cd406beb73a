//! Parameters that are frozen, and settings per group of parameters that change while training.

use comm_core::{Comm, HostViewMut};
use comm_ddp::{
    AdamW, BucketLimits, DataParallel, Difference, Error, Options, Parameter, ParameterSet, Sgd,
    ZeroOptimizer,
};

use crate::on_ranks;

/// An embedding that is frozen, one of integers, and two parameters that are trained.
fn parameters() -> ParameterSet {
    let parameters = [
        Parameter::new::<f32>("embedding", [3, 2]).frozen(),
        Parameter::new::<f32>("weight", [2, 2]),
        Parameter::new::<i8>("table", [5]).frozen(),
        Parameter::new::<f32>("bias", [3]),
    ];
    ParameterSet::new(parameters).unwrap()
}

fn options() -> Options {
    Options::default().limits(BucketLimits::DEFAULT.first_bytes(8).bytes(8))
}

#[test]
fn frozen_parameters_are_broadcast_and_have_no_gradient() {
    for size in [1, 2, 3, 5] {
        on_ranks(size, |comm| {
            let mut replicas = DataParallel::new(&comm, parameters(), options()).unwrap();
            let elements: usize = replicas.plan().buckets().iter().map(comm_ddp::Bucket::len).sum();
            assert_eq!(elements, 7, "only what is trained is in buckets");
            let rank = comm.rank();
            let (mut embedding, mut weight) = ([rank as f32; 6], [rank as f32 + 0.5; 4]);
            let (mut table, mut bias) = ([rank as i8; 5], [rank as f32 - 1.0; 3]);
            let values = [
                HostViewMut::new(&mut embedding),
                HostViewMut::new(&mut weight),
                HostViewMut::new(&mut table),
                HostViewMut::new(&mut bias),
            ];
            replicas.broadcast_parameters(values).unwrap();
            assert_eq!((embedding, weight, table, bias), ([0.0; 6], [0.5; 4], [0; 5], [-1.0; 3]));
            for _ in 0..2 {
                let mut step = replicas.step().unwrap();
                for frozen in [0, 2] {
                    let refused = [
                        step.mark_ready(frozen),
                        step.ready(frozen, &[0.0_f32; 6]),
                        step.accumulate(frozen, &[0_i8; 5]),
                        step.gradient_mut::<f32>(frozen).map(drop),
                    ];
                    assert!(refused.iter().all(|refused| matches!(refused, Err(Error::Frozen { .. }))));
                }
                step.ready(3, &[rank as f32; 3]).unwrap();
                step.ready(1, &[2.0 * rank as f32; 4]).unwrap();
                let mean = (size - 1) as f32 / 2.0;
                let mut averaged = step.finish().unwrap();
                let gradients: Vec<&[f32]> = averaged.iter().unwrap().collect();
                assert_eq!(gradients, [&[][..], &[2.0 * mean; 4], &[], &[mean; 3]]);
                assert!(matches!(averaged.get::<f32>(0), Err(Error::Frozen { name }) if name == "embedding"));
                assert!(averaged.is_unused(0) && !averaged.is_unused(1) && averaged.is_finite().unwrap());
                let norm = f64::from(19.0 * mean * mean).sqrt();
                assert!((averaged.clip_norm(1e9).unwrap() - norm).abs() < 1e-6);
            }
        });
    }
}

#[test]
fn a_parameter_that_one_rank_freezes_is_named_on_every_rank() {
    on_ranks(3, |comm| {
        let weight = Parameter::new::<f32>("weight", [2]);
        let weight = if comm.rank() == 2 { weight.frozen() } else { weight };
        let set = ParameterSet::new([weight, Parameter::new::<f32>("bias", [2])]).unwrap();
        let Err(Error::Mismatch(mismatch)) = DataParallel::new(&comm, set, options()) else { panic!() };
        assert_eq!((mismatch.name.as_str(), &mismatch.difference), ("weight", &Difference::Frozen));
        assert_eq!((&mismatch.ranks[..], mismatch.reference), (&[2][..], 0));
        assert!(mismatch.to_string().contains("\"weight\" is frozen on rank 2, unlike on rank 0"));
    });
}

/// Trains with a learning rate that falls, and half of it for biases.
fn scheduled(comm: &Comm, wrong: impl Fn(usize) -> f64) -> Result<Vec<Vec<f32>>, Error> {
    let mut zero =
        ZeroOptimizer::<f32, _>::new(comm, parameters(), options(), |_| Sgd::new(0.0).momentum(0.5))?;
    assert!(zero.state().all(|shard| !shard.parameter.is_frozen()));
    let mut values = [vec![1.0_f32; 4], vec![1.0; 3]];
    for number in 0..3 {
        let rate = 1.0 / f64::from(1 << number) + wrong(number);
        for (parameter, settings) in zero.settings_mut() {
            settings.learning_rate = if parameter.name() == "bias" { rate / 2.0 } else { rate };
        }
        let mut step = zero.step()?;
        step.ready(1, &[2.0_f32; 4])?;
        step.ready(3, &[4.0_f32; 3])?;
        let mut averages = step.finish()?;
        let refused = averages.update([&mut [0.0_f32; 6][..]; 1]);
        assert!(matches!(refused, Err(Error::Count { expected: 2, got: 1 })));
        averages.update(values.iter_mut())?;
    }
    Ok(values.to_vec())
}

#[test]
fn a_schedule_changes_the_learning_rate_of_groups_between_steps() {
    // The momentum of a gradient g is g, 1.5 g and 1.75 g.
    let moved = 1.0 + 1.5 / 2.0 + 1.75 / 4.0;
    for size in [1, 2, 3, 5] {
        let values = on_ranks(size, |comm| scheduled(&comm, |_| 0.0).unwrap());
        assert!(
            values.iter().all(|value| *value == [vec![1.0 - 2.0 * moved; 4], vec![1.0 - 2.0 * moved; 3]])
        );
    }
}

#[test]
fn settings_that_differ_are_named_with_the_rank_before_any_update() {
    for at in 0..3 {
        let errors = on_ranks(4, |comm| {
            let wrong = |number| if comm.rank() == 2 && number == at { 1e-16 + 0.125 } else { 0.0 };
            scheduled(&comm, wrong).unwrap_err()
        });
        for error in errors {
            let Error::Diverged { name, ranks } = error else { panic!("{error}") };
            assert_eq!((name.as_str(), &ranks[..]), ("the settings of the optimizer", &[2][..]));
        }
    }
}

#[test]
fn settings_that_differ_from_the_start_are_found_in_the_first_step_and_can_be_corrected() {
    on_ranks(2, |comm| {
        let rate = 0.5 + comm.rank() as f64;
        let mut zero =
            ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| AdamW::new(rate)).unwrap();
        let mut values = [vec![1.0_f32; 4], vec![1.0; 3]];
        let refused = zero.step().unwrap().finish().map(drop);
        assert!(matches!(refused, Err(Error::Diverged { ranks, .. }) if ranks == [1]));
        zero.settings_mut().for_each(|(_, settings)| settings.learning_rate = 0.5);
        zero.step().unwrap().finish().unwrap().update(values.iter_mut()).unwrap();
        assert_eq!(zero.steps(), 1);
    });
}

#[test]
fn enabling_momentum_allocates_its_state() {
    on_ranks(2, |comm| {
        let mut zero =
            ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| Sgd::new(1.0)).unwrap();
        assert_eq!(zero.state().count(), 0);
        zero.settings_mut().for_each(|(_, settings)| settings.momentum = 0.5);
        assert!(zero.state().count() > 0 && zero.state().all(|shard| shard.state == "momentum"));
    });
}
