//! The rendezvous of ranks: the transports that it selects, and its failures.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::IoSlice;
use std::time::{Duration, Instant};

use crate::common::{SOON, WORLD, config, open, rendezvous, rendezvous_in, spreads, store, world};
use comm_core::{
    Armed, ChannelId, ChannelKind, Error, Fabric, Interest, LinkModel, Refusal, Result, Transport,
};
use comm_hybrid::{HybridFabric, HybridTransport, Path};
use comm_sim::AlteredStore;
use comm_sim::conformance::introduce;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Checks that every member receives from every other, and from no other rank.
fn try_out(transport: &mut HybridTransport) {
    introduce(transport).unwrap();
    let group = transport.group();
    assert!(group.peers().all(|peer| transport.released(peer) == 2));
    assert!(matches!(transport.try_send(group.rank(), &[IoSlice::new(&[0])]), Err(Error::Invalid(_))));
    assert!(matches!(transport.try_recv(group.size(), &mut [0]), Err(Error::Invalid(_))));
}

#[test]
fn ranks_however_spread_meet_and_open_channels() {
    for n in 1..=9 {
        for hosts in spreads(n) {
            comm_sim::run_each(world(&hosts), |fabric| {
                for kind in [ChannelKind::Control, ChannelKind::Collective, ChannelKind::PointToPoint] {
                    try_out(&mut open(&fabric, ChannelId { kind, ..WORLD }).unwrap());
                }
                let rank = fabric.group().rank();
                let host = |at: usize| hosts.as_bytes()[at];
                for peer in fabric.group().peers() {
                    let path = if host(peer) == host(rank) { Path::SharedMemory } else { Path::Tcp };
                    assert_eq!(fabric.paths().to(peer), Some(path), "{hosts}: {rank} to {peer}");
                }
                assert!(fabric.obstacle().is_none());
            });
        }
    }
}

/// Launchers bind each rank to its own cores. Ranks that knew no others would choose algorithms for
/// ranks that share a processor.
#[test]
fn ranks_that_are_bound_to_processors_know_those_of_their_host() {
    let all = sched_getaffinity(None).unwrap();
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor)).collect();
    for hosts in ["aa", "aabb"] {
        let (_server, store) = store();
        let bound = |rank: usize| {
            let mut only = CpuSet::new();
            only.set(all[rank % all.len()]);
            sched_setaffinity(None, &only).unwrap();
            let config = config(rank, hosts.len(), &hosts[rank..=rank]);
            HybridFabric::rendezvous(&store, &config).unwrap().links().processors
        };
        let found = comm_sim::run_each((0..hosts.len()).collect(), bound);
        assert_eq!(found, vec![all.len().min(hosts.len()); hosts.len()], "{hosts}");
    }
}

/// Returns the number of TCP sockets of this process.
fn tcp_sockets() -> usize {
    let targets = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        std::fs::read_link(entry.unwrap().path()).ok().map(|target| target.display().to_string())
    });
    let targets: Vec<String> = targets.collect();
    let tables =
        ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap());
    let is_tcp = |target: &&String| {
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.is_some_and(|inode| {
            tables
                .iter()
                .flat_map(|table| table.lines())
                .any(|line| line.split_whitespace().nth(9) == Some(inode))
        })
    };
    targets.iter().filter(is_tcp).count()
}

