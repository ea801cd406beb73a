//! Every reduction against a reference, bit for bit.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use comm_core::{Collective, Comm, Error, HostView, HostViewMut, Link, LinkModel, ReduceOp};
use comm_ring::RingConfig;
use comm_ring::schedule::Algorithm;
use comm_sim::in_process::{InProcessConfig, Release};
use common::{Sample, WORLDS, contributions, is_exact, lengths, reductions, small_segments, uneven, world};
use float8::F8E5M2;
use half::{bf16, f16};

/// A handle for every algorithm of a collective, and its name.
fn each_algorithm(comm: &Comm, collective: Collective) -> impl Iterator<Item = (&'static str, Comm)> {
    Algorithm::for_collective(collective).map(|row| (row.name, comm.with_algorithm(row.name)))
}

fn all_reduce<T: Sample>(comm: &Comm, algorithm: &str) {
    let ranks = comm.size();
    for op in ReduceOp::ALL.into_iter().filter(|op| is_exact::<T>(*op, ranks)) {
        for len in lengths(ranks) {
            let expected = reductions::<T>(ranks, len, op);
            let send = contributions::<T>(comm.rank(), len);
            let mut buffer = send.clone();
            comm.all_reduce(&mut buffer, op).unwrap();
            assert_eq!(buffer, expected, "{algorithm} {op} of {len} {} in place", T::DTYPE);
            let mut recv = vec![T::of(99.0); len];
            comm.all_reduce_into(&send, &mut recv, op).unwrap();
            assert_eq!(recv, expected, "{algorithm} {op} of {len} {}", T::DTYPE);
        }
    }
}

fn reduce<T: Sample>(comm: &Comm, algorithm: &str) {
    let ranks = comm.size();
    for op in ReduceOp::ALL.into_iter().filter(|op| is_exact::<T>(*op, ranks)) {
        for len in lengths(ranks) {
            for root in [0, ranks / 2, ranks - 1] {
                let expected = reductions::<T>(ranks, len, op);
                let send = contributions::<T>(comm.rank(), len);
                let (mut buffer, mut recv) = (send.clone(), vec![T::of(99.0); len]);
                let untouched = recv.clone();
                comm.reduce(root, &mut buffer, op).unwrap();
                comm.reduce_into(root, &send, &mut recv, op).unwrap();
                if comm.rank() == root {
                    let context = format!("{algorithm} {op} of {len} to {root}");
                    assert_eq!((buffer, recv), (expected.clone(), expected), "{context}");
                } else {
                    let context = format!("{algorithm} {op}: others stay untouched");
                    assert_eq!((buffer, recv), (send.clone(), untouched), "{context}");
                }
                if comm.rank() == root {
                    comm.reduce(root, &mut send.clone(), op).unwrap();
                } else {
                    comm.reduce_send(root, &send, op).unwrap();
                }
            }
        }
    }
}

fn reduce_scatter<T: Sample>(comm: &Comm, algorithm: &str) {
    let (rank, ranks) = (comm.rank(), comm.size());
    for op in ReduceOp::ALL.into_iter().filter(|op| is_exact::<T>(*op, ranks)) {
        for len in lengths(ranks) {
            let all = reductions::<T>(ranks, len * ranks, op);
            let expected = &all[rank * len..][..len];
            let send = contributions::<T>(rank, len * ranks);
            let mut recv = vec![T::of(99.0); len];
            comm.reduce_scatter(&send, &mut recv, op).unwrap();
            assert_eq!(recv, expected, "{algorithm} {op} of {len} {}", T::DTYPE);
            let mut buffer = send.clone();
            comm.reduce_scatter_in_place(&mut buffer, op).unwrap();
            let own = &buffer[rank * len..][..len];
            assert_eq!(own, expected, "{algorithm} {op} of {len} {} in place", T::DTYPE);
        }
    }
}

fn reduce_scatter_v<T: Sample>(comm: &Comm) {
    let (rank, ranks) = (comm.rank(), comm.size());
    for counts in uneven(ranks) {
        let (own, total) = (counts[rank], counts.iter().sum());
        let start = counts[..rank].iter().sum::<usize>();
        let reduced = reductions::<T>(ranks, total, ReduceOp::Max);
        for (algorithm, comm) in each_algorithm(comm, Collective::ReduceScatterV) {
            let contribution = contributions::<T>(rank, total);
            let mut recv = vec![T::of(99.0); own];
            comm.reduce_scatter_v(&contribution, &mut recv, &counts, ReduceOp::Max).unwrap();
            assert_eq!(recv, reduced[start..start + own], "{algorithm} {counts:?}");
        }
    }
}

