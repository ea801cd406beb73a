//! Buffers are broadcast or averaged, including on ranks without a batch.

use comm_core::{Comm, HostViewMut};
use comm_ddp::{DataParallel, Difference, Error, Options, Parameter, ParameterSet};
use half::bf16;

use crate::on_ranks;

fn replicas(comm: &Comm) -> DataParallel {
    let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [1])]).unwrap();
    DataParallel::new(comm, parameters, Options::default()).unwrap()
}

/// The buffers of two batch normalizations, and a few others.
#[derive(Debug, Clone, PartialEq)]
struct Buffers {
    mean: Vec<f32>,
    batches: i64,
    scale: Vec<bf16>,
    variance: Vec<f32>,
    mask: Vec<u8>,
    empty: Vec<f64>,
}

impl Buffers {
    fn new(rank: usize) -> Self {
        Self {
            mean: vec![4.0 * rank as f32; 5],
            batches: 100 + rank as i64,
            scale: vec![bf16::from_f32(8.0 * rank as f32); 3],
            variance: vec![-2.0 * rank as f32, 1.0],
            mask: vec![rank as u8; 7],
            empty: Vec::new(),
        }
    }

    /// Registered in a different order on every rank.
    fn register(replicas: &mut DataParallel, rank: usize) {
        let mut set = vec![
            Parameter::new::<f32>("mean", [5]),
            Parameter::new::<i64>("batches", []),
            Parameter::new::<bf16>("scale", [3]),
            Parameter::new::<f32>("variance", [2]),
            Parameter::new::<u8>("mask", [7]),
            Parameter::new::<f64>("empty", [0]),
        ];
        set.rotate_left(rank % 6);
        replicas.register_buffers(ParameterSet::new(set).unwrap()).unwrap();
    }

    fn views(&mut self, rank: usize) -> Vec<HostViewMut<'_>> {
        let mut views = vec![
            HostViewMut::new(&mut self.mean),
            HostViewMut::new(std::slice::from_mut(&mut self.batches)),
            HostViewMut::new(&mut self.scale),
            HostViewMut::new(&mut self.variance),
            HostViewMut::new(&mut self.mask),
            HostViewMut::new(&mut self.empty),
        ];
        views.rotate_left(rank % 6);
        views
    }
}

/// Makes a step, with or without a batch.
fn step(replicas: &mut DataParallel, has_batch: bool) {
    if has_batch {
        let mut step = replicas.step().unwrap();
        step.ready(0, &[1.0_f32]).unwrap();
        step.finish().unwrap();
    } else {
        let _ = replicas.join().unwrap();
    }
}

#[test]
fn buffers_are_copied_from_the_first_rank_with_a_batch() {
    for size in [1, 2, 3, 5, 8] {
        on_ranks(size, |comm| {
            let rank = comm.rank();
            let mut replicas = replicas(&comm);
            Buffers::register(&mut replicas, rank);
            for (number, first) in [0, 0, size - 1, size / 2].into_iter().enumerate() {
                let mut buffers = Buffers::new(rank + number);
                replicas.broadcast_buffers(buffers.views(rank)).unwrap();
                let source = [0, 0, 0, size - 1][number];
                assert_eq!(buffers, Buffers::new(source + number), "{number}");
                step(&mut replicas, rank >= first);
            }
            let mut buffers = Buffers::new(rank);
            replicas.broadcast_buffers(buffers.views(rank)).unwrap();
            assert_eq!(buffers, Buffers::new(size / 2));
            // At the end of an epoch no rank has a batch: the buffers of the last ranks that had
            // one are used.
            step(&mut replicas, false);
            let mut buffers = Buffers::new(rank);
            replicas.broadcast_buffers(buffers.views(rank)).unwrap();
            assert_eq!(buffers, Buffers::new(size / 2));
        });
    }
}

