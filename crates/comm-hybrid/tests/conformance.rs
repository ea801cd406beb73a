//! The conformance suite of transports, where all ranks share memory, where none do, and where some
//! do.

#![allow(clippy::unwrap_used)]

mod common;

use comm_core::Result;
use comm_hybrid::HybridFabric;
use comm_shm::SharedMemoryConfig;
use comm_tcp::TcpConfig;

/// `n` ranks, each of which is on the host with this number.
fn spread(n: usize, host: impl Fn(usize) -> usize, tiny: bool) -> Vec<HybridFabric> {
    let rank = |rank: usize| {
        let mut config = common::config(rank, n, &host(rank).to_string());
        if tiny {
            let tcp = &mut config.tcp.tcp;
            (tcp.send_buffer, tcp.recv_buffer) = (Some(4096), Some(4096));
            tcp.read_ahead = TcpConfig::READ_AHEAD_MIN;
            config.shm.ring_bytes = SharedMemoryConfig::RING_BYTES_MIN;
        }
        config
    };
    common::meet((0..n).map(rank).collect()).into_iter().map(Result::unwrap).collect()
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

/// The first rank, which most scenarios watch, is apart from the others.
fn all_but_one_together(n: usize) -> Vec<HybridFabric> {
    spread(n, |rank| rank.min(1), false)
}

fn on_two_hosts_with_little_room(n: usize) -> Vec<HybridFabric> {
    spread(n, |rank| rank % 2, true)
}

comm_sim::transport_conformance!(one_host, on_one_host);
comm_sim::transport_conformance!(hosts_of_their_own, on_hosts_of_their_own);
comm_sim::transport_conformance!(hosts_of_two, on_hosts_of_two);
comm_sim::transport_conformance!(two_hosts_in_turn, on_two_hosts_in_turn);
comm_sim::transport_conformance!(one_apart, all_but_one_together);
comm_sim::transport_conformance!(little_room, on_two_hosts_with_little_room);
