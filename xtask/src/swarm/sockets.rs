//! The program of a run whose processes use the transport and the store over sockets.
//!
//! The sockets are simulated, and all else is as in reality: the server of the store and its
//! protocol, handshakes, the frames that carry checksums or codes of authentication, streams of
//! several sockets, and connections made on demand.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use comm_core::Result;
use comm_rendezvous::{Member, Rendezvous};
use comm_sim::network::{self, NetworkFabric};
use comm_sim::swarm::{Changes, FaultKind, Knobs, SwarmRank};
use comm_tcp::{RendezvousConfig, Secret, StoreConfig, TcpConfig, TcpFabric, TcpStore, TcpStoreServer};

use super::elastic::connector::{Medium, Met};
use super::elastic::run_over;

/// The streams of random numbers.
const SERVER: u64 = 2;
const SETTINGS: u64 = 4;

/// The address of the store, which whatever process serves it has.
const STORE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 255, 255, 254)), 29_500);
/// The interval at which the process that serves the store looks for others.
const LOOK: Duration = Duration::from_millis(50);

/// The faults that can happen to sockets.
const FAULTS: [FaultKind; 10] = [
    FaultKind::HalfOpen,
    FaultKind::ClockJump,
    FaultKind::Death,
    FaultKind::Vanish,
    FaultKind::Reset,
    FaultKind::Partition,
    FaultKind::Stop,
    FaultKind::Slow,
    FaultKind::Corruption,
    FaultKind::Duplication,
];

/// Returns the limits of the runs.
pub(super) fn knobs() -> Knobs {
    Knobs::default().ranks(2..=5).faults(FAULTS.to_vec()).steps(3..=8).changes(Changes::Always)
}

/// Runs the program on one process. In half of the runs the last process serves the store, as a
/// launcher does, and otherwise rank 0 of the group.
pub(super) fn run(fabric: NetworkFabric, rank: &SwarmRank<'_>) -> Result<()> {
    drop(fabric);
    let last = rank.plan().ranks - 1;
    if rank.random(SERVER).is_multiple_of(2) {
        return run_over::<Sockets<'_>>(rank, None, true);
    }
    if rank.number() < last {
        return run_over::<Sockets<'_>>(rank, Some(last), false);
    }
    let server = TcpStoreServer::bind(STORE, Settings::draw(rank).store(LOOK))?;
    while !rank.clock().is_last() && !rank.clock().is_dead() {
        rank.clock().sleep(LOOK);
    }
    drop(server);
    Ok(())
}

/// The settings of all processes.
#[derive(Debug)]
struct Settings {
    secret: Option<Secret>,
    tcp: TcpConfig,
}

impl Settings {
    fn draw(rank: &SwarmRank<'_>) -> Self {
        let random = rank.random(SETTINGS);
        let choose = |shift: u32, values: [usize; 4]| values[(random >> shift) as usize % 4];
        // Without a secret or checksums, nothing detects that bytes have changed.
        let has_secret = rank.plan().network.checksums && random.is_multiple_of(2);
        let secret = has_secret.then(|| Secret::new(random.to_ne_bytes().repeat(2)));
        let secret = secret.and_then(Result::ok);
        let mut tcp = TcpConfig::default();
        tcp.checksums = rank.plan().network.checksums && !has_secret;
        tcp.sockets_per_peer = Some(choose(1, [1, 1, 2, 4]));
        tcp.stripe_bytes = choose(3, [100, 1000, 16 << 10, 256 << 10]);
        tcp.full_mesh_max = choose(5, [1, 2, 16, 16]);
        Self { secret, tcp }
    }

    /// Returns the settings of the store, with a time limit for its operations.
    fn store(&self, timeout: Duration) -> StoreConfig {
        let mut config = StoreConfig::job(0).secret(self.secret.clone());
        config.checksums = self.tcp.checksums;
        config.operation_timeout = timeout;
        config
    }
}

/// The sockets of a process.
#[derive(Debug)]
struct Sockets<'a> {
    rank: &'a SwarmRank<'a>,
    settings: Settings,
    server: Option<TcpStoreServer>,
}

impl<'a> Medium<'a> for Sockets<'a> {
    type Store = TcpStore;
    type Fabric = TcpFabric;

    fn new(rank: &'a SwarmRank<'a>, _is_served: bool) -> Self {
        Self { rank, settings: Settings::draw(rank), server: None }
    }

    fn serve_store(&mut self, timeout: Duration) -> Result<TcpStore> {
        self.server = Some(TcpStoreServer::bind(STORE, self.settings.store(timeout))?);
        self.connect_store(timeout)
    }

    fn connect_store(&self, timeout: Duration) -> Result<TcpStore> {
        TcpStore::connect(STORE, self.settings.store(timeout), timeout)
    }

    fn join<'s>(&self, store: &'s TcpStore, member: Member) -> Result<(Rendezvous<'s>, (TcpFabric, Met))> {
        let mut config = RendezvousConfig::from(member);
        config.secret.clone_from(&self.settings.secret);
        config.tcp = self.settings.tcp.clone();
        config.bind = Some(self.rank.clock().address());
        let (rendezvous, fabric) = TcpFabric::join(store, &config)?;
        let addresses = fabric.addresses();
        let processes = addresses.iter().filter_map(|address| network::rank_at(address.ip())).collect();
        let records: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let met = Met::new(records.iter().map(String::as_str), processes);
        Ok((rendezvous, (fabric, met)))
    }
}

#[cfg(test)]
mod tests;
