//! Ranks as threads that meet in a store over real sockets.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests; not every file uses every one")]

use std::io::IoSlice;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Armed, ChannelId, ChannelKind, Fabric, GroupId, Interest, Membership, Result, Transport};
use comm_tcp::{RendezvousConfig, StoreConfig, TcpFabric, TcpStore, TcpStoreServer, TcpTransport};

pub(crate) const SOON: Duration = Duration::from_secs(20);
pub(crate) const WORLD: ChannelId = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };

pub(crate) fn store() -> (TcpStoreServer, TcpStore) {
    store_at("127.0.0.1:0").unwrap()
}

pub(crate) fn store_at(address: &str) -> Result<(TcpStoreServer, TcpStore)> {
    let server = TcpStoreServer::bind(address.parse().unwrap(), StoreConfig::default())?;
    let client = TcpStore::connect(server.local_addr(), StoreConfig::default(), SOON)?;
    Ok((server, client))
}

pub(crate) fn config(rank: usize, world_size: usize) -> RendezvousConfig {
    let mut config = RendezvousConfig::new(Membership { rank, size: world_size });
    config.member.timeout = SOON;
    config
}

/// Runs every configuration in a thread of its own, and returns what became of each in their order.
pub(crate) fn run<T: Send>(
    configs: Vec<RendezvousConfig>,
    store: &TcpStore,
    then: impl Fn(TcpFabric) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    thread::scope(|scope| {
        let ranks: Vec<_> = configs
            .into_iter()
            .map(|config| {
                let then = &then;
                scope.spawn(move || TcpFabric::rendezvous(store, &config).and_then(then))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

pub(crate) fn meet(configs: Vec<RendezvousConfig>, store: &TcpStore) -> Vec<Result<TcpFabric>> {
    run(configs, store, Ok)
}

pub(crate) fn open(fabric: &TcpFabric, channel: ChannelId) -> Result<TcpTransport> {
    fabric.open(channel, Instant::now() + SOON)
}

pub(crate) fn send(transport: &mut TcpTransport, to: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let sent = transport.try_send(to, &[IoSlice::new(bytes)]).unwrap();
        bytes = &bytes[sent..];
    }
}

pub(crate) fn recv(transport: &mut TcpTransport, from: usize, len: usize) -> Result<Vec<u8>> {
    let (mut bytes, mut filled) = (vec![0; len], 0);
    let limit = Instant::now() + SOON;
    while filled < len {
        filled += transport.try_recv(from, &mut bytes[filled..])?;
        assert!(Instant::now() < limit, "{filled} of {len} bytes came from rank {from}");
    }
    Ok(bytes)
}

/// Everybody tells everybody who it is.
pub(crate) fn introduce(transport: &mut TcpTransport) {
    comm_sim::conformance::introduce(transport).unwrap();
}

/// The bytes from one rank to another.
fn pattern(from: usize, to: usize, len: usize) -> Vec<u8> {
    let seed = (from * 31 + to * 7 + 1) as u64;
    (0..len as u64).map(|i| (i.wrapping_mul(seed) ^ (i >> 9)) as u8).collect()
}

/// Sends to and receives from everybody at once, sleeping when nothing moves.
pub(crate) fn exchange(transport: &mut TcpTransport, len: usize) -> Result<()> {
    let group = transport.group();
    let rank = group.rank();
    let outgoing: Vec<_> = (0..group.size()).map(|peer| pattern(rank, peer, len)).collect();
    let mut incoming: Vec<_> = (0..group.size()).map(|_| vec![0; len]).collect();
    let (mut sent, mut received) = (vec![0; group.size()], vec![0; group.size()]);
    let mut interest = Interest::default();
    loop {
        let mut moved = 0;
        interest.clear();
        for peer in group.peers() {
            if sent[peer] < len {
                let (first, second) = outgoing[peer][sent[peer]..].split_at((len - sent[peer]).min(24));
                let more = transport.try_send(peer, &[IoSlice::new(first), IoSlice::new(second)])?;
                sent[peer] += more;
                moved += more;
                interest.add_send(peer);
            }
            if received[peer] < len {
                let more = transport.try_recv(peer, &mut incoming[peer][received[peer]..])?;
                received[peer] += more;
                moved += more;
                interest.add_recv(peer);
            }
        }
        if interest.recv().is_empty() && interest.send().is_empty() {
            break;
        }
        if moved == 0 && transport.arm(&interest)? == Armed::Sleep {
            let polled =
                rustix::event::PollFd::from_borrowed_fd(transport.descriptor(), rustix::event::PollFlags::IN);
            let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(
                rustix::event::poll(&mut [polled], Some(&limit)).unwrap(),
                1,
                "nobody wakes the sleeper"
            );
        }
    }
    for peer in group.peers() {
        assert!(incoming[peer] == pattern(peer, rank, len), "rank {peer} sent something else");
        assert_eq!(transport.released(peer), len as u64);
    }
    Ok(())
}
