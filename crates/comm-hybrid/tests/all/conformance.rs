//! The conformance suites of transports and communicators, where all ranks share memory, where none
//! do, and where some do.

#![allow(clippy::unwrap_used)]

use comm_core::{Collective, Comm, Result};
use comm_hybrid::{HybridFabric, RendezvousConfig};
use comm_ring::{RingCommunicator, RingConfig};
use comm_shm::SharedMemoryConfig;
use comm_sim::communicator_conformance::{Features, HostMember};
use comm_tcp::TcpConfig;

/// `n` ranks, each of them on the host with this number.
fn spread(n: usize, host: impl Fn(usize) -> usize, tiny: bool) -> Vec<HybridFabric> {
    spread_with(n, host, |config| {
        if tiny {
            let tcp = &mut config.tcp.tcp;
            (tcp.send_buffer, tcp.recv_buffer) = (Some(4096), Some(4096));
            tcp.read_ahead = TcpConfig::READ_AHEAD_MIN;
            config.shm.ring_bytes = SharedMemoryConfig::RING_BYTES_MIN;
        }
    })
}

/// Every pair is connected when it is first used.
fn on_demand(n: usize, host: impl Fn(usize) -> usize) -> Vec<HybridFabric> {
    spread_with(n, host, |config| (config.tcp.tcp.full_mesh_max, config.shm.full_mesh_max) = (0, 0))
}

fn spread_with(
    n: usize,
    host: impl Fn(usize) -> usize,
    change: impl Fn(&mut RendezvousConfig),
) -> Vec<HybridFabric> {
    let rank = |rank: usize| {
        let mut config = crate::common::config(rank, n, &host(rank).to_string());
        change(&mut config);
        config
    };
    crate::common::rendezvous((0..n).map(rank).collect()).into_iter().map(Result::unwrap).collect()
}

fn on_one_host(n: usize) -> Vec<HybridFabric> {
    spread(n, |_| 0, false)
}

fn on_hosts_of_their_own(n: usize) -> Vec<HybridFabric> {
    spread(n, |rank| rank, false)
}

fn on_hosts_of_two(n: usize) -> Vec<HybridFabric> {
    spread(n, |rank| rank / 2, false)
}

fn on_two_hosts_in_turn(n: usize) -> Vec<HybridFabric> {
    spread(n, |rank| rank % 2, false)
}

/// The first rank, which most scenarios observe, is on a different host than the others.
fn all_but_one_together(n: usize) -> Vec<HybridFabric> {
    spread(n, |rank| rank.min(1), false)
}

fn on_two_hosts_with_little_room(n: usize) -> Vec<HybridFabric> {
    spread(n, |rank| rank % 2, true)
}

fn algorithms(collective: Collective) -> Vec<&'static str> {
    if collective == Collective::AllReduce { vec!["two_level", "ring", "direct"] } else { Vec::new() }
}

/// Checks every 53rd combination, with blocks of up to 20 segments.
fn communicators(fabrics: Vec<HybridFabric>) -> Vec<HostMember> {
    let mut features = Features::default();
    (features.algorithms, features.step) = (algorithms, 53);
    features.lengths = |ranks| vec![0, 1, ranks - 1, ranks, ranks + 1, 20_011];
    let mut config = RingConfig::default();
    config.segment_bytes = 4096;
    comm_sim::run_each(fabrics, |fabric| {
        let ring = RingCommunicator::new(fabric, config.clone(), features.options.timeout).unwrap();
        HostMember::new(Comm::new(ring), features.clone())
    })
}

comm_sim::transport_conformance!(one_host, on_one_host);
comm_sim::transport_conformance!(hosts_of_their_own, on_hosts_of_their_own);
comm_sim::transport_conformance!(hosts_of_two, on_hosts_of_two);
comm_sim::transport_conformance!(two_hosts_in_turn, on_two_hosts_in_turn);
comm_sim::transport_conformance!(one_apart, all_but_one_together);
comm_sim::transport_conformance!(little_room, on_two_hosts_with_little_room);

comm_sim::transport_conformance!(on_demand on_demand_one_host, |n| on_demand(n, |_| 0));
comm_sim::transport_conformance!(on_demand on_demand_hosts_of_two, |n| on_demand(n, |rank| rank / 2));
comm_sim::transport_conformance!(on_demand on_demand_two_hosts_in_turn, |n| on_demand(n, |rank| rank % 2));

comm_sim::communicator_conformance!(communicator_on_demand, [2, 3, 5, 8, 13], |n| {
    communicators(on_demand(n, |rank| rank / 2))
});
// The first rank would have a full mesh, because it shares no memory.
comm_sim::communicator_conformance!(communicator_on_demand_within_a_host, [8], |n| {
    communicators(spread_with(n, |rank| rank.min(1), |config| config.shm.full_mesh_max = 0))
});
comm_sim::communicator_conformance!(communicator_on_hosts_of_two, [1, 2, 3, 5, 8, 9], |n| {
    communicators(on_hosts_of_two(n))
});
comm_sim::communicator_conformance!(communicator_on_two_hosts_in_turn, [4, 5, 7], |n| {
    communicators(on_two_hosts_in_turn(n))
});
comm_sim::communicator_conformance!(communicator_on_halves, [6, 7], |n| {
    communicators(spread(n, |rank| rank / n.div_ceil(2), false))
});
comm_sim::communicator_conformance!(communicator_with_the_first_apart, [3, 6], |n| {
    communicators(all_but_one_together(n))
});
comm_sim::communicator_conformance!(communicator_with_the_last_apart, [3, 5], |n| {
    communicators(spread(n, |rank| usize::from(rank == n - 1), false))
});
comm_sim::communicator_conformance!(communicator_with_little_room, [2, 3, 5], |n| {
    communicators(on_two_hosts_with_little_room(n))
});
