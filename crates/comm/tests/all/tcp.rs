//! Tests of the public API over TCP.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Port, config, each, store, world, world_with};
use comm::{Comm, Config, Error, Membership, ReduceOp, Refusal, StoreHost};

/// Returns the contribution of `rank` at index `at`: small, so that sums are exact.
fn contribution(rank: usize, at: usize) -> f32 {
    ((rank * 7 + at * 3) % 11) as f32
}

fn contributions(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| contribution(rank, at)).collect()
}

fn sums(ranks: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| (0..ranks).map(|rank| contribution(rank, at)).sum()).collect()
}

/// Makes every collective once, with `len` elements per rank.
fn every_collective(comm: &Comm, len: usize) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let (send, root) = (contributions(rank, len), ranks - 1);
    let mut buffer = send.clone();
    comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
    assert_eq!(buffer, sums(ranks, len));
    let mut buffer = send.clone();
    comm.broadcast(root, &mut buffer).unwrap();
    assert_eq!(buffer, contributions(root, len));
    let mut buffer = send.clone();
    comm.reduce(root, &mut buffer, ReduceOp::Sum).unwrap();
    assert_eq!(buffer, if rank == root { sums(ranks, len) } else { send.clone() });
    let mut all = vec![0.0; len * ranks];
    comm.all_gather(&send, &mut all).unwrap();
    assert_eq!(all, (0..ranks).flat_map(|rank| contributions(rank, len)).collect::<Vec<_>>());
    let (send, mut share) = (contributions(rank, len * ranks), vec![0.0; len]);
    comm.reduce_scatter(&send, &mut share, ReduceOp::Sum).unwrap();
    assert_eq!(share, sums(ranks, len * ranks)[rank * len..][..len]);
    let mut buffers = vec![contributions(rank, len), Vec::new(), contributions(rank, 3)];
    comm.all_reduce_coalesced(&mut buffers, ReduceOp::Sum).unwrap();
    assert_eq!(buffers, [sums(ranks, len), Vec::new(), sums(ranks, 3)]);
    comm.barrier().unwrap();
    comm.monitored_barrier(Duration::from_secs(60)).unwrap();
}

#[test]
fn every_collective_at_worlds_1_to_9() {
    for ranks in 1..=9 {
        world(ranks, |comm| {
            for len in [0, 1, ranks - 1, ranks, ranks + 1, 1000, 30_000] {
                every_collective(&comm, len);
            }
        });
    }
}

#[test]
fn large_messages_through_tiny_socket_buffers_do_not_deadlock() {
    for ranks in 2..=9 {
        let tiny = |config: &mut Config| {
            config.tcp.send_buffer = Some(4096);
            config.tcp.recv_buffer = Some(4096);
        };
        world_with(ranks, tiny, |comm| {
            let len = (8 << 20) / size_of::<f32>();
            let mut buffer = contributions(comm.rank(), len);
            comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            assert_eq!(buffer, sums(ranks, len));
            comm.broadcast(0, &mut buffer).unwrap();
            comm.reduce(ranks - 1, &mut buffer, ReduceOp::Max).unwrap();
            assert_eq!(buffer, sums(ranks, len));
        });
    }
}

#[test]
fn every_collective_over_several_sockets() {
    for ranks in 2..=9 {
        let striped = |config: &mut Config| {
            (config.tcp.send_buffer, config.tcp.recv_buffer) = (Some(4096), Some(4096));
            (config.tcp.sockets_per_peer, config.tcp.stripe_bytes) = (Some(4), 61 * ranks);
        };
        world_with(ranks, striped, |comm| {
            for len in [0, 1, ranks, 1000, 30_000] {
                every_collective(&comm, len);
            }
            let (next, previous) = ((comm.rank() + 1) % ranks, (comm.rank() + ranks - 1) % ranks);
            let mut got = vec![0.0; 10_000];
            let sent = contributions(comm.rank(), 10_000);
            let _ = comm.send_recv((next, 3), &sent[..], (previous, 3), &mut got[..]).unwrap();
            assert_eq!(got, contributions(previous, 10_000));
        });
    }
}

#[test]
fn ipv6() {
    let store = comm::tcp::TcpStoreServer::bind(
        "[::1]:0".parse().unwrap(),
        comm::tcp::StoreConfig::job(crate::common::JOB),
    )
    .unwrap();
    each(3, |rank| every_collective(&comm::init_with(&config(rank, 3, store.local_addr())).unwrap(), 100));
}

