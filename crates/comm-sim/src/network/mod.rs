//! A faulty network in virtual time, in one thread and reproducible from a seed.
//!
//! Ranks are state machines that are called in turn until none can continue; then
//! [`Network::advance`] moves the clock to the next event. If there is none, the ranks are
//! certainly deadlocked, so no timeout is needed to detect this. [`Network::drive`] is this loop.
//!
//! Ranks that block, as communicators do, are coroutines of [`run`], which runs one at a time, also
//! in virtual time and reproducibly. The [`Worker`](comm_core::Worker)s of a rank are threads.
//!
//! ```
//! use std::io::IoSlice;
//!
//! use comm_core::Transport;
//! use comm_sim::network::{FaultPlan, Network, Outcome, Turn};
//!
//! let (mut network, mut transports) = Network::new(2, 42, &FaultPlan::rough())?;
//! let (mut sent, mut received) = (0, 0);
//! let outcome = network.drive(2, |rank| {
//!     let transport = &mut transports[rank];
//!     let moved = match rank {
//!         0 => transport.try_send(1, &[IoSlice::new(&[7; 100][sent..])]),
//!         _ => transport.try_recv(0, &mut [0; 100][received..]),
//!     };
//!     let (done, moved) = (if rank == 0 { &mut sent } else { &mut received }, moved.unwrap());
//!     *done += moved;
//!     if *done == 100 { Turn::Done } else { Turn::of(moved > 0) }
//! });
//! assert_eq!(outcome, Outcome::Done);
//! # Ok::<(), comm_core::Error>(())
//! ```

mod channel;
mod coroutines;
mod fabric;
mod faults;
mod incident;
mod link;
mod simulation;
mod sockets;
mod store;
mod system;
mod thread_table;
mod transport;
mod turns;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comm_core::{ChannelKind, Group, GroupId, Membership, Result};

use crate::Release;
use crate::random::Random;
pub use fabric::{NetworkFabric, VirtualClock};
pub use incident::{Defect, Incident};
pub use simulation::{LogEntry, Simulation, run, simulate};
pub use sockets::rank_at;
pub use store::NetworkStore;
pub use transport::NetworkTransport;
pub use turns::now;
use world::World;

/// The behaviour of the network, and its faults.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultPlan {
    /// The minimum time in flight of every byte.
    pub latency: Duration,
    /// The longest additional random delay. Bytes never overtake each other.
    pub jitter: Duration,
    /// The bandwidth of a link.
    pub bytes_per_second: u64,
    /// The number of bytes that may be in flight or unread between a sender and a receiver.
    pub capacity: usize,
    /// Whether every call moves only a random part of the bytes that it could move, sometimes none.
    pub short: bool,
    /// The average number of sends between two stalls of a link, and their duration.
    pub stalls: Option<(usize, Duration)>,
    /// The time at which the sender's bytes count as released.
    pub release: Release,
    /// Whether receivers detect bytes that were changed or duplicated on the way.
    pub checksums: bool,
    /// The time after which a rank whose host does not answer is lost.
    pub keepalive: Duration,
    /// Whether two ranks are connected only when one of them first sends to the other or receives
    /// from it. Control channels connect each rank with those that it watches
    /// ([`Group::watches`](comm_core::Group::watches)) when they are opened.
    pub on_demand: bool,
    /// The faults, and their times after the start.
    pub incidents: Vec<(Duration, Incident)>,
    /// A defect of the network itself.
    pub defect: Option<Defect>,
}

/// The default of the transports over sockets.
const KEEPALIVE: Duration = Duration::from_secs(3);

impl FaultPlan {
    /// Creates the plan of a network that delivers everything promptly.
    #[must_use]
    pub const fn calm() -> Self {
        Self {
            latency: Duration::from_micros(10),
            jitter: Duration::ZERO,
            bytes_per_second: 10_000_000_000,
            capacity: 64 << 10,
            short: false,
            stalls: None,
            release: Release::OnAccept,
            checksums: true,
            keepalive: KEEPALIVE,
            on_demand: false,
            incidents: Vec::new(),
            defect: None,
        }
    }

    /// Creates the plan of a network that is slow and irregular, holds few bytes, and releases sent
    /// memory late. It loses nothing.
    #[must_use]
    pub const fn rough() -> Self {
        Self {
            latency: Duration::from_micros(50),
            jitter: Duration::from_micros(500),
            bytes_per_second: 10_000_000,
            capacity: 61,
            short: true,
            stalls: Some((20, Duration::from_millis(5))),
            release: Release::OnConsume,
            checksums: true,
            keepalive: KEEPALIVE,
            on_demand: false,
            incidents: Vec::new(),
            defect: None,
        }
    }

