//! Ranks with different numbers of batches, ranks that ask to stop, and gradients that are not
//! finite.

use comm_core::Comm;
use comm_ddp::{
    AdamW, BucketLimits, DataParallel, Divisor, Error, Optimizer, Options, Parameter, ParameterSet, Uneven,
};

use crate::on_ranks;

fn replicas(comm: &Comm, options: Options) -> DataParallel {
    let named = |index: usize| Parameter::new::<f32>(format!("p{index}"), [2]);
    let limits = BucketLimits::DEFAULT.first_bytes(1).bytes(1);
    let parameters = ParameterSet::new((0..3).map(named)).unwrap();
    DataParallel::new(comm, parameters, options.limits(limits)).unwrap()
}

/// Trains until no rank has a batch. Returns the averages of parameter 0 in each step.
fn epoch(comm: &Comm, replicas: &mut DataParallel, batches: usize) -> Vec<f32> {
    let mut averages = Vec::new();
    let mut batch = 0;
    loop {
        let averaged = if batch < batches {
            let mut step = replicas.step().unwrap();
            // The order differs by rank, and parameter 1 is never used.
            for index in if comm.rank() == 0 { [0, 2] } else { [2, 0] } {
                step.ready(index, &[(comm.rank() + 1) as f32, batch as f32]).unwrap();
            }
            step.finish().unwrap()
        } else if let Some(averaged) = replicas.join().unwrap() {
            averaged
        } else {
            return averages;
        };
        assert!(averaged.is_unused(1) && !averaged.is_unused(2));
        let average = averaged.get::<f32>(0).unwrap();
        assert_eq!(averaged.get::<f32>(2).unwrap(), average);
        averages.push(average[0]);
        batch += 1;
    }
}

#[test]
fn ranks_with_batches_continue_when_others_have_none_left() {
    let batches = [3, 5, 4];
    let run = |divisor| {
        let all = on_ranks(3, |comm| {
            let mut replicas = replicas(&comm, Options::default().divisor(divisor));
            let first = epoch(&comm, &mut replicas, batches[comm.rank()]);
            // Another epoch, in which rank 0 has no batch at all.
            (first, epoch(&comm, &mut replicas, [0, 2, 1][comm.rank()]))
        });
        assert!(all.iter().all(|averages| *averages == all[0]), "replicas differ");
        all[0].clone()
    };
    // Gradients are 1, 2 and 3.
    assert_eq!(run(Divisor::Weights), (vec![2.0, 2.0, 2.0, 2.5, 2.0], vec![2.5, 2.0]));
    let third = |number: f32| number / 3.0;
    let (first, second) = run(Divisor::Ranks);
    let near = |got: &[f32], expected: &[f32]| {
        assert!(got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6));
    };
    near(&first, &[2.0, 2.0, 2.0, third(5.0), third(2.0)]);
    near(&second, &[third(5.0), third(2.0)]);
}

#[test]
fn a_rank_without_any_batch_takes_part_from_the_first_step_on() {
    for size in [1, 2, 4] {
        on_ranks(size, |comm| {
            let mut replicas = replicas(&comm, Options::default());
            let batches = if comm.rank() == 0 && size > 1 { 0 } else { 3 };
            assert_eq!(epoch(&comm, &mut replicas, batches).len(), 3);
            assert!(replicas.join().unwrap().is_none());
        });
    }
}

#[test]
fn an_uneven_step_is_refused_on_every_rank_if_configured() {
    on_ranks(3, |comm| {
        let mut replicas = replicas(&comm, Options::default().uneven(Uneven::Refuse));
        for _ in 0..2 {
            let refused = if comm.rank() == 1 {
                replicas.join().map(drop)
            } else {
                replicas.step().unwrap().finish().map(drop)
            };
            assert!(matches!(refused, Err(Error::Exhausted { active: 2, ranks: 3 })), "{refused:?}");
            assert_eq!(refused.unwrap_err().to_string(), "1 of 3 ranks had no batch in this step");
            replicas.step().unwrap().finish().unwrap();
        }
        assert!(replicas.join().unwrap().is_none());
    });
}

#[test]
fn one_rank_stops_all_after_the_same_step() {
    let steps = on_ranks(3, |comm| {
        let mut replicas = replicas(&comm, Options::default());
        let mut steps = 0;
        loop {
            let mut step = replicas.step().unwrap();
            if comm.rank() == 2 && steps == 4 {
                step.request_stop().unwrap();
            }
            step.ready(1, &[1.0_f32; 2]).unwrap();
            steps += 1;
            if step.finish().unwrap().stop_requested() {
                return steps;
            }
        }
    });
    assert_eq!(steps, [5; 3]);
}

#[test]
fn clipping_and_optimizers_keep_replicas_equal_when_ranks_run_out() {
    let replicas = on_ranks(3, |comm| {
        let mut replicas = replicas(&comm, Options::default());
        let (mut weights, mut states) = ([0.5_f32, -0.5], [[0.0; 2]; 2]);
        let mut batches = 0..[2_u64, 6, 4][comm.rank()];
        for number in 1.. {
            let mut averaged = if let Some(batch) = batches.next() {
                let mut step = replicas.step().unwrap();
                step.ready(0, &[(batch as f32).cos() * 3.0, comm.rank() as f32]).unwrap();
                step.finish().unwrap()
            } else if let Some(averaged) = replicas.join().unwrap() {
                averaged
            } else {
                assert_eq!(number, 7);
                break;
            };
            averaged.clip_norm(0.7).unwrap();
            let [mean, square] = &mut states;
            let gradient = averaged.get::<f32>(0).unwrap();
            AdamW::new(0.1).update(number, &mut weights, gradient, &mut [&mut mean[..], &mut square[..]]);
        }
        weights.map(f32::to_bits)
    });
    assert!(replicas.iter().all(|weights| *weights == replicas[0]), "{replicas:?}");
}

#[test]
fn a_nonfinite_gradient_of_one_rank_is_detected_on_every_rank() {
    for index in 0..3 {
        on_ranks(3, |comm| {
            let mut replicas = replicas(&comm, Options::default().check_finite(true));
            for number in 0..4 {
                let mut step = replicas.step().unwrap();
                for at in (0..3).rev() {
                    let is_infinite = comm.rank() == 1 && at == index && number == 2;
                    step.ready(at, &[1.0, if is_infinite { f32::INFINITY } else { 1.0 }]).unwrap();
                }
                let averaged = step.finish().unwrap();
                assert_eq!(averaged.is_finite().unwrap(), number != 2);
            }
        });
    }
}