/// Runs a part in a separate process, in which no other thread opens channels.
fn alone(part: &str) {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args([part, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .status()
        .unwrap();
    assert!(status.success(), "{part}");
}

#[test]
fn a_channel_opens_nothing_that_its_members_do_not_need() {
    alone("fabric::count_descriptors");
}

#[test]
#[ignore = "started by another test"]
fn count_descriptors() {
    for (hosts, tcp, uses_memory) in [("a", 0, false), ("aaa", 0, true), ("abc", 3 + 6, false)] {
        let fabric = world(hosts);
        let barrier = std::sync::Barrier::new(hosts.len());
        let opened = comm_sim::run_each(fabric, |fabric| {
            let channel = open(&fabric, WORLD).unwrap();
            barrier.wait();
            (fabric, channel)
        });
        assert_eq!(tcp_sockets(), tcp, "{hosts}");
        let mapped = std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:");
        assert_eq!(mapped, uses_memory, "{hosts}");
        drop(opened);
    }
}

#[test]
fn links_tell_hosts_that_hold_equal_runs_of_ranks() {
    for (hosts, ranks_per_host) in [("a", 1), ("aaaa", 4), ("aabb", 2), ("aabbc", 2), ("abab", 1), ("abb", 1)]
    {
        let all = world(hosts);
        let links: Vec<LinkModel> = all.iter().map(Fabric::links).collect();
        for links in &links {
            assert_eq!(links, &LinkModel { ranks_per_host, ..*links }, "{hosts}");
            assert!(links.is_sound());
        }
        let mixed = all[0].paths().any(Path::Tcp) && all[0].paths().any(Path::SharedMemory);
        assert_eq!(links[0].within.latency < links[0].between.latency, mixed, "{hosts}");
        assert!(links.iter().all(|other| *other == links[0]), "{hosts}");
    }
}

#[test]
fn ranks_that_do_not_arrive_are_named() {
    let mut configs = [(0, "a"), (2, "b")].map(|(rank, host)| config(rank, 5, host));
    configs.iter_mut().for_each(|config| config.tcp.member.timeout = Duration::from_millis(200));
    for outcome in rendezvous(configs.into()) {
        match outcome {
            Err(Error::Timeout { waiting_for, .. }) => assert_eq!(waiting_for, [1, 3, 4]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ranks_that_disagree_on_the_size_of_the_world_are_refused() {
    for hosts in ["aa", "ab"] {
        let host = |rank: usize| &hosts[rank..=rank];
        for outcome in rendezvous(vec![config(0, 3, host(0)), config(1, 2, host(1))]) {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Handshake { refusal: Refusal::WorldSize { .. }, .. }), "{error}");
        }
    }
}

#[test]
fn one_of_two_processes_with_the_same_rank_is_refused() {
    let (_server, store) = store();
    std::thread::scope(|scope| {
        let (store, rank) = (&store, |rank, host: &str| config(rank, 2, host));
        let rivals = ["b", "c"].map(|host| {
            let config = rank(1, host);
            scope.spawn(move || HybridFabric::rendezvous(store, &config).map(drop))
        });
        while !rivals.iter().any(|rival| rival.is_finished()) {
            std::thread::yield_now();
        }
        // The other one is still there for rank 0.
        HybridFabric::rendezvous(store, &rank(0, "a")).unwrap();
        let outcomes = rivals.map(|rival| rival.join().unwrap());
        let refused = |outcome: &&Result<()>| {
            matches!(outcome, Err(Error::Handshake { refusal: Refusal::DuplicateRank { rank: 1 }, .. }))
        };
        assert_eq!(outcomes.iter().filter(refused).count(), 1, "{outcomes:?}");
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    });
}

/// At the deadline, missing ranks are named, and not the ranks that wait for them.
#[test]
fn a_rank_that_opens_no_channel_is_named_on_either_side() {
    for (hosts, missing) in [("aabb", 1), ("aabb", 2), ("abab", 3), ("abbb", 0)] {
        // All ranks stay until the last one has timed out.
        let outcomes = comm_sim::run_each(world(hosts), |fabric| {
            let deadline = Instant::now() + Duration::from_millis(500);
            let opens = fabric.group().rank() != missing;
            let opened = opens.then(|| fabric.open(WORLD, deadline).map(drop));
            (fabric, opened)
        });
        for (_, opened) in outcomes {
            match opened {
                None => {}
                Some(Err(Error::Timeout { waiting_for, .. })) => {
                    assert_eq!(waiting_for, [missing], "{hosts}")
                }
                Some(other) => panic!("{other:?}"),
            }
        }
    }
}

/// The death of a rank is detected while others are still awaited on the other transport, which may
/// take long.
#[test]
fn a_rank_that_left_is_reported_before_others_have_arrived() {
    // Rank 1, to which rank 2 must connect, has exited; ranks 0 and 3 are alive, but never connect.
    for hosts in ["baab", "bbaa", "aaba"] {
        let mut all = world(hosts);
        drop(all.remove(1));
        let began = Instant::now();
        let opened = all[1].open(WORLD, began + SOON).map(drop);
        // Another test may listen at its port by now.
        let is_named = match &opened {
            Err(Error::PeerLost { peer, .. }) => *peer == 1,
            Err(Error::Handshake { with, .. }) => with.starts_with("rank 1 "),
            _ => false,
        };
        assert!(is_named, "{hosts}: {opened:?}");
        assert!(began.elapsed() < SOON / 2, "{hosts}: {:?}", began.elapsed());
    }
}

#[test]
fn a_rank_without_shared_memory_is_reached_over_tcp() {
    for without in 0..4 {
        let (_server, store) = store();
        // Its entry states that it cannot share memory.
        let own = format!("/records/{without}");
        let value = |key: &str, value: Vec<u8>| match value.iter().position(|byte| *byte == b'\t') {
            Some(tcp) if key.ends_with(&own) => [b"13 -", &value[tcp..]].concat(),
            _ => value,
        };
        let store = AlteredStore { store, value };
        let all = rendezvous_in(&store, (0..4).map(|rank| config(rank, 4, "a")).collect());
        comm_sim::run_each(all.into_iter().map(Result::unwrap).collect(), |fabric| {
            let rank = fabric.group().rank();
            for peer in fabric.group().peers() {
                let tcp = rank == without || peer == without;
                let path = if tcp { Path::Tcp } else { Path::SharedMemory };
                assert_eq!(fabric.paths().to(peer), Some(path));
            }
            try_out(&mut open(&fabric, WORLD).unwrap());
        });
    }
}

/// All ranks name a rank that cannot listen, if a rank on another host needs it.
#[test]
fn a_rank_that_cannot_be_reached_over_tcp_is_named_if_a_rank_needs_that() {
    for (hosts, is_needed) in [("aaa", false), ("aab", true)] {
        let mut configs: Vec<_> =
            hosts.chars().enumerate().map(|(rank, host)| config(rank, 3, &host.to_string())).collect();
        configs[1].tcp.interface = Some("=none".into());
        for (rank, fabric) in rendezvous(configs).into_iter().enumerate() {
            match fabric {
                Ok(_) => assert!(!is_needed, "rank {rank}"),
                Err(Error::Aborted { by: 1, reason }) => {
                    assert!(is_needed && rank != 1 && reason.contains("none"), "rank {rank}: {reason}");
                }
                Err(error) => {
                    assert!(is_needed && rank == 1 && error.to_string().contains("none"), "{error}");
                }
            }
        }
    }
}

/// Sleeps like a communicator, until something in the interest may make progress.
fn sleep(channel: &mut HybridTransport, interest: &Interest) -> Result<()> {
    if channel.arm(interest)? == Armed::Sleep {
        let descriptor = channel.descriptor();
        let timeout = Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(
            poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)),
            Ok(1),
            "a wakeup was missed"
        );
    }
    Ok(())
}

/// An abort by another thread wakes a rank that waits on either transport, and ends both.
#[test]
fn an_abort_ends_both_communicators_with_the_first_cause() {
    let mut all = comm_sim::run_each(world("aab"), |fabric| (open(&fabric, WORLD).unwrap(), fabric));
    let (channel, _) = &mut all[0];
    let cause = |reason: &str| Error::Aborted { by: 0, reason: reason.into() };
    let (handle, second) = (channel.abort_handle(), channel.abort_handle());
    let end = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            handle.abort(cause("first"));
        });
        let mut interest = Interest::default();
        [1, 2].into_iter().for_each(|peer| interest.add_recv(peer));
        loop {
            if let Err(end) = sleep(channel, &interest) {
                break end;
            }
        }
    });
    assert!(end.to_string().contains("first"), "{end}");
    second.abort(cause("second"));
    for peer in [1, 2] {
        let ends = [
            channel.try_send(peer, &[IoSlice::new(&[1])]).unwrap_err(),
            channel.try_recv(peer, &mut [0]).unwrap_err(),
            channel.fill_buf(peer, 1).map(drop).unwrap_err(),
            channel.consume(peer, 0).unwrap_err(),
            channel.arm(&Interest::default()).unwrap_err(),
        ];
        assert!(ends.iter().all(|end| end.to_string().contains("first")), "{ends:?}");
    }
}