    comm_core::setters!(latency: Duration, jitter: Duration, bytes_per_second: u64, capacity: usize, short: bool);

    /// Returns the plan with links that stall for this time, on average once in `sends` sends.
    #[must_use]
    pub const fn stalls(mut self, sends: usize, duration: Duration) -> Self {
        self.stalls = Some((sends, duration));
        self
    }

    comm_core::setters!(release: Release, checksums: bool, keepalive: Duration, on_demand: bool);

    /// Returns the plan of a network with this defect.
    #[must_use]
    pub const fn defect(mut self, defect: Defect) -> Self {
        self.defect = Some(defect);
        self
    }

    /// Returns the plan with this additional fault.
    #[must_use]
    pub fn and(mut self, after: Duration, incident: Incident) -> Self {
        self.incidents.push((after, incident));
        self
    }
}

/// The network, which owns the clock.
#[derive(Debug)]
pub struct Network {
    world: SharedWorld,
    random: Random,
}

/// The result of a rank's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Something moved: the rank needs another turn before time passes.
    Moved,
    /// Nothing can move.
    Blocked,
    /// The rank has ended, with or without an error, and needs no more turns.
    Done,
}

impl Turn {
    /// Returns the turn of a rank that has not ended.
    #[must_use]
    pub const fn of(moved: bool) -> Self {
        if moved { Self::Moved } else { Self::Blocked }
    }
}

/// The outcome of [`Network::drive`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Every rank has ended or died.
    Done,
    /// These ranks wait for an event that will never happen.
    Deadlock(Vec<usize>),
}

/// The world, shared by its users.
#[derive(Debug, Clone)]
struct SharedWorld(Arc<Mutex<World>>);

impl SharedWorld {
    fn new(n: usize, seed: u64, plan: &FaultPlan) -> Self {
        Self(Arc::new(Mutex::new(World::new(n, seed, plan))))
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    /// Creates a network of `n` ranks, and their transports in rank order. All randomness depends
    /// only on the seed, and on the order of calls.
    ///
    /// # Errors
    /// [`Error::Io`](comm_core::Error::Io) if the process is out of descriptors.
    pub fn new(n: usize, seed: u64, plan: &FaultPlan) -> Result<(Self, Vec<NetworkTransport>)> {
        let world = SharedWorld::new(n, seed, plan);
        let channel = world.lock().add_channel((0..n).collect(), ChannelKind::Collective);
        let transport = |rank| {
            let group = Group::new(GroupId::WORLD, Membership { rank, size: n })?;
            NetworkTransport::new(group, world.clone(), channel, rank)
        };
        let transports = (0..n).map(transport).collect::<Result<_>>()?;
        Ok((Self { world, random: Random::new(seed, 1) }, transports))
    }

    /// Moves the clock to the next event. Returns false if there is none.
    pub fn advance(&mut self) -> bool {
        self.world.lock().advance(None)
    }

    /// Moves the clock by this time, and handles the events until then.
    pub fn advance_by(&mut self, time: Duration) {
        let mut world = self.world.lock();
        let until = world.now() + time;
        while world.advance(Some(until)) {}
    }

    /// Returns the time on the network's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.world.lock().instant()
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.world.lock().now()
    }

    /// Returns whether a rank has died. A dead rank's transport does nothing.
    #[must_use]
    pub fn is_dead(&self, rank: usize) -> bool {
        self.world.lock().is_dead(rank)
    }

    /// Gives turns to the ranks in random order, and advances the clock when none can continue,
    /// until all have ended.
    pub fn drive(&mut self, ranks: usize, mut turn: impl FnMut(usize) -> Turn) -> Outcome {
        let mut waiting: Vec<usize> = (0..ranks).collect();
        loop {
            let mut moved = false;
            let start = self.random.below(waiting.len());
            waiting.rotate_left(start);
            waiting.retain(|&rank| {
                let outcome = if self.is_dead(rank) { Turn::Done } else { turn(rank) };
                moved |= outcome != Turn::Blocked;
                outcome != Turn::Done
            });
            if waiting.is_empty() {
                return Outcome::Done;
            }
            if !moved && !self.advance() {
                waiting.sort_unstable();
                return Outcome::Deadlock(waiting);
            }
        }
    }
}