fn every_collective<T: Sample>(comm: &Comm) {
    for (name, comm) in each_algorithm(comm, Collective::AllReduce) {
        all_reduce::<T>(&comm, name);
    }
    for (name, comm) in each_algorithm(comm, Collective::Reduce) {
        reduce::<T>(&comm, name);
    }
    for (name, comm) in each_algorithm(comm, Collective::ReduceScatter) {
        reduce_scatter::<T>(&comm, name);
    }
    reduce_scatter_v::<T>(comm);
    comm.barrier().unwrap();
}

fn every_world<T: Sample>() {
    for ranks in WORLDS {
        world(ranks, &InProcessConfig::default(), &small_segments(), |comm| every_collective::<T>(&comm));
    }
}

macro_rules! every_type {
    ($($name:ident: $element:ty),+ $(,)?) => { $(
        #[test]
        fn $name() {
            every_world::<$element>();
        }
    )+ };
}

every_type! {
    i8s: i8, u8s: u8, i16s: i16, u16s: u16, i32s: i32, u32s: u32, i64s: i64, u64s: u64,
    f16s: f16, bf16s: bf16, f32s: f32, f64s: f64,
}

#[test]
fn floats_of_8_bits_are_refused_before_anything_moves() {
    for ranks in [1, 2, 3] {
        world(ranks, &InProcessConfig::default(), &small_segments(), |comm| {
            let mut bits = vec![F8E5M2::from_bits(3); ranks];
            for op in ReduceOp::ALL {
                let mut share = [F8E5M2::from_bits(0)];
                let calls = [
                    comm.all_reduce(&mut bits, op),
                    comm.reduce(0, &mut bits, op),
                    comm.reduce_scatter(&bits, &mut share, op),
                    comm.scan(&mut bits, op),
                ];
                for refused in calls {
                    assert!(matches!(refused, Err(Error::Invalid(_))), "{op}: {refused:?}");
                }
            }
            assert!(bits.iter().all(|element| element.to_bits() == 3));
            let mut sum = [1_u8];
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(usize::from(sum[0]), ranks);
        });
    }
}

#[test]
fn bytes_that_dribble_and_memory_that_stays_lent_change_nothing() {
    let tiny = InProcessConfig::default().capacity(7);
    let dribbling = InProcessConfig::default().dribble(1);
    let lent = InProcessConfig::default().release(Release::OnConsume).capacity(100).dribble(2);
    for network in [tiny, dribbling, lent] {
        for ranks in [2, 3, 5] {
            world(ranks, &network, &small_segments(), |comm| {
                reduce_scatter_v::<u16>(&comm);
                let (len, sum) = (67, ReduceOp::Sum);
                let send = contributions::<f32>(comm.rank(), len * ranks);
                let expected = reductions::<f32>(ranks, len * ranks, sum);
                for (algorithm, comm) in each_algorithm(&comm, Collective::AllReduce) {
                    let mut all = send.clone();
                    comm.all_reduce(&mut all, sum).unwrap();
                    assert_eq!(all, expected, "{algorithm}");
                }
                for (algorithm, comm) in each_algorithm(&comm, Collective::ReduceScatter) {
                    let mut share = vec![0.0; len];
                    comm.reduce_scatter(&send, &mut share, sum).unwrap();
                    assert_eq!(share, expected[comm.rank() * len..][..len], "{algorithm}");
                }
                for (algorithm, comm) in each_algorithm(&comm, Collective::Reduce) {
                    let mut buffer = send.clone();
                    comm.reduce(ranks - 1, &mut buffer, sum).unwrap();
                    let right = if comm.rank() == ranks - 1 { &expected[..] } else { &send[..] };
                    assert_eq!(buffer, right, "{algorithm}");
                }
            });
        }
    }
}

#[test]
fn the_smallest_window_and_tiny_buffers_do_not_deadlock() {
    let network = InProcessConfig::default().capacity(4096);
    let mut config = RingConfig::default();
    config.window = 2;
    for ranks in 2..=9 {
        world(ranks, &network, &config, |comm| {
            let (len, sum) = (1 << 18, (0..ranks).sum::<usize>() as f32);
            let mut buffer = vec![0.0; len];
            for (algorithm, comm) in each_algorithm(&comm, Collective::AllReduce) {
                buffer.fill(comm.rank() as f32);
                comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                assert!(buffer.iter().all(|&element| element == sum), "{algorithm}");
            }
            comm.broadcast(ranks - 1, &mut buffer).unwrap();
            for (_, comm) in each_algorithm(&comm, Collective::Reduce) {
                comm.reduce(0, &mut buffer, ReduceOp::Max).unwrap();
            }
            for (_, comm) in each_algorithm(&comm, Collective::ReduceScatter) {
                comm.reduce_scatter_in_place(&mut buffer[..len / ranks * ranks], ReduceOp::Max).unwrap();
            }
        });
    }
}

