//! Clipping, statistics and agreements are equal on every rank.

use comm_core::{Comm, ReduceOp};
use comm_ddp::{
    BatchStatistics, DataParallel, Error, Options, Parameter, ParameterSet, any_rank, check_replicas,
    rank_seed,
};

use crate::on_ranks;

fn replicas(comm: &Comm) -> DataParallel {
    let parameters = [Parameter::new::<f32>("a", [3]), Parameter::new::<f32>("b", [1])];
    DataParallel::new(comm, ParameterSet::new(parameters).unwrap(), Options::default()).unwrap()
}

#[test]
fn gradients_are_clipped_by_the_norm_of_their_average() {
    for size in [1, 2, 4] {
        on_ranks(size, |comm| {
            let mut replicas = replicas(&comm);
            // The average is (2, 4, 4) and 8 on every rank, of norm 10.
            let factor = 2.0 * (comm.rank() + 1) as f32 / (size + 1) as f32;
            for (limit, expected) in [(20.0, [2.0, 4.0, 4.0, 8.0]), (5.0, [1.0, 2.0, 2.0, 4.0])] {
                let mut step = replicas.step().unwrap();
                step.ready(0, &[2.0 * factor, 4.0 * factor, 4.0 * factor]).unwrap();
                step.ready(1, &[8.0 * factor]).unwrap();
                let mut averaged = step.finish().unwrap();
                let norm = averaged.clip_norm(limit).unwrap();
                assert!((norm - 10.0).abs() < 1e-5 && averaged.is_finite().unwrap());
                let clipped: Vec<f32> = averaged.iter::<f32>().unwrap().flatten().copied().collect();
                assert!(clipped.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{clipped:?}");
                assert_eq!(comm.all_gather_scalar(norm.to_bits()).unwrap(), vec![norm.to_bits(); size]);
            }
        });
    }
}

#[test]
fn a_nonfinite_gradient_is_detected_on_every_rank() {
    for bad in [f32::NAN, f32::INFINITY] {
        on_ranks(3, |comm| {
            let mut replicas = replicas(&comm);
            let mut step = replicas.step().unwrap();
            step.ready(0, &[1.0, if comm.rank() == 1 { bad } else { 1.0 }, 1.0]).unwrap();
            let mut averaged = step.finish().unwrap();
            assert!(!averaged.is_finite().unwrap() && !averaged.clip_norm(1.0).unwrap().is_finite());
            assert_eq!(averaged.get::<f32>(0).unwrap()[0], 1.0);
        });
    }
}

#[test]
fn statistics_of_uneven_batches_equal_those_of_all_samples() {
    for samples in [&[30][..], &[1, 29], &[0, 17, 13], &[4, 0, 9, 16, 1]] {
        let size = samples.len();
        on_ranks(size, |comm| {
            let values: Vec<f64> = (0..60).map(|at| 1e4 + f64::from(at * at % 17)).collect();
            let mut whole = BatchStatistics::new(2);
            whole.add(&values, 1).unwrap();
            let first = 2 * samples[..comm.rank()].iter().sum::<usize>();
            let mut own = BatchStatistics::new(2);
            own.add(&values[first..][..2 * samples[comm.rank()]], 1).unwrap();
            let all = own.all_reduce(&comm).unwrap();
            assert_eq!(all.count(), 30);
            for channel in 0..2 {
                assert!((all.mean()[channel] - whole.mean()[channel]).abs() < 1e-9);
                assert!((all.variance()[channel] / whole.variance()[channel] - 1.0).abs() < 1e-10);
            }
            let bits = all.variance()[0].to_bits();
            assert_eq!(comm.all_gather_scalar(bits).unwrap(), vec![bits; size]);
        });
    }
}

#[test]
fn replicas_that_differ_are_named_with_the_buffer() {
    on_ranks(4, |comm| {
        let (mut weight, bias) = (vec![0.5_f32; 1001], vec![1.0; 3]);
        let check = |weight: &Vec<f32>| check_replicas(&comm, [("bias", &bias), ("weight", weight)]);
        check(&weight).unwrap();
        if comm.rank() == 2 {
            weight[1000] = f32::from_bits(weight[1000].to_bits() ^ 1);
        }
        match check(&weight).unwrap_err() {
            Error::Diverged { name, ranks } => assert_eq!((name.as_str(), &ranks[..]), ("weight", &[2][..])),
            other => panic!("{other}"),
        }
    });
}

#[test]
fn ranks_agree_on_conditions_and_get_different_seeds() {
    on_ranks(3, |comm| {
        assert!(!any_rank(&comm, false).unwrap());
        assert!(any_rank(&comm, comm.rank() == 2).unwrap());
        let own = rank_seed(&comm, 7 + comm.rank() as u64).unwrap();
        let mut seeds = comm.all_gather_scalar(own).unwrap();
        assert_eq!(own, rank_seed(&comm, if comm.rank() == 0 { 7 } else { 99 }).unwrap());
        assert_ne!(own, rank_seed(&comm, 8).unwrap());
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(comm.all_reduce_scalar(seeds.len(), ReduceOp::Min).unwrap(), 3);
    });
}
