//! Any collective, on any world, lengths and traffic, over queues and settings of any size, against
//! a reference.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{contributions, reductions, world};
use comm_core::{Collective, Comm, ReduceOp};
use comm_ring::RingConfig;
use comm_ring::schedule::Algorithm;
use comm_sim::Release;
use comm_sim::in_process::InProcessConfig;
use proptest::prelude::*;
use proptest::sample::Index;

/// A world, its settings and network, and the amount of data from every rank to every other.
#[derive(Debug, Clone)]
struct Case {
    ranks: usize,
    config: RingConfig,
    network: InProcessConfig,
    /// The number of elements from rank `i` to rank `j`, at `i * 9 + j`. The other collectives
    /// derive their counts from it.
    traffic: Vec<usize>,
    root: Index,
    algorithm: Index,
}

impl Case {
    fn between(&self, from: usize, to: usize) -> usize {
        self.traffic[from * 9 + to]
    }

    /// One count per rank.
    fn counts(&self) -> Vec<usize> {
        (0..self.ranks).map(|rank| self.between(rank, 0)).collect()
    }

    /// The communicator with one of the algorithms for a collective forced.
    fn force(&self, comm: &Comm, collective: Collective) -> Comm {
        let rows: Vec<_> = Algorithm::for_collective(collective).collect();
        comm.with_algorithm(self.algorithm.get(&rows).name)
    }
}

/// Mostly zero or small, sometimes large.
fn count() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(0_usize), 4 => 1..10_usize, 1 => 100..700_usize]
}

fn case() -> impl Strategy<Value = Case> {
    let config = (2..40_usize, prop_oneof![1..64_usize, 64..4096_usize], 1..5_usize);
    let network = (prop_oneof![1..40_usize, Just(64 << 10)], any::<bool>(), any::<Option<u64>>());
    let traffic = proptest::collection::vec(count(), 81);
    (1..=9_usize, config, network, traffic, any::<Index>(), any::<Index>()).prop_map(
        |(
            ranks,
            (window, segment_bytes, pass),
            (capacity, on_consume, dribble),
            traffic,
            root,
            algorithm,
        )| {
            // Through queues of a few bytes, thousands of elements take minutes on a busy machine.
            let traffic = traffic.into_iter().map(|count: usize| count.min(30 * capacity)).collect();
            let mut config = RingConfig::default();
            (config.window, config.segment_bytes, config.segments_per_pass) = (window, segment_bytes, pass);
            let release = if on_consume { Release::OnConsume } else { Release::OnAccept };
            let mut network = InProcessConfig::default().capacity(capacity).release(release);
            network.dribble = dribble;
            Case { ranks, config, network, traffic, root, algorithm }
        },
    )
}

fn reductions_are_exact(case: &Case, comm: &Comm) {
    let (rank, counts) = (comm.rank(), case.counts());
    let len = counts.iter().sum();
    let all = reductions::<i32>(case.ranks, len, ReduceOp::Sum);
    let send = contributions::<i32>(rank, len);

    let mut buffer = send.clone();
    case.force(comm, Collective::AllReduce).all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
    assert_eq!(buffer, all);

    let root = case.root.index(case.ranks);
    let (mut buffer, comm_to_root) = (send.clone(), case.force(comm, Collective::Reduce));
    comm_to_root.reduce(root, &mut buffer, ReduceOp::Sum).unwrap();
    assert_eq!(buffer, if rank == root { all.clone() } else { send.clone() });

    let (start, mut share) = (counts[..rank].iter().sum::<usize>(), vec![0; counts[rank]]);
    let scattering = case.force(comm, Collective::ReduceScatterV);
    scattering.reduce_scatter_v(&send, &mut share, &counts, ReduceOp::Sum).unwrap();
    assert_eq!(share, all[start..][..counts[rank]]);
}