#[test]
fn different_roots_are_an_error_on_both_ranks() {
    let errors = world(2, |comm| comm.broadcast(1 - comm.rank(), &mut [1_u8; 100]).unwrap_err());
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, Error::Desync(_)), "{text}");
        assert!(text.contains("root 0") && text.contains("root 1"), "{text}");
    }
}

#[test]
fn different_lengths_are_an_error_on_every_rank() {
    for (short, long) in [(1000, 1001), (10, 100_000), (0, 5)] {
        let errors = world(3, |comm| {
            let len = if comm.rank() == 1 { short } else { long };
            let result = comm.all_reduce(&mut vec![1.0_f64; len], ReduceOp::Sum);
            result.and_then(|()| comm.barrier()).unwrap_err()
        });
        for error in errors {
            assert!(matches!(error.root_cause(), Error::Desync(_)), "{error}");
        }
    }
}

#[cfg(feature = "objects")]
#[test]
fn objects_of_different_sizes() {
    use comm::ObjectCollectives;

    for ranks in [1, 2, 3, 5, 8] {
        world(ranks, |comm| {
            let object = |rank: usize| vec![format!("rank {rank}"); rank * 1000];
            let all: Vec<_> = (0..ranks).map(object).collect();
            assert_eq!(comm.all_gather_object(&object(comm.rank())).unwrap(), all);
            let root = ranks - 1;
            let is_root = comm.rank() == root;
            let gathered = comm.gather_object(root, &object(comm.rank())).unwrap();
            assert_eq!(gathered.as_ref(), is_root.then_some(&all));
            assert_eq!(comm.broadcast_object(root, gathered.as_ref()).unwrap(), all);
            assert_eq!(comm.scatter_object(root, gathered.as_deref()).unwrap(), object(comm.rank()));
        });
    }
}

#[test]
fn ranks_that_are_late_for_a_barrier_are_named_by_all_that_are_not() {
    let others_failed = std::sync::Barrier::new(5);
    let errors = world(5, |comm| {
        let late = [1, 3].contains(&comm.rank());
        if late {
            others_failed.wait();
        }
        let error = comm.monitored_barrier(Duration::from_millis(400)).unwrap_err();
        if !late {
            others_failed.wait();
        }
        error
    });
    for error in errors {
        match error.root_cause() {
            Error::Timeout { waiting_for, .. } => assert_eq!(waiting_for, &[1, 3], "{error}"),
            other => panic!("expected a timeout, got: {other}"),
        }
    }
}

#[test]
fn a_missing_rank_is_named_by_all_others_at_the_deadline() {
    let store = store();
    let errors = each(4, |rank| {
        (rank != 2).then(|| {
            let mut config = config(rank, 4, store.local_addr());
            config.rendezvous_timeout = Duration::from_secs(1);
            comm::init_with(&config).unwrap_err()
        })
    });
    for error in errors.into_iter().flatten() {
        match &error {
            Error::Timeout { waiting_for, .. } => assert_eq!(waiting_for, &[2], "{error}"),
            other => panic!("expected a timeout, got: {other}"),
        }
    }
}

#[test]
fn rank_0_serves_the_store_until_others_have_read_its_error() {
    let port = Port::reserve();
    let adjusted = |rank| {
        let mut config = config(rank, 4, ([127, 0, 0, 1], port.number).into());
        config.store = StoreHost::RankZero;
        config.rendezvous_timeout = Duration::from_secs(2);
        config
    };
    let errors = each(4, |rank| (rank != 3).then(|| comm::init_with(&adjusted(rank)).unwrap_err()));
    for error in errors.into_iter().flatten() {
        assert!(matches!(&error, Error::Timeout { waiting_for, .. } if waiting_for == &[3]), "{error}");
    }
    each(4, |rank| every_collective(&comm::init_with(&adjusted(rank)).unwrap(), 10));
}

#[test]
fn unauthenticated_connections_to_the_store_affect_no_rank() {
    let store = store();
    let address = store.local_addr();
    let connections: Vec<TcpStream> =
        [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 5000], b"", b"COMM"]
            .into_iter()
            .map(|bytes| {
                let mut stream = TcpStream::connect(address).unwrap();
                // The store may close the connection at any time.
                let _ = stream.write_all(bytes);
                stream
            })
            .collect();
    each(3, |rank| every_collective(&comm::init_with(&config(rank, 3, address)).unwrap(), 1000));
    drop(connections);
}

