//! Unused parameters, misuse and failure: nothing hangs, and nothing wrong is returned.

use crate::on_ranks;
use comm_core::Comm;
use comm_ddp::{BucketLimits, DataParallel, Error, Options, Parameter, ParameterSet};

/// Four parameters of two elements, each in its own bucket.
fn replicas(comm: &Comm) -> DataParallel {
    let named = |index: usize| Parameter::new::<f32>(format!("p{index}"), [2]);
    let limits = BucketLimits::DEFAULT.first_bytes(1).bytes(1);
    let parameters = ParameterSet::new((0..4).map(named)).unwrap();
    DataParallel::new(comm, parameters, Options::default().limits(limits)).unwrap()
}

#[test]
fn a_parameter_that_some_ranks_do_not_use_counts_as_zero_there() {
    on_ranks(4, |comm| {
        let mut replicas = replicas(&comm);
        for _ in 0..3 {
            let mut step = replicas.step().unwrap();
            // Parameter 3, in the first bucket, is used by rank 1 only; parameter 0 by none.
            if comm.rank() == 1 {
                step.ready(3, &[4.0_f32, 8.0]).unwrap();
            }
            step.ready(2, &[1.0_f32, 1.0]).unwrap();
            step.ready(1, &[2.0_f32, comm.rank() as f32]).unwrap();
            let averaged = step.finish().unwrap();
            let unused: Vec<bool> = (0..4).map(|index| averaged.is_unused(index)).collect();
            assert_eq!(unused, [true, false, false, false]);
            assert_eq!(averaged.get::<f32>(0).unwrap(), [0.0, 0.0]);
            assert_eq!(averaged.get::<f32>(1).unwrap(), [2.0, 1.5]);
            assert_eq!(averaged.get::<f32>(3).unwrap(), [1.0, 2.0]);
        }
    });
}

#[test]
fn parameters_that_are_unused_may_change_in_every_step() {
    for size in [1, 2, 3, 5, 8] {
        on_ranks(size, |comm| {
            let mut replicas = replicas(&comm);
            // The bits of a number that depends on the rank and the step say which parameters are
            // used.
            let used = |rank: usize, number: usize, index: usize| {
                comm_core::wire::digest([rank as u64, number as u64]) >> (8 * index) & 3 == 0
            };
            let mut unused_anywhere = 0;
            for number in 0..16 {
                let mut step = replicas.step().unwrap();
                for index in (0..4).filter(|index| used(comm.rank(), number, *index)) {
                    step.ready(index, &[(comm.rank() + 1) as f32, number as f32]).unwrap();
                }
                let averaged = step.finish().unwrap();
                for index in 0..4 {
                    let users: Vec<usize> = (0..size).filter(|rank| used(*rank, number, index)).collect();
                    let sum: usize = users.iter().map(|rank| rank + 1).sum();
                    let got = averaged.get::<f32>(index).unwrap();
                    let near = |got: f32, sum: usize| (got - sum as f32 / size as f32).abs() < 1e-5;
                    assert!(near(got[0], sum) && near(got[1], users.len() * number), "{got:?} {users:?}");
                    assert_eq!(averaged.is_unused(index), users.is_empty());
                    unused_anywhere += usize::from(users.is_empty());
                }
            }
            assert!(unused_anywhere > 0);
        });
    }
}

#[test]
fn a_zero_gradient_does_not_count_as_unused() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm);
        let mut step = replicas.step().unwrap();
        step.ready(2, &[0.0_f32, 0.0]).unwrap();
        step.mark_ready(1).unwrap();
        let averaged = step.finish().unwrap();
        let unused: Vec<bool> = (0..4).map(|index| averaged.is_unused(index)).collect();
        assert_eq!(unused, [true, false, false, true]);
        assert_eq!(averaged.get::<f32>(1).unwrap(), [0.0, 0.0]);
    });
}

#[test]
fn gradients_accumulated_but_never_marked_count() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm);
        let mut step = replicas.step().unwrap();
        if comm.rank() == 0 {
            step.accumulate(1, &[6.0_f32, 2.0]).unwrap();
        }
        let averaged = step.finish().unwrap();
        assert_eq!(averaged.get::<f32>(1).unwrap(), [3.0, 1.0]);
        assert!(!averaged.is_unused(1));
    });
}

#[test]
fn misuse_is_refused_and_changes_nothing() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm);
        let mut step = replicas.step().unwrap();
        step.ready(0, &[1.0_f32, 2.0]).unwrap();
        let again = [
            step.ready(0, &[9.0_f32, 9.0]),
            step.mark_ready(0),
            step.gradient_mut::<f32>(0).map(drop),
            step.overwrite::<f32>(0).map(drop),
        ];
        for refused in again {
            assert!(matches!(refused, Err(Error::AlreadyReady { name }) if name == "p0"));
        }
        assert!(matches!(step.ready(1, &[1.0_f32]), Err(Error::Length { expected: 2, got: 1, .. })));
        assert!(matches!(step.mark_ready(4), Err(Error::UnknownParameter { index: 4, count: 4 })));
        let averaged = step.finish().unwrap();
        assert_eq!(averaged.get::<f32>(0).unwrap(), [1.0, 2.0]);
        assert!(averaged.is_unused(1));
    });
}

#[test]
fn a_rank_that_fails_at_any_bucket_is_named_and_fails_all_later_steps() {
    for sent in 1..4 {
        let failures = on_ranks(3, |comm| {
            let mut replicas = replicas(&comm);
            let mut step = replicas.step().unwrap();
            let failing = comm.rank() == 1;
            for index in (if failing { 4 - sent } else { 0 }..4).rev() {
                step.ready(index, &[1.0_f32, 1.0]).unwrap();
            }
            if failing {
                drop(step);
            } else {
                assert!(matches!(step.finish(), Err(Error::Comm(_))));
            }
            let later = replicas.step().unwrap_err();
            assert!(matches!(&later, Error::Poisoned(_)), "{later}");
            assert!(matches!(replicas.broadcast_parameters::<&mut [f32]>([]), Err(Error::Poisoned(_))));
            later
        });
        assert!(matches!(failures[1].root_cause(), Error::Abandoned));
        for failure in [&failures[0], &failures[2]] {
            let Error::Comm(failure) = failure.root_cause() else { panic!("{failure}") };
            assert!(matches!(failure.root_cause(), comm_core::Error::Aborted { by: 1, .. }), "{failure}");
        }
    }
}

#[test]
fn a_step_dropped_before_anything_was_sent_has_no_effect() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm);
        let mut step = replicas.step().unwrap();
        step.accumulate(3, &[5.0_f32, 5.0]).unwrap();
        step.ready(0, &[5.0_f32, 5.0]).unwrap();
        drop(step);
        let mut step = replicas.step().unwrap();
        step.ready(3, &[1.0_f32, 1.0]).unwrap();
        let averaged = step.finish().unwrap();
        assert_eq!(averaged.get::<f32>(3).unwrap(), [1.0, 1.0]);
        assert!(averaged.is_unused(0));
    });
}