fn gathers_and_scatters_keep_every_element(case: &Case, comm: &Comm) {
    let (rank, counts, root) = (comm.rank(), case.counts(), case.root.index(case.ranks));
    let all: Vec<i32> = (0..case.ranks).flat_map(|rank| contributions::<i32>(rank, counts[rank])).collect();
    let own = contributions::<i32>(rank, counts[rank]);
    let at_root = |data: &Vec<i32>| if rank == root { data.clone() } else { Vec::new() };
    let known = if rank == root { &counts[..] } else { &[] };

    let mut recv = vec![0; all.len()];
    case.force(comm, Collective::AllGatherV).all_gather_v(&own, &mut recv, &counts).unwrap();
    assert_eq!(recv, all);

    let mut recv = at_root(&vec![0; all.len()]);
    case.force(comm, Collective::GatherV).gather_v(root, &own, &mut recv, known).unwrap();
    assert_eq!(recv, at_root(&all));

    let mut recv = vec![0; own.len()];
    case.force(comm, Collective::ScatterV).scatter_v(root, &at_root(&all), &mut recv, known).unwrap();
    assert_eq!(recv, own);

    let mut buffer = if rank == root { all.clone() } else { vec![0; all.len()] };
    case.force(comm, Collective::Broadcast).broadcast(root, &mut buffer).unwrap();
    assert_eq!(buffer, all);
}

/// The elements that one rank sends to another.
fn from_to(case: &Case, from: usize, to: usize) -> Vec<i32> {
    contributions(from * 31 + to, case.between(from, to))
}

fn any_traffic_arrives(case: &Case, comm: &Comm) {
    let (rank, ranks) = (comm.rank(), 0..case.ranks);
    let send_counts: Vec<usize> = ranks.clone().map(|to| case.between(rank, to)).collect();
    let recv_counts: Vec<usize> = ranks.clone().map(|from| case.between(from, rank)).collect();
    let send: Vec<i32> = ranks.clone().flat_map(|to| from_to(case, rank, to)).collect();
    let expected: Vec<i32> = ranks.flat_map(|from| from_to(case, from, rank)).collect();
    let mut recv = vec![0; expected.len()];
    let comm = case.force(comm, Collective::AllToAllV);
    comm.all_to_all_v(&send, &send_counts, &mut recv, &recv_counts).unwrap();
    assert_eq!(recv, expected);
}

fn equal_shares_are_exchanged(case: &Case, comm: &Comm) {
    let (rank, root, len) = (comm.rank(), case.root.index(case.ranks), case.traffic[80]);
    let row = |from: usize| contributions::<i32>(from, len * case.ranks);
    let chunk = |from: usize, to: usize| row(from)[to * len..][..len].to_vec();
    let all_ranks = 0..case.ranks;

    let mut recv = vec![0; len * case.ranks];
    case.force(comm, Collective::AllToAll).all_to_all(&row(rank), &mut recv).unwrap();
    assert_eq!(recv, all_ranks.clone().flat_map(|from| chunk(from, rank)).collect::<Vec<_>>());

    let mut recv = vec![0; if rank == root { len * case.ranks } else { 0 }];
    case.force(comm, Collective::Gather).gather(root, &chunk(rank, 0), &mut recv).unwrap();
    let gathered: Vec<i32> = all_ranks.flat_map(|from| chunk(from, 0)).collect();
    assert_eq!(recv, if rank == root { gathered } else { Vec::new() });

    let (send, mut recv) = (if rank == root { row(root) } else { Vec::new() }, vec![0; len]);
    case.force(comm, Collective::Scatter).scatter(root, &send, &mut recv).unwrap();
    assert_eq!(recv, chunk(root, rank));
}

proptest! {
    // A failing case is printed whole, so nothing is kept in files.
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_collective_agrees_with_its_reference(case in case()) {
        world(case.ranks, &case.network, &case.config, |comm| {
            reductions_are_exact(&case, &comm);
            gathers_and_scatters_keep_every_element(&case, &comm);
            any_traffic_arrives(&case, &comm);
            equal_shares_are_exchanged(&case, &comm);
            // Through queues of a few bytes, a goodbye takes longer than a rank that leaves waits.
            comm.finalize().unwrap();
        });
    }
}
