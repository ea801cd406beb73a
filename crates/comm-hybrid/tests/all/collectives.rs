//! Collectives and groups over ranks on several hosts, with several ranks per host.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::common::world;
use comm_core::{Collective, Comm, Fabric, LinkModel, ReduceOp};
use comm_hybrid::HybridFabric;
use comm_ring::choose::{CallShape, choose};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::exact;

fn communicator(fabric: HybridFabric) -> Comm {
    let timeout = Duration::from_secs(60);
    let mut config = RingConfig::default();
    config.segment_bytes = 4096;
    let communicator = RingCommunicator::new(fabric, config, timeout).unwrap();
    Comm::new(communicator).with_timeout(timeout)
}

fn own(rank: usize, len: usize) -> Vec<f32> {
    exact::elements(0..len, |at| exact::number(rank, at))
}

/// The exact sum of the contributions of some ranks, bit by bit.
fn sum(ranks: &[usize], len: usize) -> Vec<f32> {
    exact::elements(0..len, |at| ranks.iter().map(|rank| exact::number(*rank, at)).sum())
}

/// The order of combining depends on the algorithm, and not on the transport of the bytes.
#[test]
fn two_levels_have_the_same_bits_over_any_transport() {
    let reduced = |hosts: &str| {
        comm_sim::run_each(world(hosts), |fabric| {
            let mut config = RingConfig::default();
            let links = fabric.links();
            config.links = Some(LinkModel { ranks_per_host: 2, ..links });
            let timeout = Duration::from_secs(60);
            let comm = Comm::new(RingCommunicator::new(fabric, config, timeout).unwrap());
            let comm = comm.with_algorithm("two_level");
            let mut buffer: Vec<f32> = (0..5000).map(|at| exact::fraction(comm.rank(), at)).collect();
            comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            buffer.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let mixed = reduced("aabbcc");
    assert!(mixed.iter().all(|bits| *bits == mixed[0]), "ranks have different results");
    for hosts in ["aaaaaa", "abcdef", "ababab"] {
        assert!(reduced(hosts) == mixed, "{hosts}");
    }
}

/// The link model of the channels suffices to choose an algorithm that moves fewer bytes between
/// hosts.
#[test]
fn two_levels_are_chosen_where_hosts_hold_several_ranks() {
    comm_sim::run_each(world("aaaabbbb"), |fabric| {
        let comm = communicator(fabric);
        let links = comm.links().unwrap();
        let chosen = |bytes: usize, links| {
            let question = CallShape::new(Collective::AllReduce).ranks(8).bytes(bytes);
            choose(&question, None, &RingConfig::default().tuning(links)).unwrap().algorithm.name
        };
        let names = [10, 14, 17, 20, 24].map(|log| chosen(1 << log, links));
        assert!(names.contains(&"two_level"), "{names:?} with {links}");
        let apart = LinkModel { ranks_per_host: 1, ..links };
        assert_ne!(chosen(1 << 24, apart), "two_level");
    });
}

#[test]
fn groups_within_and_across_hosts_work_side_by_side() {
    let hosts = "aabbab";
    comm_sim::run_each(world(hosts), |fabric| {
        let comm = communicator(fabric);
        let (rank, letters) = (comm.rank(), hosts.as_bytes());
        let host = comm.split(Some(u64::from(letters[rank])), 0).unwrap().unwrap();
        let across = comm.split(Some(host.rank() as u64), -(rank as i64)).unwrap().unwrap();
        let of_host: Vec<usize> = (0..6).filter(|other| letters[*other] == letters[rank]).collect();
        // The first, second and third ranks of the two hosts.
        let of_row = [vec![0, 2], vec![1, 3], vec![4, 5]][host.rank()].clone();
        for len in [1, 10_007] {
            std::thread::scope(|scope| {
                for (group, members) in [(&host, &of_host), (&across, &of_row)] {
                    scope.spawn(move || {
                        for _ in 0..10 {
                            let mut buffer = own(rank, len);
                            group.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                            assert!(buffer == sum(members, len));
                        }
                    });
                }
            });
        }
        assert_eq!((host.size(), across.size()), (3, 2));
        let mut message = [rank as u64];
        let (next, before) = ((rank + 1) % 6, (rank + 5) % 6);
        let mut received = [0_u64];
        comm.send_recv((next, 3), &message, (before, 3), &mut received)
            .unwrap()
            .exactly(received.len())
            .unwrap();
        assert_eq!(received, [before as u64]);
        comm.all_reduce(&mut message, ReduceOp::Sum).unwrap();
        assert_eq!(message, [15]);
    });
}
