//! Descriptors, mappings and names do not leak. This is a separate test binary with a single test,
//! because descriptors and mappings belong to the process.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{ChannelId, ChannelKind, Fabric, Transport};
use comm_shm::SharedMemoryFabric;
use comm_tcp::FileStore;
use common::{SOON, WORLD, config, world, zero_copy_world};

const STORE: &str = "COMM_SHM_TEST_STORE";

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("comm-shm")).filter(|line| line.contains("memfd")).count()
}

/// Returns the inodes of the sockets of this process, because other processes may run the same
/// test.
fn own_sockets() -> BTreeSet<String> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
    let number = |link: PathBuf| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    links.filter_map(number).collect()
}

/// Returns the names of our objects that other processes can see.
fn names() -> BTreeSet<String> {
    let own = own_sockets();
    let is_own = |line: &&str| line.split_whitespace().nth(6).is_some_and(|number| own.contains(number));
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let sockets = sockets
        .lines()
        .filter(is_own)
        .filter_map(|line| line.split_once("@comm-shm"))
        .map(|name| name.1.to_owned());
    let files =
        ["/dev/shm", "/tmp"].into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let files = files.map(|file| file.unwrap().path().display().to_string());
    sockets.chain(files.filter(|path| path.contains("comm-shm"))).collect()
}

/// A rendezvous and channels that succeed, and one that fails.
fn live() {
    let control = ChannelId { kind: ChannelKind::Control, ..WORLD };
    comm_sim::run_each(world(3, 4096), |fabric| {
        let open = fabric.open(control, Instant::now() + SOON).unwrap();
        assert!(mappings() > 0 && !names().is_empty());
        if fabric.group().rank() != 2 {
            fabric.open(WORLD, Instant::now() + Duration::from_millis(50)).unwrap_err();
        }
        drop(open);
    });
}

/// Sends new regions in both directions; none stays mapped after it was dropped.
fn exchange_regions() {
    comm_sim::run_each(zero_copy_world(2, 4096, 1), |fabric| {
        let mut channel = fabric.open(WORLD, Instant::now() + SOON).unwrap();
        let peer = 1 - fabric.group().rank();
        for round in 1..=1000_u64 {
            let memory = fabric.allocate(5000).unwrap();
            assert_eq!(channel.try_send(peer, &[IoSlice::new(memory.bytes())]).unwrap(), 5000);
            let (mut into, mut received) = ([1; 5000], 0);
            let limit = Instant::now() + SOON;
            while received < 5000 || channel.released(peer) < 5000 * round {
                received += channel.try_recv(peer, &mut into[received..]).unwrap();
                assert!(Instant::now() < limit, "round {round}");
                thread::yield_now();
            }
            assert_eq!(into, [0; 5000]);
            // Two mappings of two segments and of the memory of this round and the last, from both
            // sides.
            assert!(mappings() < 50 && descriptors() < 50, "{} {}", mappings(), descriptors());
        }
    });
}

/// The process that the test starts: opens a channel, and waits to be killed.
fn child(store: &FileStore) {
    let fabric = SharedMemoryFabric::rendezvous(store, &config(1, 2, 4096)).unwrap();
    let _channel = fabric.open(WORLD, Instant::now() + SOON).unwrap();
    thread::sleep(SOON);
}

#[test]
fn no_end_of_a_process_leaks() {
    if let Some(store) = std::env::var_os(STORE) {
        return child(&FileStore::open(store).unwrap());
    }
    let before = (descriptors(), mappings(), names());
    (0..5).for_each(|_| live());
    exchange_regions();
    assert_eq!((descriptors(), mappings(), names()), before);
    for _ in 0..3 {
        let (_folder, store) = common::store();
        let mut other = Command::new(std::env::current_exe().unwrap())
            .args(["no_end_of_a_process_leaks", "--exact"])
            .env(STORE, store.folder())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        {
            let fabric = SharedMemoryFabric::rendezvous(&store, &config(0, 2, 4096)).unwrap();
            let channel = fabric.open(WORLD, Instant::now() + SOON).unwrap();
            assert!(mappings() > 0 && !names().is_empty());
            other.kill().unwrap();
            other.wait().unwrap();
            drop(channel);
        }
        assert_eq!((descriptors(), mappings(), names()), before);
    }
}
