//! Tests of repeated rendezvous at one address, and of the duration of one that fails. They run in
//! a separate program, because a process that another test starts holds the listeners of this one
//! until it executes its program, so that their address would be in use.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use comm::{Config, Error, ReduceOp, StoreHost, TransportKind};
use common::{Port, config, each, store};

/// The configuration of a rank whose rank 0 serves the store.
fn served_by_rank_0(rank: usize, ranks: usize, port: u16) -> Config {
    let mut config = config(rank, ranks, ([127, 0, 0, 1], port).into());
    config.store = StoreHost::RankZero;
    config
}

/// Creates groups and drops them one after the other, with and without a call.
fn connect_repeatedly(ranks: usize, times: usize, transport: TransportKind, host: &StoreHost) {
    let launcher = store();
    let port = Port::reserve();
    each(ranks, |rank| {
        for time in 0..times {
            let mut config = match host {
                StoreHost::RankZero => served_by_rank_0(rank, ranks, port.number),
                _ => config(rank, ranks, launcher.local_addr()),
            };
            config.transport = transport;
            let comm = comm::init_with(&config);
            let comm = comm.unwrap_or_else(|error| panic!("rank {rank}, time {time}: {error}"));
            if time % 10 == 9 {
                let mut buffer = [rank as f32];
                comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                assert_eq!(buffer, [(ranks * (ranks - 1) / 2) as f32]);
            }
        }
    });
}

#[test]
fn two_hundred_groups_are_created_and_dropped_at_one_address() {
    for host in [StoreHost::RankZero, StoreHost::Launcher] {
        connect_repeatedly(2, 200, TransportKind::Auto, &host);
        connect_repeatedly(5, 20, TransportKind::Auto, &host);
        connect_repeatedly(3, 200, TransportKind::Tcp, &host);
    }
}

#[test]
fn no_rank_overruns_its_deadline() {
    let port = Port::reserve();
    let timeout = Duration::from_secs(1);
    let took = each(3, |rank| {
        let mut config = served_by_rank_0(rank, 4, port.number);
        config.rendezvous_timeout = timeout;
        let began = Instant::now();
        let error = comm::init_with(&config).unwrap_err();
        assert!(matches!(&error, Error::Timeout { waiting_for, .. } if waiting_for == &[3]), "{error}");
        began.elapsed()
    });
    // This includes a margin for a busy machine.
    assert!(took.iter().all(|took| *took < timeout + Duration::from_millis(900)), "{took:?}");
}
