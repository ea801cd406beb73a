//! Rendezvous and channels, with one thread per rank.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::IoSlice;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{SOON, WORLD, config, rendezvous, rings, world};
use comm_core::{ChannelId, ChannelKind, Error, Fabric, GroupId, Refusal, Result, Store, Transport};
use comm_shm::{HostId, RendezvousConfig, SharedMemoryEndpoint, SharedMemoryFabric, SharedMemoryTransport};
use comm_sim::AlteredStore;
use comm_sim::conformance::introduce;

fn open(fabric: &SharedMemoryFabric, channel: ChannelId) -> Result<SharedMemoryTransport> {
    fabric.open(channel, Instant::now() + SOON)
}

#[test]
fn worlds_of_many_sizes_meet_and_open_channels() {
    for n in [1, 2, 3, 5, 8, 13] {
        comm_sim::run_each(world(n, 4096), |fabric| {
            for kind in [ChannelKind::Control, ChannelKind::Collective] {
                introduce(&mut open(&fabric, ChannelId { kind, ..WORLD }).unwrap()).unwrap();
            }
            let here = HostId::of_this_process().unwrap();
            assert!(fabric.obstacle().is_none());
            assert_eq!(fabric.hosts(), vec![Some(here); if n == 1 { 0 } else { n }]);
            let neighbours = (0..n + 1).filter(|rank| fabric.is_neighbour(*rank));
            assert_eq!(neighbours.collect::<Vec<_>>(), fabric.group().peers().collect::<Vec<_>>());
        });
    }
}

/// All of it is sent in one call, although the ring is smaller.
#[test]
fn staged_memory_is_read_in_place_and_other_memory_copied() {
    let done = Barrier::new(3);
    comm_sim::run_each(world(3, 4096), |fabric| {
        let staged_from = fabric.links().staged_from.unwrap();
        let mut transport = open(&fabric, WORLD).unwrap();
        introduce(&mut transport).unwrap();
        if fabric.group().rank() == 0 {
            let mut staged = fabric.shared_buffer(100_000).unwrap();
            staged.bytes_mut().iter_mut().zip(0..).for_each(|(byte, at)| *byte = (at % 251) as u8);
            let until = [1, 2].map(|to| (to, transport.released(to) + 100_000));
            for (to, _) in until {
                let sent = transport.try_send(to, &[IoSlice::new(&staged.bytes()[..100_000])]).unwrap();
                assert_eq!(sent, 100_000);
            }
            let deadline = Instant::now() + SOON;
            while until.iter().any(|(to, until)| transport.released(*to) < *until) {
                assert!(Instant::now() < deadline);
                thread::yield_now();
            }
            // Smaller pieces and other memory go through the ring.
            for (memory, sent) in [(&staged.bytes()[..staged_from - 1], 4096), (&[0; 9000][..], 0)] {
                assert_eq!(transport.try_send(1, &[IoSlice::new(memory)]).unwrap(), sent);
            }
        } else {
            let (mut received, mut done) = (vec![0; 100_000], 0);
            while done < received.len() {
                done += transport.try_recv(0, &mut received[done..]).unwrap();
            }
            assert!(received.iter().zip(0..).all(|(byte, at)| *byte == (at % 251) as u8));
        }
        // No rank leaves before rank 0 has sent.
        done.wait();
    });
}

#[test]
fn nothing_is_staged_without_neighbours_or_regions() {
    let alone = world(1, 4096).remove(0);
    assert!(alone.shared_buffer(1000).is_none());
    let configs = (0..2).map(|rank| {
        let mut config = config(rank, 2, 4096);
        config.shm.zero_copy_bytes = usize::MAX;
        config
    });
    for fabric in rendezvous(configs.collect()) {
        let fabric = fabric.unwrap();
        assert!(fabric.shared_buffer(1000).is_none() && fabric.links().staged_from.is_none());
    }
}