#[test]
fn a_process_of_another_job_is_rejected_with_the_reason() {
    let store = store();
    let refused = |adjust: &dyn Fn(&mut Config)| {
        let mut config = config(0, 2, store.local_addr());
        config.rendezvous_timeout = Duration::from_secs(5);
        adjust(&mut config);
        comm::init_with(&config).unwrap_err()
    };
    let job = refused(&|config| config.job = 1);
    assert!(matches!(job, Error::Handshake { refusal: Refusal::Job, .. }), "{job}");
    let secret = refused(&|config| config.secret = Some(comm::tcp::Secret::new("wrong").unwrap()));
    assert!(matches!(secret, Error::Handshake { refusal: Refusal::Authentication, .. }), "{secret}");
}

#[test]
fn two_processes_with_one_rank_are_an_error() {
    let store = store();
    let results = each(2, |_| {
        let mut config = config(0, 2, store.local_addr());
        config.rendezvous_timeout = Duration::from_secs(2);
        comm::init_with(&config).unwrap_err()
    });
    let duplicate = |error: &&Error| {
        matches!(error, Error::Handshake { refusal: Refusal::DuplicateRank { rank: 0 }, .. })
    };
    assert_eq!(results.iter().filter(duplicate).count(), 1, "{results:?}");
}

#[test]
fn different_world_sizes_are_an_error() {
    let store = store();
    let errors = each(2, |rank| {
        let mut config = config(rank, 2 + rank, store.local_addr());
        config.rendezvous_timeout = Duration::from_secs(3);
        comm::init_with(&config).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, Error::Handshake { refusal: Refusal::WorldSize { .. }, .. }), "{error}");
    }
}

#[cfg(feature = "hybrid")]
#[test]
fn different_transports_are_an_error_on_both_ranks() {
    use comm::TransportKind::{Auto, SharedMemory, Tcp};
    for (ours, theirs) in [(Auto, Tcp), (Tcp, SharedMemory), (SharedMemory, Auto)] {
        let store = store();
        let errors = each(3, |rank| {
            let mut config = config(rank, 3, store.local_addr());
            config.transport = if rank == 1 { theirs } else { ours };
            comm::init_with(&config).unwrap_err()
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let Error::Handshake { refusal: Refusal::Setting { name, ours, theirs, rank: other }, .. } =
                &error
            else {
                panic!("{error}")
            };
            assert_eq!(name, "transport", "{error}");
            assert_eq!((rank == 1, ours == theirs), (*other != 1, false), "{error}");
        }
    }
}

#[test]
fn ranks_with_a_shared_secret_connect() {
    let secret = || comm::tcp::Secret::new("open sesame").unwrap();
    let server = comm::tcp::TcpStoreServer::bind(
        "127.0.0.1:0".parse().unwrap(),
        comm::tcp::StoreConfig::job(crate::common::JOB).secret(Some(secret())),
    )
    .unwrap();
    each(3, |rank| {
        let mut config = config(rank, 3, server.local_addr());
        config.secret = Some(secret());
        every_collective(&comm::init_with(&config).unwrap(), 10);
    });
}

#[test]
fn ranks_listen_in_the_configured_port_range() {
    let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    let start = 10_000 + 3 * (std::process::id() % 2_000) as u16;
    let first = (start..).find(|first| (*first..first + 3).all(is_free)).unwrap();
    let given = |config: &mut Config| config.ports = Some(first..=first + 2);
    world_with(3, given, |comm| {
        every_collective(&comm, 100);
        // All three have connected and still listen.
        comm.barrier().unwrap();
        assert!((first..first + 3).all(|port| !is_free(port)));
        comm.barrier().unwrap();
    });
}

#[test]
fn ranks_meet_in_a_store_of_the_caller() {
    let folder = std::env::temp_dir().join(format!("comm-store-{}", std::process::id()));
    for ranks in [1, 3] {
        each(ranks, |rank| {
            let store = comm::tcp::FileStore::open(folder.join(ranks.to_string())).unwrap();
            let mut config = Config::options_from_env(Membership { rank, size: ranks }).unwrap();
            config.rendezvous_timeout = Duration::from_secs(60);
            every_collective(&comm::init_over(Arc::new(store), &config).unwrap(), 100);
        });
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
