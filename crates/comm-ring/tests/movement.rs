//! Every collective that moves data and reduces nothing, with every algorithm, against a reference,
//! bit for bit.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::Duration;

use comm_core::{
    Buffers, Call, CallOptions, Collective, Comm, Communicator, Counts, HostView, HostViewMut, LinkModel,
};
use comm_ring::choose::{CallShape, choose};
use comm_ring::schedule::Algorithm;
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig, Release};
use common::{Sample, WORLDS, contributions, lengths, small_segments, uneven, world};
use float8::F8E4M3;
use half::bf16;

/// Calls `each` with a handle to every algorithm of a collective.
fn every_algorithm(comm: &Comm, collective: Collective, each: impl Fn(&Comm, &str)) {
    for row in Algorithm::for_collective(collective) {
        each(&comm.with_algorithm(row.name), row.name);
    }
}

/// Returns the contributions of all ranks, in rank order.
fn all<T: Sample>(counts: &[usize]) -> Vec<T> {
    counts.iter().enumerate().flat_map(|(rank, &len)| contributions::<T>(rank, len)).collect()
}

fn filled<T: Sample>(len: usize) -> Vec<T> {
    vec![T::of(99.0); len]
}

fn broadcast<T: Sample>(comm: &Comm, name: &str) {
    for len in lengths(comm.size()) {
        for root in 0..comm.size() {
            let mut buffer = contributions::<T>(comm.rank(), len);
            comm.broadcast(root, &mut buffer).unwrap();
            assert_eq!(buffer, contributions::<T>(root, len), "{name} {len} from {root}");
        }
    }
}

fn all_gather<T: Sample>(comm: &Comm, name: &str) {
    let (rank, ranks) = (comm.rank(), comm.size());
    for len in lengths(ranks) {
        let (send, expected) = (contributions::<T>(rank, len), all::<T>(&vec![len; ranks]));
        let mut recv = filled::<T>(len * ranks);
        comm.all_gather(&send, &mut recv).unwrap();
        assert_eq!(recv, expected, "{name} {len}");
        let mut buffer = filled::<T>(len * ranks);
        buffer[rank * len..][..len].copy_from_slice(&send);
        comm.all_gather_in_place(&mut buffer).unwrap();
        assert_eq!(buffer, expected, "{name} {len} in place");
    }
}

fn all_gather_v<T: Sample>(comm: &Comm, name: &str) {
    for counts in uneven(comm.size()) {
        let send = contributions::<T>(comm.rank(), counts[comm.rank()]);
        let mut recv = filled::<T>(counts.iter().sum());
        comm.all_gather_v(&send, &mut recv, &counts).unwrap();
        assert_eq!(recv, all::<T>(&counts), "{name} {counts:?}");
    }
}

fn gather<T: Sample>(comm: &Comm, name: &str) {
    let (rank, ranks) = (comm.rank(), comm.size());
    for len in lengths(ranks) {
        for root in 0..ranks {
            let counts = if rank == root { vec![len; ranks] } else { Vec::new() };
            let mut recv = filled::<T>(counts.iter().sum());
            comm.gather(root, &contributions::<T>(rank, len), &mut recv).unwrap();
            assert_eq!(recv, all::<T>(&counts), "{name} {len} to {root}");
        }
    }
}

fn gather_v<T: Sample>(comm: &Comm, name: &str) {
    let (rank, ranks) = (comm.rank(), comm.size());
    for counts in uneven(ranks) {
        for root in [0, ranks - 1] {
            // Only the root knows all counts.
            let known = if rank == root { &counts[..] } else { &[] };
            let mut recv = filled::<T>(known.iter().sum());
            comm.gather_v(root, &contributions::<T>(rank, counts[rank]), &mut recv, known).unwrap();
            assert_eq!(recv, all::<T>(known), "{name} {counts:?} to {root}");
        }
    }
}

fn scatter<T: Sample>(comm: &Comm, name: &str) {
    let (rank, ranks) = (comm.rank(), comm.size());
    for len in lengths(ranks) {
        for root in 0..ranks {
            let counts = if rank == root { vec![len; ranks] } else { Vec::new() };
            let mut recv = filled::<T>(len);
            comm.scatter(root, &all::<T>(&counts), &mut recv).unwrap();
            assert_eq!(recv, contributions::<T>(rank, len), "{name} {len} from {root}");
        }
    }
}

