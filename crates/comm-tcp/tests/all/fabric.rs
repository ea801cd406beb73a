//! Rendezvous and channels over real sockets, with one thread per rank.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{SOON, WORLD, config, introduce, open, rendezvous, run, store, store_at};
use comm_core::{ChannelId, ChannelKind, Error, Fabric, GroupId, Invalid, Refusal, Result, Store, Transport};
use comm_sim::conformance::exchange;
use comm_tcp::{RendezvousConfig, Secret, StoreConfig, TcpConfig, TcpFabric, TcpStore, TcpStoreServer};

#[test]
fn worlds_of_many_sizes_meet_and_open_channels() {
    for n in [1, 2, 3, 5, 8] {
        let (_server, store) = store();
        let outcomes = run((0..n).map(|rank| config(rank, n)).collect(), &store, |fabric| {
            for kind in [ChannelKind::Control, ChannelKind::Collective] {
                introduce(&mut open(&fabric, ChannelId { kind, ..WORLD })?);
            }
            Ok(fabric.addresses().len())
        });
        for outcome in outcomes {
            assert_eq!(outcome.unwrap(), if n == 1 { 0 } else { n });
        }
    }
}

#[test]
fn ranks_meet_over_ipv6() {
    let Ok((server, store)) = store_at("[::1]:0") else {
        return; // This machine has no IPv6.
    };
    let configs = (0..3).map(|rank| {
        let mut config = config(rank, 3);
        config.store = Some(server.local_addr());
        config
    });
    for outcome in run(configs.collect(), &store, |fabric| {
        assert!(fabric.addresses().iter().all(SocketAddr::is_ipv6));
        introduce(&mut open(&fabric, WORLD)?);
        Ok(())
    }) {
        outcome.unwrap();
    }
}

#[test]
fn ranks_with_the_same_secret_meet() {
    let (_server, store) = store();
    let configs = (0..3).map(|rank| {
        let mut config = config(rank, 3);
        config.secret = Some(Secret::new("sesame").unwrap());
        config
    });
    for outcome in run(configs.collect(), &store, |fabric| {
        introduce(&mut open(&fabric, WORLD)?);
        Ok(())
    }) {
        outcome.unwrap();
    }
}

