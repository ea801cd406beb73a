//! The conformance suites of transports and communicators over real sockets.

#![allow(clippy::unwrap_used)]

use std::thread;
use std::time::Duration;

use comm_core::{Comm, Membership};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::communicator_conformance::{Features, HostMember};
use comm_tcp::{RendezvousConfig, Secret, StoreConfig, TcpConfig, TcpFabric, TcpStore, TcpStoreServer};

/// Returns the fabrics of `n` ranks, in rank order. The store is closed by then, because channels
/// do not need it.
fn rendezvous(n: usize, tcp: &TcpConfig) -> Vec<TcpFabric> {
    rendezvous_with(n, tcp, None)
}

fn rendezvous_with(n: usize, tcp: &TcpConfig, secret: Option<&Secret>) -> Vec<TcpFabric> {
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), StoreConfig::default()).unwrap();
    let timeout = Duration::from_secs(30);
    let store = TcpStore::connect(server.local_addr(), StoreConfig::default(), timeout).unwrap();
    let rank = |rank| {
        let mut config = RendezvousConfig::new(Membership { rank, size: n });
        (config.member.timeout, config.tcp, config.secret) = (timeout, tcp.clone(), secret.cloned());
        TcpFabric::rendezvous(&store, &config).unwrap()
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..n).map(|r| scope.spawn(move || rank(r))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn with_defaults(n: usize) -> Vec<TcpFabric> {
    rendezvous(n, &TcpConfig::default())
}

/// The kernel buffers little, and we buffer as little as possible.
fn tiny_buffers() -> TcpConfig {
    let mut tcp = TcpConfig::default();
    (tcp.send_buffer, tcp.recv_buffer, tcp.read_ahead) = (Some(4096), Some(4096), TcpConfig::READ_AHEAD_MIN);
    tcp
}

fn with_tiny_buffers(n: usize) -> Vec<TcpFabric> {
    rendezvous(n, &tiny_buffers())
}

/// Several sockets per peer, and stripes that cut elements.
fn striped(n: usize, sockets: usize, stripe: usize, mut tcp: TcpConfig) -> Vec<TcpFabric> {
    (tcp.sockets_per_peer, tcp.stripe_bytes) = (Some(sockets), stripe);
    rendezvous(n, &tcp)
}

/// Frames with checksums.
fn with_checksums(n: usize) -> Vec<TcpFabric> {
    let mut tcp = TcpConfig::default();
    tcp.checksums = true;
    rendezvous(n, &tcp)
}

/// Frames with authentication codes.
fn with_secret(n: usize, tcp: &TcpConfig) -> Vec<TcpFabric> {
    rendezvous_with(n, tcp, Some(&Secret::new("sesame").unwrap()))
}

/// Frames that are as short as stripes.
fn striped_with_secret(n: usize) -> Vec<TcpFabric> {
    let mut tcp = tiny_buffers();
    (tcp.sockets_per_peer, tcp.stripe_bytes) = (Some(3), 1000);
    with_secret(n, &tcp)
}

/// Every pair is connected when it is first used.
fn on_demand(mut tcp: TcpConfig) -> TcpConfig {
    tcp.full_mesh_max = 0;
    tcp
}

/// Checks every 31st combination, with data of several packets.
fn communicators(fabrics: Vec<TcpFabric>) -> Vec<HostMember> {
    let mut features = Features::default();
    (features.lengths, features.step) = (|ranks| vec![0, 1, ranks + 1, 1025, 20_011], 31);
    comm_sim::run_each(fabrics, |fabric| {
        let ring = RingCommunicator::new(fabric, RingConfig::default(), features.options.timeout).unwrap();
        HostMember::new(Comm::new(ring), features.clone())
    })
}

comm_sim::transport_conformance!(defaults, with_defaults);
comm_sim::transport_conformance!(tiny_buffers, with_tiny_buffers);
comm_sim::transport_conformance!(one_socket_has_no_stripes, |n| striped(n, 1, 1, TcpConfig::default()));
comm_sim::transport_conformance!(two_sockets, |n| striped(n, 2, 3, TcpConfig::default()));
comm_sim::transport_conformance!(three_sockets, |n| striped(n, 3, 1000, tiny_buffers()));
comm_sim::transport_conformance!(four_sockets, |n| striped(n, 4, 64 * 1024, TcpConfig::default()));
comm_sim::transport_conformance!(four_sockets_tiny, |n| striped(n, 4, 61, tiny_buffers()));

comm_sim::transport_conformance!(checksums, with_checksums);
comm_sim::transport_conformance!(secret, |n| with_secret(n, &TcpConfig::default()));
comm_sim::transport_conformance!(secret_tiny_buffers, |n| with_secret(n, &tiny_buffers()));
comm_sim::transport_conformance!(secret_striped, striped_with_secret);

comm_sim::transport_conformance!(on_demand on_demand_defaults, |n| rendezvous(n, &on_demand(TcpConfig::default())));
comm_sim::transport_conformance!(on_demand on_demand_tiny_buffers, |n| rendezvous(n, &on_demand(tiny_buffers())));
comm_sim::transport_conformance!(on_demand on_demand_striped, |n| {
    striped(n, 3, 1000, on_demand(tiny_buffers()))
});
comm_sim::transport_conformance!(on_demand on_demand_secret, |n| {
    with_secret(n, &on_demand(TcpConfig::default()))
});

comm_sim::communicator_conformance!(communicator, [1, 2, 3, 5, 8], |n| communicators(with_defaults(n)));
comm_sim::communicator_conformance!(on_demand_communicator, [2, 3, 5, 8, 13], |n| {
    communicators(rendezvous(n, &on_demand(TcpConfig::default())))
});
comm_sim::communicator_conformance!(striped_communicator, [2, 3], |n| {
    communicators(striped(n, 3, 1000, tiny_buffers()))
});
comm_sim::communicator_conformance!(protected_communicator, [2, 3, 5], |n| {
    communicators(with_secret(n, &TcpConfig::default()))
});