#[test]
fn buffers_are_averaged_over_ranks_with_a_batch_and_integers_are_broadcast() {
    for size in [1, 2, 3, 4, 5, 8] {
        on_ranks(size, |comm| {
            let rank = comm.rank();
            let mut replicas = replicas(&comm);
            Buffers::register(&mut replicas, rank);
            for first in [0, size - 1, size / 2] {
                step(&mut replicas, rank >= first);
                let mut buffers = Buffers::new(rank);
                if rank < first {
                    // The values of a rank without a batch are ignored, even a NaN.
                    buffers.variance[1] = f32::NAN;
                }
                replicas.average_buffers(buffers.views(rank)).unwrap();
                let mean = (first..size).sum::<usize>() as f32 / (size - first) as f32;
                let near = |got: f32, expected: f32| (got - expected).abs() <= 1e-2 * expected.abs();
                assert!(buffers.mean.iter().all(|value| near(*value, 4.0 * mean)), "{buffers:?}");
                assert!(buffers.scale.iter().all(|value| near(value.to_f32(), 8.0 * mean)), "{buffers:?}");
                assert!(near(buffers.variance[0], -2.0 * mean) && near(buffers.variance[1], 1.0));
                assert_eq!((buffers.batches, &buffers.mask[..]), (100 + first as i64, &[first as u8; 7][..]));
                let bits: Vec<u32> = buffers.mean.iter().map(|value| value.to_bits()).collect();
                assert_eq!(comm.all_gather_scalar(bits[0]).unwrap(), vec![bits[0]; size]);
            }
        });
    }
}

#[test]
fn buffers_that_differ_between_ranks_are_named_on_every_rank() {
    on_ranks(3, |comm| {
        let mut replicas = replicas(&comm);
        let len = if comm.rank() == 1 { 4 } else { 3 };
        let set = ParameterSet::new([Parameter::new::<f32>("mean", [len])]).unwrap();
        let Err(Error::Mismatch(mismatch)) = replicas.register_buffers(set) else { panic!() };
        let expected = Difference::Shape { expected: vec![3], found: vec![4] };
        assert_eq!((mismatch.name.as_str(), mismatch.difference), ("mean", expected));
        assert_eq!(mismatch.ranks, [1]);
        // Training can continue, and buffers can still be registered.
        Buffers::register(&mut replicas, comm.rank());
        step(&mut replicas, true);
    });
}

#[test]
fn mismatched_values_are_refused_before_they_are_sent() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm);
        assert!(replicas.broadcast_buffers::<&mut [f32]>([]).is_ok(), "a model without buffers");
        let refused = replicas.average_buffers([&mut [1.0_f32][..]]);
        assert!(matches!(refused, Err(Error::Count { expected: 0, got: 1 })));
        let set = [Parameter::new::<f32>("mean", [3]), Parameter::new::<f32>("variance", [1])];
        replicas.register_buffers(ParameterSet::new(set).unwrap()).unwrap();
        let (mut mean, mut variance) = ([comm.rank() as f32; 3], [5.0_f32]);
        let refused = replicas.broadcast_buffers([&mut mean[..]]);
        assert!(matches!(refused, Err(Error::Count { expected: 2, got: 1 })));
        let refused = replicas.broadcast_buffers([&mut mean[..2], &mut variance]);
        assert!(matches!(refused, Err(Error::Length { name, expected: 3, got: 2 }) if name == "mean"));
        let refused = replicas.average_buffers([&mut [0_i32; 3][..], &mut [0; 1]]);
        assert!(matches!(refused, Err(Error::WrongType { name, .. }) if name == "mean"));
        replicas.broadcast_buffers([&mut mean[..], &mut variance]).unwrap();
        assert_eq!((mean, variance), ([0.0; 3], [5.0]));
    });
}

#[test]
fn buffers_that_are_registered_as_frozen_are_exchanged_too() {
    on_ranks(2, |comm| {
        let mut replicas = replicas(&comm);
        let set =
            [Parameter::new::<f32>("mean", [3]).frozen(), Parameter::new::<i64>("batches", [1]).frozen()];
        replicas.register_buffers(ParameterSet::new(set).unwrap()).unwrap();
        let (mut mean, mut batches) = ([comm.rank() as f32; 3], [comm.rank() as i64 + 7]);
        let views = [HostViewMut::new(&mut mean), HostViewMut::new(&mut batches)];
        replicas.average_buffers(views).unwrap();
        assert_eq!((mean, batches), ([0.5; 3], [7]));
    });
}
