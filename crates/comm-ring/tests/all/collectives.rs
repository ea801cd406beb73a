//! Tests of reductions that the conformance suite of communicators does not cover.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{contributions, reductions, small_segments, world};
use comm_core::{Collective, Comm, Error, Link, LinkModel, ReduceOp};
use comm_ring::RingConfig;
use comm_ring::schedule::Algorithm;
use comm_sim::in_process::InProcessConfig;
use float8::F8E5M2;

/// A handle for every algorithm of a collective, and its name.
fn each_algorithm(comm: &Comm, collective: Collective) -> impl Iterator<Item = (&'static str, Comm)> {
    Algorithm::for_collective(collective).map(|row| (row.name, comm.with_algorithm(row.name)))
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
fn a_communicator_reports_the_links_that_it_chooses_by() {
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
