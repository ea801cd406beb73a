//! With a static graph, ranks exchange only once which parameters they use, and a step that
//! deviates fails on every rank.

use comm_core::Comm;
use comm_ddp::{BucketLimits, DataParallel, Error, Options, Parameter, ParameterSet, Sgd, ZeroOptimizer};

use crate::on_ranks;

fn parameters() -> ParameterSet {
    // Slots differ from indices.
    ParameterSet::new(["d", "c", "b", "a"].map(|name| Parameter::new::<f32>(name, [2]))).unwrap()
}

fn replicas(comm: &Comm, bytes: usize) -> DataParallel {
    let limits = BucketLimits::DEFAULT.first_bytes(bytes).bytes(bytes);
    let options = Options::default().limits(limits).static_graph(comm.rank() == 0);
    DataParallel::new(comm, parameters(), options).unwrap()
}

/// Makes a step in which this rank uses these parameters. Returns which are unused everywhere.
fn step(replicas: &mut DataParallel, rank: usize, used: &[usize]) -> Result<Vec<bool>, Error> {
    let mut step = replicas.step().unwrap();
    for index in used {
        step.ready(*index, &[(rank + 1) as f32, 6.0]).unwrap();
    }
    let averaged = step.finish()?;
    let unused: Vec<bool> = (0..4).map(|index| averaged.is_unused(index)).collect();
    for (index, got) in averaged.iter::<f32>().unwrap().enumerate() {
        assert_eq!(got == [0.0; 2], unused[index]);
    }
    Ok(unused)
}

/// The parameters that a rank uses: 3 only on rank 0, 0 on no rank.
fn usual(rank: usize) -> &'static [usize] {
    if rank == 0 { &[3, 2, 1] } else { &[1, 2] }
}

#[test]
fn used_parameters_are_recorded_in_the_first_step() {
    for size in [1, 2, 3, 5] {
        for bytes in [1, 16, 1 << 20] {
            on_ranks(size, |comm| {
                let mut replicas = replicas(&comm, bytes);
                for _ in 0..4 {
                    let unused = step(&mut replicas, comm.rank(), usual(comm.rank())).unwrap();
                    assert_eq!(unused, [true, false, false, false]);
                }
            });
        }
    }
}

#[test]
fn a_step_that_deviates_fails_on_every_rank_with_the_parameter() {
    // Rank 1 does not use parameter 2, named b, or uses parameter 0, named d, or 3, named a.
    for (used, name, used_now) in
        [(&[1][..], "b", false), (&[1, 2, 0], "d", true), (&[1, 3], "a", true), (&[], "b", false)]
    {
        on_ranks(3, |comm| {
            let mut replicas = replicas(&comm, 1);
            for number in 0..5 {
                let deviates = comm.rank() == 1 && number == 3;
                let used = if deviates { used } else { usual(comm.rank()) };
                let outcome = step(&mut replicas, comm.rank(), used);
                if number != 3 {
                    assert_eq!(outcome.unwrap(), [true, false, false, false]);
                    continue;
                }
                let Err(Error::GraphChanged { name: found, is_used, ranks }) = outcome else {
                    panic!("{outcome:?}")
                };
                assert_eq!((&found[..], is_used, &ranks[..]), (name, used_now, &[1][..]));
            }
        });
    }
}

#[test]
fn the_first_parameter_is_named_if_ranks_deviate_in_several() {
    let errors = on_ranks(4, |comm| {
        let mut replicas = replicas(&comm, 1);
        step(&mut replicas, comm.rank(), &[0, 1, 2, 3]).unwrap();
        let used = [&[0, 1, 2, 3][..], &[1, 2, 3], &[0, 1, 3], &[0, 3]][comm.rank()];
        step(&mut replicas, comm.rank(), used).unwrap_err().to_string()
    });
    let expected =
        "parameter \"b\" was not used on ranks 2, 3, unlike in the first step, but the graph is static";
    assert_eq!(errors, [expected; 4]);
}

#[test]
fn a_rank_without_a_batch_does_not_deviate_and_recording_waits_for_all_ranks() {
    on_ranks(3, |comm| {
        let mut replicas = replicas(&comm, 1);
        for number in 0..6 {
            // Rank 2 has no batch in the first two steps, rank 0 none in the last two.
            let without = if number < 2 { 2 } else { 0 };
            if comm.rank() == without && number != 3 && number != 2 {
                let averaged = replicas.join().unwrap().unwrap();
                // Known only once the graph has been learned.
                assert!(!averaged.is_unused(3), "step {number}");
                continue;
            }
            let unused = step_of(&mut replicas, comm.rank(), usual(comm.rank()));
            assert!(unused[0] && !unused[1]);
        }
        let outcome = if comm.rank() == 1 {
            step(&mut replicas, comm.rank(), &[1]).map(drop)
        } else {
            replicas.join().map(drop)
        };
        assert!(matches!(outcome, Err(Error::GraphChanged { ranks, .. }) if ranks == [1]));
    });
}

/// Makes a step in which averages that are not zero may belong to parameters known as used.
fn step_of(replicas: &mut DataParallel, rank: usize, used: &[usize]) -> Vec<bool> {
    let mut step = replicas.step().unwrap();
    for index in used {
        step.ready(*index, &[(rank + 1) as f32, 6.0]).unwrap();
    }
    let averaged = step.finish().unwrap();
    (0..4).map(|index| averaged.is_unused(index)).collect()
}

#[test]
fn a_sharded_optimizer_refuses_a_step_that_deviates_and_updates_nothing() {
    on_ranks(2, |comm| {
        let options = Options::default().static_graph(true);
        let mut zero = ZeroOptimizer::<f32, _>::new(&comm, parameters(), options, |_| Sgd::new(1.0)).unwrap();
        let mut values = vec![vec![0.0_f32; 2]; 4];
        for number in 0..3 {
            let mut step = zero.step().unwrap();
            for index in 0..if number == 1 && comm.rank() == 0 { 3 } else { 4 } {
                step.ready(index, &[1.0_f32; 2]).unwrap();
            }
            match step.finish() {
                Ok(mut averages) => averages.update(values.iter_mut()).unwrap(),
                Err(error) => assert!(
                    matches!(error, Error::GraphChanged { name, is_used: false, .. } if name == "a" && number == 1)
                ),
            }
        }
        assert_eq!(values, vec![vec![-2.0; 2]; 4]);
        assert_eq!(zero.steps(), 2);
    });
}