fn scatter_v<T: Sample>(comm: &Comm, name: &str) {
    let (rank, ranks) = (comm.rank(), comm.size());
    for counts in uneven(ranks) {
        for root in [0, ranks - 1] {
            let known = if rank == root { &counts[..] } else { &[] };
            let mut recv = filled::<T>(counts[rank]);
            comm.scatter_v(root, &all::<T>(known), &mut recv, known).unwrap();
            assert_eq!(recv, contributions::<T>(rank, counts[rank]), "{name} {counts:?} from {root}");
        }
    }
}

/// The elements that go from one rank to another, each of its own.
fn between<T: Sample>(from: usize, to: usize, len: usize) -> Vec<T> {
    contributions::<T>(from * 31 + to, len)
}

fn all_to_all<T: Sample>(comm: &Comm, name: &str) {
    let (rank, ranks) = (comm.rank(), comm.size());
    for len in lengths(ranks) {
        let send: Vec<T> = (0..ranks).flat_map(|to| between::<T>(rank, to, len)).collect();
        let expected: Vec<T> = (0..ranks).flat_map(|from| between::<T>(from, rank, len)).collect();
        let mut recv = filled::<T>(len * ranks);
        comm.all_to_all(&send, &mut recv).unwrap();
        assert_eq!(recv, expected, "{name} {len}");
        let mut buffer = send.clone();
        comm.all_to_all_in_place(&mut buffer).unwrap();
        assert_eq!(buffer, expected, "{name} {len} in place");
    }
}

/// An arbitrary matrix of traffic, with zeros.
fn all_to_all_v<T: Sample>(comm: &Comm, name: &str) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let traffic = |from: usize, to: usize| [0, 7, 1, 40, 0, 3][(from * 5 + to * 3) % 6];
    let sent: Vec<usize> = (0..ranks).map(|to| traffic(rank, to)).collect();
    let received: Vec<usize> = (0..ranks).map(|from| traffic(from, rank)).collect();
    let send: Vec<T> = (0..ranks).flat_map(|to| between::<T>(rank, to, sent[to])).collect();
    let expected: Vec<T> = (0..ranks).flat_map(|from| between::<T>(from, rank, received[from])).collect();
    let mut recv = filled::<T>(expected.len());
    comm.all_to_all_v(&send, &sent, &mut recv, &received).unwrap();
    assert_eq!(recv, expected, "{name}");
}

fn every_collective<T: Sample>(comm: &Comm) {
    every_algorithm(comm, Collective::Broadcast, broadcast::<T>);
    every_algorithm(comm, Collective::AllGather, all_gather::<T>);
    every_algorithm(comm, Collective::AllGatherV, all_gather_v::<T>);
    every_algorithm(comm, Collective::Gather, gather::<T>);
    every_algorithm(comm, Collective::GatherV, gather_v::<T>);
    every_algorithm(comm, Collective::Scatter, scatter::<T>);
    every_algorithm(comm, Collective::ScatterV, scatter_v::<T>);
    every_algorithm(comm, Collective::AllToAll, all_to_all::<T>);
    every_algorithm(comm, Collective::AllToAllV, all_to_all_v::<T>);
}

macro_rules! every_type {
    ($($name:ident: $element:ty),+ $(,)?) => { $(
        #[test]
        fn $name() {
            for ranks in WORLDS {
                world(ranks, &InProcessConfig::default(), &small_segments(), |comm| {
                    every_collective::<$element>(&comm);
                });
            }
        }
    )+ };
}

every_type! { i8s: i8, u16s: u16, bf16s: bf16, i32s: i32, f32s: f32, u64s: u64, f64s: f64, f8e4m3s: F8E4M3 }

#[test]
fn larger_worlds() {
    for ranks in [16, 24] {
        world(ranks, &InProcessConfig::default(), &small_segments(), |comm| every_collective::<u32>(&comm));
    }
}

#[test]
fn bytes_that_dribble_and_memory_that_stays_lent_change_nothing() {
    let tiny = InProcessConfig::default().capacity(7);
    let dribbling = InProcessConfig::default().dribble(1);
    let lent = InProcessConfig::default().release(Release::OnConsume).capacity(100).dribble(2);
    for network in [tiny, dribbling, lent] {
        for ranks in [2, 3, 5] {
            world(ranks, &network, &small_segments(), |comm| every_collective::<i64>(&comm));
        }
    }
}