/// The rank that creates a segment determines its size.
#[test]
fn ranks_with_rings_of_different_sizes_connect() {
    let configs = (0..3).map(|rank| config(rank, 3, 4096 << rank)).collect();
    let fabric = rendezvous(configs).into_iter().map(Result::unwrap).collect();
    comm_sim::run_each(fabric, |fabric: SharedMemoryFabric| {
        introduce(&mut open(&fabric, WORLD).unwrap()).unwrap()
    });
}

#[test]
fn a_setting_that_cannot_be_used_is_refused() {
    let mut wrong = config(0, 1, 4096);
    wrong.shm = rings(5000);
    let error = rendezvous(vec![wrong]).remove(0).unwrap_err();
    assert!(error.to_string().contains("ring_bytes") && !error.is_fatal(), "{error}");
}

#[test]
fn one_of_two_processes_with_the_same_rank_is_refused() {
    let (_folder, store) = crate::common::store();
    let rendezvous = &|rank| SharedMemoryFabric::rendezvous(&store, &config(rank, 2, 4096)).map(drop);
    thread::scope(|scope| {
        let rivals = [(); 2].map(|()| scope.spawn(move || rendezvous(1)));
        while !rivals.iter().any(|rival| rival.is_finished()) {
            thread::yield_now();
        }
        // The other one still waits for rank 0.
        rendezvous(0).unwrap();
        let outcomes = rivals.map(|rival| rival.join().unwrap());
        let refused = |outcome: &&Result<()>| {
            matches!(outcome, Err(Error::Handshake { refusal: Refusal::DuplicateRank { rank: 1 }, .. }))
        };
        assert_eq!(outcomes.iter().filter(refused).count(), 1, "{outcomes:?}");
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    });
}

#[test]
fn ranks_that_disagree_on_the_size_of_the_world_are_refused() {
    for outcome in rendezvous(vec![config(0, 3, 4096), config(1, 2, 4096)]) {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Handshake { refusal: Refusal::WorldSize { .. }, .. }), "{error}");
    }
}

#[test]
fn ranks_that_do_not_connect_are_named() {
    let mut configs = [0, 2].map(|rank| config(rank, 5, 4096));
    configs.iter_mut().for_each(|config| config.member.timeout = Duration::from_millis(200));
    for outcome in rendezvous(configs.into()) {
        match outcome {
            Err(Error::Timeout { waiting_for, .. }) => assert_eq!(waiting_for, [1, 3, 4]),
            other => panic!("{other:?}"),
        }
    }
}

/// Alters the records in a store so that two of the ranks claim to be on another host.
fn move_host(key: &str, value: Vec<u8>) -> Vec<u8> {
    let host = HostId::of_this_process().unwrap().to_string();
    let text = String::from_utf8(value).unwrap();
    let elsewhere = key.ends_with("/1") || key.ends_with("/3");
    if elsewhere { text.replace(&host, &host.replace('.', ".9")) } else { text }.into_bytes()
}

/// Runs a rendezvous of four ranks, and returns the outcomes of the two on this host.
fn with_two_elsewhere<T: Send>(
    rendezvous: impl Fn(&dyn Store, &RendezvousConfig) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let (_folder, store) = crate::common::store();
    let store = AlteredStore { store, value: move_host };
    thread::scope(|scope| {
        let (store, rendezvous) = (&store, &rendezvous);
        let start = |rank| scope.spawn(move || rendezvous(store, &config(rank, 4, 4096)));
        let ranks: Vec<_> = (0..4).map(start).collect();
        let outcomes: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        outcomes.into_iter().step_by(2).collect()
    })
}

#[test]
fn ranks_on_other_hosts_are_named() {
    for outcome in with_two_elsewhere(|store, config| SharedMemoryFabric::rendezvous(store, config)) {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains("ranks 1 and 3 cannot share memory"), "{error}");
        match error {
            Error::Handshake { refusal: Refusal::OtherHost { ranks }, .. } => assert_eq!(ranks, [1, 3]),
            other => panic!("{other:?}"),
        }
    }
}

