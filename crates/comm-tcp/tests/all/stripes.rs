//! Several sockets per peer, with rendezvous and channels, and one thread per rank.

#![allow(clippy::unwrap_used)]

use crate::common::{WORLD, config, introduce, open, run, store};
use comm_core::{ChannelId, ChannelKind, Fabric, Result, Transport};
use comm_sim::conformance::exchange;
use comm_tcp::{RendezvousConfig, TcpConfig};

fn striped(rank: usize, n: usize, (sockets, stripe): (usize, usize)) -> RendezvousConfig {
    let mut config = config(rank, n);
    let mut tcp = TcpConfig::default();
    (tcp.sockets_per_peer, tcp.stripe_bytes) = (Some(sockets), stripe);
    (tcp.send_buffer, tcp.recv_buffer) = (Some(4096), Some(4096));
    tcp.read_ahead = 100 + 1000 * rank;
    config.tcp = tcp;
    config
}

#[test]
fn all_pairs_of_every_world_exchange_through_several_sockets() {
    for n in 2..10 {
        for sockets in 1..5 {
            let (_server, store) = store();
            let configs = (0..n).map(|rank| striped(rank, n, (sockets, 61 * n)));
            let outcomes = run(configs.collect(), &store, |fabric| {
                exchange(open(&fabric, WORLD)?, 5000)?;
                for kind in [ChannelKind::Control, ChannelKind::PointToPoint] {
                    introduce(&mut open(&fabric, ChannelId { kind, ..WORLD })?);
                }
                Ok(())
            });
            assert!(outcomes.iter().all(Result::is_ok), "{n} ranks, {sockets} sockets: {outcomes:?}");
        }
    }
}

#[test]
fn megabytes_are_sent_through_tiny_buffers_of_four_sockets() {
    for stripe in [1000, 64 * 1024] {
        let (_server, store) = store();
        let configs = (0..3).map(|rank| striped(rank, 3, (4, stripe)));
        let outcomes = run(configs.collect(), &store, |fabric| exchange(open(&fabric, WORLD)?, 8 << 20));
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    }
}

#[test]
fn ranks_may_have_different_settings() {
    for first in 1..4 {
        let (_server, store) = store();
        let configs = (0..3).map(|rank| striped(rank, 3, ((first + rank) % 3 + 1, 7 + rank)));
        let outcomes = run(configs.collect(), &store, |fabric| exchange(open(&fabric, WORLD)?, 1000));
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    }
}

#[test]
fn a_channel_among_some_ranks_uses_several_sockets() {
    let (_server, store) = store();
    let configs = (0..5).map(|rank| striped(rank, 5, (3, 10)));
    let outcomes = run(configs.collect(), &store, |fabric| {
        if fabric.group().rank() % 2 == 1 {
            return Ok(());
        }
        let deadline = std::time::Instant::now() + crate::common::SOON;
        let transport = fabric.open_among(WORLD, &[4, 0, 2], deadline.into())?;
        assert_eq!(transport.group().size(), 3);
        exchange(transport, 1000)
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}
