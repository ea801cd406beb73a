//! Ranks with 3, 5 and 4 batches: the sharded optimizer, clipping and buffers together, under each
//! policy.

use comm_core::{Comm, ReduceOrder};
use comm_ddp::{
    BucketLimits, DataParallel, Divisor, Error, Optimizer, Options, Parameter, ParameterSet, Sgd, Uneven,
    ZeroOptimizer,
};

use crate::on_ranks;

const BATCHES: [usize; 3] = [3, 5, 4];
const LEN: usize = 23;
const LIMIT: f64 = 2.0;

fn parameters() -> ParameterSet {
    ParameterSet::new([Parameter::new::<f32>("w", [LEN]), Parameter::new::<f32>("b", [1])]).unwrap()
}

fn options() -> Options {
    Options::default().limits(BucketLimits::DEFAULT.first_bytes(16).bytes(16))
}

fn gradient(rank: usize, batch: usize) -> [Vec<f32>; 2] {
    let number = |at: usize| ((rank * 31 + batch * 17 + at * 7) as f32 * 0.37).sin();
    [(0..LEN).map(number).collect(), vec![number(LEN)]]
}

/// The buffer of a model: the number of batches that its rank has seen.
fn register(name: &str) -> ParameterSet {
    ParameterSet::new([Parameter::new::<f64>(name, [1])]).unwrap()
}

fn optimizer() -> Sgd {
    Sgd::new(0.05).momentum(0.9)
}

/// Trains until no rank has a batch left or the policy ends the epoch. Returns parameters, number
/// of updates, the buffer, and the error that ended the epoch.
fn sharded(comm: &Comm, options: Options) -> ([Vec<f32>; 2], u64, f64, Option<Error>) {
    let mut zero = ZeroOptimizer::<f32, _>::new(comm, parameters(), options, |_| optimizer()).unwrap();
    zero.register_buffers(register("batches")).unwrap();
    let (mut values, mut seen) = ([vec![0.5_f32; LEN], vec![0.5]], [0.0]);
    let mut error = None;
    for batch in 0.. {
        let averages = if batch < BATCHES[comm.rank()] {
            let mut step = zero.step().unwrap();
            for (index, gradient) in gradient(comm.rank(), batch).iter().enumerate().rev() {
                step.ready(index, gradient).unwrap();
            }
            seen[0] += 1.0;
            step.finish().map(Some)
        } else {
            zero.join()
        };
        match averages {
            Ok(Some(mut averages)) => {
                averages.clip_norm(LIMIT).unwrap();
                averages.update(values.iter_mut()).unwrap();
            }
            Ok(None) => break,
            Err(refused) => {
                error = Some(refused);
                break;
            }
        }
        zero.broadcast_buffers([&mut seen]).unwrap();
    }
    zero.broadcast_buffers([&mut seen]).unwrap();
    (values, zero.steps(), seen[0], error)
}

/// Does the same with all averages and the whole optimizer on every rank.
fn whole(comm: &Comm, options: Options) -> [Vec<f32>; 2] {
    let mut replicas = DataParallel::new(comm, parameters(), options).unwrap();
    let mut values = [vec![0.5_f32; LEN], vec![0.5]];
    let mut states = [vec![vec![0.0; LEN]], vec![vec![0.0]]];
    for batch in 0.. {
        let averaged = if batch < BATCHES[comm.rank()] {
            let mut step = replicas.step().unwrap();
            for (index, gradient) in gradient(comm.rank(), batch).iter().enumerate().rev() {
                step.ready(index, gradient).unwrap();
            }
            step.finish().map(Some)
        } else {
            replicas.join()
        };
        let Ok(Some(mut averaged)) = averaged else { break };
        averaged.clip_norm(LIMIT).unwrap();
        for (index, (value, states)) in values.iter_mut().zip(&mut states).enumerate() {
            let mut states: Vec<&mut [f32]> = states.iter_mut().map(|state| &mut state[..]).collect();
            optimizer().update(batch as u64 + 1, value, averaged.get(index).unwrap(), &mut states);
        }
    }
    values
}

fn deterministic(comm: &Comm) -> Comm {
    comm.with_reduce_order(ReduceOrder::Deterministic)
}

#[test]
fn the_other_ranks_continue_with_each_divisor() {
    let divisors = [Divisor::Weights, Divisor::Ranks, Divisor::Number(2.0)];
    let mut results = Vec::new();
    for divisor in divisors {
        let options = options().divisor(divisor);
        let ranks = on_ranks(3, |comm| {
            let comm = deterministic(&comm);
            let (values, steps, seen, error) = sharded(&comm, options);
            assert!(error.is_none());
            // Rank 1 is the last that has a batch, and it has seen all five of its own; before, it
            // got the numbers of rank 0 and then of rank 1.
            assert_eq!((steps, seen), (5, 5.0));
            let expected = whole(&comm, options);
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(values.iter().flatten().zip(expected.iter().flatten()).all(near), "{divisor:?}");
            values
        });
        assert!(ranks.iter().all(|values| *values == ranks[0]), "replicas differ");
        results.push(ranks[0].clone());
    }
    assert!(results[0] != results[1] && results[1] != results[2], "the divisor has no effect");
}

#[test]
fn the_epoch_ends_early_on_every_rank_if_configured() {
    let results = on_ranks(3, |comm| {
        let (values, steps, _, error) = sharded(&comm, options().uneven(Uneven::Refuse));
        assert!(matches!(error, Some(Error::Exhausted { active: 2, ranks: 3 })), "{error:?}");
        assert_eq!(steps, 3);
        values
    });
    assert!(results.iter().all(|values| *values == results[0]));
}

#[test]
fn the_epoch_ends_after_the_same_step_on_every_rank_if_one_requests_it() {
    let results = on_ranks(3, |comm| {
        let mut zero = ZeroOptimizer::<f32, _>::new(&comm, parameters(), options(), |_| optimizer()).unwrap();
        let mut values = [vec![0.5_f32; LEN], vec![0.5]];
        for batch in 0.. {
            let mut averages = if batch < BATCHES[comm.rank()] {
                let mut step = zero.step().unwrap();
                // A rank requests the stop in its last step, before others run out.
                if batch + 1 == BATCHES[comm.rank()] {
                    step.request_stop().unwrap();
                }
                for (index, gradient) in gradient(comm.rank(), batch).iter().enumerate() {
                    step.ready(index, gradient).unwrap();
                }
                step.finish().unwrap()
            } else {
                zero.join().unwrap().unwrap()
            };
            averages.update(values.iter_mut()).unwrap();
            if averages.averaged().stop_requested() {
                break;
            }
        }
        (values, zero.steps())
    });
    assert!(results.iter().all(|result| *result == results[0] && result.1 == 3));
}