#[test]
fn results_are_the_same_bits_on_every_rank_and_repetition() {
    for ranks in [2, 3, 4, 7, 8] {
        for algorithm in Algorithm::for_collective(Collective::AllReduce).map(|row| row.name) {
            let results = world(ranks, &InProcessConfig::default(), &small_segments(), |comm| {
                let comm = comm.with_algorithm(algorithm);
                let once = || {
                    let rough = |at: usize| 1.0 / (1.0 + comm.rank() as f32 * 0.37 + at as f32 * 1.13);
                    let mut buffer: Vec<f32> = (0..500).map(rough).collect();
                    comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                    buffer.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let first = once();
                assert!((0..5).all(|_| once() == first));
                first
            });
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{algorithm} of {ranks}");
        }
    }
}

#[test]
fn a_communicator_tells_the_links_that_it_chooses_by() {
    let link = Link { latency: 1.0, overhead: 2.0, per_byte: 3.0 };
    let mut config = RingConfig::default();
    config.links = Some(LinkModel::uniform(link, 4.0));
    world(3, &InProcessConfig::default(), &config, |comm| assert_eq!(comm.links(), config.links));
    world(1, &InProcessConfig::default(), &RingConfig::default(), |comm| assert!(comm.links().is_some()));
}

#[test]
fn a_million_elements() {
    world(4, &InProcessConfig::default(), &RingConfig::default(), |comm| {
        let len = 1_000_003;
        let mut buffer = contributions::<f32>(comm.rank(), len);
        comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        assert_eq!(buffer, reductions::<f32>(4, len, ReduceOp::Sum));
    });
}

#[test]
fn a_wrong_call_is_refused_and_the_next_one_works() {
    world(3, &InProcessConfig::default(), &RingConfig::default(), |comm| {
        let mut floats = vec![1.0_f32; 10];
        let mut ints = vec![1_i32; 10];
        assert!(!comm.all_reduce(&mut floats, ReduceOp::BitAnd).unwrap_err().is_fatal());
        assert!(!comm.all_reduce(&mut ints, ReduceOp::Avg).unwrap_err().is_fatal());
        assert!(!comm.broadcast(3, &mut floats).unwrap_err().is_fatal());
        assert!(!comm.all_gather(&floats, &mut vec![0.0_f32; 29]).unwrap_err().is_fatal());
        assert!(!comm.reduce_scatter(&floats, &mut vec![0.0_f32; 3], ReduceOp::Sum).unwrap_err().is_fatal());
        let mixed =
            comm.all_reduce_into(&HostView::new(&floats), &mut HostViewMut::new(&mut ints), ReduceOp::Sum);
        assert!(!mixed.unwrap_err().is_fatal());
        assert!(!comm.with_algorithm("magic").barrier().unwrap_err().is_fatal());
        // Each rank sends three elements to itself and expects two.
        let mut counts = [1; 3];
        counts[comm.rank()] = 3;
        let own = comm.all_to_all_v(&[0_u8; 5], &counts, &mut [0_u8; 6], &[2; 3]).unwrap_err();
        assert!(!own.is_fatal(), "{own}");
        comm.all_reduce(&mut floats, ReduceOp::Sum).unwrap();
        assert_eq!(floats, [3.0; 10]);
    });
}

#[test]
fn a_refused_call_has_touched_nothing() {
    world(3, &InProcessConfig::default(), &RingConfig::default(), |comm| {
        let (wrong, half) = (comm.with_algorithm("magic"), ReduceOp::PreMulSum(0.5));
        let (mut buffer, mut recv) = ([4.0_f32; 6], [7.0_f32; 6]);
        assert!(!wrong.all_reduce(&mut buffer, half).unwrap_err().is_fatal());
        assert!(!wrong.reduce_scatter_in_place(&mut buffer, half).unwrap_err().is_fatal());
        assert!(!wrong.reduce_into(0, &buffer, &mut recv, half).unwrap_err().is_fatal());
        assert!(!wrong.all_reduce_into(&buffer, &mut recv, ReduceOp::Sum).unwrap_err().is_fatal());
        assert_eq!((buffer, recv), ([4.0; 6], [7.0; 6]));
        comm.all_reduce(&mut buffer, half).unwrap();
        assert_eq!(buffer, [6.0; 6]);
    });
}

#[test]
fn nan_wins_and_signs_of_zero_are_ordered() {
    world(3, &InProcessConfig::default(), &small_segments(), |comm| {
        for (algorithm, comm) in each_algorithm(&comm, Collective::AllReduce) {
            let mut buffer = match comm.rank() {
                0 => [f32::NAN, 0.0, 1.0],
                1 => [1.0, -0.0, f32::INFINITY],
                _ => [2.0, 0.0, -1.0],
            };
            comm.all_reduce(&mut buffer, ReduceOp::Min).unwrap();
            assert!(buffer[0].is_nan(), "{algorithm}");
            assert_eq!(buffer[1].to_bits(), (-0.0_f32).to_bits(), "{algorithm}");
            assert_eq!(buffer[2], -1.0, "{algorithm}");
        }
    });
}