/// Ranks that share a host can open channels without the others, as a hybrid transport does.
#[test]
fn neighbours_can_connect_without_other_hosts() {
    let outcomes = with_two_elsewhere(|store, config| {
        let (_, fabric) =
            comm_rendezvous::connect(store, config.member.clone(), SharedMemoryEndpoint::open(config))?;
        let rank = fabric.group().rank();
        if rank % 2 == 1 {
            return Ok(());
        }
        assert_eq!((0..4).filter(|rank| fabric.is_neighbour(*rank)).collect::<Vec<_>>(), [2 - rank]);
        let mut channel = open(&fabric, WORLD)?;
        assert_eq!(channel.group().size(), 4);
        assert_eq!(channel.try_send(2 - rank, &[IoSlice::new(&[rank as u8])])?, 1);
        let mut byte = [9];
        while channel.try_recv(2 - rank, &mut byte)? == 0 {}
        assert_eq!(usize::from(byte[0]), 2 - rank);
        assert!(matches!(channel.try_send(1, &[IoSlice::new(&[1])]), Err(Error::Invalid(_))));
        assert!(matches!(channel.try_recv(3, &mut byte), Err(Error::Invalid(_))));
        Ok(())
    });
    outcomes.into_iter().for_each(Result::unwrap);
}

/// A rank whose attempt to open a channel timed out can open it later.
#[test]
fn a_channel_can_be_opened_after_an_attempt_that_timed_out() {
    let barrier = Barrier::new(2);
    comm_sim::run_each(world(2, 4096), |fabric| {
        let rank = fabric.group().rank();
        for early in [0, 1] {
            let channel = ChannelId { group: GroupId(early as u64), kind: ChannelKind::Collective };
            if rank == early {
                let error = fabric.open(channel, Instant::now() + Duration::from_millis(50)).unwrap_err();
                assert!(matches!(error, Error::Timeout { waiting_for, .. } if waiting_for == [1 - rank]));
            }
            barrier.wait();
            introduce(&mut open(&fabric, channel).unwrap()).unwrap();
        }
        barrier.wait();
    });
}

#[test]
fn a_rank_whose_listener_is_closed_is_lost_immediately() {
    let mut fabric = world(2, 4096);
    let above = fabric.pop().unwrap();
    drop(fabric);
    let began = Instant::now();
    let error = open(&above, WORLD).unwrap_err();
    assert!(matches!(error, Error::PeerLost { peer: 0, .. }), "{error}");
    assert!(began.elapsed() < SOON / 2);
}

#[test]
fn a_started_program_inherits_nothing() {
    let fabric = world(2, 4096);
    let opened = comm_sim::run_each(fabric, |fabric| {
        let transport = open(&fabric, WORLD).unwrap();
        (fabric, transport)
    });
    let listed = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for ours in ["memfd", "eventpoll", "eventfd"] {
        assert!(!listed.contains(ours), "{listed}");
    }
    drop(opened);
}

#[test]
fn other_connections_disturb_no_rank() {
    let fabric = world(2, 4096);
    let names = std::fs::read_to_string("/proc/net/unix").unwrap();
    let listeners: Vec<&str> =
        names.lines().filter_map(|line| line.split_once("@comm-shm-")).map(|at| at.1).collect();
    let mut connections = Vec::new();
    for name in listeners {
        // Other tests of this process have listeners too.
        for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0x93; 72], &[0; 1000]] {
            connections.extend(send_to(name, bytes));
        }
    }
    assert!(connections.len() >= 8, "no rank listens");
    comm_sim::run_each(fabric, |fabric| introduce(&mut open(&fabric, WORLD).unwrap()).unwrap());
}

fn send_to(name: &str, bytes: &[u8]) -> Option<std::os::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, socket};
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(format!("comm-shm-{name}").as_bytes()).unwrap();
    connect(&socket, &address).ok()?;
    send(&socket, bytes, SendFlags::NOSIGNAL).ok()?;
    Some(socket)
}