/// In place, the root's own block stays where it is.
#[test]
fn the_root_of_a_gather_or_scatter_may_work_in_place() {
    for ranks in [1, 2, 3, 5, 8] {
        in_process::run(ranks, &InProcessConfig::default(), |fabric| {
            let config = RingConfig::default();
            let ring = RingCommunicator::new(fabric, config, Duration::from_secs(20)).unwrap();
            for collective in [Collective::Gather, Collective::Scatter] {
                for row in Algorithm::for_collective(collective) {
                    let mut options = CallOptions::default();
                    options.algorithm = Some(row.name.into());
                    (0..ranks).for_each(|root| in_place(&ring, collective, root, &options));
                }
            }
        });
    }
}

fn in_place(ring: &dyn Communicator, collective: Collective, root: usize, options: &CallOptions) {
    const LEN: usize = 5;
    let (rank, ranks) = (ring.group().rank(), ring.group().size());
    let all = all::<u16>(&vec![LEN; ranks]);
    let own = contributions::<u16>(rank, LEN);
    let mut buffer = if collective == Collective::Scatter { all.clone() } else { filled(LEN * ranks) };
    buffer[rank * LEN..][..LEN].copy_from_slice(&own);
    let mut recv = filled::<u16>(LEN);
    let buffers = match collective {
        _ if rank == root => Buffers::InPlace(HostViewMut::new(&mut buffer)),
        Collective::Gather => Buffers::SendOnly(HostView::new(&own)),
        _ => Buffers::InPlace(HostViewMut::new(&mut recv)),
    };
    if collective == Collective::Gather {
        ring.run(Call::Gather { root, buffers, counts: Counts::Equal }, options).unwrap();
    } else {
        ring.run(Call::Scatter { root, buffers, counts: Counts::Equal }, options).unwrap();
    }
    if rank == root {
        assert_eq!(buffer, all, "{options:?} of {ranks}, root {root}");
    } else if collective == Collective::Scatter {
        assert_eq!(recv, own, "{options:?} of {ranks}, root {root}");
    }
}

#[test]
fn an_algorithm_for_equal_shares_is_refused_where_counts_are_given() {
    world(4, &InProcessConfig::default(), &RingConfig::default(), |comm| {
        let (send, mut recv) = ([comm.rank() as u8; 3], [0; 12]);
        let refused = comm.with_algorithm("binomial").gather_v(0, &send, &mut recv, &[3; 4]).unwrap_err();
        assert!(!refused.is_fatal() && refused.to_string().contains("linear"), "{refused}");
        comm.gather_v(0, &send, &mut recv, &[3; 4]).unwrap();
        assert_eq!(comm.rank() == 0, recv == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
    });
}

#[test]
fn the_algorithm_follows_the_length_and_the_number_of_ranks() {
    let link = comm_core::Link { latency: 1e-5, overhead: 1e-6, per_byte: 1e-9 };
    let tuning = RingConfig::default().tuning(LinkModel::uniform(link, 1e-10));
    let choice = |collective, ranks, bytes| {
        let question = CallShape::new(collective).ranks(ranks).bytes(bytes);
        choose(&question, None, &tuning).unwrap().algorithm.name
    };
    assert_eq!(choice(Collective::Broadcast, 8, 64), "binomial");
    assert_eq!(choice(Collective::Broadcast, 8, 200_000), "scatter_all_gather");
    assert_eq!(choice(Collective::Broadcast, 3, 16 << 20), "chain");
    assert_eq!(choice(Collective::Broadcast, 256, 16 << 20), "double_tree");
    assert_eq!(choice(Collective::Gather, 256, 256), "binomial");
    assert_eq!(choice(Collective::Gather, 256, 256 << 20), "linear");
    assert_eq!(choice(Collective::GatherV, 256, 0), "linear");
    assert_eq!(choice(Collective::AllToAll, 8, 8 * 8), "pairwise");
    assert_eq!(choice(Collective::AllToAll, 64, 64 * 8), "all_gather");
    assert_eq!(choice(Collective::AllToAll, 64, 64 << 10), "pairwise");
    assert_eq!(choice(Collective::AllGather, 256, 256), "recursive_doubling");
    assert_eq!(choice(Collective::AllGather, 255, 255), "bruck");
    assert_eq!(choice(Collective::AllGather, 8, 1 << 20), "direct");
}
