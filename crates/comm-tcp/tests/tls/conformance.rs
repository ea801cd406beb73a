//! The conformance suites of transports and communicators over TLS.

use std::io::IoSlice;
use std::thread;
use std::time::Instant;

use comm_core::{Armed, Comm, Fabric, Interest, Membership, Transport};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::MemoryStore;
use comm_sim::communicator_conformance::{Features, HostMember};
use comm_tcp::{RendezvousConfig, Secret, TcpConfig, TcpFabric, Tls};

use crate::common::stream::content;
use crate::common::{SOON, WORLD};
use crate::{rank_certificates, secret, with_secret};

/// Returns the fabrics of ranks with a secret.
fn fabrics(n: usize, tcp: TcpConfig) -> Vec<TcpFabric> {
    rendezvous(n, tcp, secret("sesame"), with_secret())
}

fn rendezvous(n: usize, mut tcp: TcpConfig, secret: Option<Secret>, tls: Tls) -> Vec<TcpFabric> {
    let store = MemoryStore::default();
    tcp.tls = Some(tls);
    let rank = |rank| {
        let mut config = RendezvousConfig::new(Membership { rank, size: n });
        (config.member.timeout, config.tcp, config.secret) = (SOON, tcp.clone(), secret.clone());
        TcpFabric::rendezvous(&store, &config).unwrap()
    };
    thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = (0..n).map(|r| scope.spawn(move || rank(r))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn tiny_buffers() -> TcpConfig {
    let mut tcp = TcpConfig::default();
    (tcp.send_buffer, tcp.recv_buffer, tcp.read_ahead) = (Some(4096), Some(4096), TcpConfig::READ_AHEAD_MIN);
    tcp
}

fn striped() -> TcpConfig {
    let mut tcp = tiny_buffers();
    (tcp.sockets_per_peer, tcp.stripe_bytes) = (Some(3), 1000);
    tcp
}

/// Checks every 31st combination, with data of several records.
fn communicators(fabrics: Vec<TcpFabric>) -> Vec<HostMember> {
    let mut features = Features::default();
    (features.lengths, features.step) = (|ranks| vec![0, 1, ranks + 1, 1025, 20_011], 31);
    comm_sim::run_each(fabrics, |fabric| {
        let ring = RingCommunicator::new(fabric, RingConfig::default(), features.options.timeout).unwrap();
        HostMember::new(Comm::new(ring), features.clone())
    })
}

comm_sim::transport_conformance!(defaults, |n| fabrics(n, TcpConfig::default()));
comm_sim::transport_conformance!(on_demand on_demand_striped, |n| {
    let mut tcp = striped();
    tcp.full_mesh_max = 0;
    fabrics(n, tcp)
});
comm_sim::transport_conformance!(certificates, |n| {
    rendezvous(n, TcpConfig::default(), None, rank_certificates())
});
comm_sim::transport_conformance!(tiny, |n| fabrics(n, tiny_buffers()));
comm_sim::transport_conformance!(three_sockets, |n| fabrics(n, striped()));
comm_sim::communicator_conformance!(communicator, [2, 3], |n| communicators(fabrics(
    n,
    TcpConfig::default()
)));

#[test]
fn a_rank_does_not_sleep_while_decrypted_bytes_wait() {
    let mut tcp = TcpConfig::default();
    tcp.read_ahead = TcpConfig::READ_AHEAD_MIN;
    let fabrics = fabrics(2, tcp);
    let open = |rank: usize| fabrics[rank].open(WORLD, Instant::now() + SOON).unwrap();
    let [mut receiver, mut sender] = thread::scope(|scope| {
        let other = scope.spawn(|| open(1));
        [open(0), other.join().unwrap()]
    });
    let all = content(20_000);
    assert_eq!(sender.try_send(0, &[IoSlice::new(&all)]).unwrap(), all.len());
    let (mut waiting, mut received, mut into) = (Interest::default(), Vec::new(), [0; 100]);
    waiting.add_recv(1);
    while received.len() < all.len() {
        let more = receiver.try_recv(1, &mut into).unwrap();
        received.extend_from_slice(&into[..more]);
        // All bytes have arrived, as the sender and the receiver are on one host.
        assert!(received.len() == all.len() || receiver.arm(&waiting).unwrap() == Armed::Ready);
    }
    assert!(received == all);
}