#[test]
fn a_rank_with_another_secret_or_job_gets_no_channel() {
    let (_server, store) = store();
    let mut other = config(1, 2);
    other.secret = Some(Secret::new("simsim").unwrap());
    let mut host = config(0, 2);
    host.secret = Some(Secret::new("sesame").unwrap());
    let outcomes = run(vec![host, other], &store, |fabric| {
        fabric.open(WORLD, Instant::now() + Duration::from_millis(500)).map(drop)
    });
    assert!(matches!(&outcomes[0], Err(Error::Timeout { waiting_for, .. }) if waiting_for == &[1]));
    match &outcomes[1] {
        Err(Error::Handshake { with, refusal: Refusal::Authentication }) => {
            assert!(with.contains("rank 0 at 127.0.0.1"), "{with}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_of_two_processes_with_the_same_rank_is_refused() {
    let (_server, store) = store();
    let rendezvous = &|rank| TcpFabric::rendezvous(&store, &config(rank, 2)).map(drop);
    thread::scope(|scope| {
        let rivals = [(); 2].map(|()| scope.spawn(move || rendezvous(0)));
        while !rivals.iter().any(|rival| rival.is_finished()) {
            thread::yield_now();
        }
        // The other one still waits for rank 1.
        rendezvous(1).unwrap();
        let outcomes = rivals.map(|rival| rival.join().unwrap());
        let refused = |outcome: &&Result<()>| {
            matches!(outcome, Err(Error::Handshake { refusal: Refusal::DuplicateRank { rank: 0 }, .. }))
        };
        assert_eq!(outcomes.iter().filter(refused).count(), 1, "{outcomes:?}");
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    });
}

#[test]
fn every_rank_learns_immediately_that_sizes_differ() {
    let (_server, store) = store();
    for _ in 0..3 {
        let configs = (0..3).map(|rank| config(rank, if rank == 1 { 4 } else { 3 }));
        for outcome in rendezvous(configs.collect(), &store) {
            let Err(Error::Handshake { refusal: Refusal::WorldSize { ours, theirs }, .. }) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!((ours.min(theirs), ours.max(theirs)), (3, 4));
        }
    }
}

#[test]
fn missing_ranks_are_named_at_the_deadline() {
    let (_server, store) = store();
    let timeout = Duration::from_secs(2);
    let lack = &|absent: &[usize]| {
        let configs = (0..4).filter(|rank| !absent.contains(rank)).map(|rank| {
            let mut config = config(rank, 4);
            (config.member.timeout, config.member.round) = (timeout, absent[0] as u64);
            config
        });
        let began = Instant::now();
        for outcome in rendezvous(configs.collect(), &store) {
            let Err(Error::Timeout { waiting_for, .. }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(waiting_for, absent);
        }
        assert!(began.elapsed() >= timeout, "{:?}", began.elapsed());
    };
    thread::scope(|scope| {
        for absent in [&[0_usize][..], &[2], &[1, 3]] {
            scope.spawn(move || lack(absent));
        }
    });
}

#[test]
fn jobs_and_rounds_share_a_store() {
    let (_server, store) = store();
    let with = |rank, job, round| {
        let mut config = config(rank, 2);
        (config.member.job, config.member.round) = (job, round);
        config
    };
    let configs =
        vec![with(0, 1, 0), with(0, 2, 0), with(0, 1, 1), with(1, 2, 0), with(1, 1, 1), with(1, 1, 0)];
    for outcome in rendezvous(configs, &store) {
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

#[test]
fn settings_that_cannot_be_used_are_refused_immediately() {
    let (_server, store) = store();
    let invalid = |change: &dyn Fn(&mut RendezvousConfig)| {
        let mut config = config(0, 2);
        change(&mut config);
        let error = TcpFabric::rendezvous(&store, &config).unwrap_err();
        assert!(matches!(&error, Error::Invalid(_)), "{error}");
        error.to_string()
    };
    invalid(&|config| config.member.rank = 2);
    assert!(invalid(&|config| config.interface = Some("=nothing".into())).contains("lo (127.0.0.1)"));
    for sockets in [0, TcpConfig::SOCKETS_MAX + 1] {
        assert!(invalid(&|config| config.tcp.sockets_per_peer = Some(sockets)).contains("from 1 to 64"));
    }
    invalid(&|config| config.tcp.stripe_bytes = 0);
    invalid(&|config| config.tcp.congestion = comm_tcp::Congestion::Named("nothing".into()));
    let elsewhere = Some("198.51.100.1:29500".parse().unwrap());
    invalid(&|config| (config.interface, config.store) = (Some("=lo".into()), elsewhere));
}

#[test]
fn channels_of_one_name_open_in_any_order_and_from_several_threads() {
    let (_server, store) = store();
    let ids: Vec<ChannelId> = (0..6).map(|group| ChannelId { group: GroupId(group), ..WORLD }).collect();
    let outcomes = run((0..4).map(|rank| config(rank, 4)).collect(), &store, |fabric| {
        let rank = fabric.group().rank();
        thread::scope(|scope| {
            for at in 0..ids.len() {
                let (fabric, id) = (&fabric, ids[(at + rank) % ids.len()]);
                scope.spawn(move || introduce(&mut open(fabric, id).unwrap()));
            }
        });
        // Then one after another, in opposite orders.
        let mut order: Vec<u64> = (10..14).collect();
        if rank % 2 == 1 {
            order.reverse();
        }
        let mut opened: Vec<_> = order
            .into_iter()
            .map(|group| open(&fabric, ChannelId { group: GroupId(group), ..WORLD }))
            .collect::<Result<_>>()?;
        opened.sort_by_key(|transport| transport.group().id());
        opened.iter_mut().for_each(introduce);
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

/// Opens connections of other protocols, and silent ones.
fn disturb(address: SocketAddr) -> Vec<TcpStream> {
    let floods: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", &[0xff; 10_000], b"\x93comm\r\n\x1a\x01\x00", b""];
    let connect = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(bytes);
        stream
    };
    floods.into_iter().cycle().take(40).map(connect).collect()
}

#[test]
fn connections_of_other_protocols_delay_no_rank() {
    let (_server, store) = store();
    let outcomes = run((0..3).map(|rank| config(rank, 3)).collect(), &store, |fabric| {
        let held: Vec<_> = fabric.addresses().into_iter().map(disturb).collect();
        let began = Instant::now();
        introduce(&mut open(&fabric, WORLD)?);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        drop(held);
        introduce(&mut open(&fabric, ChannelId { kind: ChannelKind::Control, ..WORLD })?);
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn all_pairs_exchange_megabytes_through_small_buffers() {
    const LEN: usize = 8 << 20;
    let (_server, store) = store();
    let configs = (0..3).map(|rank| {
        let mut config = config(rank, 3);
        let mut tcp = TcpConfig::default();
        (tcp.send_buffer, tcp.recv_buffer) = (Some(4096), Some(4096));
        tcp.read_ahead = 1000 + 3000 * rank;
        config.tcp = tcp;
        config
    });
    let outcomes = run(configs.collect(), &store, |fabric| exchange(open(&fabric, WORLD)?, LEN));
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn a_stopped_store_is_an_error() {
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), StoreConfig::default()).unwrap();
    let mut store_config = StoreConfig::default();
    store_config.operation_timeout = Duration::from_millis(300);
    let store = TcpStore::connect(server.local_addr(), store_config, SOON).unwrap();
    store.set("k", b"v").unwrap();
    drop(server);
    let error = TcpFabric::rendezvous(&store, &{
        let mut config = config(0, 2);
        config.member.timeout = Duration::from_millis(500);
        config
    })
    .unwrap_err();
    assert!(matches!(error, Error::Io { .. } | Error::Timeout { .. }), "{error}");
}

#[test]
fn a_rank_outside_the_group_is_invalid() {
    let (_server, store) = store();
    let fabric = TcpFabric::rendezvous(&store, &config(0, 1)).unwrap();
    let mut alone = open(&fabric, WORLD).unwrap();
    for rank in [0, 1, usize::MAX] {
        assert!(matches!(alone.try_recv(rank, &mut [0]), Err(Error::Invalid(Invalid::Rank { .. }))));
        assert!(matches!(alone.try_send(rank, &[]), Err(Error::Invalid(Invalid::Rank { .. }))));
        assert_eq!(alone.released(rank), 0);
    }
}
